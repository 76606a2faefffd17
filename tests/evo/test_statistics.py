"""Standard errors, intervals, the permutation test: against figures worked out elsewhere or by hand."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openmle_evo.evaluation.statistics import (
    bootstrap_interval,
    outcomes_apart,
    paired,
    paired_permutation_test,
    standard_error,
    standard_error_of_difference,
)


@pytest.mark.parametrize(
    ("first", "second", "errors"),
    [
        ((60.61, 7.73), (39.39, 5.67), 3.83),
        ((53.03, 4.29), (34.85, 2.14), 6.57),
        ((71.21, 8.57), (66.67, 8.57), 0.65),
    ],
)
def test_published_gaps_in_standard_errors(
    first: tuple[float, float], second: tuple[float, float], errors: float
) -> None:
    gap = first[0] - second[0]
    assert round(gap / standard_error_of_difference(first[1], second[1], runs=3), 2) == errors


def test_published_gaps_in_outcomes() -> None:
    assert outcomes_apart(0.7121, 15 / 22, outcomes=66) == 2
    assert outcomes_apart(0.6061, 0.3939, outcomes=66) == 14
    assert round(100 / 66, 4) == 1.5152


def test_a_standard_error_by_hand() -> None:
    assert standard_error([1.0, 2.0, 3.0]) == pytest.approx(1 / math.sqrt(3))
    assert standard_error([1.0]) is None


def test_the_permutation_test_by_hand() -> None:
    # all three positive: only +++ and --- are as far out, 2 of 8
    test = paired_permutation_test([1.0, 2.0, 3.0])
    assert test == (0.25, True)
    # 1 - 2 = -1: of +-1+-2 all four sums are at least 1 away from 0
    assert paired_permutation_test([1.0, -2.0]) == (1.0, True)
    assert paired_permutation_test([]) is None
    assert paired_permutation_test([0.0, 0.0]) == (1.0, True)


@given(st.lists(st.integers(-50, 50).map(lambda n: n / 66), min_size=1, max_size=9))
def test_the_permutation_test_agrees_with_counting_every_sign(differences: list[float]) -> None:
    observed = abs(sum(differences))
    sums = [abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in _signs(len(differences))]
    expected = sum(total >= observed - 1e-9 for total in sums) / len(sums)
    test = paired_permutation_test(differences)
    assert test is not None
    assert test.p_value == pytest.approx(expected)


def _signs(count: int) -> itertools.product:
    return itertools.product((1, -1), repeat=count)


def test_the_test_is_exact_for_66_outcomes_and_drawn_where_sums_are_too_many() -> None:
    outcomes = [1.0] * 20 + [-1.0] * 6 + [0.0] * 40
    exact = paired_permutation_test(outcomes)
    # two-sided binomial: 20 or more of 26 heads, both tails
    tail = sum(math.comb(26, k) for k in range(20, 27)) / 2**26
    assert exact is not None
    assert exact.exact
    assert exact.p_value == pytest.approx(2 * tail)
    rng = random.Random(0)
    drawn = paired_permutation_test([rng.gauss(0.3, 1.0) for _ in range(40)])
    assert drawn is not None
    assert not drawn.exact
    assert 0.0 < drawn.p_value <= 1.0


def test_an_interval_draws_whole_tasks() -> None:
    assert bootstrap_interval([[1.0]]) is None
    assert bootstrap_interval([[0.5, 0.5], [0.5]]) == (0.5, 0.5)
    low, high = bootstrap_interval([[0.0, 1.0]] * 10 + [[1.0]] * 10) or (0, 0)
    assert 0.6 < low < 0.75 < high < 0.9


def test_pairs_of_one_task_count_once() -> None:
    told = paired([("a", 1.0), ("a", 3.0), ("b", 4.0), ("c", 6.0)])
    # the tasks' means are 2, 4 and 6: their deviation is 2, and of the sums only +++ and --- are as far out
    assert (told.tasks, told.mean, told.test) == (3, 4.0, (0.25, True))
    assert told.standard_error == pytest.approx(2 / math.sqrt(3))
    alone = paired([("a", 1.0), ("a", 3.0)])
    assert (alone.mean, alone.standard_error, alone.interval) == (2.0, None, None)
    with pytest.raises(ValueError, match="no pair"):
        paired([])
