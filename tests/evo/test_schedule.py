"""Which operator comes next."""

from evo.make import card
from openmle_evo.config import ScheduleConfig, SelectionConfig
from openmle_evo.schedule import REPEATED, Choice, attempt_seed, choose
from openmle_gym.evaluate import Attempt
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.jobs import Outcome
from openmle_gym.operators import Operator


def next_choice(cards: list[ExperienceCard], under_way: list[Attempt] | None = None, **schedule: float) -> Choice:
    settings = ScheduleConfig(**schedule)  # pyright: ignore
    number = len(cards) + len(under_way or [])
    return choose(number, cards, under_way or [], schedule=settings, selection=SelectionConfig(), seed=0)


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
