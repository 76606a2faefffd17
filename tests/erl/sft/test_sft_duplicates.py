"""Equal and nearly equal examples, and reserved tasks."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openmle_erl.sft.config import ReservedConfig
from openmle_erl.sft.dedup import message_hash
from openmle_erl.sft.reasons import Drop
from openmle_erl.sft.reserved import Reserved, ReservedTask, read_reserved, task_text
from openmle_erl.sft.shingles import MinHashIndex, overlap, plain_words, word_runs
from openmle_gym.chat import Message
from openmle_gym.errors import ConfigError
from openmle_gym.jobs import Limits
from openmle_gym.operators import Operator
from openmle_gym.prompts import Surroundings, build_prompt, public_task
from toy import write_toy_package


def chat(prompt: str, reply: str = "ok") -> list[Message]:
    return [Message(role="user", content=prompt), Message(role="assistant", content=reply)]


def test_messages_are_equal_up_to_line_ends_trailing_blanks_and_unicode_form() -> None:
    assert message_hash(chat("caf\u00e9  \r\nx\n", "\nok\n")) == message_hash(chat("cafe\u0301\nx", "ok"))


@pytest.mark.parametrize("other", [chat("a\n  b"), chat("A\n b"), chat("a\n b", "no"), [*chat("a\n b"), *chat("c")]])
def test_messages_that_differ_in_anything_else_are_not_equal(other: list[Message]) -> None:
    assert message_hash(other) != message_hash(chat("a\n b"))


def test_roles_and_texts_cannot_be_shifted_into_each_other() -> None:
    assert message_hash([Message(role="user", content="a"), Message(role="user", content="b")]) != message_hash(
        [Message(role="user", content="ab")]
    )


WORDS = [f"word{number}" for number in range(400)]


def test_near_duplicates_are_found_and_their_similarity_is_about_the_jaccard_index() -> None:
    index = MinHashIndex(0.8)
    text = " ".join(WORDS)
    assert index.add("first", text) is None
    assert index.add("other", " ".join(f"else{number}" for number in range(400))) is None
    twin = index.add("twin", text.replace("word7 ", "WORT "))  # 5 of 396 runs differ: 391 / 401
    assert twin is not None
    assert (twin.first, twin.second) == ("first", "twin")
    assert twin.similarity == pytest.approx(391 / 401, abs=0.06)
    half = " ".join(WORDS[:200] + [f"new{number}" for number in range(200)])  # 196 / 596
    assert index.add("half", half) is None


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=40))
def test_a_text_is_its_own_nearest_near_duplicate(words: list[str]) -> None:
    index = MinHashIndex(0.9)
    index.add("one", " ".join(words))
    twin = index.add("two", "  ".join(word.upper() for word in words))
    assert twin is not None
    assert twin.similarity == 1.0


def test_the_first_of_equal_texts_stands_for_all_of_them() -> None:
    index = MinHashIndex(0.9)
    texts = ["one two three four five six", "seven eight nine ten eleven twelve"]
    assert [index.add(f"{number}", texts[number % 2]) for number in range(2)] == [None, None]
    for number in range(2, 2000):
        assert index.add(f"{number}", texts[number % 2]) == (f"{number % 2}", f"{number}", 1.0)
    assert sum(len(numbers) for table in index._bands for numbers in table.values()) == 2 * 32


def test_empty_texts_have_no_runs_and_overlap_with_nothing() -> None:
    assert word_runs(" ...\n") == frozenset()
    assert overlap(word_runs(""), word_runs("a b c")) == 0.0
    assert len(word_runs("a b")) == 1


DESCRIPTION = (
    "Predict the resale value of second-hand bicycles from their age, brand and condition.\n\n"
    "The training table has 12,000 bicycles sold in 2019. Submissions are scored by the root mean squared error "
    "between the predicted and the observed price, in euros. Each row of the test table needs one prediction; "
    "bicycles whose price is missing were left out."
)
RESERVED = Reserved([ReservedTask("bicycles", DESCRIPTION)], similarity=0.6)


def released(description: str, after: str = "Data Description:\n\ntrain.csv: 4 columns") -> list[Message]:
    """A prompt in the form of the released traces."""
    intro = "You will be given a machine-learning competition."
    return chat(f"{intro}\n\nTask Description:\n\n{description}\n\n{after}\n\nOutput Instructions:\n\nOne script.")


def drop_of(messages: list[Message], task: str | None = None) -> Drop | None:
    match = RESERVED.match(messages, task)
    return match.drop if match else None


def test_a_reserved_description_is_found_without_a_code_fence_after_the_data_heading() -> None:
    """The release cut the description at `Data Description:` plus a fence; without the fence its hash missed, silently."""
    assert drop_of(released(DESCRIPTION)) is Drop.RESERVED_EXACT
    assert drop_of(released(DESCRIPTION, "Data Description:\n```\ntrain.csv\n```")) is Drop.RESERVED_EXACT
    assert drop_of(released(DESCRIPTION, "")) is Drop.RESERVED_EXACT


def test_a_reserved_description_is_found_up_to_case_spacing_and_punctuation() -> None:
    """An exact hash, as in the release, misses all of these."""
    assert drop_of(released(DESCRIPTION.upper())) is Drop.RESERVED_NORMALISED
    assert drop_of(released(DESCRIPTION.replace(" ", "  ").replace(",", " -"))) is Drop.RESERVED_NORMALISED


def test_a_reworded_reserved_description_is_a_near_duplicate() -> None:
    reworded = DESCRIPTION.replace("second-hand bicycles", "used bikes").replace("in euros", "in EUR")
    assert drop_of(released(reworded)) is Drop.RESERVED_NEAR_DUPLICATE
    assert drop_of(released(reworded + " " + " ".join(WORDS))) is Drop.RESERVED_NEAR_DUPLICATE


def test_a_reserved_description_is_found_where_no_heading_marks_it() -> None:
    assert drop_of(chat(f"Here is what to do. {DESCRIPTION} Good luck!")) is Drop.RESERVED_EXACT


@pytest.mark.parametrize("filler", ["\n", "\n-", "# Task\n\n", "Task Description\n", "-"])
def test_a_prompt_of_fillers_is_read_in_one_pass(filler: str) -> None:
    began = time.process_time()
    assert task_text([Message(role="user", content="a" + filler * 50_000 + "b")])
    assert time.process_time() - began < 2.0  # tried from every line anew, it is minutes


def test_another_task_is_not_taken_for_a_reserved_one() -> None:
    other = "Classify the photographs of birds by species. " + " ".join(WORDS)
    assert drop_of(released(other)) is None


def test_a_task_of_a_reserved_name_is_found_whatever_its_text() -> None:
    assert drop_of(released("Something else."), task="Bicycles") is Drop.RESERVED_NAME
    assert drop_of(released("Something else."), task="cars") is None


def test_a_short_reserved_description_must_be_all_of_the_task() -> None:
    short = Reserved([ReservedTask("toy", "Predict y from x.")], similarity=0.6)
    assert short.match(released("predict Y from x")) is not None
    assert short.match(released("Predict y from x. Then sort the rows by z and write them to a file.")) is None


def test_the_task_is_found_in_the_prompts_of_all_operators(tmp_path: Path) -> None:
    package = write_toy_package(tmp_path / "toy")
    (package.public_dir / "description.txt").write_text(DESCRIPTION + "\n\n# Facts\n\nNone of these.\n")
    prompt = build_prompt(Operator.DRAFT, public_task(package), [], Surroundings(limits=Limits()))
    assert task_text(prompt) == DESCRIPTION + "\n\n# Facts\n\nNone of these."
    assert drop_of(prompt) is Drop.RESERVED_EXACT


def test_reserved_tasks_are_read_from_packages_folders_and_json_lines(tmp_path: Path) -> None:
    write_toy_package(tmp_path / "tasks" / "toy")
    lines = tmp_path / "more.jsonl"
    lines.write_text(
        json.dumps({"task": "a", "description": "b c"})
        + "\n\n"
        + json.dumps({"task_name": "d", "task_description": "e"})
    )
    config = ReservedConfig(tasks=[str(tmp_path / "tasks"), str(lines)])
    assert len(read_reserved(config)) == 3


@pytest.mark.parametrize("line", ['{"task": "a", "description": "..."}', '{"task": "a"}', "[1]", "no"])
def test_a_reserved_task_without_a_description_is_an_error_and_no_silent_miss(line: str, tmp_path: Path) -> None:
    (tmp_path / "reserved.jsonl").write_text(line + "\n")
    with pytest.raises(ConfigError, match="description"):
        read_reserved(ReservedConfig(tasks=[str(tmp_path / "reserved.jsonl")]))
    with pytest.raises(ConfigError, match="no task package there"):
        read_reserved(ReservedConfig(tasks=[str(tmp_path / "nowhere")]))


def test_a_list_of_reserved_tasks_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b'{"task": "caf\xe9", "description": "d"}')
    with pytest.raises(ConfigError, match=r"latin\.jsonl: 'utf-8'"):
        read_reserved(ReservedConfig(tasks=[str(tmp_path / "latin.jsonl")]))


@given(st.text(max_size=200))
def test_words_do_not_depend_on_case_or_spacing(text: str) -> None:
    assert plain_words(text) == plain_words(f"  {text}\n") == plain_words(" ".join(plain_words(text)))
