"""From judgements to a recommendation: the published rule, and a strict one; pure.

The published rule averages the five scores to two decimals, so that one fatal score hides behind four good ones, and no
issue counts. The strict one takes the median of several judges for each dimension, asks a floor of each, does not round,
and lets an issue of high severity that quotes its evidence veto. What was not judged has no recommendation: `unjudged`.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

from pydantic import Field

from openmle_gym.contracts import Contract

DIMENSIONS = (
    "task_validity",
    "data_sufficiency",
    "raw_data_usage",
    "task_complexity",
    "data_quality",
)
EvidenceSource = Literal[
    "description.txt",
    "prepare.py",
    "metric.py",
    "processed_csv_evidence",
    "raw_csv_evidence",
    "raw_usage_evidence",
    "metric_smoke_test",
    "raw_inventory",
]
Recommendation = Literal["recommended", "conditional", "not_recommended", "unjudged"]
RECOMMENDED, CONDITIONAL = 4.0, 2.5
FLOOR = 2.0


class Issue(Contract):
    """Something wrong that a judge found."""

    severity: Literal["low", "medium", "high"]
    category: str = Field(min_length=1)
    message: str = Field(min_length=1)
    evidence_source: EvidenceSource
    evidence: str = Field(min_length=1)
    """What the judge quotes from that source."""
    confirmed: bool = False
    """The quotation was looked up and is there."""


class Judgement(Contract):
    """What one judge said."""

    scores: dict[str, float]
    """Of all five dimensions, 0 to 5."""
    reasons: dict[str, str]
    issues: tuple[Issue, ...] = ()


class LegacyVerdict(Contract):
    """By the published rule, on the first judgement."""

    overall: float | None
    """The mean, to two decimals; None when nothing was judged."""
    recommendation: Recommendation


class StrictVerdict(Contract):
    """By the strict rule, on all judgements."""

    scores: dict[str, float] = Field(default_factory=dict)
    """The median of each dimension; empty when too few judges answered."""
    overall: float | None
    """The mean of the medians, not rounded."""
    spread: dict[str, float] = Field(default_factory=dict)
    """The highest score less the lowest: how far judges disagree."""
    below_floor: tuple[str, ...] = ()
    vetoes: tuple[Issue, ...] = ()
    recommendation: Recommendation


def legacy(judgements: Sequence[Judgement]) -> LegacyVerdict:
    """4 or more is recommended, 2.5 or more conditional."""
    if not judgements:
        return LegacyVerdict(overall=None, recommendation="unjudged")
    overall = round(sum(judgements[0].scores.values()) / len(DIMENSIONS), 2)
    return LegacyVerdict(overall=overall, recommendation=_by_thresholds(overall))


def strict(judgements: Sequence[Judgement], *, asked: int, floor: float = FLOOR) -> StrictVerdict:
    """Floor, veto and median.

    Args:
        asked: How many judges were asked; fewer than half of them and one more are too few to say anything.
        floor: The least median that every dimension needs.
    """
    if len(judgements) < asked // 2 + 1:
        return StrictVerdict(overall=None, recommendation="unjudged")
    by_dimension: Mapping[str, list[float]] = {
        name: [judgement.scores[name] for judgement in judgements] for name in DIMENSIONS
    }
    scores = {name: float(median(values)) for name, values in by_dimension.items()}
    overall = sum(scores.values()) / len(DIMENSIONS)
    below = tuple(name for name in DIMENSIONS if scores[name] < floor)
    vetoes = tuple(
        issue for judgement in judgements for issue in judgement.issues if issue.severity == "high" and issue.confirmed
    )
    recommendation = "not_recommended" if below or vetoes else _by_thresholds(overall)
    return StrictVerdict(
        scores=scores,
        overall=overall,
        spread={name: max(values) - min(values) for name, values in by_dimension.items()},
        below_floor=below,
        vetoes=vetoes,
        recommendation=recommendation,
    )


def _by_thresholds(overall: float) -> Recommendation:
    if overall >= RECOMMENDED:
        return "recommended"
    return "conditional" if overall >= CONDITIONAL else "not_recommended"
