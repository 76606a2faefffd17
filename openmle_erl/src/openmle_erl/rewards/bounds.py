"""The utilities that rewards 0 and 1 stand for, taken from what the policy has reached so far.

A leaderboard's range is usually far wider than the band in which a policy's programs lie, so rewards on fixed bounds
hardly differ. Adaptive bounds follow the frontier instead: the best score seen stands for 1, the sixteenth best,
lowered by a quarter of the gap, for 0, all inside the task's static limits.

Source: arXiv:2607.28568, appendix B.5; the modes are those of the public release. With the default arguments,
`adaptive_bounds` is the published construction. Its faults, and the arguments that mend them:

* Every score ever seen counts, so the sixteenth best only rises until ordinary programs earn what crashes earn:
  `window`, and program ids for one score per distinct program.
* When sixteen scores tie at the best, the span is nothing and the record itself earns 0: `span_floor`.
* With few scores the worst is the minimum, so one garbage score flattens all others: `outlier_reach`.
* A score alone in the world earned 1.0, whatever it was (see `presets.RewardSettings.lone_score_earns_one`): here it
  is placed on the static limits.
* NaN, stored as 1.8e308, became the frontier's best for ever: it is no score, here and in every preset.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from openmle_erl.rewards.mapping import Bounds, FloatArray, Values, utilities

BoundsMode: TypeAlias = Literal["top1_top8", "top1_top16", "top1_all_mean", "top1_all_median", "theoretical"]
"""Where the lower bound is before its shift: at the 8th or 16th best score, or the mean or median of all;
`theoretical` is the static limits themselves."""

MAX_STATIC_SPAN = 1e6
ROUNDING = 1e-9
"""Utilities closer than this, relative to the largest, are one value computed twice."""


class StaticLimits(NamedTuple):
    """The best and the worst score that a task allows, in the metric's own units; None when unknown."""

    best: float | None
    worst: float | None


def static_limits(
    *,
    higher_is_better: bool,
    theoretical_min: float | None = None,
    theoretical_max: float | None = None,
    leaderboard_min: float | None = None,
    leaderboard_max: float | None = None,
) -> StaticLimits:
    """The published static limits: the wider of the theoretical and the leaderboard's limit, each end for itself.

    A span of more than 1e6 is useless for rewards: then the leaderboard's limits count if their span is within 1e6,
    else the worst is set 1e6 below the best. To let programs surpass the leaderboard with their order kept, give the
    theoretical limits only.
    """
    theoretical = _ends(theoretical_min, theoretical_max, higher_is_better)
    leaderboard = _ends(leaderboard_min, leaderboard_max, higher_is_better)
    best = max((pair[1] for pair in (theoretical, leaderboard) if pair[1] is not None), default=None)
    worst = min((pair[0] for pair in (theoretical, leaderboard) if pair[0] is not None), default=None)
    if best is not None and worst is not None and best - worst > MAX_STATIC_SPAN:
        low, high = leaderboard
        if low is not None and high is not None and high - low <= MAX_STATIC_SPAN:
            worst, best = low, high
        else:
            worst = best - MAX_STATIC_SPAN
    sign = 1.0 if higher_is_better else -1.0
    return StaticLimits(None if best is None else sign * best, None if worst is None else sign * worst)


def check_bounds_settings(
    *, lower_shift: float, min_span: float, window: int | None, span_floor: float, outlier_reach: float | None
) -> None:
    """Refuses values of `adaptive_bounds`'s arguments that make no sense.

    Raises:
        ValueError: Names the argument and the value.
    """
    for name, value in (("lower_shift", lower_shift), ("min_span", min_span)):
        if not 0.0 <= value < math.inf:
            raise ValueError(f"{name} must be finite and not negative, got {value}")
    if window is not None and window < 0:
        raise ValueError(f"window must not be negative, got {window}")
    if not 0.0 <= span_floor <= 1.0:
        raise ValueError(f"span_floor must be in [0, 1], got {span_floor}")
    if outlier_reach is not None and not outlier_reach > 0.0:
        raise ValueError(f"outlier_reach must be positive, got {outlier_reach}")


def adaptive_bounds(
    history: Values,
    group: Values,
    *,
    higher_is_better: bool,
    static_best: float | None = None,
    static_worst: float | None = None,
    mode: BoundsMode = "top1_top16",
    lower_shift: float = 0.25,
    min_span: float = 1e-6,
    history_programs: Sequence[str] | None = None,
    group_programs: Sequence[str] | None = None,
    window: int | None = None,
    span_floor: float = 0.0,
    outlier_reach: float | None = None,
) -> Bounds | None:
    """The bounds for one group, from the scores of earlier programs and of the group itself.

    Args:
        history: Earlier scores of the task, oldest first, in the metric's units. None, NaN and infinities are skipped.
        group: The group's scores, likewise.
        static_best: No score can be better; None or infinite when unknown. Bounds never leave the static limits.
        static_worst: No score can be worse; None when unknown.
        lower_shift: The worst is lowered by this share of the gap, so that the weakest of the frontier is not at 0.
        min_span: Absolute span given to bounds that coincide, above the worst (published; see `span_floor`).
        history_programs: Program ids of the history; with them, a program counts once, by its latest score.
        group_programs: Program ids of the group, to be given together with `history_programs`.
        window: How many of the history's latest scores count (programs, if there are ids); None for all.
        span_floor: Least span, as a share of the range of all scores (outliers cut). Above 0, programs that tie at
            the best earn 1 and others less; if nothing but ties is there, they are placed on the static limits.
        outlier_reach: The worst is at most this many times as far below the best as the median of the distinct
            scores; None leaves it at the minimum when there are few scores. The best has no such limit: a leap is
            what is looked for.

    Returns:
        The bounds as utilities (larger is better). None when there is nothing to go by: the static limits are not
        both known, and no score is finite, or the mode is `theoretical`, or (published) all scores are beyond the
        one limit that is known. A lone score without two static limits is in the middle of its bounds.

    Raises:
        ValueError: An unknown mode, limits in the wrong order, a setting that makes no sense, or a number of program
            ids that is not the scores'.
    """
    check_bounds_settings(
        lower_shift=lower_shift,
        min_span=min_span,
        window=window,
        span_floor=span_floor,
        outlier_reach=outlier_reach,
    )
    limits = _limits(static_best, static_worst, higher_is_better)
    static = limits if math.isfinite(limits.best - limits.worst) else None
    frontier = _frontier(
        utilities(history, higher_is_better=higher_is_better),
        utilities(group, higher_is_better=higher_is_better),
        history_programs,
        group_programs,
        window,
    )
    if mode == "theoretical" or len(frontier) == 0:
        return static
    best, lowest = float(frontier[0]), float(frontier[-1])
    one_value = best - lowest <= ROUNDING * max(abs(best), abs(lowest))
    if len(frontier) == 1 or (one_value and span_floor > 0):
        half = max(abs(best), 1.0)
        return static or Bounds(best - half, best + half)

    worst = _reference(frontier, mode)
    if outlier_reach is not None:
        rising = np.unique(frontier)
        distinct = rising[np.diff(rising, prepend=-np.inf) > ROUNDING * abs(best)]
        median = float(distinct[(len(distinct) - 1) // 2])
        lowest = max(lowest, best - outlier_reach * (best - median))
        worst = max(worst, lowest)
    worst = min(worst, best - span_floor * (best - lowest))
    worst -= lower_shift * max(best - worst, 0.0)

    seen = Bounds(worst, best)
    worst, best = max(worst, limits.worst), min(best, limits.best)
    if best <= worst and span_floor == 0:
        best = min(worst + max(min_span, 1e-12), limits.best)
    if worst < best:
        return Bounds(worst, best)
    return static or (seen if span_floor > 0 else None)


def _frontier(
    history: FloatArray,
    group: FloatArray,
    history_programs: Sequence[str] | None,
    group_programs: Sequence[str] | None,
    window: int | None,
) -> FloatArray:
    """The utilities that count, best first."""
    scores = np.concatenate([history, group])
    if history_programs is None and group_programs is None:
        latest = np.arange(len(scores))
    else:
        programs = [*(history_programs or ()), *(group_programs or ())]
        if len(history_programs or ()) != len(history) or len(programs) != len(scores):
            raise ValueError(
                f"{len(history_programs or ())} + {len(group_programs or ())} program ids for {len(history)} + "
                f"{len(group)} scores of history and group; give an id for every score"
            )
        finite = np.flatnonzero(~np.isnan(scores))
        latest = np.array(sorted({programs[index]: index for index in finite}.values()), dtype=np.intp)
    latest = latest[~np.isnan(scores[latest])]
    earlier = latest[latest < len(history)]
    if window is not None:
        earlier = earlier[max(len(earlier) - window, 0) :]
    return np.sort(scores[np.concatenate([earlier, latest[latest >= len(history)]])])[::-1]


def _reference(frontier: FloatArray, mode: BoundsMode) -> float:
    match mode:
        case "top1_top8":
            return float(frontier[min(8, len(frontier)) - 1])
        case "top1_top16":
            return float(frontier[min(16, len(frontier)) - 1])
        case "top1_all_mean":
            return float(np.mean(frontier))
        case "top1_all_median":
            return float(np.median(frontier))
        case _:
            raise ValueError(f"unknown bounds mode {mode!r}")


def _ends(low: float | None, high: float | None, higher_is_better: bool) -> tuple[float | None, float | None]:
    """A minimum and a maximum as (worst, best) utilities."""
    if higher_is_better:
        return low, high
    return None if high is None else -high, None if low is None else -low


def _limits(static_best: float | None, static_worst: float | None, higher_is_better: bool) -> Bounds:
    """The static limits as utilities; infinite where unknown."""
    sign = 1.0 if higher_is_better else -1.0
    worst = -math.inf if static_worst is None or not math.isfinite(static_worst) else sign * static_worst
    best = math.inf if static_best is None or not math.isfinite(static_best) else sign * static_best
    if not worst < best:
        raise ValueError(f"static_best {static_best} is not better than static_worst {static_worst}")
    return Bounds(worst, best)
