"""The rewards of whole batches, with each task's scores remembered: what a training framework calls once a step."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from openmle_erl.rewards.mapping import FloatArray, as_floats
from openmle_erl.rewards.presets import ROBUST, RewardSettings, RewardTask, group_rewards
from openmle_erl.rewards.shaping import SUCCESS, UNCHANGED


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """One sample after it was executed and graded; scores are in the metric's units."""

    task: str
    score: float | None
    group: Hashable = None
    """Of which group it is: one prompt's samples. Adapters set it where the framework knows."""
    outcome: str = SUCCESS
    """How the program ended; see `presets.group_rewards`."""
    program: str | None = None
    """The program's id, equal for equal programs; None counts it by itself."""
    parent_score: float | None = None
    claimed: float | None = None


class ScoreRecord(NamedTuple):
    """A score that a task's bounds are drawn from."""

    program: str | None
    score: float


class AdaptiveRewards:
    """Rewards on bounds that follow what the policy has reached on each task.

    The groups of a batch all see the scores of the batches before it, and their own. Only programs that ran and were
    not rejected are remembered. One object is for one run; every process of a run must be given the same batches.
    """

    def __init__(
        self,
        tasks: Mapping[str, RewardTask],
        settings: RewardSettings = ROBUST,
        history: Mapping[str, Sequence[tuple[str | None, float]]] | None = None,
    ) -> None:
        self.settings = settings
        self.history: dict[str, list[ScoreRecord]] = {
            task: [ScoreRecord(*record) for record in records] for task, records in (history or {}).items()
        }
        """Each task's scores, oldest first. Save it as JSON with a checkpoint, and hand it back on resume."""
        self._tasks = tasks

    def __call__(self, samples: Sequence[Graded]) -> FloatArray:
        """The samples' rewards in their order, [N]; NaN where machinery failed. Remembers the scores.

        Raises:
            ValueError: A task that is not known, a group of several tasks, or as `group_rewards`.
        """
        groups: dict[Hashable, list[int]] = {}
        for place, sample in enumerate(samples):
            if sample.task not in self._tasks:
                raise ValueError(f"sample {place}: unknown task {sample.task!r}")
            groups.setdefault(sample.group, []).append(place)
        rewards = np.empty(len(samples))
        for group, places in groups.items():
            members = [samples[place] for place in places]
            tasks = {member.task for member in members}
            if len(tasks) > 1:
                raise ValueError(f"group {group!r} has samples of several tasks: {', '.join(sorted(tasks))}")
            rewards[places] = self._group(members[0].task, members)
        self._remember(samples)
        return rewards

    def _group(self, task: str, members: Sequence[Graded]) -> FloatArray:
        history = self.history.get(task, [])
        by_itself = iter(range(len(history) + len(members)))
        history_programs, programs = (
            [
                f"unnamed-{next(by_itself)}" if record.program is None else f"named-{record.program}"
                for record in records
            ]
            for records in (history, members)
        )
        return group_rewards(
            [member.score for member in members],
            task=self._tasks[task],
            settings=self.settings,
            outcomes=[member.outcome for member in members],
            programs=programs,
            history=[record.score for record in history],
            history_programs=history_programs,
            parent_scores=[member.parent_score for member in members],
            claimed=[member.claimed for member in members],
        ).rewards

    def _remember(self, samples: Sequence[Graded]) -> None:
        usable = ~np.isnan(as_floats([sample.score for sample in samples]))
        for sample, known in zip(samples, usable, strict=True):
            if known and sample.score is not None and sample.outcome in (SUCCESS, UNCHANGED):
                self.history.setdefault(sample.task, []).append(ScoreRecord(sample.program, float(sample.score)))
        if self.settings.window is None:
            return
        for task in {sample.task for sample in samples} & self.history.keys():
            self.history[task] = _latest(self.history[task], self.settings)


def _latest(records: Sequence[ScoreRecord], settings: RewardSettings) -> list[ScoreRecord]:
    """Twice the window, so that programs which a group scores again leave a full one."""
    seen: set[str] = set()
    kept: list[ScoreRecord] = []
    for record in reversed(records):
        if settings.one_score_per_program and record.program is not None:
            if record.program in seen:
                continue
            seen.add(record.program)
        kept.append(record)
    return kept[: 2 * (settings.window or 0)][::-1]
