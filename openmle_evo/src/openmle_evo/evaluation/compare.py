"""Two suites side by side: matched by task and run, with plain words on what can and cannot be told apart; pure."""

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from openmle_gym.contracts import Contract

from openmle_evo.evaluation.results import MEASURES, RunOutcome
from openmle_evo.evaluation.statistics import Interval, paired

ALPHA = 0.05


class Comparison(Contract):
    """One measure of two suites, over the task and run pairs that both have."""

    measure: str
    pairs: int
    first: float
    second: float
    difference: float
    """First minus second, in the measure's unit."""
    standard_error: float | None
    """Of the difference, over tasks; None for one task."""
    interval: Interval | None
    """95 %, by drawing tasks with replacement."""
    p_value: float
    """Of the two-sided paired permutation test over tasks."""
    exact: bool
    resolution: float
    """What one outcome is worth."""
    outcomes_apart: float
    """The difference in outcomes."""
    verdict: str


class Matched(NamedTuple):
    """Pairs of outcomes, and what has no partner."""

    pairs: tuple[tuple[RunOutcome, RunOutcome], ...]
    alone: tuple[str, ...]
    """`task run`, of either suite."""


def match(first: Sequence[RunOutcome], second: Sequence[RunOutcome]) -> Matched:
    """Pairs what has the same task and the same number of run."""
    left = {(outcome.task, outcome.run): outcome for outcome in first}
    right = {(outcome.task, outcome.run): outcome for outcome in second}
    both = sorted(left.keys() & right.keys())
    alone = sorted(left.keys() ^ right.keys())
    return Matched(tuple((left[key], right[key]) for key in both), tuple(f"{task} {run}" for task, run in alone))


def compare(first: Sequence[RunOutcome], second: Sequence[RunOutcome]) -> list[Comparison]:
    """Compares two suites measure by measure; measures of the leaderboard, and of the state of the art, only
    where tasks have one.

    Raises:
        ValueError: They have no task and run in common.
    """
    pairs = match(first, second).pairs
    if not pairs:
        raise ValueError("the suites have no task and run in common")
    ranked = [pair for pair in pairs if pair[0].has_leaderboard and pair[1].has_leaderboard]
    compared = [_compare("valid_rate", MEASURES["valid_rate"], pairs)]
    if ranked:
        compared += [_compare(name, MEASURES[name], ranked) for name in ("medal_average", "human_rank")]
    against = [pair for pair in pairs if pair[0].against_sota and pair[1].against_sota]
    if against:
        compared += [_compare(name, MEASURES[name], against) for name in ("match_rate", "surpass_rate", "mean_gap")]
    return compared


def _compare(
    name: str, measure: Callable[[RunOutcome], float], pairs: Sequence[tuple[RunOutcome, RunOutcome]]
) -> Comparison:
    told = paired((one.task, measure(one) - measure(other)) for one, other in pairs)
    first = statistics.fmean(measure(one) for one, _ in pairs)
    second = statistics.fmean(measure(other) for _, other in pairs)
    difference = first - second
    return Comparison(
        measure=name,
        pairs=len(pairs),
        first=first,
        second=second,
        difference=difference,
        standard_error=told.standard_error,
        interval=told.interval,
        p_value=told.test.p_value,
        exact=told.test.exact,
        resolution=1 / len(pairs),
        outcomes_apart=difference * len(pairs),
        verdict=_verdict(difference, told.test.p_value, told.tasks),
    )


def _verdict(difference: float, p_value: float, tasks: int) -> str:
    least = 2 / 2**tasks
    if least > ALPHA:
        return f"not to be told: {tasks} tasks cannot give a p-value below {least:.2g}"
    if p_value < ALPHA:
        return f"the {'first' if difference > 0 else 'second'} is better (p = {p_value:.3g})"
    if difference == 0:
        return "no difference was seen, which does not show that there is none"
    return f"not distinguishable from noise (p = {p_value:.3g})"
