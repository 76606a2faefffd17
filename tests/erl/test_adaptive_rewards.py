"""Rewards of whole batches, with each task's scores remembered."""

import json
from dataclasses import replace

import numpy as np
import pytest
from openmle_erl.rewards import PAPER, ROBUST, AdaptiveRewards, GapPenalty, Graded, RewardTask, group_rewards

TASKS = {
    "wine": RewardTask(higher_is_better=True, static_best=1.0, static_worst=0.0, gap_denominator=1.0),
    "taxi": RewardTask(higher_is_better=False, static_best=0.0),
}


def samples(task: str, group: int, *scores: float | None) -> list[Graded]:
    return [Graded(task=task, group=group, score=score) for score in scores]


def test_each_group_is_rewarded_with_its_tasks_history_in_the_order_given() -> None:
    rewards = AdaptiveRewards(TASKS)
    rewards(samples("wine", 0, 0.5, 0.6) + samples("taxi", 1, 3.0, 2.0))
    batch = [
        *samples("taxi", 0, 2.5),
        *samples("wine", 1, 0.7, 0.55),
        *samples("taxi", 0, 1.5),
        *samples("wine", 2, 0.1),
    ]
    taxi = group_rewards([2.5, 1.5], task=TASKS["taxi"], history=[3.0, 2.0]).rewards
    wine = [group_rewards(scores, task=TASKS["wine"], history=[0.5, 0.6]).rewards for scores in ([0.7, 0.55], [0.1])]
    np.testing.assert_array_equal(rewards(batch), [taxi[0], *wine[0], taxi[1], *wine[1]])


def test_only_programs_that_ran_and_were_not_rejected_are_remembered() -> None:
    rewards = AdaptiveRewards(TASKS)
    outcomes = [("success", 0.5), ("unchanged", 0.6), ("rejected", 0.99), ("unverified", 0.98), ("timeout", None)]
    outcomes += [("infrastructure", 0.97), ("success", float("nan")), ("success", 1.797e308)]
    got = rewards([Graded(task="wine", group=0, score=score, outcome=outcome) for outcome, score in outcomes])
    assert [record.score for record in rewards.history["wine"]] == [0.5, 0.6]
    np.testing.assert_array_equal(got[[2, 3, 4]], [-0.5, -0.5, 0.0])
    assert np.isnan(got[5])


def test_a_program_counts_once_and_programs_without_an_id_each_for_themselves() -> None:
    def graded(*named: tuple[str | None, float]) -> list[Graded]:
        return [Graded(task="wine", group=0, score=score, program=program) for program, score in named]

    rewards = AdaptiveRewards(TASKS)
    rewards(graded(*[("record", 0.9)] * 20, (None, 0.8), (None, 0.8)))
    assert rewards.history["wine"] == [("record", 0.9), (None, 0.8), (None, 0.8)]
    got = rewards(graded(("new", 0.8), (None, 0.6)))
    programs = ["record", "x", "y"]
    expected = group_rewards(
        [0.8, 0.6], task=TASKS["wine"], history=[0.9, 0.8, 0.8], history_programs=programs, programs=["new", "z"]
    )
    np.testing.assert_array_equal(got, expected.rewards)


def test_the_history_is_as_long_as_the_window_needs() -> None:
    rewards = AdaptiveRewards(TASKS, replace(ROBUST, window=3))
    for step in range(10):
        got = rewards(samples("wine", 0, step / 10, 0.05))
    assert len(rewards.history["wine"]) == 6
    # Of the history 0.7, 0.05, 0.8, 0.05 (and older) the last three count.
    expected = group_rewards(
        [0.9, 0.05], task=TASKS["wine"], settings=replace(ROBUST, window=3), history=[0.05, 0.8, 0.05]
    )
    np.testing.assert_array_equal(got, expected.rewards)
    published = AdaptiveRewards(TASKS, PAPER)
    for _ in range(300):
        published(samples("wine", 0, 0.5, 0.5))
    assert len(published.history["wine"]) == 600


def test_a_run_goes_on_from_a_saved_history() -> None:
    straight, first = AdaptiveRewards(TASKS), AdaptiveRewards(TASKS)
    earlier, later = samples("wine", 0, 0.5, 0.6, 0.4), samples("wine", 1, 0.55, 0.7)
    straight(earlier)
    first(earlier)
    resumed = AdaptiveRewards(TASKS, history=json.loads(json.dumps(first.history)))
    np.testing.assert_array_equal(resumed(later), straight(later))
    assert resumed.history == straight.history


def test_the_parent_and_the_claim_are_passed_on() -> None:
    settings = replace(PAPER, gap_penalty=GapPenalty())
    batch = [
        Graded(task="wine", score=0.8, claimed=0.83, parent_score=0.5),
        Graded(task="wine", score=0.4),
    ]
    expected = group_rewards(
        [0.8, 0.4], task=TASKS["wine"], settings=settings, claimed=[0.83, None], parent_scores=[0.5, None]
    )
    np.testing.assert_array_equal(AdaptiveRewards(TASKS, settings)(batch), expected.rewards)


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="sample 1: unknown task 'win'"):
        AdaptiveRewards(TASKS)([*samples("wine", 0, 0.5), *samples("win", 0, 0.5)])
    with pytest.raises(ValueError, match="group 0 has samples of several tasks: taxi, wine"):
        AdaptiveRewards(TASKS)([*samples("wine", 0, 0.5), *samples("taxi", 0, 0.5)])
