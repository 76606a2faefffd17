"""What frameworks share that hand over one reward a token and expect one advantage a token."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from openmle_erl.rewards.advantages import AdvantageSettings, group_advantages
from openmle_erl.rewards.groups import Ids
from openmle_erl.rewards.presets import PAPER, ROBUST

ESTIMATORS: Mapping[str, AdvantageSettings] = MappingProxyType(
    {
        "openmle_entropic": ROBUST.advantages,
        "openmle_entropic_paper": PAPER.advantages,
        "openmle_leave_one_out": AdvantageSettings(kind="leave_one_out"),
    }
)
"""The advantages that `verl` and `skyrl` register, by name."""


def token_advantages(token_rewards_BT: Any, mask_BT: Any, groups: Ids, settings: AdvantageSettings) -> Any:
    """[B, T] every reply's advantage at each of its tokens, and 0 elsewhere.

    Args:
        token_rewards_BT: [B, T] tensor; a reply's reward is the sum of its row. A row with a NaN is masked.
        mask_BT: [B, T] tensor, 1 on the reply's tokens.
        groups: [B] the prompt of each reply.
    """
    return group_advantages(token_rewards_BT.sum(-1), groups, settings)[:, None] * mask_BT
