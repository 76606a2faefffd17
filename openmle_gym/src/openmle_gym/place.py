"""Where programs run: a sandbox service, or this machine."""

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

from openmle_gym.client import JobClient
from openmle_gym.configuration import secret_from_environment
from openmle_gym.execute import LocalExecutor
from openmle_gym.isolation.choose import strongest_runner
from openmle_gym.isolation.runner import Runner
from openmle_gym.jobs import Limits
from openmle_gym.submissions import SubmissionSource
from openmle_gym.task import TaskPackage

SUBMIT_KEY_VARIABLE = "OPENMLE_SANDBOX_KEY"

log = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where programs run."""

    executor: SubmissionSource
    isolation: str
    runner: Runner | None
    """On this machine; None at a service."""


@contextlib.asynccontextmanager
async def open_place(
    packages: Sequence[TaskPackage],
    *,
    service: str | None,
    runner: str,
    docker_image: str,
    allow_process: bool,
    limits: Limits,
    parallel: int,
) -> AsyncIterator[Place]:
    """The service, with the key for search from the environment; without its address, this machine.

    Args:
        packages: Of the tasks whose programs run.
        runner: `auto`, `docker`, `bubblewrap` or `process`.
        limits: What a program gets here; a service has its own.
        parallel: Programs that run here at once.

    Raises:
        InfrastructureError: The service cannot be reached, or no isolation can be had.
    """
    if service is not None:
        async with JobClient(service, api_key=secret_from_environment(SUBMIT_KEY_VARIABLE)) as client:
            yield Place(client, await client.isolation(), None)
        return
    chosen = await strongest_runner(runner, docker_image=docker_image, allow_process=allow_process)
    log.info("programs run on this machine, isolation: %s", chosen.isolation)
    root = Path(os.path.commonpath([str(package.root.parent) for package in packages]))
    yield Place(
        LocalExecutor(task_root=root, runner=chosen, limits=limits, parallel=parallel), chosen.isolation, chosen
    )
