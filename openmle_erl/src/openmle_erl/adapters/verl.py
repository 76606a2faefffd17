"""Advantage estimators for verl; importing this module registers them.

    VERL_USE_EXTERNAL_MODULES=openmle_erl.adapters.verl python -m verl.trainer.main_ppo \\
        algorithm.adv_estimator=openmle_entropic ...

Tested with verl 0.9. A reward that is NaN masks its reply: advantage 0, and its group is as if it were not there. verl
still counts the reply's tokens where its loss averages over them, and its reward metrics are NaN for that step.
"""

from typing import Any

from verl.trainer.ppo.core_algos import register_adv_est  # pyright: ignore[reportMissingImports]

from openmle_erl.adapters.tokens import ESTIMATORS, token_advantages
from openmle_erl.rewards.advantages import AdvantageSettings


def register(name: str, settings: AdvantageSettings) -> None:
    """Makes `algorithm.adv_estimator=NAME` compute these advantages."""

    def estimate(token_level_rewards: Any, response_mask: Any, index: Any, **_: Any) -> tuple[Any, Any]:
        advantages = token_advantages(token_level_rewards, response_mask, index, settings)
        return advantages, advantages

    register_adv_est(name)(estimate)


for _name, _settings in ESTIMATORS.items():
    register(_name, _settings)
