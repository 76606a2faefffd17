"""Population, weights and draws."""

import math
import random

import pytest
from evo.make import card
from hypothesis import given
from hypothesis import strategies as st
from openmle_evo.config import SelectionConfig
from openmle_evo.selection import (
    EMPHASES,
    draw,
    draw_complementary,
    listed,
    temperature_of,
    weigh,
    weights_of,
)
from openmle_gym.experience import Candidate, ExperienceCard, Selection
from openmle_gym.operators import Operator

FOREST = "m = RandomForestClassifier()"
LINEAR = "m = LogisticRegression()"


def weighed(
    members: list[ExperienceCard], *, cards: list[ExperienceCard] | None = None, **config: object
) -> list[Candidate]:
    settings = SelectionConfig(**config)  # pyright: ignore
    weights = weights_of(settings, members, random.Random(0))
    return weigh(members, cards or members, settings, weights=weights, temperature=settings.temperature)


def test_the_weights_are_those_of_the_published_formula() -> None:
    parent = card(0, 0.2, source=FOREST)
    child = card(1, 0.6, source=FOREST, operator=Operator.IMPROVE, parents=(0,))
    other = card(2, 0.4, source=LINEAR)
    first, second, third = weighed([parent, child, other])
    assert (first.score, second.score, third.score) == (0.0, 1.0, pytest.approx(0.5))
    assert (first.gain, second.gain, third.gain) == (0.0, 1.0, 0.0)
    assert first.novelty == second.novelty == pytest.approx(1 / math.sqrt(2))
    assert third.novelty == 1.0
    assert second.utility == pytest.approx(1.0 + 0.4 + 0.25 / math.sqrt(2))
    assert second.probability / first.probability == pytest.approx(math.exp(1.4))


def test_a_lower_temperature_is_greedier() -> None:
    members = [card(0, 0.1), card(1, 0.9)]
    warm = weighed(members, temperature=1.0)[1].probability
    cold = weighed(members, temperature=0.1)[1].probability
    assert cold > warm > 0.5


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), st.booleans())
def test_probabilities_sum_to_one_and_the_best_score_is_never_less_likely(values: list[float], higher: bool) -> None:
    members = [card(index, value, higher_is_better=higher) for index, value in enumerate(values)]
    candidates = weighed(members, gain=0.0, novelty=0.0)
    assert math.fsum(c.probability for c in candidates) == pytest.approx(1.0)
    best = max(values) if higher else min(values)
    assert candidates[values.index(best)].probability == max(c.probability for c in candidates)


@given(st.integers(2, 10), st.integers(0, 2**31))
def test_two_draws_are_of_two_programs(count: int, seed: int) -> None:
    members = [card(index, float(index)) for index in range(count)]
    first, second = draw(weighed(members), 2, random.Random(seed))
    assert first.attempt != second.attempt


def test_the_record_keeps_the_likeliest_and_the_drawn() -> None:
    members = [card(index, float(index)) for index in range(20)]
    candidates = weighed(members)
    record = listed(candidates, [candidates[0]])
    assert [candidate.attempt for candidate in record] == [19, 18, 17, 16, 15, 14, 13, 12, 0]


def test_ranks_do_not_feel_an_outlier_and_ties_share_theirs() -> None:
    members = [card(0, 1.0), card(1, 2.0), card(2, 2.0), card(3, 1e9)]
    assert [c.score for c in weighed(members, normalise="rank")] == [0.0, 0.5, 0.5, 1.0]
    flat = [c.score for c in weighed(members, normalise="minmax")]
    assert flat[1] == pytest.approx(1e-9)
    assert [c.score for c in weighed(members, normalise="hybrid")][1] == pytest.approx(0.25)


def test_robust_scores_keep_resolution_beside_an_outlier() -> None:
    scores = [c.score for c in weighed([card(i, float(i)) for i in range(8)] + [card(8, -1e9)], normalise="robust")]
    assert scores[3] == pytest.approx(0.5)  # the median of the nine is 3
    assert scores[7] == pytest.approx(1 / (1 + math.exp(-1)))  # quartiles 1 and 5: one range above the median
    assert scores[0] > 0.2 > scores[8]


def test_a_gain_is_ranked_among_all_and_a_loss_counts_nothing() -> None:
    cards = [
        card(0, 0.5),
        card(1, 0.6, operator=Operator.IMPROVE, parents=(0,)),
        card(2, 0.9, operator=Operator.IMPROVE, parents=(0,)),
        card(3, 0.1, operator=Operator.IMPROVE, parents=(0,)),
    ]
    assert [c.gain for c in weighed(cards, normalise="rank")] == [0.0, pytest.approx(2 / 3), 1.0, 0.0]
    assert [round(c.gain, 6) for c in weighed(cards)] == [0.0, 0.25, 1.0, 0.0]


def test_a_parent_that_was_used_often_cools_down() -> None:
    members = [card(0, 0.5), card(1, 0.5)]
    children = [card(n, 0.4, operator=Operator.IMPROVE, parents=(0,)) for n in range(2, 5)]
    used, fresh = weighed(members, cards=[*members, *children], visits=1.0)
    assert (used.visits, fresh.visits) == (3, 0)
    assert fresh.utility - used.utility == pytest.approx(math.log(4))


def test_programs_that_differ_in_comments_alone_are_one_candidate() -> None:
    members = [card(0, 0.5, source="x = 1"), card(1, 0.6, source="x = 1  # again"), card(2, 0.7, source="x = 2")]
    assert [c.attempt for c in weighed(members, distinct=True)] == [0, 2]
    assert [c.attempt for c in weighed(members)] == [0, 1, 2]


def test_the_temperature_goes_from_the_first_to_the_last_attempt() -> None:
    config = SelectionConfig(temperature=1.0, final_temperature=0.2)
    assert [temperature_of(config, n, 5) for n in (0, 2, 4)] == [pytest.approx(t) for t in (1.0, 0.6, 0.2)]
    assert temperature_of(SelectionConfig(temperature=0.7), 4, 5) == 0.7


def test_a_complementary_second_parent_is_of_another_family_where_there_is_one() -> None:
    members = [card(0, 0.9, source=FOREST), card(1, 0.8, source=FOREST), card(2, 0.1, source=LINEAR)]
    by_attempt = {member.attempt: member for member in members}
    for seed in range(20):
        first, second = draw_complementary(weighed(members), by_attempt, random.Random(seed))
        assert 2 in (first.attempt, second.attempt)
        assert first.attempt != second.attempt
    alike = members[:2]
    pair = draw_complementary(weighed(alike), by_attempt, random.Random(0))
    assert {candidate.attempt for candidate in pair} == {0, 1}


def test_learned_weights_prefer_the_emphasis_that_set_new_bests() -> None:
    won, lost = EMPHASES[2], EMPHASES[0]
    cards = []
    for number in range(40):
        arm, value = (won, float(number)) if number % 2 else (lost, -1.0)
        made = card(number, value)
        cards.append(made.model_copy(update={"selection": Selection(reason="", weights=arm)}))
    drawn = [weights_of(SelectionConfig(weights="learned"), cards, random.Random(seed)) for seed in range(50)]
    assert drawn.count(won) > 25
    assert drawn.count(lost) == 0
