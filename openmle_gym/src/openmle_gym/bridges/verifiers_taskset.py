"""Task packages as a taskset of the `verifiers` library (0.4): one prompt, one reply, one reward; needs that library.

    taskset = MLETaskset(MLETasksetConfig(packages=[...]))

The reply is judged on the validation half by `openmle_gym.bridges.episode.Episode`. Where the machinery fails the trace
has an error and no reward.
"""

import asyncio
import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

from openmle_gym.bridges.episode import Episode
from openmle_gym.jobs import Executor, JobRequest, JobResult, Limits
from openmle_gym.place import Place, open_place
from openmle_gym.task import load_package

__all__ = ["MLETaskset"]  # the one name by which verifiers finds a taskset in a module


class MLEData(vf.TaskData):
    """A task's prompt and where its package lies."""

    package: str


class MLETasksetConfig(vf.TasksetConfig):
    """Which packages, and where their programs run."""

    packages: list[Path] = []  # noqa: RUF012
    service: str | None = None
    """The address of a sandbox service, whose key is in OPENMLE_SANDBOX_KEY; without one, programs run here."""
    runner: str = "auto"
    """How they are held here; see `openmle_gym.isolation.choose.strongest_runner`."""
    docker_image: str = "openmle/sandbox:cpu"
    allow_process: bool = False
    """Consent to run them without isolation."""
    parallel: int = 1
    """Programs that run here at once."""
    limits: Limits = Limits()
    """What a program may use."""


class MLETask(vf.Task[MLEData, vf.State, vf.TaskConfig]):
    """Rewards the program in a reply."""

    def __init__(self, data: MLEData, config: vf.TaskConfig, *, executor: Executor, limits: Limits) -> None:
        super().__init__(data, config)
        self._executor = executor
        self._limits = limits

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copies share the executor, which holds connections and processes."""
        return copy.copy(self)

    @vf.reward
    async def standing(self, trace: Any) -> float:
        """See `openmle_gym.bridges.episode.reward`."""
        episode = Episode(
            self.data.package, executor=self._executor, attempts=1, limits=self._limits, run_id=f"verifiers-{trace.id}"
        )
        step = await episode.step(trace.last_reply)
        trace.record_metric("scored", float(step.card.valid))
        return step.reward


class MLETaskset(vf.Taskset[MLETask, MLETasksetConfig]):
    """The packages, in the order given."""

    def __init__(self, config: MLETasksetConfig, *, executor: Executor | None = None) -> None:
        """Args:
        executor: Runs the programs, in place of what the configuration says.
        """
        super().__init__(config)
        self._executor = executor or _Opened(config)

    def load(self) -> Iterator[MLETask]:
        """One task for each package."""
        for path in self.config.packages:
            package = load_package(path)
            episode = Episode(package, executor=self._executor, attempts=1, limits=self.config.limits)
            system, user = episode.prompt()
            data = MLEData(
                id=package.name,
                name=package.manifest.title or package.name,
                prompt=user.content,
                system_prompt=system.content,
                package=str(package.root),
            )
            yield MLETask(data, self.config.task, executor=self._executor, limits=self.config.limits)


class _Opened:
    """Runs programs where the configuration says; the first one opens the place, in the event loop of the rewards."""

    def __init__(self, config: MLETasksetConfig) -> None:
        self._config = config
        self._opening = asyncio.Lock()
        self._open = contextlib.AsyncExitStack()  # closed by the loop, at its end
        self._place: Place | None = None

    async def run(self, job: JobRequest) -> JobResult:
        """See `openmle_gym.jobs.Executor`."""
        async with self._opening:
            if self._place is None:
                self._place = await self._open.enter_async_context(self._place_of_config())
        return await self._place.executor.run(job)

    def _place_of_config(self) -> contextlib.AbstractAsyncContextManager[Place]:
        config = self._config
        return open_place(
            [load_package(path) for path in config.packages],
            service=config.service,
            runner=config.runner,
            docker_image=config.docker_image,
            allow_process=config.allow_process,
            limits=config.limits,
            parallel=config.parallel,
        )
