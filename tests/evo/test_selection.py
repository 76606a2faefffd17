"""Population, weights and draws."""

import math
import random

import pytest
from evo.make import card
from hypothesis import given
from hypothesis import strategies as st
from openmle_evo.config import SelectionConfig
from openmle_evo.selection import draw, listed, population, weigh
from openmle_gym.operators import Operator

FOREST = "m = RandomForestClassifier()"
LINEAR = "m = LogisticRegression()"


def test_a_program_below_the_mean_is_not_admitted_and_one_at_the_mean_is() -> None:
    cards = [card(0, 0.5), card(1, 0.7), card(2, 0.59), card(3, 0.6)]  # mean of 0.5 and 0.7 is 0.6
    assert [member.attempt for member in population(cards, 10)] == [0, 1, 3]


def test_where_lower_is_better_the_lower_score_is_admitted() -> None:
    cards = [card(0, 0.5, higher_is_better=False), card(1, 0.7, higher_is_better=False)]
    assert [member.attempt for member in population(cards, 10)] == [0]


def test_the_worst_leaves_a_full_population() -> None:
    assert [member.attempt for member in population([card(0, 0.1), card(1, 0.2), card(2, 0.3)], 2)] == [1, 2]


def test_failed_programs_are_never_members() -> None:
    assert population([card(0), card(1)], 10) == []


def test_the_weights_are_those_of_the_published_formula() -> None:
    parent = card(0, 0.2, source=FOREST)
    child = card(1, 0.6, source=FOREST, operator=Operator.IMPROVE, parents=(0,))
    other = card(2, 0.4, source=LINEAR)
    first, second, third = weigh([parent, child, other], [parent, child, other], SelectionConfig())
    assert (first.score, second.score, third.score) == (0.0, 1.0, pytest.approx(0.5))
    assert (first.gain, second.gain, third.gain) == (0.0, 1.0, 0.0)
    assert first.novelty == second.novelty == pytest.approx(1 / math.sqrt(2))
    assert third.novelty == 1.0
    assert second.utility == pytest.approx(1.0 + 0.4 + 0.25 / math.sqrt(2))
    assert second.probability / first.probability == pytest.approx(math.exp(1.4))


def test_a_lower_temperature_is_greedier() -> None:
    members = [card(0, 0.1), card(1, 0.9)]
    warm = weigh(members, members, SelectionConfig(temperature=1.0))[1].probability
    cold = weigh(members, members, SelectionConfig(temperature=0.1))[1].probability
    assert cold > warm > 0.5


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), st.booleans())
def test_probabilities_sum_to_one_and_the_best_score_is_never_less_likely(values: list[float], higher: bool) -> None:
    members = [card(index, value, higher_is_better=higher) for index, value in enumerate(values)]
    candidates = weigh(members, members, SelectionConfig(gain=0.0, novelty=0.0))
    assert math.fsum(c.probability for c in candidates) == pytest.approx(1.0)
    best = max(values) if higher else min(values)
    assert candidates[values.index(best)].probability == max(c.probability for c in candidates)


@given(st.integers(2, 10), st.integers(0, 2**31))
def test_two_draws_are_of_two_programs(count: int, seed: int) -> None:
    members = [card(index, float(index)) for index in range(count)]
    first, second = draw(weigh(members, members, SelectionConfig()), 2, random.Random(seed))
    assert first.attempt != second.attempt


def test_the_record_keeps_the_likeliest_and_the_drawn() -> None:
    members = [card(index, float(index)) for index in range(20)]
    candidates = weigh(members, members, SelectionConfig())
    record = listed(candidates, [candidates[0]])
    assert [candidate.attempt for candidate in record] == [19, 18, 17, 16, 15, 14, 13, 12, 0]
