"""Estimators inside SkyRL's own registry, called as its trainer calls them."""

import sys
import typing
from typing import Any

import numpy as np
import pytest
import typing_extensions
from openmle_erl.rewards import AdvantageSettings, entropic_advantages, group_advantages

pytest.importorskip("skyrl", reason="SkyRL is not installed")
if sys.version_info < (3, 12):
    # SkyRL 0.3 says that it runs on 3.11, but pydantic refuses its models there unless TypedDict is this one.
    typing.TypedDict = typing_extensions.TypedDict  # pyright: ignore[reportAttributeAccessIssue]
import torch
from openmle_erl.adapters.skyrl import register
from openmle_erl.adapters.tokens import ESTIMATORS
from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry, compute_advantages_and_returns

REWARDS = [0.1, 0.0, 0.4, 0.9, 0.0, float("nan"), 0.4, 1.0]
UIDS = ["p", "q", "p", "p", "q", "p", "p", "q"]
LENGTHS = torch.tensor([3, 1, 5, 2, 5, 4, 1, 5])
MASK = (torch.arange(5) < LENGTHS[:, None]).float()


def computed(estimator: str) -> tuple[torch.Tensor, torch.Tensor]:
    token_rewards = torch.zeros(len(REWARDS), 5)
    token_rewards[torch.arange(len(REWARDS)), LENGTHS - 1] = torch.tensor(REWARDS)
    config: Any = None
    return compute_advantages_and_returns(
        token_level_rewards=token_rewards,
        response_mask=MASK,
        index=UIDS,  # pyright: ignore[reportArgumentType]
        adv_estimator=estimator,  # pyright: ignore[reportArgumentType]
        config=config,
        values=None,
        gamma=1.0,
        lambd=1.0,
        grpo_norm_by_std=True,
    )


@pytest.mark.parametrize("name", ESTIMATORS)
def test_skyrl_computes_our_advantages_and_spreads_them_over_the_replys_tokens(name: str) -> None:
    advantages, returns = computed(name)
    expected = group_advantages(REWARDS, UIDS, ESTIMATORS[name])
    np.testing.assert_allclose(advantages, expected[:, None] * MASK.numpy(), rtol=1e-4, atol=1e-6)
    assert not advantages[5].any()
    np.testing.assert_array_equal(returns, advantages)


def test_skyrls_check_of_a_configuration_finds_the_names() -> None:
    assert set(ESTIMATORS) <= set(AdvantageEstimatorRegistry.list_available())


def test_settings_of_ones_own_get_a_name_once() -> None:
    settings = AdvantageSettings(target_kl=0.3, centre=True)
    register("openmle_test", settings)
    expected = entropic_advantages(REWARDS, UIDS, target_kl=0.3, centre=True)
    np.testing.assert_allclose(computed("openmle_test")[0][:, 0], expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="openmle_test"):
        register("openmle_test", settings)
