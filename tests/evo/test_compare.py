"""What suites are worth, and what can be told apart."""

import pytest
from openmle_evo.evaluation.compare import compare, match
from openmle_evo.evaluation.results import RunOutcome, summarise
from openmle_gym.leaderboard import Medal


def outcome(task: str, run: int = 0, *, valid: bool = True, board: bool = True, **changes: object) -> RunOutcome:
    fields = {"task": task, "run": run, "valid": valid, "has_leaderboard": board, "higher_is_better": True}
    return RunOutcome(**{**fields, **changes})  # pyright: ignore


SUITE = [
    outcome("a", 0, medal=Medal.GOLD, fraction_beaten=0.9, modality="tabular"),
    outcome("a", 1, fraction_beaten=0.3, modality="tabular"),
    outcome("b", 0, valid=False, modality="text"),
    outcome("b", 1, medal=Medal.BRONZE, fraction_beaten=0.6, modality="text"),
    outcome("c", 0, board=False, modality="text"),
    outcome("c", 1, board=False, modality="text"),
]


def test_the_three_measures_by_hand() -> None:
    result = summarise(SUITE)
    assert (result.tasks, result.runs) == (3, 2)
    assert result.valid_rate.mean == pytest.approx(5 / 6)
    assert result.medal_average is not None
    assert result.medal_average.mean == 0.5
    assert result.human_rank is not None
    assert result.human_rank.mean == pytest.approx((0.9 + 0.3 + 0.0 + 0.6) / 4)
    assert result.medals == {Medal.GOLD: 1, Medal.SILVER: 0, Medal.BRONZE: 1}
    assert result.without_leaderboard == ("c",)
    assert result.by_modality["text"]["valid_rate"] == 0.75
    assert result.by_modality["text"]["medal_average"] == 0.5


def test_the_deviation_is_that_of_the_runs() -> None:
    rate = summarise(SUITE).valid_rate  # run 0: 2 of 3, run 1: 3 of 3
    assert rate.run_deviation == pytest.approx((1 / 3) / 2**0.5)
    assert rate.standard_error == pytest.approx((1 / 3) / 2)
    assert rate.outcomes == 6


def test_a_suite_without_any_leaderboard_has_a_valid_rate_alone() -> None:
    result = summarise([outcome("c", board=False)])
    assert result.medal_average is None
    assert result.human_rank is None


def test_runs_are_matched_by_task_and_number() -> None:
    matched = match(SUITE, [*SUITE[:3], outcome("d")])
    assert [(one.task, one.run) for one, _ in matched.pairs] == [("a", 0), ("a", 1), ("b", 0)]
    assert matched.alone == ("b 1", "c 0", "c 1", "d 0")


def test_a_clear_difference_over_many_tasks_is_told_and_one_over_few_is_not() -> None:
    good = [outcome(f"t{n}", fraction_beaten=0.9) for n in range(8)]
    bad = [outcome(f"t{n}", fraction_beaten=0.2) for n in range(8)]
    human = compare(good, bad)[2]
    assert human.difference == pytest.approx(0.7)
    assert human.p_value == pytest.approx(2 / 2**8)
    assert human.verdict.startswith("the first is better")
    few = compare(good[:3], bad[:3])[2]
    assert few.verdict == "not to be told: 3 tasks cannot give a p-value below 0.25"


def test_equal_suites_show_no_difference_and_the_resolution_is_one_outcome() -> None:
    valid = compare(SUITE, SUITE)[0]
    assert (valid.difference, valid.p_value) == (0.0, 1.0)
    assert valid.resolution == pytest.approx(1 / 6)
    many = [outcome(f"t{n}", run) for n in range(22) for run in range(3)]
    assert compare(many, many)[0].resolution == pytest.approx(1 / 66)


def test_suites_with_nothing_in_common_are_refused() -> None:
    with pytest.raises(ValueError, match="no task and run in common"):
        compare([outcome("a")], [outcome("b")])
