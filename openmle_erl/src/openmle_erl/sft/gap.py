"""How far a program's own score is from ours, relative to what such a difference means for the metric. Pure.

The published filter compares the program's holdout score with its test score. Ours compares it with the validation
score, the half of the hidden answers that may be selected on; test scores are not read here.

Source: the release's gap filter; thresholds 0.12, and half of it for agreement and correlation.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from openmle_gym.leaderboard import Leaderboard
from openmle_gym.manifest import Metric

THRESHOLD = 0.12
USABLE_THEORETICAL, USABLE_RANGE = 2.0, 100.0


class MetricClass(StrEnum):
    """Metrics whose differences mean the same."""

    BOUNDED = "bounded"
    """In [0, 1] or [0, 100]: scores, probabilities, percentages."""
    AGREEMENT = "agreement"
    """In [-1, 1]: kappa, Matthews, correlations, R squared."""
    LOG_LOSS = "log_loss"
    """Nats, or logarithms of targets."""
    TARGET_SCALE = "target_scale"
    """In the target's own unit."""
    UNKNOWN = "unknown"


_CLASSES: Sequence[tuple[re.Pattern[str], MetricClass]] = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"smape|symmetric_mean_absolute_percent|\bmape\b|absolute_percentage", MetricClass.BOUNDED),
        (r"\w*auc\w*|auroc|roc|average_precision", MetricClass.BOUNDED),
        (
            r"accuracy|\w*f1\b|f_?beta|precision|recall|jaccard|\bdice\b|\w*iou\b|\w*map\b|ndcg|\bmrr\b",
            MetricClass.BOUNDED,
        ),
        (r"qwk|kappa|\bmcc\b|matthews", MetricClass.AGREEMENT),
        (r"spearman|pearson|correlation|\br2\b|r_squared", MetricClass.AGREEMENT),
        (r"msle|log_error|logarithmic_error", MetricClass.LOG_LOSS),
        (r"log_?loss|\bnll\b|likelihood|entropy|brier", MetricClass.LOG_LOSS),
        (
            r"pinball|quantile|crps|\w*mae\b|\w*mse\b|mspe|msse|medae|\bae\b|error|loss|deviation",
            MetricClass.TARGET_SCALE,
        ),
    )
)


def metric_class(name: str) -> MetricClass:
    """The class of a metric by its name; the first that matches counts."""
    words = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()).strip("_")
    # `_` is a word character, so words are parted by spaces where whole words are meant
    spaced = words.replace("_", " ")
    for pattern, kind in _CLASSES:
        if pattern.search(words) or pattern.search(spaced):
            return kind
    return MetricClass.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A difference between two scores of one program."""

    absolute: float
    denominator: float
    denominator_source: str
    """`scale`, `row`, `metadata` or `task`."""
    threshold: float
    """The most that is tolerated of `relative` for the metric."""

    @property
    def relative(self) -> float:
        """The difference by the denominator."""
        return self.absolute / self.denominator

    @property
    def too_large(self) -> bool:
        """Whether it is more than is tolerated; equal is not."""
        return self.relative > self.threshold


class _Denominator(NamedTuple):
    value: float
    source: str


def score_gap(
    claimed: float | None,
    measured: float | None,
    metric: Metric,
    *,
    leaderboard: Leaderboard | None = None,
    task_scale: float | None = None,
    threshold: float = THRESHOLD,
) -> Gap | None:
    """The gap between a program's own score and ours; None where one is missing or not finite.

    Args:
        task_scale: See `task_scale`; None where the task's other programs are not known yet.
    """
    if claimed is None or measured is None or not (math.isfinite(claimed) and math.isfinite(measured)):
        return None
    kind = metric_class(metric.name)
    row = max(abs(claimed), abs(measured))
    denominator = _denominator(kind, row, metric, leaderboard, task_scale)
    strict = kind is MetricClass.AGREEMENT
    return Gap(
        absolute=abs(measured - claimed),
        denominator=denominator.value,
        denominator_source=denominator.source,
        threshold=threshold / 2 if strict else threshold,
    )


def task_scale(rows: Sequence[float]) -> float | None:
    """The 75th percentile, at the next index up, of max(|claimed|, |measured|) of a task's programs; None for none."""
    usable = sorted(row for row in rows if math.isfinite(row) and row > 0)
    return usable[math.ceil(0.75 * (len(usable) - 1))] if usable else None


def _denominator(
    kind: MetricClass, row: float, metric: Metric, leaderboard: Leaderboard | None, scale: float | None
) -> _Denominator:
    if kind is MetricClass.BOUNDED:
        return _Denominator(100.0 if row > 2 else 1.0, "scale")
    if kind is MetricClass.AGREEMENT:
        return _Denominator(2.0, "scale")
    if kind is MetricClass.LOG_LOSS:
        return _Denominator(max(row, 1.0), "row")
    known = _metadata_range(metric, leaderboard)
    if known is not None:
        return _Denominator(known, "metadata")
    if scale is not None:
        return _Denominator(scale, "task")
    return _Denominator(row, "row") if row > 0 else _Denominator(1.0, "scale")


def _metadata_range(metric: Metric, leaderboard: Leaderboard | None) -> float | None:
    low, high = metric.theoretical_min, metric.theoretical_max
    theoretical = high - low if low is not None and high is not None else None
    if theoretical is not None and 0 < theoretical <= USABLE_THEORETICAL:
        return theoretical
    board = abs(leaderboard.scores[0] - leaderboard.scores[-1]) if leaderboard is not None else None
    chosen = board or theoretical
    return chosen if chosen is not None and 0 < chosen <= USABLE_RANGE else None
