"""Score-to-reward mappings, the gap penalty, and shaping by the parent."""

import math

import numpy as np
import pytest
from openmle_erl.rewards import (
    FAILURE_REWARD,
    INFRASTRUCTURE,
    Bounds,
    GapPenalty,
    apply_gap_penalty,
    gap_denominator,
    human_rank,
    margin_tanh,
    medal_binary,
    percentile,
    power_clip,
    power_sigmoid,
    shape_by_parent,
    utilities,
)
from openmle_gym.jobs import Outcome

UNIT = Bounds(worst=0.0, best=1.0)


def test_a_utility_is_a_score_turned_so_that_larger_is_better() -> None:
    np.testing.assert_array_equal(
        utilities([0.2, None, math.inf, 3], higher_is_better=False), [-0.2, np.nan, np.nan, -3]
    )
    np.testing.assert_array_equal(utilities([0.2, -1e150], higher_is_better=True), [0.2, np.nan])


def test_power_clip_is_linear_between_the_bounds_and_clipped_beyond() -> None:
    bounds = Bounds(worst=2.0, best=6.0)
    np.testing.assert_array_equal(power_clip([1.0, 2.0, 3.0, 6.0, 9.0], bounds), [0.0, 0.0, 0.25, 1.0, 1.0])
    np.testing.assert_array_equal(power_clip([3.0, 5.0], bounds, alpha=2.0), [0.0625, 0.5625])


def test_a_span_that_is_only_rounding_gives_nothing_but_a_tiny_metric_keeps_its_order() -> None:
    noise = Bounds(worst=0.3, best=0.1 + 0.2)
    assert power_clip([0.1 + 0.2], noise)[0] < 1e-6
    np.testing.assert_allclose(power_clip([-2e-12], Bounds(worst=-3e-12, best=-1e-12)), [0.5])


def test_power_sigmoid_has_the_published_values() -> None:
    np.testing.assert_allclose(power_sigmoid([0.0, 0.5, 1.0], UNIT), [0.0723, 0.25, 0.5344], rtol=0, atol=5e-5)
    # sigmoid(-1) ** 2 and sigmoid(1) ** 2
    exact = [(1 / (1 + math.e)) ** 2, 0.25, (1 / (1 + 1 / math.e)) ** 2]
    np.testing.assert_allclose(power_sigmoid([-7.0, 0.5, 7.0], UNIT), exact, rtol=1e-12)


def test_margin_tanh_is_a_quarter_in_the_middle() -> None:
    bounds = Bounds(worst=-1.0, best=3.0)
    at_best = (0.5 + 0.5 * math.tanh(2.0)) ** 2
    np.testing.assert_allclose(margin_tanh([1.0, 3.0], bounds), [0.25, at_best], rtol=1e-12)


def test_without_bounds_the_mappings_are_a_sigmoid_of_the_utility() -> None:
    for mapping in (power_clip, power_sigmoid, margin_tanh):
        np.testing.assert_allclose(mapping([0.0, 1.0, -1e6], None), [0.5, 1 / (1 + 1 / math.e), 0.0], rtol=1e-12)


def test_the_percentile_looks_at_the_last_twenty_and_counts_equals_half() -> None:
    history = [99.0] * 5 + [float(i) for i in range(20)]
    np.testing.assert_allclose(percentile([5.0, 100.0, -1.0], history), [(5.5 / 20) ** 2, 1.0, 0.0], rtol=1e-12)


def test_the_percentile_is_a_sigmoid_until_there_are_ten() -> None:
    np.testing.assert_allclose(percentile([0.0], [5.0] * 9), [0.5])
    np.testing.assert_allclose(percentile([0.0], [5.0] * 10), [0.0])
    np.testing.assert_allclose(percentile([0.0], [5.0] * 9 + [math.nan]), [0.5])


def test_a_medal_is_won_from_the_bronze_score_on() -> None:
    np.testing.assert_array_equal(medal_binary([0.8, 0.79999, 0.9, None], 0.8), [1.0, 0.0, 1.0, np.nan])


def test_human_rank_is_the_share_of_the_other_teams_that_are_not_ahead() -> None:
    board = [5.0, 1.0, 3.0, 2.0, 4.0]
    np.testing.assert_array_equal(human_rank([6.0, 5.0, 4.0, 0.0, None], board), [1.0, 1.0, 0.75, 0.0, np.nan])
    np.testing.assert_array_equal(human_rank([-9.0], [5.0]), [1.0])
    with pytest.raises(ValueError, match="leaderboard"):
        human_rank([1.0], [])


def test_no_mapping_turns_a_missing_score_into_a_number() -> None:
    missing = [None, math.nan]
    mapped = [
        power_clip(missing, UNIT),
        power_clip(missing, None),
        power_sigmoid(missing, UNIT),
        margin_tanh(missing, UNIT),
        percentile(missing, list(range(20))),
        medal_binary(missing, 0.5),
        human_rank(missing, [1.0, 2.0]),
    ]
    assert np.isnan(mapped).all()


def test_the_gap_penalty_has_the_published_values() -> None:
    rewards = apply_gap_penalty(
        [1.0, 1.0, 0.8], [0.85, 0.92, 0.5], [0.80, 0.80, 0.9], penalty=GapPenalty(), denominator=1
    )
    np.testing.assert_allclose(rewards, [0.583333, 0.0, 0.0], rtol=0, atol=5e-7)


def test_beyond_one_tolerance_the_penalty_is_steeper_when_piecewise() -> None:
    gentle = GapPenalty(coefficient=0.1, high_coefficient=0.4, tolerance=0.1)
    # A gap of two tolerances: 0.1 + 0.4, against 0.1 * 2 when it is linear.
    np.testing.assert_allclose(apply_gap_penalty([1.0], [0.7], [0.5], penalty=gentle, denominator=1.0), [0.5])
    linear = GapPenalty(coefficient=0.1, high_coefficient=0.4, tolerance=0.1, piecewise=False)
    np.testing.assert_allclose(apply_gap_penalty([1.0], [0.7], [0.5], penalty=linear, denominator=1.0), [0.8])


def test_the_gap_penalty_leaves_alone_what_is_not_positive_or_not_known() -> None:
    rewards = [-0.5, 0.0, 0.7, 0.7]
    kept = apply_gap_penalty(rewards, [9.0, 9.0, None, 0.5], [0.0, 0.0, 0.5, math.nan], penalty=GapPenalty())
    np.testing.assert_array_equal(kept, rewards)


def test_without_a_denominator_a_gap_is_relative_to_the_larger_score() -> None:
    kept = apply_gap_penalty([1.0, 1.0], [100.0, 0.0], [94.0, 0.0], penalty=GapPenalty())
    np.testing.assert_allclose(kept, [0.5, 1.0])  # 6 / 100 is half the tolerance; equal zeros have no gap


@pytest.mark.parametrize(
    ("theoretical", "leaderboard", "denominator"),
    [
        (1.0, 0.7, 1.0),
        (2.0, 0.7, 2.0),
        (3.0, 0.7, 0.7),
        (3.0, None, 3.0),
        (None, 50.0, 50.0),
        (None, 101.0, None),
        (None, None, None),
        (3.0, 0.0, None),
    ],
)
def test_the_gaps_denominator_is_the_first_usable_range(
    theoretical: float | None, leaderboard: float | None, denominator: float | None
) -> None:
    assert gap_denominator(theoretical_range=theoretical, leaderboard_range=leaderboard) == denominator


def test_beating_the_parent_earns_the_published_bonus() -> None:
    shaped, final = shape_by_parent([1.0], [0.0])
    assert (shaped[0], final[0]) == (1.0, 1.5)


def test_the_parents_reward_gates_or_is_subtracted() -> None:
    rewards, parents = [0.4, 0.6, 0.5], [0.5, 0.5, 0.5]
    np.testing.assert_allclose(shape_by_parent(rewards, parents, strategy="gate", bonus=0).final, [0.0, 0.6, 0.5])
    np.testing.assert_allclose(shape_by_parent(rewards, parents, strategy="diff", bonus=0).final, [0.0, 0.1, 0.0])
    np.testing.assert_allclose(shape_by_parent(rewards, parents, strategy="base", bonus=1).final, [0.4, 0.7, 0.5])


def test_failures_and_drafts_are_not_shaped_by_a_parent() -> None:
    rewards, parents = [0.0, -1.0, 0.7, math.nan], [-0.5, -1.5, math.nan, 0.5]
    for strategy in ("base", "gate", "diff"):
        shaped, final = shape_by_parent(rewards, parents, strategy=strategy)
        np.testing.assert_array_equal(shaped, rewards)
        np.testing.assert_array_equal(final, rewards)


def test_every_failing_outcome_has_a_reward_and_infrastructure_has_none() -> None:
    assert {outcome.value for outcome in Outcome} - {"success"} == set(FAILURE_REWARD) - {"unverified", "unchanged"}
    assert FAILURE_REWARD[Outcome.CODE_MISSING] == -1.0
    assert FAILURE_REWARD[Outcome.REJECTED] == FAILURE_REWARD["unverified"] == -0.5
    assert set(FAILURE_REWARD.values()) == {-1.0, -0.5, 0.0}
    assert INFRASTRUCTURE not in FAILURE_REWARD


def test_a_tolerance_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="tolerance must be positive, got 0"):
        GapPenalty(tolerance=0)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_gap_beyond_all_numbers_takes_the_whole_reward() -> None:
    lost = apply_gap_penalty([1.0], [1e149], [-1e149], penalty=GapPenalty(), denominator=1e-200)
    assert lost.tolist() == [0.0]


def test_a_penalty_or_a_denominator_that_would_reward_a_gap_is_refused() -> None:
    for name in ("coefficient", "high_coefficient"):
        with pytest.raises(ValueError, match=f"{name} must be finite and not negative, got -1.0"):
            GapPenalty(**{name: -1.0})  # pyright: ignore[reportArgumentType]
    for denominator in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"denominator must be positive, got {denominator}"):
            apply_gap_penalty([1.0], [0.1], [0.9], penalty=GapPenalty(), denominator=denominator)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_numbers_too_large_for_a_float_are_missing() -> None:
    wide = np.array([np.longdouble("1e4000"), np.longdouble(2)])
    assert utilities(wide, higher_is_better=True).tolist()[1:] == [2.0]
    assert np.isnan(utilities(wide, higher_is_better=True)[0])
    np.testing.assert_array_equal(utilities([10**400, 3, None], higher_is_better=False), [np.nan, -3, np.nan])
