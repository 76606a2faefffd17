"""What operators are told of earlier attempts."""

from collections.abc import Sequence

import pytest
from evo.make import TASK, card
from hypothesis import given
from hypothesis import strategies as st
from openmle_gym.experience import ExperienceCard
from openmle_gym.jobs import Limits
from openmle_gym.memory import MemoryConfig, clip, extractive_note, recall, remembered
from openmle_gym.operators import Operator
from openmle_gym.prompts import PromptConfig, Remaining, Surroundings, build_prompt
from openmle_gym.scores import TestScore

FOREST, LINEAR = "m = RandomForestClassifier()", "m = LogisticRegression()"

#   0 ── 1 ── 2 ── 5      3 and 4 are siblings of 2; 6 is a Draft that failed, 7 its mending, 8 another failure
TREE = [
    card(0, 0.5, source=FOREST),
    card(1, 0.6, source=FOREST + "  # 1", operator=Operator.IMPROVE, parents=(0,)),
    card(2, 0.7, source=FOREST + "  # 2", operator=Operator.IMPROVE, parents=(1,)),
    card(3, 0.9, source=LINEAR, operator=Operator.IMPROVE, parents=(1,)),
    card(4, 0.1, source=LINEAR + "  # 4", operator=Operator.IMPROVE, parents=(1,)),
    card(5, 0.65, source=FOREST + "  # 5", operator=Operator.IMPROVE, parents=(2,)),
    card(6, signature="KeyError@main"),
    card(7, signature="ValueError@fit", operator=Operator.DEBUG, parents=(6,)),
    card(8, signature="KeyError@main"),
    card(9, signature="TypeError@main"),
]


def told(operator: Operator, *parents: int, **config: object) -> list[int]:
    chosen = recall(operator, [TREE[number] for number in parents], TREE, MemoryConfig(**config))  # pyright: ignore
    return [each.attempt for each in chosen.attempts]


def test_improve_is_told_of_ancestors_nearest_first_and_then_of_the_best_ranked_siblings() -> None:
    assert told(Operator.IMPROVE, 2) == [1, 0, 3, 4]
    assert told(Operator.IMPROVE, 2, improve_ancestors=1, improve_siblings=1) == [1, 3]


def test_improve_can_be_told_what_was_tried_on_its_parent_already() -> None:
    assert 5 not in told(Operator.IMPROVE, 2)
    assert told(Operator.IMPROVE, 2, improve_children=1)[-1] == 5


def test_crossover_is_told_of_both_parents_kin_once_and_never_of_the_parents() -> None:
    assert told(Operator.CROSSOVER, 2, 3) == [1, 0, 4]


def test_debug_is_told_of_the_same_error_first_and_then_of_the_latest() -> None:
    assert told(Operator.DEBUG, 6) == [8, 9, 7]
    assert told(Operator.DEBUG, 6, debug_failures=1) == [8]


def test_draft_is_told_of_the_best_and_no_more_than_asked() -> None:
    assert told(Operator.DRAFT, draft_attempts=3) == [3, 2, 5]


def test_memory_of_everything_is_all_valid_programs_in_order_and_to_debug_the_way_to_the_failure() -> None:
    assert told(Operator.IMPROVE, 2, kind="everything") == [0, 1, 3, 4, 5]
    assert told(Operator.DEBUG, 7, kind="everything") == [6]
    assert told(Operator.IMPROVE, 2, kind="none") == []


def test_the_board_names_the_current_best_the_family_and_repeated_errors() -> None:
    board = recall(Operator.IMPROVE, [TREE[2]], TREE, MemoryConfig()).board
    assert "- best so far: attempt 3, linear, score 0.9" in board
    assert "- family forest: 4 attempts, 4 valid, best score 0.7" in board
    assert "- families tried at most twice: linear" in board
    assert "- errors that came up repeatedly: KeyError@main (2 times)" in board
    # gains in order of commit: 0.1, 0.1, 0.3, -0.5, -0.05
    assert "- mean gain of the last attempts over their parents: -0.01 (more is better)" in board


def test_crossover_is_told_what_sets_the_parents_apart() -> None:
    apart = recall(Operator.CROSSOVER, [TREE[2], TREE[3]], TREE, MemoryConfig()).board
    assert "- the parents: the first is forest, the second linear" in apart
    alike = recall(Operator.CROSSOVER, [TREE[2], TREE[1]], TREE, MemoryConfig()).board
    assert "- the parents: both are of the family forest" in alike


def test_only_one_attempt_is_ever_the_best_so_far() -> None:
    lines = lines_of(Operator.IMPROVE, 5)
    assert sum("best so far" in line for line in lines) == 1


def lines_of(operator: Operator, *parents: int, notes: dict[int, str] | None = None, **config: object) -> list[str]:
    settings = MemoryConfig(**config)  # pyright: ignore
    recalled = recall(operator, [TREE[number] for number in parents], TREE, settings)
    return remembered(recalled, TREE, notes or {}, settings)


def test_a_note_of_a_model_is_told_in_place_of_the_extractive_one() -> None:
    lines = lines_of(Operator.IMPROVE, 2, notes={1: "deeper\ntrees helped"})
    assert any(line.endswith(": deeper trees helped") for line in lines)
    assert any("[1 lines changed" in line or "[2 lines changed" in line for line in lines)


def test_an_extractive_note_says_what_changed() -> None:
    by_attempt = {each.attempt: each for each in TREE}
    assert extractive_note(TREE[3], by_attempt) == f"plan [2 lines changed: - {FOREST}  # 1; + {LINEAR}]"
    assert extractive_note(TREE[0], by_attempt) == "plan"


@given(st.integers(0, 400), st.integers(0, 60))
def test_memory_and_notes_keep_to_their_lengths(length: int, note: int) -> None:
    lines = lines_of(Operator.IMPROVE, 2, notes={1: "word " * 100}, length=length, note_length=note)
    assert sum(len(line) + 1 for line in lines) <= length


@given(st.text(max_size=80), st.integers(0, 30))
def test_a_clipped_text_fits(text: str, limit: int) -> None:
    clipped = clip(text, limit)
    assert len(clipped) <= limit or (clipped == "..." and limit < 3)
    assert "\n" not in clipped


def huge(number: int, **changes: object) -> ExperienceCard:
    log = "noise " * 3000
    return card(number, **changes).model_copy(  # pyright: ignore
        update={
            "source": "x = 1\n" * 9000,
            "log_head": log,
            "log_tail": log,
            "message": "m" * 20_000,
            "plan": "p" * 9000,
        }
    )


@pytest.mark.parametrize("operator", Operator)
@pytest.mark.parametrize("length", [6_000, 54_000])
def test_no_prompt_is_longer_than_its_budget_whatever_the_cards_hold(operator: Operator, length: int) -> None:
    cards = [huge(n, value=0.1 * n) for n in range(40)] + [huge(40, signature="KeyError@main")]
    chosen = {0: [], 1: [cards[40] if operator is Operator.DEBUG else cards[5]], 2: cards[5:7]}
    parents: Sequence[ExperienceCard] = chosen[operator.parent_count]
    settings = MemoryConfig()
    lines = remembered(recall(operator, parents, cards, settings), cards, {}, settings)
    around = Surroundings(
        limits=Limits(),
        remaining=Remaining(attempts=3, sandbox_seconds=12.5),
        packages=("numpy 2.0",),
        earlier=lines,
        skills="s" * 50_000,
    )
    messages = build_prompt(operator, TASK, parents, around, config=PromptConfig(length=length))
    assert sum(len(message.content) for message in messages) <= length
    text = messages[1].content
    assert "- attempts left after this one: 3" in text
    assert "- execution time left for all attempts: 12 seconds" in text
    assert "- installed packages: numpy 2.0" in text
    assert text.endswith("hard-code predictions.")


@pytest.mark.parametrize("operator", Operator)
def test_lengths_count_tokens_where_a_tokenizer_is_given(operator: Operator) -> None:
    def words(text: str) -> int:
        return len(text.split())

    cards = [huge(0, value=0.5), huge(1, value=0.6), huge(2, signature="KeyError@main")]
    parents = {0: [], 1: [cards[2] if operator is Operator.DEBUG else cards[0]], 2: cards[:2]}[operator.parent_count]
    around = Surroundings(limits=Limits(), skills="word " * 9000)
    messages = build_prompt(operator, TASK, parents, around, config=PromptConfig(length=1500), measure=words)
    assert sum(words(message.content) for message in messages) <= 1500


@given(st.data())
def test_no_test_score_reaches_memory_or_prompt_wherever_it_is_planted(data: st.DataObject) -> None:
    marked = 0.73519
    cards = [each.model_copy(update={"test": TestScore(value=marked, higher_is_better=True)}) for each in TREE]
    operator = data.draw(st.sampled_from(Operator))
    able = [each for each in cards if each.may_parent(operator)]
    parents = data.draw(st.permutations(able))[: operator.parent_count]
    settings = MemoryConfig(kind=data.draw(st.sampled_from(["lineage", "everything", "none"])), improve_children=3)
    lines = remembered(recall(operator, parents, cards, settings), cards, {}, settings)
    messages = build_prompt(operator, TASK, parents, Surroundings(limits=Limits(), earlier=lines))
    assert "0.735" not in "".join(message.content for message in messages)
