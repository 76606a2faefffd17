"""Task packages as a taskset of the `verifiers` library (0.4): one prompt, one reply, one reward; needs that library.

    taskset = MLETaskset(MLETasksetConfig(packages=[...]), executor=executor)

The reply is judged on the validation half by `openmle_gym.bridges.episode.Episode`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

from openmle_gym.bridges.episode import Episode
from openmle_gym.jobs import Executor, Limits
from openmle_gym.task import load_package


class MLEData(vf.TaskData):
    """A task's prompt and where its package lies."""

    package: str


class MLETasksetConfig(vf.TasksetConfig):
    """Which packages."""

    packages: list[Path] = []  # noqa: RUF012


class MLETask(vf.Task[MLEData, vf.State, vf.TaskConfig]):
    """Rewards the program in a reply."""

    def __init__(self, data: MLEData, executor: Executor, limits: Limits) -> None:
        super().__init__(data)
        self._executor = executor
        self._limits = limits

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

    def __init__(self, config: MLETasksetConfig, *, executor: Executor, limits: Limits | None = None) -> None:
        """Args:
        executor: Runs the programs.
        limits: What a program may use.
        """
        super().__init__(config)
        self._executor = executor
        self._limits = limits or Limits()

    def load(self) -> Iterator[MLETask]:
        """One task for each package."""
        for path in self.config.packages:
            package = load_package(path)
            episode = Episode(package, executor=self._executor, attempts=1, limits=self._limits)
            system, user = episode.prompt()
            data = MLEData(
                id=package.name,
                name=package.manifest.title or package.name,
                prompt=user.content,
                system_prompt=system.content,
                package=str(package.root),
            )
            yield MLETask(data, self._executor, self._limits)
