"""What runs are worth together: Valid Rate, Medal Average, Human Rank; pure.

Definitions as published (OpenMLE, section on evaluation): Valid Rate is the share of task and run pairs that ended with
a valid submission; Medal Average the share with any medal; Human Rank the mean fraction of the leaderboard beaten. A run
without a valid submission beats nobody. A task without a leaderboard counts for Valid Rate alone, and that is said.

NatureBench measures against the state of the art instead: Match Rate is the share with a gap of 0 or more, Surpass Rate
that above 0.1, and a run without usable outputs has a gap of -1.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence

from openmle_gym.bridges.naturebench import MISSING_GAP, SURPASS_GAP
from openmle_gym.contracts import Contract
from openmle_gym.leaderboard import Medal

from openmle_evo.evaluation.statistics import Interval, bootstrap_interval, standard_error


class RunOutcome(Contract):
    """How one run on one task ended."""

    task: str
    run: int
    """Counted from 0."""
    modality: str = ""
    valid: bool
    """Its chosen program had a score on the test split."""
    score: float | None = None
    higher_is_better: bool
    has_leaderboard: bool
    fraction_beaten: float | None = None
    """None when not valid or without a leaderboard."""
    medal: Medal | None = None
    against_sota: bool = False
    """A task of NatureBench, whose measure is the gap to the state of the art."""
    gap: float | None = None
    """Relative, positive where better; None without usable outputs."""
    tokens: int = 0
    sandbox_seconds: float = 0.0


class Rate(Contract):
    """A mean over tasks and runs, with how sure it is."""

    mean: float
    run_deviation: float | None
    """Sample standard deviation of the runs' means; None for one run."""
    standard_error: float | None
    """Of the mean over runs."""
    interval: Interval | None
    """95 %, by drawing tasks with replacement; None for one task."""
    outcomes: int
    """Task and run pairs; one of them is worth 1 / outcomes."""


class SuiteResult(Contract):
    """What a suite is worth."""

    tasks: int
    runs: int
    valid_rate: Rate
    medal_average: Rate | None
    """None when no task has a leaderboard."""
    human_rank: Rate | None
    medals: dict[Medal, int]
    match_rate: Rate | None = None
    """This and the next two: None when no task is measured against the state of the art."""
    surpass_rate: Rate | None = None
    mean_gap: Rate | None = None
    without_leaderboard: tuple[str, ...]
    """Tasks that count for the Valid Rate alone."""
    by_modality: dict[str, dict[str, float | None]]
    tokens: int
    sandbox_seconds: float


def summarise(outcomes: Sequence[RunOutcome]) -> SuiteResult:
    """Adds up a suite.

    Raises:
        ValueError: There is nothing to add up.
    """
    if not outcomes:
        raise ValueError("no finished run to summarise")
    ranked = [outcome for outcome in outcomes if outcome.has_leaderboard]
    against = [outcome for outcome in outcomes if outcome.against_sota]
    medals = Counter(outcome.medal for outcome in ranked if outcome.medal)
    modalities = sorted({outcome.modality for outcome in outcomes})
    return SuiteResult(
        tasks=len({outcome.task for outcome in outcomes}),
        runs=len({outcome.run for outcome in outcomes}),
        valid_rate=_rate(outcomes, _is_valid),
        medal_average=_rate(ranked, _has_medal) if ranked else None,
        human_rank=_rate(ranked, beaten) if ranked else None,
        match_rate=_rate(against, _matches) if against else None,
        surpass_rate=_rate(against, _surpasses) if against else None,
        mean_gap=_rate(against, gap_of) if against else None,
        medals={medal: medals[medal] for medal in Medal},
        without_leaderboard=tuple(
            sorted({each.task for each in outcomes if not each.has_leaderboard and not each.against_sota})
        ),
        by_modality={
            modality: _plain([outcome for outcome in outcomes if outcome.modality == modality])
            for modality in modalities
        },
        tokens=sum(outcome.tokens for outcome in outcomes),
        sandbox_seconds=sum(outcome.sandbox_seconds for outcome in outcomes),
    )


def beaten(outcome: RunOutcome) -> float:
    """The fraction of the leaderboard beaten; nobody without a valid submission."""
    return outcome.fraction_beaten or 0.0


def _is_valid(outcome: RunOutcome) -> float:
    return float(outcome.valid)


def _has_medal(outcome: RunOutcome) -> float:
    return float(outcome.medal is not None)


def gap_of(outcome: RunOutcome) -> float:
    """The gap to the state of the art; -1 without usable outputs."""
    return MISSING_GAP if outcome.gap is None else outcome.gap


def _matches(outcome: RunOutcome) -> float:
    return float(gap_of(outcome) >= 0)


def _surpasses(outcome: RunOutcome) -> float:
    return float(gap_of(outcome) > SURPASS_GAP)


MEASURES: dict[str, Callable[[RunOutcome], float]] = {
    "valid_rate": _is_valid,
    "medal_average": _has_medal,
    "human_rank": beaten,
    "match_rate": _matches,
    "surpass_rate": _surpasses,
    "mean_gap": gap_of,
}


def _plain(outcomes: Sequence[RunOutcome]) -> dict[str, float | None]:
    ranked = [outcome for outcome in outcomes if outcome.has_leaderboard]
    return {
        "tasks": float(len({outcome.task for outcome in outcomes})),
        "valid_rate": statistics.fmean(map(_is_valid, outcomes)),
        "medal_average": statistics.fmean(map(_has_medal, ranked)) if ranked else None,
        "human_rank": statistics.fmean(map(beaten, ranked)) if ranked else None,
    }


def _rate(outcomes: Sequence[RunOutcome], measure: Callable[[RunOutcome], float]) -> Rate:
    by_run: dict[int, list[float]] = {}
    by_task: dict[str, list[float]] = {}
    for outcome in outcomes:
        by_run.setdefault(outcome.run, []).append(measure(outcome))
        by_task.setdefault(outcome.task, []).append(measure(outcome))
    means = [statistics.fmean(values) for values in by_run.values()]
    return Rate(
        mean=statistics.fmean(map(measure, outcomes)),
        run_deviation=statistics.stdev(means) if len(means) > 1 else None,
        standard_error=standard_error(means),
        interval=bootstrap_interval(list(by_task.values())),
        outcomes=len(outcomes),
    )
