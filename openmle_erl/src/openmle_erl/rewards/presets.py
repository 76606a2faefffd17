"""From a group's scores to its rewards, by named settings.

    robust        ours: adaptive bounds that keep their resolution, infrastructure masked, advantages capped
    paper         the published run (`newreward` in its release): adaptive bounds, entropic advantages, parent bonus
    medal_binary  1 for a medal; group-normalised advantages
    human_rank    the share of teams beaten; group-normalised advantages

`paper`, `medal_binary` and `human_rank` compute what the release computes, faults included, except that a score or
reward that is NaN or infinite is missing, and that a leaderboard that is needed and not there is an error, not 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openmle_erl.rewards.advantages import AdvantageSettings
from openmle_erl.rewards.bounds import BoundsMode, adaptive_bounds, check_bounds_settings
from openmle_erl.rewards.mapping import (
    Bounds,
    FloatArray,
    Values,
    as_floats,
    human_rank,
    margin_tanh,
    medal_binary,
    percentile,
    power_clip,
    utilities,
)
from openmle_erl.rewards.shaping import (
    FAILURE_REWARD,
    INFRASTRUCTURE,
    SUCCESS,
    UNCHANGED,
    GapPenalty,
    ParentStrategy,
    apply_gap_penalty,
    shape_by_parent,
)

MappingName: TypeAlias = Literal["power_clip", "margin_tanh", "percentile", "medal_binary", "human_rank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """How scores become rewards, and rewards advantages."""

    mapping: MappingName = "power_clip"
    alpha: float = 1.0
    """Exponent of `power_clip`."""
    least_span: float | None = None
    """See `power_clip`."""
    bounds_mode: BoundsMode = "top1_top16"
    lower_shift: float = 0.25
    min_span: float = 1e-6
    window: int | None = None
    one_score_per_program: bool = False
    """Whether program ids, where given, are used to count each program once."""
    span_floor: float = 0.0
    outlier_reach: float | None = None
    lone_score_earns_one: bool = False
    """Whether the only score that a task has ever seen earns 1.0, whatever it is. Published; never wise."""
    valid_floor: float = 0.0
    """Least reward of a program with a score: rewards p become floor + (1 - floor) p, so that an ordinary program
    earns more than a crash."""
    mask_infrastructure: bool = True
    """Whether members that machinery failed have no reward (NaN); otherwise 0.0, as published."""
    gap_penalty: GapPenalty | None = None
    parent_strategy: ParentStrategy = "base"
    parent_bonus: float = 0.0
    advantages: AdvantageSettings = field(default_factory=AdvantageSettings)

    def __post_init__(self) -> None:
        check_bounds_settings(
            lower_shift=self.lower_shift,
            min_span=self.min_span,
            window=self.window,
            span_floor=self.span_floor,
            outlier_reach=self.outlier_reach,
        )
        if not 0.0 < self.alpha < math.inf:
            raise ValueError(f"alpha must be positive and finite, got {self.alpha}")
        if self.least_span is not None and not 0.0 < self.least_span < math.inf:
            raise ValueError(f"least_span must be positive and finite, got {self.least_span}")
        if not 0.0 <= self.valid_floor <= 1.0:
            raise ValueError(f"valid_floor must be in [0, 1], got {self.valid_floor}")
        if not 0.0 <= self.parent_bonus < math.inf:
            raise ValueError(f"parent_bonus must be finite and not negative, got {self.parent_bonus}")


PAPER = RewardSettings(
    least_span=1e-9,
    lone_score_earns_one=True,
    mask_infrastructure=False,
    parent_bonus=0.5,
    advantages=AdvantageSettings(published=True),
)
ROBUST = RewardSettings(
    window=256,
    one_score_per_program=True,
    span_floor=0.1,
    outlier_reach=4.0,
    valid_floor=0.05,
    advantages=AdvantageSettings(cap=20.0),
)
_STATIC = replace(PAPER, lone_score_earns_one=False, advantages=AdvantageSettings(kind="group_normalised"))

PRESETS: Mapping[str, RewardSettings] = MappingProxyType(
    {
        "robust": ROBUST,
        "paper": PAPER,
        "newreward": PAPER,
        "medal_binary": replace(_STATIC, mapping="medal_binary"),
        "human_rank": replace(_STATIC, mapping="human_rank"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTask:
    """What a reward needs to know of the task; scores are in the metric's units."""

    higher_is_better: bool
    static_best: float | None = None
    """No score can be better; None when unknown. See `bounds.static_limits`."""
    static_worst: float | None = None
    progress_best: float | None = None
    """Where `GroupRewards.progress` is 1; None for `static_best`. Fix it for the whole run."""
    progress_worst: float | None = None
    """Where it is 0; None for `static_worst`."""
    leaderboard: Sequence[float] = ()
    """The teams' scores, for `human_rank`."""
    bronze: float | None = None
    """The score that just wins bronze, for `medal_binary`."""
    gap_denominator: float | None = None
    """See `shaping.gap_denominator`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRewards:
    """The rewards of one group, in the order of its scores."""

    rewards: FloatArray
    """[N] NaN where the member is masked: its machinery failed."""
    base_rewards: FloatArray
    """[N] without the bonus for beating the parent; what to keep for children to be compared with."""
    progress: FloatArray
    """[N] place between fixed bounds, 0 to 1; NaN without a score, or without such bounds. Plot this: the mean reward
    falls while a policy improves, because its bounds rise with it."""
    bounds: Bounds | None
    """The utilities that stand for 0 and 1 under `power_clip` and `margin_tanh`; None where none were used."""


def group_rewards(
    scores: Values,
    *,
    task: RewardTask,
    settings: RewardSettings = ROBUST,
    outcomes: Sequence[str] | None = None,
    programs: Sequence[str] | None = None,
    history: Values = (),
    history_programs: Sequence[str] | None = None,
    parent_scores: Values | None = None,
    parent_rewards: Values | None = None,
    claimed: Values | None = None,
) -> GroupRewards:
    """The rewards of the samples of one prompt.

    Args:
        scores: [N] graded scores; None or NaN where there is none.
        outcomes: [N] how each program ended: the labels of `FAILURE_REWARD`, `success`, or `infrastructure`. A success
            without a score counts as `scoring_failed`. None: `success` where there is a score, else
            `code_execution_error`.
        programs: [N] program ids; see `RewardSettings.one_score_per_program`.
        history: The task's earlier scores, oldest first, of training only: no test and no evaluation scores.
        history_programs: Their program ids.
        parent_scores: [N] the (better) parent's score, mapped here on the group's own bounds; NaN for Draft.
        parent_rewards: [N] instead of `parent_scores`, the base reward that was stored for the parent, on the bounds
            of its time, as published.
        claimed: [N] the programs' own validation scores, for the gap penalty.

    Raises:
        ValueError: Lengths that do not match, an unknown outcome, or a leaderboard that is needed and not there.
    """
    if parent_scores is not None and parent_rewards is not None:
        raise ValueError("give parent_scores or parent_rewards, not both")
    values, earlier = as_floats(scores), as_floats(history)
    labels = _labels(values, outcomes)
    parents = None if parent_scores is None else _per_score("parent_scores", parent_scores, values)
    known_rewards = None if parent_rewards is None else _per_score("parent_rewards", parent_rewards, values)
    claims = None if claimed is None else _per_score("claimed", claimed, values)
    if earlier.ndim != 1:
        raise ValueError(f"history must be one-dimensional, got shape {earlier.shape}")
    for name, ids, count in (("programs", programs, len(values)), ("history_programs", history_programs, len(earlier))):
        if ids is not None and len(ids) != count:
            raise ValueError(f"{name}: {len(ids)} ids for {count} scores")
    own = np.where(np.isin(labels, (SUCCESS, UNCHANGED)), values, np.nan)
    bounds = _bounds(own, earlier, programs, history_programs, task, settings)

    def mapped(raw: FloatArray) -> FloatArray:
        return _mapped(utilities(raw, higher_is_better=task.higher_is_better), earlier, bounds, task, settings)

    base = mapped(own)
    if settings.lone_score_earns_one and np.count_nonzero(~np.isnan(np.concatenate([earlier, own]))) == 1:
        base = np.where(np.isnan(own), np.nan, 1.0)
    if settings.gap_penalty is not None and claims is not None:
        base = apply_gap_penalty(base, claims, own, penalty=settings.gap_penalty, denominator=task.gap_denominator)
    failed = np.array([FAILURE_REWARD.get(label, FAILURE_REWARD["scoring_failed"]) for label in labels])
    base = np.where((labels == SUCCESS) & ~np.isnan(own), _floored(base, settings), failed)

    if parents is not None:
        known_rewards = _floored(mapped(parents), settings)
    if known_rewards is None:
        known_rewards = np.full(len(base), np.nan)
    base, rewards = shape_by_parent(base, known_rewards, strategy=settings.parent_strategy, bonus=settings.parent_bonus)
    lost = np.nan if settings.mask_infrastructure else 0.0
    return GroupRewards(
        rewards=np.where(labels == INFRASTRUCTURE, lost, rewards),
        base_rewards=np.where(labels == INFRASTRUCTURE, lost, base),
        progress=_progress(own, task),
        bounds=bounds,
    )


def _per_score(name: str, given: Values, scores: FloatArray) -> FloatArray:
    """The values as floats, checked to be one for each score: numpy would stretch a single one over them all."""
    values = as_floats(given)
    if values.shape != scores.shape:
        raise ValueError(f"{name}: shape {values.shape} for {len(scores)} scores")
    return values


def _labels(scores: FloatArray, outcomes: Sequence[str] | None) -> NDArray[np.str_]:
    """The outcomes by their plain labels, checked."""
    if scores.ndim != 1:
        raise ValueError(f"scores must be one-dimensional, got shape {scores.shape}")
    if outcomes is None:
        return np.where(np.isnan(scores), "code_execution_error", SUCCESS)
    if len(outcomes) != len(scores):
        raise ValueError(f"{len(outcomes)} outcomes for {len(scores)} scores")
    for place, outcome in enumerate(outcomes):
        if outcome not in FAILURE_REWARD and outcome not in (SUCCESS, INFRASTRUCTURE):
            raise ValueError(f"outcome {place}: unknown label {outcome!r}")
    return np.array([str(outcome) for outcome in outcomes], dtype=np.str_)


def _bounds(
    own: FloatArray,
    earlier: FloatArray,
    programs: Sequence[str] | None,
    history_programs: Sequence[str] | None,
    task: RewardTask,
    settings: RewardSettings,
) -> Bounds | None:
    if settings.mapping not in ("power_clip", "margin_tanh"):
        return None
    return adaptive_bounds(
        earlier,
        own,
        higher_is_better=task.higher_is_better,
        static_best=task.static_best,
        static_worst=task.static_worst,
        mode=settings.bounds_mode,
        lower_shift=settings.lower_shift,
        min_span=settings.min_span,
        history_programs=history_programs if settings.one_score_per_program else None,
        group_programs=programs if settings.one_score_per_program else None,
        window=settings.window,
        span_floor=settings.span_floor,
        outlier_reach=settings.outlier_reach,
    )


def _mapped(
    utility: FloatArray, earlier: FloatArray, bounds: Bounds | None, task: RewardTask, settings: RewardSettings
) -> FloatArray:
    """NaN where there is no utility."""
    turn = 1.0 if task.higher_is_better else -1.0
    match settings.mapping:
        case "power_clip":
            return power_clip(utility, bounds, alpha=settings.alpha, least_span=settings.least_span)
        case "margin_tanh":
            return margin_tanh(utility, bounds)
        case "percentile":
            return percentile(utility, turn * earlier)
        case "medal_binary":
            if task.bronze is None:
                raise ValueError("medal_binary needs the task's bronze score, got None")
            return medal_binary(utility, turn * task.bronze)
        case "human_rank":
            return human_rank(utility, turn * as_floats(task.leaderboard))
        case _:
            raise ValueError(f"unknown mapping {settings.mapping!r}")


def _floored(rewards: FloatArray, settings: RewardSettings) -> FloatArray:
    return settings.valid_floor + (1.0 - settings.valid_floor) * rewards


def _progress(own: FloatArray, task: RewardTask) -> FloatArray:
    best = task.static_best if task.progress_best is None else task.progress_best
    worst = task.static_worst if task.progress_worst is None else task.progress_worst
    fixed = adaptive_bounds(
        (), (), higher_is_better=task.higher_is_better, static_best=best, static_worst=worst, mode="theoretical"
    )
    if fixed is None:
        return np.full(len(own), np.nan)
    return power_clip(utilities(own, higher_is_better=task.higher_is_better), fixed)
