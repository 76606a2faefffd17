"""Is a difference distinguishable from noise? Standard errors, bootstrap intervals, the paired permutation test; pure."""

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

LARGEST_DISTRIBUTION = 200_000
"""Distinct sums up to which the permutation test is exact."""
RESAMPLES = 10_000


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


class PermutationTest(NamedTuple):
    """The two-sided paired permutation test."""

    p_value: float
    exact: bool
    """False when there were too many sums, and signs were drawn at random."""


class Paired(NamedTuple):
    """Differences of matched pairs, those of one task taken together: its runs are no witnesses of their own."""

    tasks: int
    mean: float
    """Of the tasks' means."""
    standard_error: float | None
    """Of that mean, over tasks; None for one task."""
    interval: Interval | None
    """95 %, by drawing tasks with replacement; None for one task."""
    test: PermutationTest
    """Over tasks."""


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean, from the sample standard deviation; None for fewer than two values."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) / math.sqrt(len(values))


def standard_error_of_difference(first_sd: float, second_sd: float, *, runs: int) -> float:
    """Of two independent means over `runs` runs each: sqrt(s1^2 / n + s2^2 / n)."""
    return math.sqrt((first_sd**2 + second_sd**2) / runs)


def outcomes_apart(first_rate: float, second_rate: float, *, outcomes: int) -> int:
    """How many of `outcomes` yes-or-no outcomes lie between two rates: 0.6061 and 0.3939 of 66 are 14 apart."""
    return round(first_rate * outcomes) - round(second_rate * outcomes)


def bootstrap_interval(
    groups: Sequence[Sequence[float]], *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval | None:
    """A percentile interval for the mean of the groups' means, by drawing whole groups with replacement.

    Args:
        groups: One per task; the values of one task belong together.

    Returns:
        None for fewer than two groups.
    """
    if len(groups) < 2:
        return None
    rng = random.Random(seed)
    means = [statistics.fmean(group) for group in groups]
    drawn = sorted(statistics.fmean(rng.choices(means, k=len(means))) for _ in range(resamples))
    tail = (1.0 - level) / 2.0
    return Interval(drawn[int(tail * resamples)], drawn[min(int((1.0 - tail) * resamples), resamples - 1)])


def paired_permutation_test(differences: Sequence[float], *, seed: int = 0) -> PermutationTest | None:
    """Whether the differences of matched pairs could as well have had the other sign.

    Every assignment of signs is as likely as any other if there is no effect; the p-value is the share of assignments
    whose sum is at least as far from 0 as the one observed. All 2^n are counted, equal sums together, unless the sums
    are too many; then 100,000 are drawn.

    Returns:
        None without pairs.
    """
    if not differences:
        return None
    scale = max(map(abs, differences)) or 1.0
    steps = [round(difference / scale * 1e9) for difference in differences]
    observed = abs(sum(steps))
    counts = {0: 1}
    for step in steps:
        if len(counts) > LARGEST_DISTRIBUTION:
            return PermutationTest(_drawn(steps, observed, random.Random(seed)), exact=False)
        spread: dict[int, int] = {}
        for total, count in counts.items():
            for moved in (total + step, total - step):
                spread[moved] = spread.get(moved, 0) + count
        counts = spread
    slack = len(steps)  # of rounding
    extreme = sum(count for total, count in counts.items() if abs(total) >= observed - slack)
    return PermutationTest(extreme / 2 ** len(steps), exact=True)


def paired(differences: Iterable[tuple[str, float]]) -> Paired:
    """Sums up pairs, each with the name of its task.

    Raises:
        ValueError: There are none.
    """
    by_task: dict[str, list[float]] = {}
    for task, difference in differences:
        by_task.setdefault(task, []).append(difference)
    means = [statistics.fmean(values) for values in by_task.values()]
    test = paired_permutation_test(means)
    if test is None:
        raise ValueError("no pair to compare")
    interval = bootstrap_interval(list(by_task.values()))
    return Paired(len(means), statistics.fmean(means), standard_error(means), interval, test)


def _drawn(steps: Sequence[int], observed: int, rng: random.Random, draws: int = 100_000) -> float:
    extreme = sum(abs(sum(step if rng.random() < 0.5 else -step for step in steps)) >= observed for _ in range(draws))
    return (1 + extreme) / (1 + draws)
