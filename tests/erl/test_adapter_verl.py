"""Estimators inside verl's own trainer code."""

import os
import subprocess
import sys

import numpy as np
import pytest
from openmle_erl.rewards import AdvantageSettings, entropic_advantages, group_advantages

pytest.importorskip("verl", reason="verl is not installed")
import torch
from openmle_erl.adapters.tokens import ESTIMATORS
from openmle_erl.adapters.verl import register
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.ray_trainer import compute_advantage

REWARDS = [0.1, 0.0, 0.4, 0.9, 0.0, float("nan"), 0.4, 1.0]
UIDS = np.array(["p", "q", "p", "p", "q", "p", "p", "q"], dtype=object)
LENGTHS = torch.tensor([3, 1, 5, 2, 5, 4, 1, 5])
MASK = (torch.arange(5) < LENGTHS[:, None]).long()


def computed(estimator: str) -> DataProto:
    """What the trainer does once a step: the reward at each reply's last token, uids for index."""
    token_rewards = torch.zeros(len(REWARDS), 5)
    token_rewards[torch.arange(len(REWARDS)), LENGTHS - 1] = torch.tensor(REWARDS)
    data = DataProto.from_dict(
        tensors={"token_level_rewards": token_rewards, "response_mask": MASK}, non_tensors={"uid": UIDS}
    )
    return compute_advantage(data, adv_estimator=estimator, num_repeat=4, config=AlgoConfig(adv_estimator=estimator))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_verl_computes_our_advantages_and_spreads_them_over_the_replys_tokens(name: str) -> None:
    batch = computed(name).batch
    expected = group_advantages(REWARDS, UIDS, ESTIMATORS[name])
    assert batch["advantages"].dtype == torch.float32
    np.testing.assert_allclose(batch["advantages"], expected[:, None] * MASK.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(batch["returns"], batch["advantages"])


def test_a_reward_that_is_nan_masks_its_reply_and_nobody_else() -> None:
    advantages = computed("openmle_entropic").batch["advantages"]
    assert not advantages[5].any()
    others = entropic_advantages([0.1, 0.4, 0.9, 0.4], [0] * 4, cap=20.0)
    np.testing.assert_allclose(advantages[[0, 2, 3, 6], 0], others, rtol=1e-5, atol=1e-6)


def test_settings_of_ones_own_get_a_name() -> None:
    register("openmle_test", AdvantageSettings(target_kl=0.3, centre=True))
    expected = entropic_advantages(REWARDS, UIDS, target_kl=0.3, centre=True)
    np.testing.assert_allclose(computed("openmle_test").batch["advantages"][:, 0], expected, rtol=1e-4, atol=1e-6)


def test_verl_loads_the_module_that_its_environment_variable_names() -> None:
    code = (
        "from verl.trainer.ppo.core_algos import get_adv_estimator_fn as find\n"
        "print(find('openmle_entropic').__module__)"
    )
    environment = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "openmle_erl.adapters.verl"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "openmle_erl.adapters.verl", done.stderr
