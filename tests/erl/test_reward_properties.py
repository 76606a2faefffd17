"""What holds for any rewards and any scores."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from openmle_erl.rewards import (
    PAPER,
    ROBUST,
    RewardTask,
    adaptive_bounds,
    entropic_advantages,
    group_normalised_advantages,
    group_rewards,
    leave_one_out_advantages,
    utilities,
)

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
unhurried = settings(deadline=None)
FUNCTIONS = [entropic_advantages, group_normalised_advantages, leave_one_out_advantages]
hostile = st.one_of(
    st.none(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 1.0, 5e-324, 1e149, -1e149, 1.797e308, 0.1 + 0.2, 0.3]),
    st.floats(0, 1),
)
rewards_in_units = st.lists(st.integers(-1000, 1000).map(float), min_size=2, max_size=24)


def batches(values: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(st.tuples(st.integers(0, 4), values), max_size=40)


@pytest.mark.parametrize("function", FUNCTIONS)
@unhurried
@given(batch=batches(hostile))
def test_advantages_are_finite_whatever_the_rewards(function, batch) -> None:
    advantages = function([reward for _, reward in batch], [group for group, _ in batch])
    assert advantages.shape == (len(batch),)
    assert np.isfinite(advantages).all()


@unhurried
@given(batch=batches(hostile))
def test_entropic_advantages_are_bounded_by_the_groups_size(batch) -> None:
    groups = [group for group, _ in batch]
    advantages = entropic_advantages([reward for _, reward in batch], groups)
    for group in set(groups):
        own = advantages[np.array(groups) == group]
        assert own.min() >= -1.0 - 1e-9
        assert own.max() <= 22.0 * len(own)


@pytest.mark.parametrize("function", FUNCTIONS)
@unhurried
@given(batch=batches(st.floats(-10, 10)), seed=st.integers(0, 2**32 - 1))
def test_shuffling_the_members_shuffles_the_advantages(function, batch, seed: int) -> None:
    rewards, groups = np.array([r for _, r in batch], dtype=float), np.array([g for g, _ in batch], dtype=int)
    order = np.random.default_rng(seed).permutation(len(batch))
    straight, shuffled = function(rewards, groups), function(rewards[order], groups[order])
    np.testing.assert_allclose(shuffled, straight[order], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("function", FUNCTIONS)
@unhurried
@given(batch=batches(st.floats(-10, 10)))
def test_a_group_is_not_touched_by_the_others_nor_by_its_name(function, batch) -> None:
    groups = np.array([group for group, _ in batch], dtype=int)
    rewards = np.array([reward for _, reward in batch], dtype=float)
    together, renamed = function(rewards, groups), function(rewards, [f"prompt {group}" for group in groups])
    np.testing.assert_allclose(renamed, together, rtol=1e-9, atol=1e-9)
    for group in set(groups.tolist()):
        alone = function(rewards[groups == group], [0] * int((groups == group).sum()))
        np.testing.assert_allclose(together[groups == group], alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("function", FUNCTIONS)
@unhurried
@given(rewards=rewards_in_units)
def test_advantages_rise_with_the_reward_and_are_equal_for_equals(function, rewards: list[float]) -> None:
    advantages = function(rewards, [0] * len(rewards))
    order = np.argsort(rewards)
    assert np.all(np.diff(advantages[order]) >= -1e-12)
    for first, second in pairwise(order):
        if rewards[first] == rewards[second]:
            assert advantages[first] == pytest.approx(advantages[second], rel=1e-12, abs=1e-12)


@unhurried
@given(rewards=rewards_in_units, scale=st.floats(1e-6, 1e6), shift=st.integers(-1000, 1000))
def test_entropic_advantages_do_not_depend_on_the_rewards_scale_or_zero(
    rewards: list[float], scale: float, shift: int
) -> None:
    plain = entropic_advantages(rewards, [0] * len(rewards))
    moved = entropic_advantages((np.array(rewards) + shift) * scale, [0] * len(rewards))
    np.testing.assert_allclose(moved, plain, rtol=1e-7, atol=1e-7)


@unhurried
@given(rewards=rewards_in_units, target_kl=st.floats(0.01, 3.0))
def test_the_divergence_is_spent_wherever_it_can_be(rewards: list[float], target_kl: float) -> None:
    size, ties = len(rewards), rewards.count(max(rewards))
    assume(ties < size)
    raised = entropic_advantages(rewards, [0] * size, target_kl=target_kl) + 1.0
    q = raised / (size - 1 + raised)  # advantage + 1 = w / mean of the others, so q = w / sum
    q = q / q.sum()
    spent = float(np.sum(q * np.log(np.maximum(q * size, 1e-300))))
    assert spent == pytest.approx(min(target_kl, math.log(size / ties), 0.75 * math.log(size)), abs=1e-6)


scores = st.lists(hostile, max_size=20)


@unhurried
@given(
    history=scores,
    group=scores,
    higher=st.booleans(),
    limits=st.sampled_from([(None, None), (1.0, None), (None, -5.0), (1.0, 0.0)]),
    mode=st.sampled_from(["top1_top8", "top1_top16", "top1_all_mean", "top1_all_median", "theoretical"]),
    robust=st.booleans(),
)
def test_bounds_are_finite_in_order_and_inside_limits_that_the_scores_respect(
    history, group, higher: bool, limits, mode, robust: bool
) -> None:
    sign = 1.0 if higher else -1.0
    best, worst = (None if limit is None else sign * limit for limit in limits)
    options = {"span_floor": 0.1, "outlier_reach": 4.0, "window": 8} if robust else {}
    bounds = adaptive_bounds(
        history, group, higher_is_better=higher, static_best=best, static_worst=worst, mode=mode, **options
    )
    if bounds is None:
        return
    assert math.isfinite(bounds.worst)
    assert math.isfinite(bounds.best)
    assert bounds.worst < bounds.best
    seen = utilities([*history, *group], higher_is_better=higher)
    respected = limits[0] is None or not np.any(seen > limits[0])
    respected &= limits[1] is None or not np.any(seen < limits[1])
    several = np.nanmax(seen, initial=-np.inf) > np.nanmin(seen, initial=np.inf)
    if (respected and several) or None not in limits:
        assert limits[0] is None or bounds.best <= limits[0]
        assert limits[1] is None or bounds.worst >= limits[1]


@unhurried
@given(
    scores=st.lists(hostile, min_size=1, max_size=16),
    history=scores,
    higher=st.booleans(),
    limited=st.booleans(),
    preset=st.sampled_from([PAPER, ROBUST]),
)
def test_group_rewards_are_in_range_and_rise_with_the_utility(scores, history, higher, limited, preset) -> None:
    limits = ((1.0, 0.0) if higher else (0.0, 1.0)) if limited else (None, None)
    task = RewardTask(higher_is_better=higher, static_best=limits[0], static_worst=limits[1])
    result = group_rewards(scores, task=task, settings=preset, history=history)
    utility = utilities(scores, higher_is_better=higher)
    valid = ~np.isnan(utility)
    assert np.all((result.rewards >= 0.0) & (result.rewards <= 1.0))
    np.testing.assert_array_equal(result.rewards[~valid], 0.0)
    if preset is ROBUST:
        assert np.all(result.rewards[valid] >= 0.05)
    assert np.all(np.diff(result.rewards[valid][np.argsort(utility[valid])]) >= 0.0)


@unhurried
@given(scores=st.lists(st.integers(0, 50).map(float), min_size=2, max_size=16), history=st.lists(st.integers(0, 50)))
def test_in_ours_the_best_of_all_time_earns_one_unless_all_are_equal(scores: list[float], history: list[int]) -> None:
    assume(len({*scores, *history[-256:]}) > 1)
    rewards = group_rewards(scores, task=RewardTask(higher_is_better=True), history=history).rewards
    for score, reward in zip(scores, rewards, strict=True):
        assert (reward == 1.0) == (score == max([*scores, *history]))
