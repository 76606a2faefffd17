"""Rewards and advantages for slime's `--custom-reward-post-process-path`.

    --custom-reward-post-process-path openmle_erl.adapters.slime.post_process --advantage-estimator gspo

gives the samples entropic advantages of their rewards. For adaptive bounds, name an object of your own; see
`PostProcess` and docs/rewards.md. slime is not on PyPI: this is tested with objects that have the documented fields
of its `Sample`, not with the package itself.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from openmle_erl.rewards.advantages import AdvantageSettings, group_advantages
from openmle_erl.rewards.batches import AdaptiveRewards, Graded
from openmle_erl.rewards.presets import ROBUST


class PostProcessed(NamedTuple):
    """In the order of the samples, one after the other where they came in nested lists."""

    raw: list[float]
    """Rewards, for slime's log; NaN for a sample that is left out."""
    processed: list[float]
    """Advantages, which slime gives to each token of a reply."""


class PostProcess:
    """Groups by `group_index`, whatever the groups' sizes.

    A sample is lost when its reward is None or NaN, it was aborted, or something has removed it: it gets 0.0, its group
    is as if it were not there, and `remove_sample` is set, which takes it out of slime's loss. Samples of one
    `rollout_id` are the parts of one rollout: it counts once, by its first part, and each part gets its advantage.

    Args:
        advantages: How rewards become advantages.
        rewards: With these, a sample's `reward` is a dict with the fields of `Graded` but for the group, and its reward
            is drawn from that. Without, `sample.get_reward_value(args)` is the reward.
    """

    def __init__(
        self, advantages: AdvantageSettings = ROBUST.advantages, rewards: AdaptiveRewards | None = None
    ) -> None:
        self._advantages = advantages
        self._rewards = rewards

    def __call__(self, args: Any, samples: Sequence[Any]) -> PostProcessed:
        """What slime calls, with its arguments and a list of samples, or of lists of samples.

        Raises:
            ValueError: A sample without a group, or as `AdaptiveRewards`.
        """
        flat = list(_flattened(samples))
        for place, sample in enumerate(flat):
            if sample.group_index is None:
                raise ValueError(f"sample {place} has no group_index")
        rollouts: dict[Any, int] = {}
        firsts: list[Any] = []
        rollout_of: list[int] = []
        for place, sample in enumerate(flat):
            # Older releases of slime have no such field.
            rollout_id = getattr(sample, "rollout_id", None)
            key = ("sample", place) if rollout_id is None else (sample.group_index, rollout_id)
            if key not in rollouts:
                rollouts[key] = len(firsts)
                firsts.append(sample)
            rollout_of.append(rollouts[key])

        rewards = self._values(args, firsts)
        advantages = group_advantages(rewards, [sample.group_index for sample in firsts], self._advantages)
        for sample, rollout in zip(flat, rollout_of, strict=True):
            if math.isnan(rewards[rollout]):
                sample.remove_sample = True
        return PostProcessed(rewards[rollout_of].tolist(), advantages[rollout_of].tolist())

    def _values(self, args: Any, samples: Sequence[Any]) -> np.ndarray:
        """[N] rewards; NaN where the sample is lost."""
        rewards = np.full(len(samples), np.nan)
        known = [place for place, sample in enumerate(samples) if not _lost(sample)]
        if self._rewards is None:
            values = [samples[place].get_reward_value(args) for place in known]
            rewards[known] = [math.nan if value is None else value for value in values]
        else:
            rewards[known] = self._rewards(
                [Graded(group=samples[place].group_index, **samples[place].reward) for place in known]
            )
        return rewards


def _lost(sample: Any) -> bool:
    return sample.reward is None or sample.remove_sample or sample.status.value == "aborted"


def _flattened(samples: Sequence[Any]) -> Iterator[Any]:
    for sample in samples:
        if isinstance(sample, list):
            yield from _flattened(sample)
        else:
            yield sample


post_process = PostProcess()
