"""A reward library that any reinforcement-learning framework can import: numpy alone, input order kept.

    mapping      scores to utilities, utilities to rewards
    bounds       adaptive bounds: the utilities that rewards 0 and 1 stand for
    shaping      failures, the gap between claim and grade, the parent's reward
    presets      all of that together: `group_rewards`, and the settings `robust`, `paper`, `medal_binary`, `human_rank`
    batches      `AdaptiveRewards`: a step's batch at a time, each task's scores remembered
    groups       a batch, sorted by group
    advantages   a reward relative to its group: entropic, group-normalised, leave-one-out; all groups at once
    diagnostics  why a group gave no signal, and how hard the others pull

The usual road is `AdaptiveRewards`, or `group_rewards` for each prompt, then `group_advantages` for the batch.
"""

from openmle_erl.rewards.advantages import (
    AdvantageSettings,
    NoSignal,
    entropic_advantages,
    group_advantages,
    group_normalised_advantages,
    leave_one_out_advantages,
)
from openmle_erl.rewards.batches import AdaptiveRewards, Graded, ScoreRecord
from openmle_erl.rewards.bounds import StaticLimits, adaptive_bounds, static_limits
from openmle_erl.rewards.diagnostics import AdvantageReport, advantage_report
from openmle_erl.rewards.mapping import (
    Bounds,
    human_rank,
    margin_tanh,
    medal_binary,
    percentile,
    power_clip,
    power_sigmoid,
    utilities,
)
from openmle_erl.rewards.presets import (
    PAPER,
    PRESETS,
    ROBUST,
    GroupRewards,
    RewardSettings,
    RewardTask,
    group_rewards,
)
from openmle_erl.rewards.shaping import (
    FAILURE_REWARD,
    INFRASTRUCTURE,
    GapPenalty,
    ParentShaped,
    apply_gap_penalty,
    gap_denominator,
    shape_by_parent,
)

__all__ = [
    "FAILURE_REWARD",
    "INFRASTRUCTURE",
    "PAPER",
    "PRESETS",
    "ROBUST",
    "AdaptiveRewards",
    "AdvantageReport",
    "AdvantageSettings",
    "Bounds",
    "GapPenalty",
    "Graded",
    "GroupRewards",
    "NoSignal",
    "ParentShaped",
    "RewardSettings",
    "RewardTask",
    "ScoreRecord",
    "StaticLimits",
    "adaptive_bounds",
    "advantage_report",
    "apply_gap_penalty",
    "entropic_advantages",
    "gap_denominator",
    "group_advantages",
    "group_normalised_advantages",
    "group_rewards",
    "human_rank",
    "leave_one_out_advantages",
    "margin_tanh",
    "medal_binary",
    "percentile",
    "power_clip",
    "power_sigmoid",
    "shape_by_parent",
    "static_limits",
    "utilities",
]
