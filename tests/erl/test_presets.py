"""A group's rewards by the named presets."""

import math
from dataclasses import replace

import numpy as np
import pytest
from openmle_erl.rewards import (
    PAPER,
    PRESETS,
    ROBUST,
    GapPenalty,
    RewardSettings,
    RewardTask,
    group_advantages,
    group_rewards,
)
from openmle_gym.jobs import Outcome

ACCURACY = RewardTask(higher_is_better=True, static_best=1.0, static_worst=0.0)
RMSE = RewardTask(higher_is_better=False, static_best=0.0)


def test_the_papers_lone_score_earns_one_and_ours_what_it_is_worth() -> None:
    paper = group_rewards([0.001, None, None], task=ACCURACY, settings=PAPER)
    np.testing.assert_array_equal(paper.rewards, [1.0, 0.0, 0.0])
    robust = group_rewards([0.001, None, None], task=ACCURACY)
    np.testing.assert_allclose(robust.rewards, [0.05 + 0.95 * 0.001, 0.0, 0.0])


def published(
    scores: list[float | None], history: list[float], higher: bool, best: float | None, worst: float | None
) -> list[float]:
    """The release's rewards of one group, by the letter: one sample at a time, plain floats, utilities throughout."""
    sign = 1.0 if higher else -1.0
    group = [sign * score for score in scores if score is not None and math.isfinite(score)]
    seen = sorted([*(sign * score for score in history), *group], reverse=True)
    high = None if best is None else sign * best
    low = None if worst is None else sign * worst
    bounds: tuple[float | None, float | None] = (None, None)
    if seen:
        top, bottom = seen[0], seen[min(16, len(seen)) - 1]
        bottom -= 0.25 * max(top - bottom, 0.0)
        top = top if high is None else min(top, high)
        bottom = bottom if low is None else max(bottom, low)
        if top <= bottom:
            top = bottom + max(1e-6, 1e-12)
            top = top if high is None else min(top, high)
        bounds = (bottom, top) if bottom < top else (low, high)

    def reward(score: float | None) -> float:
        if score is None or not math.isfinite(score):
            return 0.0
        if len(seen) == 1:
            return 1.0
        bottom, top = bounds
        if bottom is None or top is None:
            return 0.5 + 0.5 * math.tanh(0.5 * sign * score)
        return min(max((sign * score - bottom) / max(top - bottom, 1e-9), 0.0), 1.0)

    return [reward(score) for score in scores]


@pytest.mark.parametrize("limits", [(None, None), (1.0, 0.0), (1.0, None), (None, 0.0), (0.6, None), (None, 0.4)])
@pytest.mark.parametrize("higher", [True, False])
def test_the_papers_rewards_are_the_releases_bit_for_bit(
    limits: tuple[float | None, float | None], higher: bool
) -> None:
    generator = np.random.default_rng(0)
    best, worst = limits if higher else tuple(None if limit is None else 1.0 - limit for limit in limits)
    task = RewardTask(higher_is_better=higher, static_best=best, static_worst=worst)
    for trial in range(60):
        digits = (1, 2, 15)[trial % 3]
        scale = (1.0, 1.0, 1e-11)[trial // 3 % 3] if limits == (None, None) else 1.0
        history = [scale * round(value, digits) for value in generator.random(generator.integers(0, 40))]
        scores: list[float | None] = [scale * round(value, digits) for value in generator.random(16)]
        failed = int(generator.integers(0, 17))
        scores[:failed] = [None] * failed
        got = group_rewards(scores, task=task, settings=PAPER, history=history).rewards
        # With one limit the release may fall back to a sigmoid, whose last bits are the exponential's.
        ulps = 2 if limits.count(None) == 1 else 0
        np.testing.assert_array_max_ulp(got, np.array(published(scores, history, higher, best, worst)), maxulp=ulps)


def test_a_score_of_zero_is_a_score() -> None:
    np.testing.assert_array_equal(group_rewards([0.0, 0.5], task=RMSE, settings=PAPER).rewards, [1.0, 0.2])
    rewards = group_rewards([0.0, 0.5, None], task=ACCURACY).rewards
    assert 0.05 <= rewards[0] < rewards[1]


def test_beating_the_parent_takes_nothing_of_ours_beyond_one() -> None:
    rewards = group_rewards([0.9, 0.5], task=ACCURACY, parent_scores=[0.0, 0.1]).rewards
    np.testing.assert_array_equal(rewards, group_rewards([0.9, 0.5], task=ACCURACY).rewards)
    assert rewards.max() == 1.0


def test_one_earlier_score_ends_the_papers_lone_score_rule() -> None:
    rewards = group_rewards([0.5, None], task=ACCURACY, settings=PAPER, history=[0.9]).rewards
    # Worst 0.5 - 0.25 * 0.4 = 0.4, best 0.9.
    np.testing.assert_allclose(rewards, [0.2, 0.0])


def test_the_papers_saturated_frontier_gives_the_record_nothing_and_ours_everything() -> None:
    task = RewardTask(higher_is_better=True)
    paper = group_rewards([0.9, 0.8999], task=task, settings=PAPER, history=[0.9] * 16)
    np.testing.assert_array_equal(paper.rewards, [0.0, 0.0])
    robust = group_rewards([0.9, 0.8999], task=task, history=[0.9] * 16)
    assert robust.rewards[0] == 1.0
    assert 0.05 <= robust.rewards[1] < 1.0


def test_with_a_long_history_an_ordinary_program_still_earns_more_than_a_crash() -> None:
    generator = np.random.default_rng(0)
    history = np.round(0.97 + 0.03 * generator.random(400), 4)
    scores = [0.6, 0.9, 0.9995, None]
    paper = group_rewards(scores, task=ACCURACY, settings=PAPER, history=history).rewards
    np.testing.assert_array_equal(paper[[0, 1, 3]], 0.0)
    robust = group_rewards(scores, task=ACCURACY, history=history).rewards
    assert robust[3] == 0.0
    assert 0.05 <= robust[0] <= robust[1] < robust[2] <= 1.0


def test_repeats_of_one_program_are_one_score_in_ours_and_many_in_the_papers() -> None:
    history, programs = [0.9] * 20 + [0.8, 0.7], ["record"] * 20 + ["b", "c"]
    common = {"task": ACCURACY, "history": history, "history_programs": programs, "programs": ["d", "e"]}
    paper = group_rewards([0.8, 0.6], settings=PAPER, **common)
    np.testing.assert_array_equal(paper.rewards, [0.0, 0.0])
    robust = group_rewards([0.8, 0.6], **common)
    # Programs 0.9, 0.8, 0.7, 0.8, 0.6: worst 0.6 lowered by a quarter of 0.3.
    assert robust.bounds == pytest.approx((0.525, 0.9))
    np.testing.assert_allclose(robust.rewards, 0.05 + 0.95 * np.array([0.275, 0.075]) / 0.375)


def test_only_the_latest_programs_of_a_history_count_in_ours() -> None:
    history = [0.99] * 20 + [0.5 + 0.0001 * i for i in range(256)]
    bounds = group_rewards([0.5, 0.55], task=ACCURACY, history=history).bounds
    assert bounds is not None
    assert bounds.best == 0.55


def test_each_failure_earns_its_reward_and_hacks_never_enter_the_frontier() -> None:
    outcomes = ["code_missing", "rejected", "unverified", "code_execution_error", "timeout", "success", "success"]
    scores = [None, 0.999, 0.999, None, None, 0.4, 0.6]
    for settings in (PAPER, ROBUST):
        result = group_rewards(scores, task=ACCURACY, settings=settings, outcomes=outcomes)
        np.testing.assert_array_equal(result.rewards[:5], [-1.0, -0.5, -0.5, 0.0, 0.0])
        assert result.rewards[6] == 1.0
        assert result.bounds is not None
        assert result.bounds.best == 0.6


def test_outcomes_may_be_the_gyms() -> None:
    result = group_rewards([None, 0.5], task=ACCURACY, outcomes=[Outcome.REJECTED, Outcome.SUCCESS])
    np.testing.assert_allclose(result.rewards, [-0.5, 0.05 + 0.95 * 0.5])


def test_infrastructure_is_masked_in_ours_and_zero_in_the_papers() -> None:
    scores, outcomes = [0.2, 0.8, None, 0.99], ["success", "success", "infrastructure", "infrastructure"]
    robust = group_rewards(scores, task=ACCURACY, outcomes=outcomes)
    paper = group_rewards(scores, task=ACCURACY, settings=PAPER, outcomes=outcomes)
    np.testing.assert_array_equal(np.isnan(robust.rewards), [False, False, True, True])
    np.testing.assert_array_equal(robust.base_rewards, robust.rewards)
    np.testing.assert_array_equal(paper.rewards[2:], 0.0)
    assert robust.bounds == paper.bounds == pytest.approx((0.05, 0.8))
    advantages = group_advantages(robust.rewards, [0] * 4, ROBUST.advantages)
    np.testing.assert_array_equal(advantages[2:], 0.0)
    assert advantages[1] > 0 > advantages[0]


def test_a_success_without_a_usable_score_is_a_failed_scoring() -> None:
    result = group_rewards([math.nan, 0.5, 0.6], task=ACCURACY, outcomes=["success"] * 3)
    assert result.rewards[0] == 0.0


def test_an_unchanged_program_earns_nothing() -> None:
    result = group_rewards([0.9, 0.5], task=ACCURACY, outcomes=["unchanged", "success"])
    assert result.rewards[0] == 0.0
    assert result.bounds is not None
    assert result.bounds.best == 0.9


def test_the_papers_bonus_takes_a_child_to_one_and_a_half_and_stays_out_of_its_base_reward() -> None:
    result = group_rewards([0.9, 0.5, 0.1], task=ACCURACY, settings=PAPER, parent_rewards=[0.0, 0.0, math.nan])
    # Bounds 0.1 - 0.25 * 0.8 = -0.1, cut to 0, and 0.9.
    np.testing.assert_allclose(result.base_rewards, [1.0, 5 / 9, 1 / 9])
    np.testing.assert_allclose(result.rewards, [1.5, 5 / 9 * 1.5, 1 / 9])


def test_a_parents_score_is_mapped_on_the_groups_own_bounds() -> None:
    gated = replace(ROBUST, parent_strategy="gate")
    result = group_rewards([0.5, 0.7, 0.9], task=ACCURACY, settings=gated, parent_scores=[0.6, 0.6, None])
    free = group_rewards([0.5, 0.7, 0.9], task=ACCURACY)
    np.testing.assert_array_equal(result.rewards, [0.0, free.rewards[1], 1.0])
    bonus = replace(ROBUST, parent_bonus=1.0)
    result = group_rewards([0.5, 0.9], task=ACCURACY, settings=bonus, parent_scores=[0.5, 0.5])
    # On the bounds 0.4 and 0.9 parent and child alike are 0.05 + 0.95 * 0.2 = 0.24.
    np.testing.assert_allclose(result.rewards, [0.24, 1.0 + 0.76])
    with pytest.raises(ValueError, match="not both"):
        group_rewards([0.5], task=ACCURACY, parent_scores=[0.5], parent_rewards=[0.5])


def test_a_gap_between_claim_and_grade_costs_reward_only_where_it_is_switched_on() -> None:
    strict = replace(PAPER, gap_penalty=GapPenalty())
    scores, claimed = [0.80, 0.60], [0.85, 0.60]
    task = replace(ACCURACY, gap_denominator=1.0)
    plain = group_rewards(scores, task=task, settings=PAPER, claimed=claimed).rewards
    penalised = group_rewards(scores, task=task, settings=strict, claimed=claimed).rewards
    np.testing.assert_allclose(plain, [1.0, 0.2])
    np.testing.assert_allclose(penalised, [1.0 - 0.05 / 0.12, 0.2])


def test_progress_is_on_fixed_bounds_while_the_reward_moves() -> None:
    early = group_rewards([0.5, 0.6], task=ACCURACY, history=[0.2, 0.3])
    late = group_rewards([0.5, 0.6, None], task=ACCURACY, history=[0.9 + 0.001 * i for i in range(40)])
    np.testing.assert_allclose(early.progress, [0.5, 0.6])
    np.testing.assert_allclose(late.progress, [0.5, 0.6, np.nan])
    assert late.rewards[1] < early.rewards[1]


def test_progress_may_have_bounds_of_its_own_and_needs_some() -> None:
    assert np.isnan(group_rewards([2.0, 3.0], task=RMSE).progress).all()
    task = replace(RMSE, progress_best=1.0, progress_worst=5.0)
    np.testing.assert_allclose(group_rewards([2.0, 3.0, 9.0], task=task).progress, [0.75, 0.5, 0.0])


def test_where_lower_is_better_the_lowest_score_earns_most() -> None:
    rewards = group_rewards([2.0, 1.0, 4.0], task=RMSE).rewards
    assert rewards[1] == 1.0
    assert rewards[0] > rewards[2] > 0.0


def test_the_medal_variant_gives_one_for_a_medal_and_normalises_by_group() -> None:
    settings = PRESETS["medal_binary"]
    task = RewardTask(higher_is_better=False, bronze=0.3)
    result = group_rewards([0.3, 0.31, None, 0.1], task=task, settings=settings)
    np.testing.assert_array_equal(result.rewards, [1.0, 0.0, 0.0, 1.0])
    advantages = group_advantages(result.rewards, [0] * 4, settings.advantages)
    np.testing.assert_allclose(advantages, np.array([0.5, -0.5, -0.5, 0.5]) / (math.sqrt(1 / 3) + 1e-6))
    with pytest.raises(ValueError, match="bronze"):
        group_rewards([0.3], task=RMSE, settings=settings)


def test_the_human_rank_variant_gives_the_share_of_teams_not_ahead() -> None:
    task = RewardTask(higher_is_better=False, leaderboard=(0.1, 0.2, 0.3, 0.4, 0.5))
    result = group_rewards([0.2, 0.45, None], task=task, settings=PRESETS["human_rank"])
    np.testing.assert_allclose(result.rewards, [0.75, 0.0, 0.0])
    with pytest.raises(ValueError, match="leaderboard"):
        group_rewards([0.3], task=RMSE, settings=PRESETS["human_rank"])


@pytest.mark.parametrize("mapping", ["margin_tanh", "percentile"])
def test_the_other_mappings_turn_the_direction_too(mapping: str) -> None:
    settings = replace(PAPER, mapping=mapping)  # pyright: ignore[reportArgumentType]
    rewards = group_rewards([1.0, 9.0], task=RMSE, settings=settings, history=[float(i) for i in range(20)]).rewards
    assert rewards[0] > rewards[1]


def test_every_setting_of_the_bounds_reaches_them() -> None:
    scores = [1.0, 0.8, 0.0]
    task = RewardTask(higher_is_better=True)

    def reward(**changes: object) -> float:
        return group_rewards(scores, task=task, settings=replace(PAPER, **changes)).rewards[1]  # pyright: ignore[reportArgumentType]

    assert reward() == pytest.approx(1.05 / 1.25)
    assert reward(lower_shift=0.0) == pytest.approx(0.8)
    assert reward(lower_shift=0.0, alpha=2.0) == pytest.approx(0.64)
    assert reward(lower_shift=0.0, bounds_mode="top1_all_mean") == pytest.approx(0.5)
    tied = group_rewards([0.9, 0.95], task=task, settings=replace(PAPER, min_span=0.1), history=[0.9] * 16)
    assert tied.bounds == pytest.approx((0.9 - 0.25 * 0.05, 0.95))
    tied = group_rewards([0.9], task=task, settings=replace(PAPER, min_span=0.1), history=[0.9] * 16)
    assert tied.bounds == pytest.approx((0.9, 1.0))


def test_one_garbage_score_does_not_flatten_ours() -> None:
    rewards = group_rewards([0.50, 0.52, 0.55, 0.60, -1e5], task=RewardTask(higher_is_better=True)).rewards
    # Worst 0.6 - 4 * 0.08, a quarter lower: 0.2.
    np.testing.assert_allclose(rewards, 0.05 + 0.95 * np.array([0.3, 0.32, 0.35, 0.4, 0.0]) / 0.4)


def test_our_advantages_are_capped_at_twenty() -> None:
    assert group_advantages([1.0, 0.0], [0, 0], ROBUST.advantages)[0] == 20.0


def test_newreward_is_the_papers_preset() -> None:
    assert PRESETS["newreward"] is PRESETS["paper"] is PAPER
    assert PAPER.advantages.published
    assert PRESETS["robust"] is ROBUST


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="outcome 1: unknown label 'success!'"):
        group_rewards([0.5, 0.6], task=ACCURACY, outcomes=["success", "success!"])
    with pytest.raises(ValueError, match="1 outcomes for 2 scores"):
        group_rewards([0.5, 0.6], task=ACCURACY, outcomes=["success"])
    with pytest.raises(ValueError, match=r"one-dimensional, got shape \(1, 1\)"):
        group_rewards([[0.5]], task=ACCURACY)


@pytest.mark.parametrize("name", ["parent_scores", "parent_rewards", "claimed"])
@pytest.mark.parametrize("given", [[0.5], [0.5, 0.5, 0.5], [[0.5, 0.5]]])
def test_one_value_is_not_stretched_over_all_scores(name: str, given: list[object]) -> None:
    with pytest.raises(ValueError, match=rf"{name}: shape .* for 2 scores"):
        group_rewards([0.5, 0.6], task=ACCURACY, settings=PAPER, **{name: given})  # pyright: ignore[reportArgumentType]


def test_program_ids_are_counted_even_where_a_preset_does_not_use_them() -> None:
    with pytest.raises(ValueError, match="programs: 1 ids for 2 scores"):
        group_rewards([0.5, 0.6], task=ACCURACY, settings=PAPER, programs=["a"])
    with pytest.raises(ValueError, match="history_programs: 2 ids for 1 scores"):
        group_rewards([0.5, 0.6], task=ACCURACY, settings=PAPER, history=[0.1], history_programs=["a", "b"])
    with pytest.raises(ValueError, match=r"history must be one-dimensional, got shape \(1, 2\)"):
        group_rewards([0.5, 0.6], task=ACCURACY, history=[[0.1, 0.2]])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alpha", 0.0),
        ("alpha", math.nan),
        ("least_span", 0.0),
        ("lower_shift", -0.25),
        ("min_span", math.nan),
        ("window", -1),
        ("span_floor", 1.5),
        ("outlier_reach", 0.0),
        ("valid_floor", 2.0),
        ("parent_bonus", -0.5),
    ],
)
def test_a_setting_under_which_rewards_would_turn_or_vanish_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must .*, got {value}"):
        RewardSettings(**{name: value})  # pyright: ignore[reportArgumentType]
