"""Scores to utilities, and utilities to rewards.

A *utility* is a score turned so that larger is better; the turn happens once, in `utilities`. Every mapping takes
utilities of any shape and returns float64 rewards of the same shape. A missing score is None or NaN on the way in and
NaN on the way out: no mapping turns it into a number (`shaping.FAILURE_REWARD` does).

Lists, numpy arrays and torch tensors are accepted alike; torch itself is never imported.

Source: arXiv:2607.28568, appendix B.5, and the public configurations of its release.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]

HUGE = 1e150
"""Magnitudes from here on are no measurement (a stored NaN often comes back as 1.8e308) and count as missing."""

PERCENTILE_WINDOW = 20
PERCENTILE_LEAST = 10


@runtime_checkable
class Tensor(Protocol):
    """What is used of a torch tensor."""

    def detach(self) -> Any: ...
    def is_floating_point(self) -> bool: ...
    def new_tensor(self, data: Any) -> Any: ...


Numbers: TypeAlias = npt.ArrayLike | Sequence[float | None]
"""Of which some may be missing: None or NaN."""
Values: TypeAlias = Numbers | Tensor


class Bounds(NamedTuple):
    """The utilities that rewards 0 and 1 stand for; worst < best."""

    worst: float
    best: float


def as_floats(values: Values) -> FloatArray:
    """The values as float64 on the CPU; NaN for None, NaN, infinities and magnitudes of 1e150 and more."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    try:
        with np.errstate(over="ignore"):  # wider floats than ours; what overflows is missing
            array = np.array(values, dtype=np.float64)
    except (OverflowError, RuntimeError, TypeError):  # integers of any size; tensors of a graph or of another device
        array = np.array(_floats(values), dtype=np.float64)
    array[~(np.abs(array) < HUGE)] = np.nan
    return array


def _floats(value: Any) -> Any:
    """A value, or the values of nested sequences, as plain floats."""
    if isinstance(value, list | tuple | np.ndarray):
        return [_floats(each) for each in value]
    if isinstance(value, Tensor):
        value = value.detach()
    try:
        return math.nan if value is None else float(value)
    except OverflowError:
        return math.inf


def utilities(scores: Values, *, higher_is_better: bool) -> FloatArray:
    """Scores turned so that larger is better; NaN where there is no usable score."""
    values = as_floats(scores)
    return values if higher_is_better else -values


def sigmoid(utility: Values) -> FloatArray:
    """1 / (1 + exp(-u)): the published stand-in where a task has no bounds at all."""
    return 0.5 + 0.5 * np.tanh(0.5 * as_floats(utility))


def power_clip(
    utility: Values, bounds: Bounds | None, *, alpha: float = 1.0, least_span: float | None = None
) -> FloatArray:
    """clip((u - worst) / (best - worst), 0, 1) ** alpha; `sigmoid` without bounds. Equation 1 of the paper.

    A smaller span than `least_span` counts as that. The release's is 1e-9; None is 1e-9 of the bounds' magnitude if
    that is below 1, so that a metric whose values are tiny keeps its order.
    """
    if bounds is None:
        return sigmoid(utility)
    return _place(as_floats(utility), bounds, least_span) ** alpha


def power_sigmoid(utility: Values, bounds: Bounds | None) -> FloatArray:
    """sigmoid((p - 0.5) / 0.5) ** 2 of the place p between the bounds: 0.0723 to 0.5344. The SFT release's mapping."""
    if bounds is None:
        return sigmoid(utility)
    return sigmoid((_place(as_floats(utility), bounds) - 0.5) / 0.5) ** 2


def margin_tanh(utility: Values, bounds: Bounds | None) -> FloatArray:
    """(0.5 + 0.5 tanh(m / 0.5)) ** 2 of the margin m = (u - middle) / half span; `sigmoid` without bounds."""
    if bounds is None:
        return sigmoid(utility)
    middle, half = 0.5 * (bounds.best + bounds.worst), 0.5 * max(bounds.best - bounds.worst, 1e-9)
    return (0.5 + 0.5 * np.tanh((as_floats(utility) - middle) / half / 0.5)) ** 2


def percentile(utility: Values, history: Values) -> FloatArray:
    """The squared share of the last 20 utilities of a task that a utility beats; equal ones count half.

    `sigmoid` while the history, oldest first, holds fewer than 10. The release does not say how it counts equals.
    """
    values = as_floats(utility)
    recent = as_floats(history)
    recent = np.sort(recent[~np.isnan(recent)][-PERCENTILE_WINDOW:])
    if len(recent) < PERCENTILE_LEAST:
        return sigmoid(values)
    beaten = np.searchsorted(recent, values, side="left") + np.searchsorted(recent, values, side="right")
    return np.where(np.isnan(values), np.nan, (beaten / (2 * len(recent))) ** 2)


def medal_binary(utility: Values, bronze: float) -> FloatArray:
    """1 from the utility that just wins bronze on, else 0."""
    values = as_floats(utility)
    return np.where(np.isnan(values), np.nan, values >= bronze)


def human_rank(utility: Values, leaderboard: Values) -> FloatArray:
    """The share of the other teams that a utility is not behind: 1 - better / (teams - 1), never below 0.

    Args:
        leaderboard: The teams' utilities, in any order. A board of one team gives 1 to everybody.

    Raises:
        ValueError: The leaderboard is empty.
    """
    board = as_floats(leaderboard)
    board = np.sort(board[~np.isnan(board)])
    if len(board) == 0:
        raise ValueError("human_rank needs the leaderboard's scores, got none")
    values = as_floats(utility)
    better = len(board) - np.searchsorted(board, values, side="right") if len(board) > 1 else np.zeros(values.shape)
    return np.where(np.isnan(values), np.nan, np.clip(1.0 - better / max(len(board) - 1, 1), 0.0, 1.0))


def _place(values: FloatArray, bounds: Bounds, least_span: float | None = None) -> FloatArray:
    """The place between the bounds, 0 to 1; see `power_clip`."""
    least = 1e-9 * min(1.0, max(abs(bounds.best), abs(bounds.worst))) if least_span is None else least_span
    with np.errstate(over="ignore"):  # what overflows is clipped
        return np.clip((values - bounds.worst) / max(bounds.best - bounds.worst, least), 0.0, 1.0)
