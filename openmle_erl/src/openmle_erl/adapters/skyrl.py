"""Advantage estimators for SkyRL; importing this module, in the process that trains, registers them.

    trainer.algorithm.advantage_estimator=openmle_entropic

Tested with SkyRL 0.3. A reward that is NaN masks its reply: advantage 0, and its group is as if it were not there.
SkyRL still counts the reply's tokens where its loss averages over them, and its reward metrics are NaN for that step.
"""

from typing import Any

from skyrl.backends.skyrl_train.utils.ppo_utils import register_advantage_estimator  # pyright: ignore[reportMissingImports]

from openmle_erl.adapters.tokens import ESTIMATORS, token_advantages
from openmle_erl.rewards.advantages import AdvantageSettings


def register(name: str, settings: AdvantageSettings) -> None:
    """Makes `trainer.algorithm.advantage_estimator=NAME` compute these advantages.

    Raises:
        ValueError: The name is registered already.
    """

    def estimate(token_level_rewards: Any, response_mask: Any, index: Any, **_: Any) -> tuple[Any, Any]:
        advantages = token_advantages(token_level_rewards, response_mask, index, settings)
        return advantages, advantages

    register_advantage_estimator(name)(estimate)


for _name, _settings in ESTIMATORS.items():
    register(_name, _settings)
