"""What is done to a reward beside the mapping: failures, the gap between claim and grade, and the parent's reward.

Source: the public configurations of arXiv:2607.28568's release; operator shaping and its bonus are not in the paper.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from openmle_erl.rewards.mapping import HUGE, FloatArray, Values, as_floats

SUCCESS = "success"
UNCHANGED = "unchanged"
UNVERIFIED = "unverified"
INFRASTRUCTURE = "infrastructure"
"""Machinery failed: nothing is known about the program, and there is no reward."""

FAILURE_REWARD: Mapping[str, float] = MappingProxyType(
    {
        "code_missing": -1.0,
        "rejected": -0.5,
        UNVERIFIED: -0.5,
        "code_execution_error": 0.0,
        "submission_missing": 0.0,
        "scoring_failed": 0.0,
        "timeout": 0.0,
        UNCHANGED: 0.0,
    }
)
"""The rewards of what has no score to map, by outcome: the labels of `openmle_gym.jobs.Outcome`, `unverified` for a
program that breaks a self-validation protocol, and `unchanged` for one that is its parent again."""

ParentStrategy: TypeAlias = Literal["base", "gate", "diff"]
"""`base` keeps the reward; `gate` keeps it only from the parent's on; `diff` keeps what exceeds the parent's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapPenalty:
    """How the gap between a program's own score and its graded score lowers its reward."""

    coefficient: float = 1.0
    """Penalty for a gap of one tolerance."""
    high_coefficient: float = 2.0
    """Penalty for each further tolerance; unused unless `piecewise`."""
    tolerance: float = 0.12
    """Relative gap that counts as one; must be positive."""
    piecewise: bool = True

    def __post_init__(self) -> None:
        if not self.tolerance > 0:
            raise ValueError(f"tolerance must be positive, got {self.tolerance}")
        for name in ("coefficient", "high_coefficient"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")


def gap_denominator(*, theoretical_range: float | None = None, leaderboard_range: float | None = None) -> float | None:
    """What a gap is relative to: the theoretical range up to 2, else the leaderboard's, else the theoretical.

    None when that is unknown, zero or above 100: then each gap is relative to the larger of its two scores.
    """
    if theoretical_range is not None and 0 < theoretical_range <= 2:
        return theoretical_range
    span = leaderboard_range if leaderboard_range is not None else theoretical_range
    return span if span is not None and 0 < span <= 100 else None


def apply_gap_penalty(
    rewards: Values,
    claimed: Values,
    graded: Values,
    *,
    penalty: GapPenalty,
    denominator: float | None = None,
) -> FloatArray:
    """Rewards times max(0, 1 - penalty); only positive ones, and only where both scores are known.

    With g the relative gap over the tolerance, the penalty is coefficient * min(g, 1) + high_coefficient *
    max(g - 1, 0), or coefficient * g when it is not piecewise.

    Args:
        claimed: The programs' own validation scores, in the metric's units; NaN where there is none.
        graded: The scores that we measured, likewise.
        denominator: See `gap_denominator`.

    Raises:
        ValueError: A denominator that is not positive.
    """
    if denominator is not None and not denominator > 0:
        raise ValueError(f"denominator must be positive, got {denominator}")
    values, own, ours = as_floats(rewards), as_floats(claimed), as_floats(graded)
    scale = np.maximum(np.abs(own), np.abs(ours)) if denominator is None else np.full(values.shape, float(denominator))
    with np.errstate(over="ignore"):  # any penalty above 1 takes all
        gap = np.divide(np.abs(own - ours), scale, out=np.zeros_like(scale), where=scale > 0) / penalty.tolerance
        gap = np.minimum(gap, HUGE)
        if penalty.piecewise:
            lost = penalty.coefficient * np.minimum(gap, 1.0) + penalty.high_coefficient * np.maximum(gap - 1.0, 0.0)
        else:
            lost = penalty.coefficient * gap
    known = ~np.isnan(own) & ~np.isnan(ours) & (values > 0)
    return np.where(known, values * np.maximum(0.0, 1.0 - lost), values)


class ParentShaped(NamedTuple):
    """Rewards after the parent was looked at."""

    shaped: FloatArray
    """Without the bonus; what a child of this program is compared with."""
    final: FloatArray


def shape_by_parent(
    rewards: Values,
    parent_rewards: Values,
    *,
    strategy: ParentStrategy = "base",
    bonus: float = 0.5,
) -> ParentShaped:
    """Weighs rewards against the parent's, for Improve, Debug and Crossover.

    Args:
        parent_rewards: The parent's reward, on the same bounds; the better parent's of two. NaN where there is no
            parent (Draft) or none is known: such rewards stay as they are, as do rewards of 0 and less.
        bonus: Added for each unit above the parent; the published 0.5 takes a reward up to 1.5.
    """
    values, parents = as_floats(rewards), as_floats(parent_rewards)
    gain = np.maximum(values - parents, 0.0)
    match strategy:
        case "base":
            shaped = values
        case "gate":
            shaped = np.where(values >= parents, values, 0.0)
        case "diff":
            shaped = gain
        case _:
            raise ValueError(f"unknown parent strategy {strategy!r}")
    applies = ~np.isnan(parents) & (values > 0)
    return ParentShaped(
        np.where(applies, shaped, values),
        np.where(applies, shaped + bonus * gain, values),
    )
