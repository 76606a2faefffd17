"""slime's post-process function, with objects that have the documented fields of its samples."""

import math
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from openmle_erl.adapters.slime import PostProcess, post_process
from openmle_erl.rewards import PAPER, AdaptiveRewards, RewardTask, entropic_advantages, group_rewards

TASK = RewardTask(higher_is_better=False, static_best=0.0)
ARGS = SimpleNamespace(reward_key=None)


class Status(Enum):
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"


@dataclass
class Sample:
    """The fields of slime's own that a post-process function may read or write."""

    group_index: int | None
    reward: float | dict[str, Any] | None
    rollout_id: int | None = None
    status: Status = Status.COMPLETED
    remove_sample: bool = False

    def get_reward_value(self, args: SimpleNamespace) -> Any:
        return self.reward[args.reward_key] if args.reward_key else self.reward  # pyright: ignore


def test_samples_come_back_in_their_order_flat_or_nested_with_groups_of_any_size() -> None:
    groups = {3: [0.0, 1.0, 0.2, 0.4], 1: [0.5, 0.1, 0.3], 7: [5.0] * 4}
    nested = [[Sample(group, reward) for reward in rewards] for group, rewards in groups.items()]
    expected = np.concatenate([entropic_advantages(rewards, [0] * len(rewards)) for rewards in groups.values()])
    raw, processed = post_process(ARGS, nested)
    assert raw == [reward for rewards in groups.values() for reward in rewards]
    np.testing.assert_allclose(processed, expected, rtol=1e-12)
    assert processed[7:] == [0.0] * 4
    flat = [sample for samples in nested for sample in samples]
    mixed = flat[::2] + flat[1::2]
    np.testing.assert_allclose(post_process(ARGS, mixed).processed, [*expected[::2], *expected[1::2]], rtol=1e-12)


def test_a_lost_sample_has_no_weight_and_leaves_the_loss() -> None:
    samples = [
        Sample(0, 0.1),
        Sample(0, None),
        Sample(0, 0.4),
        Sample(0, math.nan),
        Sample(0, 0.9),
        Sample(0, -1.0, status=Status.ABORTED),
        Sample(0, 0.8, remove_sample=True),
        Sample(0, 0.4, status=Status.TRUNCATED),
    ]
    raw, processed = post_process(ARGS, samples)
    lost = [False, True, False, True, False, True, True, False]
    assert [math.isnan(reward) for reward in raw] == [sample.remove_sample for sample in samples] == lost
    np.testing.assert_array_equal(np.array(processed)[lost], 0.0)
    np.testing.assert_allclose(
        np.array(processed)[~np.array(lost)], entropic_advantages([0.1, 0.4, 0.9, 0.4], [0] * 4), rtol=1e-12
    )


def test_the_parts_of_one_rollout_count_once_and_share_its_advantage() -> None:
    samples = [Sample(0, 0.1, 10), Sample(0, 0.9, 11), Sample(0, 0.9, 11), Sample(0, 0.4, 12), Sample(1, 0.4, 12)]
    raw, processed = post_process(ARGS, samples)
    best = entropic_advantages([0.1, 0.9, 0.4], [0] * 3)
    np.testing.assert_allclose(processed, [best[0], best[1], best[1], best[2], 0.0], rtol=1e-12)
    assert raw == [0.1, 0.9, 0.9, 0.4, 0.4]


def test_a_reward_key_is_slimes_own_business() -> None:
    samples = [Sample(0, {"accuracy": 0.1}), Sample(0, {"accuracy": 0.3})]
    assert post_process(SimpleNamespace(reward_key="accuracy"), samples).raw == [0.1, 0.3]


def test_scores_become_rewards_on_bounds_that_follow_them() -> None:
    hook = PostProcess(PAPER.advantages, AdaptiveRewards({"wine": TASK}))
    first = [Sample(0, {"task": "wine", "score": score}) for score in (0.4, 0.5)]
    np.testing.assert_allclose(hook(ARGS, first).raw, group_rewards([0.4, 0.5], task=TASK).rewards)
    second = [
        Sample(1, {"task": "wine", "score": 0.3, "program": "a"}),
        Sample(1, None),
        Sample(1, {"task": "wine", "score": None, "outcome": "timeout"}),
        Sample(1, {"task": "wine", "score": None, "outcome": "infrastructure"}),
        Sample(1, {"task": "wine", "score": 0.45, "program": "b"}),
    ]
    raw, processed = hook(ARGS, second)
    expected = group_rewards([0.3, None, 0.45], task=TASK, history=[0.4, 0.5]).rewards
    np.testing.assert_allclose(raw, [expected[0], np.nan, expected[1], np.nan, expected[2]])
    advantages = entropic_advantages(expected, [0] * 3)
    np.testing.assert_allclose(processed, [advantages[0], 0.0, advantages[1], 0.0, advantages[2]], rtol=1e-12)
    assert [sample.remove_sample for sample in second] == [False, True, False, True, False]


def test_a_sample_without_a_group_is_refused_by_place() -> None:
    with pytest.raises(ValueError, match="sample 1 has no group_index"):
        post_process(ARGS, [Sample(0, 0.1), Sample(None, 0.2)])
