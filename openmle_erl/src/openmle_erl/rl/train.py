"""The learning loop. `Training._step` is the story of one step; who does what is in the modules that it names.

    pool        keeps groups in flight; each member is prompted, generated, reviewed, executed and graded
    groups      rewards of a complete group
    trainer     log-probabilities and optimiser steps (`openmle_erl.engines`)
    engine      generates; several are one behind a router (`openmle_erl.engines`)

Asynchronous, the pool goes on while the trainer trains; synchronous, it begins groups only while the trainer waits.
Killed at any moment, a run goes on from its last checkpoint: what was generated or judged since is kept, and groups
that were trained on since are trained on again.
"""

import asyncio
import itertools
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from openmle_gym.errors import ConfigError, StoreError
from openmle_gym.experience import ExperienceCard

from openmle_erl.engines.protocols import PauseMode, RolloutEngine, StepReport, Trainer
from openmle_erl.engines.router import synchronise_weights
from openmle_erl.rewards.advantages import group_advantages
from openmle_erl.rl.evaluation import Evaluation
from openmle_erl.rl.experience import Experience
from openmle_erl.rl.groups import batch_of
from openmle_erl.rl.pool import Pool
from openmle_erl.rl.queue import GroupQueue
from openmle_erl.rl.report import Times, step_record
from openmle_erl.rl.samples import training_sample
from openmle_erl.sft.files import write_whole

SYNCHRONISE_AGAIN_SECONDS = 10.0

log = logging.getLogger(__name__)


class MetricSink(Protocol):
    """Where a step's numbers go, beside the run's own table."""

    def log(self, metrics: Mapping[str, object], *, step: int) -> None:
        """Takes the numbers of a step."""
        ...


@dataclass
class ScheduleConfig:
    """How many steps, and what is kept of them."""

    steps: int = 3000
    """Rollout steps of the whole run."""
    groups_per_step: int = 16
    """Groups that one step trains on."""
    optimiser_steps: int = 2
    """Optimiser steps in one step; the groups are dealt out among them."""
    checkpoint_interval: int = 10
    """Steps between two checkpoints."""
    checkpoints_kept: int = 2
    """The last so many are kept."""
    pause: str = "in_place"
    """What a weight update does to replies that are being generated: in_place and retract go on with them, abort begins
    them anew."""

    def __post_init__(self) -> None:
        for name in ("steps", "groups_per_step", "optimiser_steps", "checkpoint_interval", "checkpoints_kept"):
            if getattr(self, name) < 1:
                raise ConfigError(f"schedule.{name}: must be at least 1, got {getattr(self, name)}")
        if self.pause not in tuple(PauseMode):
            raise ConfigError(f"schedule.pause: must be one of {', '.join(PauseMode)}, got {self.pause!r}")


class Checkpoint(NamedTuple):
    """A checkpoint's `state.json`."""

    step: int
    settled: int
    """How many groups were settled: the experience that the policy had been taught from; see `experience.snapshot`."""


@dataclass(kw_only=True)
class Training:
    """One run. The caller owns trainer, engines and files, and closes them."""

    folder: Path
    trainer: Trainer
    engine: RolloutEngine
    pool: Pool
    queue: GroupQueue
    experience: Experience
    evaluation: Evaluation
    schedule: ScheduleConfig
    sink: MetricSink
    step: int = 0
    """Steps done."""
    publish_first: bool = False
    """Whether the engines may have other weights than those the run begins with."""
    _stopping: bool = field(init=False, default=False)
    _evaluating: asyncio.Task[None] | None = field(init=False, default=None)

    async def run(self) -> int:
        """Trains to the last step, or until `stop`; returns how many steps are done.

        Raises:
            InfrastructureError: The trainer failed. The run can be resumed.
        """
        cards = await self._resume()
        rollouts = asyncio.create_task(self.pool.run(cards))
        steps = asyncio.create_task(self._steps())
        try:
            await asyncio.wait({rollouts, steps}, return_when=asyncio.FIRST_COMPLETED)
            if rollouts.done():
                rollouts.result()  # raises: it never ends by itself
            return steps.result()
        finally:
            tasks: list[asyncio.Task[Any] | None] = [steps, rollouts, self._evaluating]
            begun = [task for task in tasks if task is not None]
            for task in begun:
                task.cancel()
            await asyncio.gather(*begun, return_exceptions=True)

    async def stop(self) -> None:
        """Ends after the step that is being trained; what is in flight stays on disk."""
        self._stopping = True
        await self.pool.stop()

    async def _steps(self) -> int:
        while self.step < self.schedule.steps and not self._stopping:
            if not await self._step():
                break
            if self.step % self.schedule.checkpoint_interval == 0:
                await self._checkpoint()
        if self.step % self.schedule.checkpoint_interval:
            await self._checkpoint()
        if self._evaluating is not None and not self._stopping:
            await self._evaluating
        return self.step

    async def _step(self) -> bool:
        """One step; False when the run was told to stop before its groups were there."""
        times = Times(asyncio.get_running_loop().time)
        wanted = (self.schedule.steps - self.step) * self.schedule.groups_per_step
        groups = await self.pool.take(self.schedule.groups_per_step, wanted=wanted)
        if not groups:
            return False
        if self._evaluating is not None and not self.pool.asynchronous:
            await self._evaluating  # nothing generates while a synchronous trainer trains
        times.lap("wait")

        batch = batch_of(groups)
        rewards = np.array([member.reward for member in batch.members])
        advantages = group_advantages(rewards, batch.groups, self.pool.rewards.advantages)
        samples = [
            training_sample(member, prompt, float(advantage))
            for member, prompt, advantage in zip(batch.members, batch.prompts, advantages, strict=True)
        ]

        old_logprobs = await self.trainer.logprobs(samples)
        reports: list[StepReport] = []
        for part in parts(len(samples), self.schedule.optimiser_steps):
            reports.append(await self.trainer.step(samples[part], old_logprobs[part]))
        self.step += 1
        self.queue.trained(groups, self.step)
        times.lap("train")

        await self._publish_weights()
        times.lap("synchronise")

        record = step_record(self.step, groups, batch, advantages, reports, self.pool, times)
        self.queue.write_step(self.step, record)
        self.sink.log(record, step=self.step)
        if self.evaluation.due(self.step):
            self._evaluate(self.step)
        return True

    async def _publish_weights(self) -> None:
        """Writes the weights and has the engines take them; while none can, the run waits."""
        weights = self.folder / "weights"
        newest = weights / f"version-{self.step:06d}"
        weights.mkdir(exist_ok=True)
        if newest.exists():  # from before a kill; the step was taken again since
            shutil.rmtree(newest)
        await self.trainer.save_weights(newest)
        mode = PauseMode(self.schedule.pause)
        while failed := (await synchronise_weights([self.engine], newest, self.step, mode)).failed:
            log.warning("no engine took the weights of step %d, asked again soon: %s", self.step, failed[0])
            await asyncio.sleep(SYNCHRONISE_AGAIN_SECONDS)
        self.pool.version = self.step
        for older in weights.iterdir():
            if older != newest:
                shutil.rmtree(older)

    def _evaluate(self, step: int) -> None:
        if self._evaluating is not None:
            if not self._evaluating.done():
                log.warning("step %d is not evaluated: the last evaluation is still under way", step)
                return
            self._evaluating.result()
        self._evaluating = asyncio.create_task(self._run_evaluation(step))

    async def _run_evaluation(self, step: int) -> None:
        metrics = await self.evaluation.run(step)
        self.queue.write_evaluation(step, metrics)
        self.sink.log(metrics, step=step)

    async def _checkpoint(self) -> None:
        """Model and optimiser, and how far the experience had come; `state.json` comes last and makes it one."""
        folder = self.folder / "checkpoints" / f"step-{self.step:06d}"
        if folder not in checkpoints(self.folder):
            shutil.rmtree(folder, ignore_errors=True)  # what a kill may have left
            folder.mkdir(parents=True)
            await self.trainer.save(folder / "trainer")
            state = Checkpoint(step=self.step, settled=self.queue.settled)
            write_whole(folder / "state.json", json.dumps(state._asdict()))
        complete = checkpoints(self.folder)  # without this one while the trainer writes it in the background
        for older in complete[: -self.schedule.checkpoints_kept]:
            shutil.rmtree(older)
        if kept := complete[-self.schedule.checkpoints_kept :]:
            self.queue.prune(read_checkpoint(kept[0]).step)  # any that is kept can be gone on from

    async def _resume(self) -> dict[int, ExperienceCard]:
        """Goes back to the last checkpoint, or to the beginning."""
        cards = self.experience.restore(self.queue.experience())
        last = checkpoints(self.folder)[-1:]
        if last:
            self.step = read_checkpoint(last[0]).step
            await self.trainer.load(last[0] / "trainer")
        again = self.queue.rewind(self.step)
        if self.step or again:
            log.info("goes on after step %d; %d groups are trained on again", self.step, again)
        if self.step or again or self.publish_first:  # the engines may have weights that were lost
            await self._publish_weights()
        if self.evaluation.due(self.step) and self.step and not self.queue.evaluated(self.step):
            self._evaluate(self.step)  # which the kill cut short
        return cards


def parts(count: int, of: int) -> list[slice]:
    """So many slices of about equal length, in order, without those that would be empty."""
    bounds = np.linspace(0, count, of + 1).round().astype(int).tolist()
    return [slice(start, end) for start, end in itertools.pairwise(bounds) if end > start]


def checkpoints(run: Path) -> list[Path]:
    """A run's complete checkpoints, oldest first."""
    found = (path.parent for path in run.glob("checkpoints/step-*/state.json"))
    return sorted(folder for folder in found if (folder / "trainer").exists())


def read_checkpoint(folder: Path) -> Checkpoint:
    """Reads a checkpoint's `state.json`.

    Raises:
        StoreError: It is damaged.
    """
    try:
        return Checkpoint(**json.loads((folder / "state.json").read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise StoreError(f"{folder / 'state.json'}: {error}") from error
