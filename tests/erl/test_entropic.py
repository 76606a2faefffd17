"""Entropic advantages against the published numbers and an independent bisection."""

import math
import random

import numpy as np
import pytest
from openmle_erl.rewards import (
    adaptive_bounds,
    advantage_report,
    entropic_advantages,
    group_normalised_advantages,
    leave_one_out_advantages,
    power_clip,
)
from openmle_erl.rewards.advantages import AdvantageSettings, group_advantages
from openmle_erl.rewards.mapping import Bounds

LOG_2 = math.log(2.0)


def bisected(rewards: list[float], target_kl: float = LOG_2) -> list[float]:
    """Appendix B.5 by the letter, one member at a time: double the bracket to 1e6 at most, then 60 bisections."""
    count, top = len(rewards), max(rewards)
    if count < 2 or all(abs(reward - rewards[0]) <= 1e-8 + 1e-5 * abs(rewards[0]) for reward in rewards):
        return [0.0] * count

    def divergence(beta: float) -> float:
        weights = [math.exp(beta * (reward - top)) for reward in rewards]
        total = math.fsum(weights)
        return math.fsum(w / total * math.log(w / total * count) for w in weights if w > 0.0)

    low, high = 0.0, 1.0
    while high < 1e6 and divergence(high) < target_kl:
        high *= 2.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        if divergence(middle) < target_kl:
            low = middle
        else:
            high = middle
    weights = [math.exp(high * (reward - top)) for reward in rewards]
    total = math.fsum(weights)
    return [w / ((total - w) / (count - 1) + 1e-12) - 1.0 for w in weights]


RAMP = [i / 15 for i in range(16)]
VECTORS = [
    (
        RAMP,
        [
            -0.970159,
            -0.958433,
            -0.942083,
            -0.919266,
            -0.887394,
            -0.842807,
            -0.78031,
            -0.692462,
            -0.568488,
            -0.392556,
            -0.1409,
            0.223184,
            0.758675,
            1.565672,
            2.827548,
            4.919187,
        ],
    ),
    ([0.0, 0.0, 0.0, 1.0], [-0.797963, -0.797963, -0.797963, 11.848729]),
    ([0.1, 0.4, 0.4, 0.9], [-0.928256, -0.710826, -0.710826, 11.061007]),
    ([-1.0, -0.5, 0.0, 0.3], [-0.986780, -0.902432, -0.123317, 7.449163]),
    ([0.0, 0.0, 1.0, 1.0], [-1.0, -1.0, 2.0, 2.0]),
    ([0.5, 0.500004, 0.5], [0.0, 0.0, 0.0]),
    ([0.7], [0.0]),
]


@pytest.mark.parametrize(("rewards", "expected"), VECTORS)
def test_the_published_vectors_are_met_to_their_printed_digits(rewards: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(entropic_advantages(rewards, [0] * len(rewards)), expected, rtol=0, atol=5.1e-7)


@pytest.mark.parametrize(("winners", "losers", "winner", "loser"), [(8, 8, 1.143, -1.0), (15, 1, 0.071, -1.0)])
def test_where_ties_make_the_budget_unreachable_all_weight_is_on_them(
    winners: int, losers: int, winner: float, loser: float
) -> None:
    advantages = entropic_advantages([1.0] * winners + [0.0] * losers, [0] * (winners + losers))
    np.testing.assert_allclose(advantages[:winners], winner, rtol=0, atol=5e-4)
    np.testing.assert_allclose(advantages[winners:], loser, rtol=0, atol=1e-9)


def test_the_inverse_temperatures_are_the_published_ones() -> None:
    report = advantage_report([*RAMP, 0.1, 0.4, 0.4, 0.9], np.repeat([0, 1], [16, 4]))
    np.testing.assert_allclose(report.beta, [4.959437270724, 4.418463], rtol=0, atol=5e-7)
    assert report.beta[0] == pytest.approx(4.959437270724, abs=5e-13)


def test_the_advantage_of_one_slightly_better_member_is_that_of_a_much_better_one() -> None:
    assert entropic_advantages([0.01] + [0.0] * 15, [0] * 16)[0] == pytest.approx(13.3, abs=0.05)
    assert entropic_advantages([1.0] + [0.0] * 14 + [-0.5], [0] * 16).sum() == pytest.approx(6.1, abs=0.05)
    assert entropic_advantages(RAMP, [0] * 16).mean() == pytest.approx(0.137, abs=5e-4)


def test_the_executed_example_of_the_method_is_reproduced() -> None:
    log_losses = [0.171, 0.164, 0.159, 0.152, 0.148, 0.141, 0.139, 0.131]
    log_losses += [0.129, 0.122, 0.118, 0.111, 0.104, 0.098, 0.091, 0.083]
    utilities = -np.array(log_losses)
    on_static = power_clip(utilities, Bounds(worst=-20.0, best=0.0))
    bounds = adaptive_bounds([], log_losses, higher_is_better=False, static_best=0.0, static_worst=20.0)
    assert bounds is not None
    on_adaptive = power_clip(utilities, bounds)
    entropic = entropic_advantages(on_adaptive, [0] * 16)
    normalised = group_normalised_advantages(on_adaptive, [0] * 16)

    assert np.ptp(on_static) == pytest.approx(0.0044, abs=5e-5)
    assert bounds == pytest.approx((-0.1930, -0.0830), abs=5e-5)
    assert np.ptp(on_adaptive) == pytest.approx(0.8, abs=1e-12)
    assert normalised[15] == pytest.approx(1.718, abs=5e-4)
    assert entropic[15] == pytest.approx(5.654, abs=5e-4)
    assert entropic[15] / normalised[15] == pytest.approx(3.29, abs=5e-3)
    np.testing.assert_allclose(entropic, bisected(list(on_adaptive)), rtol=0, atol=1e-9)


def awkward_groups() -> list[list[float]]:
    """Groups of every shape: even, tied, heavy-tailed, nearly tied, of tiny and of huge scale."""
    draw = random.Random(7)
    groups = []
    for number in range(240):
        size = draw.randint(3, 40)
        even = [draw.random() for _ in range(size)]
        shapes = [
            even,
            [draw.randint(0, 3) / 3 for _ in range(size)],
            [-math.exp(draw.gauss(0, 3)) for _ in range(size)],
            [*even[:-2], 1.0, 1.0 - 10.0 ** -draw.uniform(1, 6)],
            [value * 10.0 ** draw.uniform(-2, 6) for value in even],
            [draw.gauss(0, 1) for _ in range(size)],
        ]
        groups.append(shapes[number % len(shapes)])
    return groups


def test_a_scattered_ragged_batch_equals_the_bisection_group_by_group() -> None:
    groups = awkward_groups()
    rewards = [reward for group in groups for reward in group]
    ids = [number for number, group in enumerate(groups) for _ in group]
    expected = [advantage for group in groups for advantage in bisected(group)]
    order = list(range(len(rewards)))
    random.Random(8).shuffle(order)
    mixed = entropic_advantages([rewards[i] for i in order], [ids[i] for i in order], published=True)
    np.testing.assert_allclose(mixed, [expected[i] for i in order], rtol=0, atol=1e-9)


@pytest.mark.parametrize("target_kl", [0.01, 0.3, 1.0, 2.0])
def test_other_budgets_equal_the_bisection_too(target_kl: float) -> None:
    draw = random.Random(3)
    groups = [[draw.random() for _ in range(size)] for size in (16, 16, 24, 33)]
    for group in groups:
        advantages = entropic_advantages(group, [0] * len(group), target_kl=target_kl)
        np.testing.assert_allclose(advantages, bisected(group, target_kl), rtol=0, atol=1e-9)


def test_near_ties_on_every_scale_still_spend_the_whole_budget() -> None:
    draw = random.Random(5)
    rewards = [1.0 - 10.0 ** -draw.uniform(0, 15) for _ in range(300 * 16)]
    report = advantage_report(rewards, np.repeat(np.arange(300), 16))
    np.testing.assert_allclose(report.effective_kl, LOG_2, rtol=0, atol=1e-12)
    assert not report.budget_missed.any()


def test_a_large_budget_is_kept_back_from_ties_too() -> None:
    # 24 members, 2 best: log 12 = 2.485 could be spent, 0.75 log 24 = 2.384 is.
    report = advantage_report([1.0] * 2 + [0.0] * 22, [0] * 24, AdvantageSettings(target_kl=3.0))
    assert report.effective_kl[0] == pytest.approx(0.75 * math.log(24), abs=1e-12)


def test_a_group_of_two_is_bounded_unless_the_published_behaviour_is_asked_for() -> None:
    bounded = entropic_advantages([1.0, 0.0], [0, 0])
    published = entropic_advantages([1.0, 0.0], [0, 0], published=True)
    # Three quarters of log 2: q = 0.95832 solves q log 2q + (1 - q) log 2(1 - q) = 0.51986; q / (1 - q) - 1 = 21.99.
    np.testing.assert_allclose(bounded, [21.985, -0.95649], rtol=0, atol=1e-3)
    np.testing.assert_allclose(published, [999999999999.0, -1.0], rtol=1e-12)


def test_spreads_below_the_published_ceiling_of_beta_spend_less_only_when_published() -> None:
    rewards = [3e-7, 1e-7, 0.0]
    ours = entropic_advantages(rewards, [0] * 3)
    np.testing.assert_allclose(ours, entropic_advantages([3.0, 1.0, 0.0], [0] * 3), rtol=1e-9)
    published = entropic_advantages(rewards, [0] * 3, published=True)
    np.testing.assert_allclose(published, bisected(rewards), rtol=0, atol=1e-9)
    assert published[0] < 0.5 < ours[0]


def test_a_masked_member_gets_zero_and_its_group_is_as_if_it_were_not_there() -> None:
    rewards = [0.1, None, 0.4, math.nan, 0.4, math.inf, 0.9, -math.inf, 1e200]
    advantages = entropic_advantages(rewards, ["g"] * 9)
    np.testing.assert_array_equal(advantages[[1, 3, 5, 7, 8]], 0.0)
    np.testing.assert_array_equal(advantages[[0, 2, 4, 6]], entropic_advantages([0.1, 0.4, 0.4, 0.9], [0] * 4))
    for function in (group_normalised_advantages, leave_one_out_advantages):
        np.testing.assert_array_equal(
            function(rewards, ["g"] * 9)[[0, 2, 4, 6]], function([0.1, 0.4, 0.4, 0.9], [0] * 4)
        )


def test_a_cap_limits_the_top_and_nothing_else() -> None:
    plain = entropic_advantages(RAMP, [0] * 16)
    np.testing.assert_array_equal(entropic_advantages(RAMP, [0] * 16, cap=2.0), np.minimum(plain, 2.0))
    assert plain.max() > 2.0


def test_centring_makes_every_group_sum_to_zero_and_keeps_differences() -> None:
    ids = [0] * 16 + [1] * 4
    rewards = [*RAMP, 0.0, 0.0, 0.0, 1.0]
    centred = entropic_advantages(rewards, ids, centre=True)
    assert centred[:16].sum() == pytest.approx(0.0, abs=1e-12)
    assert centred[16:].sum() == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(np.diff(centred[:16]), np.diff(entropic_advantages(rewards, ids)[:16]), atol=1e-12)


def test_group_normalisation_uses_each_groups_own_mean_and_unbiased_deviation() -> None:
    # Sizes 4, 3, 4; the middle group is all equal. Deviation of 1, 2, 3, 4 is sqrt(5 / 3).
    advantages = group_normalised_advantages([1, 2, 3, 4, 5, 5, 5, 0, 0, 0, 2], np.repeat([0, 1, 2], [4, 3, 4]))
    deviation = math.sqrt(5 / 3) + 1e-6
    np.testing.assert_allclose(advantages[:4], np.array([-1.5, -0.5, 0.5, 1.5]) / deviation, rtol=1e-12)
    np.testing.assert_array_equal(advantages[4:7], 0.0)
    np.testing.assert_allclose(advantages[7:], np.array([-0.5, -0.5, -0.5, 1.5]) / (1.0 + 1e-6), rtol=1e-12)


def test_leave_one_out_keeps_an_only_success() -> None:
    np.testing.assert_allclose(leave_one_out_advantages([1, 0, 0, 0], [0] * 4), [1, -1 / 3, -1 / 3, -1 / 3], rtol=1e-12)


def test_settings_choose_the_kind_and_pass_their_fields() -> None:
    ids = [0] * 16
    entropic = AdvantageSettings(target_kl=0.3, cap=1.0, centre=True)
    expected = entropic_advantages(RAMP, ids, target_kl=0.3, cap=1.0, centre=True)
    np.testing.assert_array_equal(group_advantages(RAMP, ids, entropic), expected)
    two = AdvantageSettings(published=True)
    assert group_advantages([1.0, 0.0], [0, 0], two)[0] > 1e11
    normalised = AdvantageSettings(kind="group_normalised", epsilon=1.0)
    np.testing.assert_array_equal(
        group_advantages(RAMP, ids, normalised), group_normalised_advantages(RAMP, ids, epsilon=1.0)
    )
    left_out = AdvantageSettings(kind="leave_one_out")
    np.testing.assert_array_equal(group_advantages(RAMP, ids, left_out), leave_one_out_advantages(RAMP, ids))


@pytest.mark.parametrize(
    "ids", [[3, 1, 3, 1], ["b", "a", "b", "a"], np.array(["u-2", "u-1", "u-2", "u-1"], dtype=object)]
)
def test_any_hashable_id_groups(ids: list[object]) -> None:
    np.testing.assert_allclose(leave_one_out_advantages([1.0, 10.0, 3.0, 30.0], ids), [-2.0, -20.0, 2.0, 20.0])


def test_an_empty_batch_has_no_advantages() -> None:
    for function in (entropic_advantages, group_normalised_advantages, leave_one_out_advantages):
        assert function([], []).shape == (0,)


def test_shapes_and_budgets_that_make_no_sense_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="3 rewards for 2 group ids"):
        entropic_advantages([1, 2, 3], [0, 0])
    with pytest.raises(ValueError, match=r"one-dimensional, got shape \(1, 2\)"):
        entropic_advantages([[1, 2]], [0, 0])
    with pytest.raises(ValueError, match=r"group ids must be one-dimensional, got shape \(2, 1\)"):
        entropic_advantages([1, 2], np.zeros((2, 1), dtype=int))
    with pytest.raises(ValueError, match="target_kl must be positive and finite, got 0"):
        entropic_advantages([1, 2], [0, 0], target_kl=0)


@pytest.mark.parametrize("cap", [math.nan, 0.0, -5.0])
def test_a_cap_that_no_advantage_can_be_below_is_refused(cap: float) -> None:
    with pytest.raises(ValueError, match=f"cap must be positive, got {cap}"):
        entropic_advantages([1, 2], [0, 0], cap=cap)
    with pytest.raises(ValueError, match=f"cap must be positive, got {cap}"):
        AdvantageSettings(cap=cap)


@pytest.mark.parametrize("epsilon", [math.nan, -0.5, math.inf])
def test_an_epsilon_that_would_turn_or_lose_the_advantages_is_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match=f"epsilon must be finite and not negative, got {epsilon}"):
        group_normalised_advantages([1, 2], [0, 0], epsilon=epsilon)
    with pytest.raises(ValueError, match=f"epsilon must be finite and not negative, got {epsilon}"):
        AdvantageSettings(epsilon=epsilon)


def test_an_integer_too_large_for_a_float_is_masked_as_any_number_of_its_size_is() -> None:
    np.testing.assert_array_equal(
        entropic_advantages([10**400, 0.0, 1.0, -(10**400)], [0] * 4),
        entropic_advantages([None, 0.0, 1.0, None], [0] * 4),
    )


def test_a_group_id_that_equals_nothing_is_refused_with_its_place() -> None:
    for ids in ([3.0, math.nan, 3.0], np.array([3.0, math.nan, 3.0])):
        with pytest.raises(ValueError, match=r"group id 1 is .*nan"):
            entropic_advantages([1, 2, 3], ids)
