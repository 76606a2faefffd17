"""Picks the strongest isolation that this machine offers."""

import logging

from openmle_gym.errors import ConfigError, RunnerUnavailable
from openmle_gym.isolation.bubblewrap import BubblewrapRunner
from openmle_gym.isolation.docker import DockerRunner
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.isolation.runner import Isolation, Runner
from openmle_gym.isolation.zygote import ZygoteRunner

logger = logging.getLogger(__name__)


async def strongest_runner(
    preferred: str = "auto",
    *,
    docker_image: str,
    docker_runtime: str | None = None,
    docker_starts: int = 0,
    allow_process: bool,
) -> Runner:
    """Returns a runner whose `check` has passed.

    Args:
        preferred: `auto` tries Docker, zygote, bubblewrap and, if allowed, the plain process, in this order; the name of
            one of them means that one and no other.
        docker_image: What Docker's runner needs on the engine.
        docker_runtime: See `DockerRunner`.
        docker_starts: See `DockerRunner`.
        allow_process: Consent to run programs without isolation.

    Raises:
        ConfigError: `preferred` is none of these, or is `process` without consent.
        RunnerUnavailable: None can be had; the message says of each why.
    """
    if preferred != "auto" and preferred not in tuple(Isolation):
        raise ConfigError(f"isolation: {preferred!r} is none of auto, {', '.join(Isolation)}")
    candidates: list[Runner] = []
    if preferred in ("auto", Isolation.DOCKER):
        candidates.append(DockerRunner(image=docker_image, runtime=docker_runtime, starts=docker_starts))
    if preferred in ("auto", Isolation.ZYGOTE):
        candidates.append(ZygoteRunner())
    if preferred in ("auto", Isolation.BUBBLEWRAP):
        candidates.append(BubblewrapRunner())
    if preferred == Isolation.PROCESS or (preferred == "auto" and allow_process):
        candidates.append(ProcessRunner(allow_no_isolation=allow_process))
    reasons: list[str] = []
    for candidate in candidates:
        try:
            await candidate.check()
        except RunnerUnavailable as error:
            logger.info("%s passed over: %s", candidate.isolation, error)
            reasons.append(str(error))
        else:
            return candidate
    if preferred == "auto" and not allow_process:
        reasons.append("process: not allowed, because it does not isolate")
    raise RunnerUnavailable("no isolation available: " + "; ".join(reasons))
