"""Torch tensors go in and come out."""

import math

import numpy as np
import pytest
from openmle_erl.rewards import (
    entropic_advantages,
    group_normalised_advantages,
    leave_one_out_advantages,
    power_clip,
)
from openmle_erl.rewards.mapping import Bounds

torch = pytest.importorskip("torch")

REWARDS = [0.1, 0.9, 0.4, 0.0, 0.4, 1.0]
GROUPS = [0, 0, 0, 1, 0, 1]


@pytest.mark.parametrize("function", [entropic_advantages, group_normalised_advantages, leave_one_out_advantages])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5), ("bfloat16", 2e-1)])
def test_advantages_keep_the_rewards_dtype_and_device(function, dtype: str, tolerance: float) -> None:
    rewards = torch.tensor(REWARDS, dtype=getattr(torch, dtype), requires_grad=True)
    advantages = function(rewards, torch.tensor(GROUPS))
    assert isinstance(advantages, torch.Tensor)
    assert (advantages.dtype, advantages.device) == (rewards.dtype, rewards.device)
    assert not advantages.requires_grad
    np.testing.assert_allclose(advantages.double().numpy(), function(REWARDS, GROUPS), rtol=tolerance, atol=tolerance)


def test_whole_number_rewards_give_floating_advantages() -> None:
    advantages = leave_one_out_advantages(torch.tensor([1, 0, 0]), GROUPS[:3])
    assert advantages.dtype == torch.float32
    np.testing.assert_allclose(advantages.numpy(), [1.0, -0.5, -0.5])


def test_a_nan_in_a_tensor_is_masked_and_the_tensor_is_left_alone() -> None:
    rewards = torch.tensor([0.1, math.nan, 0.9], dtype=torch.float64)
    advantages = entropic_advantages(rewards, [0, 0, 0])
    assert advantages[1] == 0.0
    assert advantages[2] > 0.0
    assert torch.isnan(rewards[1])


def test_group_ids_may_be_a_tensor_beside_plain_rewards() -> None:
    np.testing.assert_array_equal(
        entropic_advantages(REWARDS, torch.tensor(GROUPS)), entropic_advantages(REWARDS, GROUPS)
    )


def test_mappings_read_tensors_and_give_arrays() -> None:
    np.testing.assert_array_equal(power_clip(torch.tensor([0.5, 2.0]), Bounds(0.0, 2.0)), [0.25, 1.0])


def test_scalar_tensors_as_group_ids_group_by_their_values() -> None:
    np.testing.assert_array_equal(
        entropic_advantages(REWARDS, list(torch.tensor(GROUPS))), entropic_advantages(REWARDS, GROUPS)
    )


def test_group_ids_of_half_precision_group_too() -> None:
    np.testing.assert_array_equal(
        entropic_advantages(REWARDS, torch.tensor(GROUPS, dtype=torch.bfloat16)), entropic_advantages(REWARDS, GROUPS)
    )


def test_rewards_may_be_a_list_of_scalar_tensors_of_a_graph() -> None:
    rewards = [torch.tensor(reward, dtype=torch.float64, requires_grad=True) for reward in REWARDS]
    np.testing.assert_array_equal(entropic_advantages([*rewards], GROUPS), entropic_advantages(REWARDS, GROUPS))


def test_the_published_pairs_advantage_is_finite_in_half_precision() -> None:
    advantages = entropic_advantages(torch.tensor([1.0, 0.0], dtype=torch.float16), [0, 0], published=True)
    assert advantages.tolist() == [65504.0, -1.0]
