"""Which operator comes next."""

from evo.make import card
from openmle_evo.config import IslandsConfig, ScheduleConfig, SearchConfig
from openmle_evo.islands import Islands
from openmle_evo.randomness import attempt_seed
from openmle_evo.schedule import REPEATED, Choice, choose
from openmle_gym.evaluate import Attempt
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.jobs import Outcome
from openmle_gym.operators import Operator


def next_choice(cards: list[ExperienceCard], under_way: list[Attempt] | None = None, **schedule: float | str) -> Choice:
    config = SearchConfig(task="toy", schedule=ScheduleConfig(**schedule))  # pyright: ignore
    number = len(cards) + len(under_way or [])
    return choose(number, cards, under_way or [], Islands(config.islands, config.seed, cards), config)


def debug_of(parent: int, attempt: int, signature: str) -> ExperienceCard:
    return card(attempt, operator=Operator.DEBUG, parents=(parent,), signature=signature)


def test_a_run_starts_with_drafts() -> None:
    assert next_choice([]).operator is Operator.DRAFT
    assert next_choice([card(0, 0.5)], initial_drafts=2).operator is Operator.DRAFT
    assert next_choice([card(0, 0.5), card(1, 0.5)], initial_drafts=2).operator is Operator.IMPROVE
    mended = [card(0, signature="a"), card(1, 0.5, operator=Operator.DEBUG, parents=(0,))]
    assert next_choice(mended, initial_drafts=2).operator is Operator.DRAFT


def test_a_failed_program_is_mended_before_anything_else() -> None:
    choice = next_choice([card(0, 0.5), card(1, signature="KeyError@main")])
    assert (choice.operator, choice.parents) == (Operator.DEBUG, (1,))


def test_a_failure_that_somebody_is_mending_is_left_to_them() -> None:
    mending = Attempt(
        run_id="run", task="toy", attempt=1, operator=Operator.DEBUG, parents=(0,), selection=Selection(reason="")
    )
    assert next_choice([card(0, signature="KeyError@main")], [mending]).operator is Operator.DRAFT


def test_what_cannot_be_mended_is_not_mended() -> None:
    assert next_choice([card(0, outcome=Outcome.REJECTED)]).operator is Operator.DRAFT
    without_program = card(0, outcome=Outcome.CODE_MISSING).model_copy(update={"program_id": None})
    assert next_choice([without_program]).operator is Operator.DRAFT


def test_mending_ends_at_its_depth() -> None:
    cards = [card(0, signature="a"), debug_of(0, 1, "b"), debug_of(1, 2, "c")]
    assert next_choice(cards, max_debug_depth=3, initial_drafts=1).operator is Operator.DEBUG
    assert next_choice(cards, max_debug_depth=2, initial_drafts=1).operator is Operator.DRAFT


def test_the_same_error_twice_brings_one_fresh_draft() -> None:
    cards = [card(0, signature="a"), debug_of(0, 1, "a"), card(2, 0.5)]
    choice = next_choice(cards, initial_drafts=1)
    assert (choice.operator, choice.selection.reason) == (Operator.DRAFT, REPEATED)
    cards.append(card(3, 0.6, reason=REPEATED))
    assert next_choice(cards, initial_drafts=1).operator is Operator.IMPROVE


def test_crossover_waits_for_its_first_attempt_and_for_two_parents() -> None:
    only_crossover = {"crossover_probability": 1.0, "crossover_from_attempt": 3, "initial_drafts": 1}
    two = [card(0, 0.5), card(1, 0.6)]
    assert next_choice(two, **only_crossover).operator is Operator.IMPROVE
    three = [*two, card(2, 0.7)]
    crossing = next_choice(three, **only_crossover)
    assert crossing.operator is Operator.CROSSOVER
    assert len(set(crossing.parents)) == 2
    one = [card(0, 0.5), card(1, 0.1), card(2, 0.1)]  # the other two are below the mean
    assert next_choice(one, **only_crossover).operator is Operator.IMPROVE


def test_without_a_valid_program_drafts_go_on() -> None:
    cards = [card(index, outcome=Outcome.REJECTED) for index in range(8)]
    assert next_choice(cards).selection.reason == "no valid program yet"


def test_an_attempts_randomness_follows_from_seed_and_number() -> None:
    assert attempt_seed(1, 7) == attempt_seed(1, 7)
    assert len({attempt_seed(seed, number) for seed in range(5) for number in range(50)}) == 250


def test_a_line_of_mending_that_took_too_long_is_left() -> None:
    slow = card(0, signature="KeyError@main").model_copy(update={"sandbox_seconds": 7.0})
    assert next_choice([slow], max_debug_seconds=7.5).operator is Operator.DEBUG
    assert next_choice([slow], max_debug_seconds=7.0).operator is Operator.DRAFT


def test_best_of_n_only_drafts() -> None:
    cards = [card(0, 0.5), card(1, signature="KeyError@main"), card(2, 0.6)]
    assert next_choice(cards, kind="best_of_n").operator is Operator.DRAFT


def test_greedy_improves_the_best_or_mends_a_random_failure() -> None:
    cards = [card(0, 0.5), card(1, 0.9), card(2, signature="KeyError@main"), card(3, signature="TypeError@main")]
    best = next_choice(cards, kind="greedy", initial_drafts=4, debug_probability=0.0)
    assert (best.operator, best.parents) == (Operator.IMPROVE, (1,))
    mend = next_choice(cards, kind="greedy", initial_drafts=4, debug_probability=1.0)
    assert mend.operator is Operator.DEBUG
    assert mend.parents[0] in (2, 3)
    assert next_choice(cards, kind="greedy", initial_drafts=5).operator is Operator.DRAFT


def test_drafts_are_spread_over_the_islands_and_children_stay_on_their_parents_island() -> None:
    config = SearchConfig(task="toy", islands=IslandsConfig(count=3))
    drafts = [choose(number, [], [], Islands(config.islands, 0), config) for number in range(40)]
    assert {draft.selection.island for draft in drafts} == {0, 1, 2}
    cards = [card(number, 0.5, island=2) for number in range(5)]
    child = choose(5, cards, [], Islands(config.islands, 0, cards), config)
    assert (child.operator, child.selection.island) == (Operator.IMPROVE, 2)
