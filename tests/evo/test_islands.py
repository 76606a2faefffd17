"""Admission, and the reset of the weaker half."""

import random

from evo.make import card
from hypothesis import given
from hypothesis import strategies as st
from openmle_evo.config import IslandsConfig
from openmle_evo.islands import Islands, reset_weaker_half
from openmle_gym.experience import ExperienceCard


def admitted(cards: list[ExperienceCard], **config: object) -> list[int]:
    islands = Islands(IslandsConfig(**config), 0, cards)  # pyright: ignore
    return [member.attempt for member in islands.members[0]]


def test_a_program_below_the_mean_is_not_admitted_and_one_at_the_mean_is() -> None:
    cards = [card(0, 0.5), card(1, 0.7), card(2, 0.59), card(3, 0.6)]  # mean of 0.5 and 0.7 is 0.6
    assert admitted(cards) == [0, 1, 3]


def test_where_lower_is_better_the_lower_score_is_admitted() -> None:
    assert admitted([card(0, 0.5, higher_is_better=False), card(1, 0.7, higher_is_better=False)]) == [0]


def test_the_worst_leaves_a_full_island() -> None:
    assert admitted([card(0, 0.1), card(1, 0.2), card(2, 0.3)], max_size=2) == [1, 2]


def test_failed_programs_are_never_members() -> None:
    assert admitted([card(0), card(1)]) == []


def test_admission_all_takes_every_valid_program_and_novel_every_new_one() -> None:
    cards = [card(0, 0.9, source="x = 1"), card(1, 0.1, source="x = 2"), card(2, 0.2, source="x = 1  # again")]
    assert admitted(cards, admission="all") == [0, 1, 2]
    assert admitted(cards, admission="novel") == [0, 1]


def test_a_reset_strikes_the_weaker_half_where_higher_is_better() -> None:
    islands = [[card(10 * i + j, 10.0 * i + j) for j in range(4)] for i in range(4)]  # bests 3, 13, 23, 33
    assert [len(members) for members in reset_weaker_half(islands, random.Random(0))[:2]] == [2, 2]


def test_a_reset_strikes_the_weaker_half_where_lower_is_better() -> None:
    islands = [[card(10 * i + j, 10.0 * i + j, higher_is_better=False) for j in range(4)] for i in range(4)]
    assert [len(members) for members in reset_weaker_half(islands, random.Random(0))[2:]] == [2, 2]


@given(st.lists(st.lists(st.floats(-100, 100), max_size=5), min_size=2, max_size=6), st.booleans(), st.integers(0, 999))
def test_a_reset_loses_no_best_and_invents_nothing(values: list[list[float]], higher: bool, seed: int) -> None:
    number = iter(range(1000))
    islands = [[card(next(number), value, higher_is_better=higher) for value in members] for members in values]
    after = reset_weaker_half(islands, random.Random(seed))
    before_numbers = [member.attempt for members in islands for member in members]
    numbers = [member.attempt for members in after for member in members]
    assert len(set(numbers)) == len(numbers)
    assert set(numbers) <= set(before_numbers)
    for old, new in zip(islands, after, strict=True):
        if old:
            best = max(old, key=lambda member: member.validation.utility)  # pyright: ignore
            assert best in new


def test_islands_follow_from_the_cards_alone() -> None:
    config = IslandsConfig(count=3, reset_every=2, reset_probability=0.7)
    cards = [card(number, (number * 7919) % 101, island=number % 3) for number in range(60)]
    whole, resumed = Islands(config, 5, cards), Islands(config, 5, cards[:31])
    for each in cards[31:]:
        resumed.commit(each)
    assert resumed.members == whole.members


def test_the_better_island_is_drawn_more_often() -> None:
    cards = [card(n, 0.1, island=0) for n in range(3)] + [card(n, 0.9, island=1) for n in range(3, 6)]
    islands = Islands(IslandsConfig(count=3), 0, cards)
    drawn = [islands.draw(2, random.Random(seed), 0.5) for seed in range(200)]
    assert drawn.count(1) > drawn.count(0) > 0
    assert 2 not in drawn
    assert islands.draw(4, random.Random(0), 0.5) is None
