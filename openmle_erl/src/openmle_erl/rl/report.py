"""What a step did, in flat numbers for a log.

Progress is on fixed bounds (`progress`, `percentile`): the mean reward falls while a policy improves, as its bounds
rise with it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from openmle_gym.jobs import Outcome
from openmle_gym.operators import Operator

from openmle_erl.engines.protocols import Finish, StepReport
from openmle_erl.rewards.diagnostics import advantage_report
from openmle_erl.rl.groups import Batch, Group

if TYPE_CHECKING:
    from openmle_erl.rl.pool import Pool


class Times:
    """How long the parts of a step took."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()
        self.seconds: dict[str, float] = {}

    def lap(self, part: str) -> None:
        """What was since the last lap was this part."""
        now = self._clock()
        self.seconds[part] = now - self._last
        self._last = now


def step_record(
    step: int,
    groups: Sequence[Group],
    batch: Batch,
    advantages: NDArray[np.float64],
    reports: Sequence[StepReport],
    pool: "Pool",
    times: Times,
) -> dict[str, float]:
    """All of a step's numbers, by name; NaN where there is nothing to average."""
    seconds = sum(times.seconds.values())
    rewards = [member.reward for member in batch.members]
    report = advantage_report(rewards, batch.groups, pool.rewards.advantages).summary()
    return {
        "step": step,
        "seconds/step": seconds,
        **{f"seconds/{part}": value for part, value in times.seconds.items()},
        "trainer/idle_share": times.seconds["wait"] / seconds if seconds else 0.0,
        **_rollouts(step, groups, batch),
        "reward/mean": mean(rewards),
        "reward/best_of_group": mean([max(m.reward for m in g.judged if not math.isnan(m.reward)) for g in groups]),
        "advantage/largest": float(np.max(np.abs(advantages), initial=0.0)),
        **{f"advantage/{name}": float(value) for name, value in report.items() if value is not None},
        **_trained(reports),
        **_state(pool),
    }


def _rollouts(step: int, groups: Sequence[Group], batch: Batch) -> dict[str, float]:
    members = batch.members
    cards = [member.card for member in members if member.card is not None]
    rolled = [member.rolled for member in members if member.rolled is not None]
    ages = [step - 1 - group.oldest_version for group in groups]
    return {
        "samples": len(members),
        "progress/mean": mean([member.progress for member in members]),
        "progress/best_of_group": mean([_largest([member.progress for member in group.judged]) for group in groups]),
        "percentile/mean": mean([member.percentile for member in members]),
        **{f"outcome/{outcome}": mean([float(card.outcome is outcome) for card in cards]) for outcome in Outcome},
        **{f"operator/{operator}": mean([float(g.operator is operator) for g in groups]) for operator in Operator},
        **{
            f"valid/{operator}": mean([float(card.valid) for card in cards if card.operator is operator])
            for operator in Operator
        },
        "staleness/mean": mean([float(max(age, 0)) for age in ages]),
        "staleness/largest": max(max(age, 0) for age in ages),
        "staleness/mixed_share": mean([float(len({span.version for span in each.spans}) > 1) for each in rolled]),
        "tokens/reply": mean([float(len(each.reply_ids)) for each in rolled]),
        "tokens/prompt": mean([float(len(prompt)) for prompt in batch.prompts]),
        "tokens/truncated_share": mean([float(each.finish is Finish.LENGTH) for each in rolled]),
        "rollout/restarts": sum(each.restarts for each in rolled),
        "rollout/model_seconds": mean([each.seconds for each in rolled]),
        "rollout/sandbox_seconds": mean([card.sandbox_seconds for card in cards]),
        "rollout/queue_seconds": mean([card.queue_seconds for card in cards]),
    }


def _trained(reports: Sequence[StepReport]) -> dict[str, float]:
    names = dict.fromkeys(name for report in reports for name in report.metrics)
    return {
        "train/loss": mean([report.loss for report in reports]),
        **{
            f"train/{name}": mean([report.metrics[name] for report in reports if name in report.metrics])
            for name in names
        },
    }


def _state(pool: "Pool") -> dict[str, float]:
    """Where the run stands: counts since its beginning, but for those of this life under `life/`."""
    exposure = exposure_of(pool.queue.exposure(), pool.tasks)
    return {
        **{f"fate/{fate}": count for fate, count in pool.queue.fates().items()},
        **{f"duplicate/{whose}": count for whose, count in pool.queue.duplicates().items()},
        "exposure/least": min(exposure.values()),
        "exposure/median": median(exposure.values()),
        "exposure/most": max(exposure.values()),
        "queue/in_flight": pool.in_flight,
        "queue/ready": pool.ready,
        "life/breaker_opened": pool.breaker.opened,
        **{f"life/{name}": count for name, count in pool.counts.items()},
    }


def exposure_of(trained: Mapping[str, int], tasks: Mapping[str, object]) -> dict[str, int]:
    """How many groups of each task were trained on, those without any included."""
    return {name: trained.get(name, 0) for name in tasks}


def mean(values: Sequence[float]) -> float:
    """Of those that are not NaN; NaN where there are none."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _largest(values: Sequence[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)
