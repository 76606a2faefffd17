"""Adaptive bounds: the published construction, and what the robust arguments mend."""

import math

import numpy as np
import pytest
from openmle_erl.rewards import Bounds, adaptive_bounds, power_clip, static_limits
from openmle_erl.rewards.bounds import BoundsMode

HISTORY = [0.50, 0.52, 0.55, 0.60, 0.61, 0.62, 0.63, 0.64, 0.65, 0.66, 0.67, 0.68]
GROUP = [0.40, 0.45, 0.70, 0.71, 0.72, 0.30]


@pytest.mark.parametrize(
    ("mode", "shift", "best", "worst"),
    [
        ("top1_top8", 0.0, 0.72, 0.64),
        ("top1_top8", 0.25, 0.72, 0.62),
        ("top1_top16", 0.0, 0.72, 0.45),
        ("top1_top16", 0.25, 0.72, 0.3825),
        ("top1_all_mean", 0.0, 0.72, 0.589444),
        ("top1_all_mean", 0.25, 0.72, 0.556806),
        ("top1_all_median", 0.0, 0.72, 0.625),
        ("top1_all_median", 0.25, 0.72, 0.60125),
        ("theoretical", 0.25, 1.0, 0.0),
    ],
)
def test_every_published_mode_gives_the_published_bounds(
    mode: BoundsMode, shift: float, best: float, worst: float
) -> None:
    limits = static_limits(
        higher_is_better=True, theoretical_min=0, theoretical_max=1, leaderboard_min=0.30, leaderboard_max=0.99
    )
    bounds = adaptive_bounds(
        HISTORY,
        GROUP,
        higher_is_better=True,
        static_best=limits.best,
        static_worst=limits.worst,
        mode=mode,
        lower_shift=shift,
    )
    assert bounds == pytest.approx(Bounds(worst=worst, best=best), abs=5e-7)


def test_where_lower_is_better_bounds_are_negated_and_stay_inside_the_limits() -> None:
    limits = static_limits(higher_is_better=False, theoretical_min=0, leaderboard_min=0.05, leaderboard_max=2.0)
    assert limits == (0.0, 2.0)
    bounds = adaptive_bounds(
        [0.4, 0.5, 0.6], [0.2, 3.0], higher_is_better=False, static_best=limits.best, static_worst=limits.worst
    )
    assert bounds == Bounds(worst=-2.0, best=-0.2)
    rewards = power_clip([-0.2, -0.4, -0.6, -3.0], bounds)
    np.testing.assert_allclose(rewards, [1.0, 0.888889, 0.777778, 0.0], rtol=0, atol=5e-7)


def test_static_limits_of_an_absurd_span_give_way_to_the_leaderboard_or_are_cut() -> None:
    far = static_limits(higher_is_better=True, theoretical_min=-1e9, theoretical_max=1.0)
    assert far == (1.0, 1.0 - 1e6)
    board = static_limits(
        higher_is_better=False, theoretical_min=0.0, theoretical_max=1e9, leaderboard_min=3.0, leaderboard_max=7.0
    )
    assert board == (3.0, 7.0)
    assert static_limits(higher_is_better=True) == (None, None)


def test_ties_at_the_best_leave_the_record_at_zero_as_published() -> None:
    bounds = adaptive_bounds([0.9] * 16, [0.9, 0.8999], higher_is_better=True)
    np.testing.assert_array_equal(power_clip([0.9, 0.8999, 0.9 + 1e-6], bounds), [0.0, 0.0, 1.0])


def test_ties_at_the_static_best_fall_back_to_the_static_limits_as_published() -> None:
    bounds = adaptive_bounds([0.9] * 16, [0.8], higher_is_better=True, static_best=0.9, static_worst=0.0)
    assert bounds == Bounds(worst=0.0, best=0.9)
    only_one_limit = adaptive_bounds([0.9] * 16, [0.8], higher_is_better=True, static_best=0.85)
    assert only_one_limit is None


def test_a_floor_under_the_span_keeps_the_order_below_a_tied_record() -> None:
    bounds = adaptive_bounds([0.9] * 16, [0.9, 0.899, 0.7], higher_is_better=True, span_floor=0.1)
    # The range seen is 0.2; a tenth of it is the span, lowered by a quarter: 0.9 - 0.02 * 1.25.
    assert bounds == pytest.approx(Bounds(worst=0.875, best=0.9))
    np.testing.assert_allclose(power_clip([0.9, 0.899, 0.7], bounds), [1.0, 0.96, 0.0], atol=1e-9)


def test_with_a_floor_scores_that_all_tie_are_placed_on_the_static_limits() -> None:
    tied = [0.3, 0.1 + 0.2, 0.3]
    on_limits = adaptive_bounds(tied, [0.3], higher_is_better=True, static_best=1.0, static_worst=0.0, span_floor=0.1)
    assert on_limits == Bounds(worst=0.0, best=1.0)
    without = adaptive_bounds(tied, [0.3], higher_is_better=True, span_floor=0.1)
    np.testing.assert_allclose(power_clip([0.3], without), [0.5], atol=1e-9)


def test_with_a_floor_a_limit_that_all_scores_are_beyond_does_not_flatten_them() -> None:
    scores = [0.9, 0.95, 0.97]
    seen = pytest.approx(Bounds(worst=0.9 - 0.25 * 0.07, best=0.97))
    assert adaptive_bounds(scores, [], higher_is_better=True, static_best=0.8, span_floor=0.1) == seen
    assert adaptive_bounds(scores, [], higher_is_better=True, static_worst=1.2, span_floor=0.1) == seen
    published = adaptive_bounds(scores, [], higher_is_better=True, static_worst=1.2)
    np.testing.assert_array_equal(power_clip(scores, published), 0.0)


def test_an_infinite_limit_is_an_unknown_one() -> None:
    unknown = adaptive_bounds([0.4], [0.6], higher_is_better=False)
    for infinity in (math.inf, -math.inf):
        assert adaptive_bounds([0.4], [0.6], higher_is_better=False, static_best=infinity) == unknown
        assert adaptive_bounds([0.4], [0.6], higher_is_better=False, static_worst=infinity) == unknown


def test_a_lone_score_is_placed_on_the_static_limits() -> None:
    bounds = adaptive_bounds([], [0.001, None], higher_is_better=True, static_best=1.0, static_worst=0.0)
    np.testing.assert_allclose(power_clip([0.001], bounds), [0.001])


def test_a_lone_score_without_limits_is_in_the_middle_whatever_its_unit() -> None:
    for score in (0.001, 1e7, -3.0):
        bounds = adaptive_bounds([], [score], higher_is_better=True)
        np.testing.assert_allclose(power_clip([score], bounds), [0.5])


def test_without_scores_the_static_limits_are_all_there_is() -> None:
    assert adaptive_bounds([], [None, math.nan], higher_is_better=True) is None
    both = adaptive_bounds([], [], higher_is_better=False, static_best=0.0, static_worst=5.0)
    assert both == Bounds(worst=-5.0, best=0.0)


def test_nan_infinities_and_a_databases_stand_in_for_nan_never_enter_the_frontier() -> None:
    clean = adaptive_bounds([0.5, 0.6], [0.7], higher_is_better=True)
    dirty = [math.nan, 0.5, math.inf, -math.inf, 1.797e308, None, 0.6]
    assert adaptive_bounds(dirty, [0.7, -1.797e308], higher_is_better=True) == clean
    assert clean == pytest.approx(Bounds(worst=0.45, best=0.7))


def test_one_garbage_score_does_not_flatten_the_others_when_outliers_are_cut() -> None:
    scores = [0.50, 0.52, 0.55, 0.60, -1e5]
    flat = power_clip([0.50, 0.60], adaptive_bounds([], scores, higher_is_better=True))
    assert flat[1] - flat[0] < 1e-5
    bounds = adaptive_bounds([], scores, higher_is_better=True, outlier_reach=4.0)
    # Best 0.60, median of the distinct scores 0.52: at most 4 * 0.08 below the best, then a quarter more.
    assert bounds == pytest.approx(Bounds(worst=0.6 - 0.32 * 1.25, best=0.6))


def test_a_record_computed_twice_with_different_rounding_is_one_distinct_score() -> None:
    bounds = adaptive_bounds([0.3, 0.1 + 0.2, -1.0], [0.3], higher_is_better=True, outlier_reach=4.0, span_floor=0.1)
    np.testing.assert_allclose(power_clip([0.3, 0.1 + 0.2, -1.0], bounds), [1.0, 1.0, 0.2])


def test_a_leap_is_not_cut_as_an_outlier() -> None:
    bounds = adaptive_bounds([0.5, 0.51, 0.52], [0.8, 0.9], higher_is_better=True, outlier_reach=4.0)
    assert bounds is not None
    assert bounds.best == 0.9


def test_a_program_counts_once_by_its_latest_score() -> None:
    programs = ["a", "b", "a", "c"]
    bounds = adaptive_bounds(
        [0.9, 0.5, 0.6, None], [0.7], higher_is_better=True, history_programs=programs, group_programs=["b"]
    )
    assert bounds == pytest.approx(Bounds(worst=0.6 - 0.025, best=0.7))


def test_repeats_of_the_best_program_do_not_push_the_sixteenth_place_up() -> None:
    scores = [0.9] * 16 + [0.8, 0.7]
    programs = ["record"] * 16 + ["second", "third"]
    bounds = adaptive_bounds(scores, [0.8], higher_is_better=True, history_programs=programs, group_programs=["new"])
    assert bounds == pytest.approx(Bounds(worst=0.65, best=0.9))


def test_a_window_keeps_the_latest_of_the_history_and_all_of_the_group() -> None:
    bounds = adaptive_bounds([0.1, 0.99, 0.5, 0.6], [0.4, 0.7], higher_is_better=True, window=2, lower_shift=0.0)
    assert bounds == Bounds(worst=0.4, best=0.7)
    nothing_old = adaptive_bounds([0.1, 0.99], [0.4, 0.7], higher_is_better=True, window=0, lower_shift=0.0)
    assert nothing_old == Bounds(worst=0.4, best=0.7)


def test_the_window_counts_programs_where_there_are_ids() -> None:
    bounds = adaptive_bounds(
        [0.2, 0.6, 0.5, 0.5],
        [0.7],
        higher_is_better=True,
        window=2,
        lower_shift=0.0,
        history_programs=["old", "b", "c", "c"],
        group_programs=["d"],
    )
    assert bounds == Bounds(worst=0.5, best=0.7)


def test_what_makes_no_sense_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"0 \+ 1 program ids for 2 \+ 1 scores of history and group"):
        adaptive_bounds([0.1, 0.2], [0.3], higher_is_better=True, group_programs=["a"])
    with pytest.raises(ValueError, match=r"1 \+ 2 program ids for 2 \+ 1 scores of history and group"):
        adaptive_bounds([0.1, 0.2], [0.3], higher_is_better=True, history_programs=["a"], group_programs=["b", "c"])
    with pytest.raises(ValueError, match=r"static_best 0\.0 is not better than static_worst 1\.0"):
        adaptive_bounds([0.1, 0.2], [0.3], higher_is_better=True, static_best=0.0, static_worst=1.0)
    with pytest.raises(ValueError, match="unknown bounds mode 'top1_top4'"):
        adaptive_bounds([0.1, 0.2], [0.3], higher_is_better=True, mode="top1_top4")  # pyright: ignore[reportArgumentType]
