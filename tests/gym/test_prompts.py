"""The operators' prompts, and what they can never hold."""

from pathlib import Path

import pytest
from evo.make import TASK, card
from hypothesis import given
from hypothesis import strategies as st
from openmle_gym.jobs import Limits, Outcome
from openmle_gym.manifest import Columns
from openmle_gym.operators import Operator
from openmle_gym.preview import preview_data
from openmle_gym.program import parse_reply
from openmle_gym.prompts import PromptConfig, Surroundings, build_prompt
from openmle_gym.scores import TestScore

SCORED, OTHER, FAILED = card(3, 0.25, source="print('three')"), card(4, 0.5), card(5, signature="KeyError@main")
PARENTS = {
    Operator.DRAFT: [],
    Operator.IMPROVE: [SCORED],
    Operator.DEBUG: [FAILED],
    Operator.CROSSOVER: [SCORED, OTHER],
}


def prompt(operator: Operator, **settings: object) -> str:
    messages = build_prompt(operator, TASK, PARENTS[operator], Surroundings(limits=Limits(), **settings))  # pyright: ignore
    assert [message.role for message in messages] == ["system", "user"]
    return messages[1].content


@pytest.mark.parametrize("operator", Operator)
def test_every_prompt_names_its_operator_and_states_task_facts_and_contract(operator: Operator) -> None:
    text = prompt(operator)
    assert text.startswith(f"# Operator: {operator}\n")
    positions = [text.index(f"# {section}\n") for section in ("Task", "Facts", "Data", "Output")]
    assert positions == sorted(positions)
    assert "- metric: rmse (lower is better)" in text
    assert "submission.csv" in text
    assert text.count("# Parent program") == operator.parent_count


@pytest.mark.parametrize("operator", Operator)
@pytest.mark.parametrize("parents", [[], [SCORED], [FAILED], [SCORED, OTHER], [SCORED, FAILED]])
def test_wrong_parents_are_refused(operator: Operator, parents: list) -> None:
    if parents == PARENTS[operator]:
        return
    with pytest.raises(ValueError, match=r"takes|accept"):
        build_prompt(operator, TASK, parents, Surroundings(limits=Limits()))


def test_a_parent_is_shown_with_its_score_its_source_and_its_output_once() -> None:
    shown = build_prompt(
        Operator.IMPROVE, TASK, [SCORED.model_copy(update={"log_head": "epoch 1"})], Surroundings(limits=Limits())
    )[1].content
    assert "- validation score: 0.25" in shown
    assert shown.count("print('three')") == 1
    assert shown.count("epoch 1") == 1


def test_a_failure_is_shown_with_its_signature_and_message() -> None:
    failed = FAILED.model_copy(update={"message": "KeyError: 'y'", "outcome": Outcome.CODE_EXECUTION_ERROR})
    shown = build_prompt(Operator.DEBUG, TASK, [failed], Surroundings(limits=Limits()))[1].content
    assert "- error: KeyError@main" in shown
    assert "KeyError: 'y'" in shown


@given(st.text(alphabet="`~\nab#", max_size=60))
def test_a_parents_source_survives_its_fence_whatever_it_holds(inner: str) -> None:
    source = f"x = {inner!r}\n"
    shown = build_prompt(Operator.IMPROVE, TASK, [card(0, 0.5, source=source)], Surroundings(limits=Limits()))[
        1
    ].content
    section = shown[shown.index("# Parent program") :]
    assert parse_reply(section).source.strip() == source.strip()


@pytest.mark.parametrize("operator", Operator)
@given(marked=st.floats(0.70001, 0.79999))
def test_no_prompt_holds_a_test_score(operator: Operator, marked: float) -> None:
    test = TestScore(value=marked, higher_is_better=True)
    parents = [each.model_copy(update={"test": test}) for each in PARENTS[operator]]
    text = build_prompt(operator, TASK, parents, Surroundings(limits=Limits()))[1].content
    assert f"{marked:.3g}" not in text
    assert "test score" not in text.lower()


def test_long_descriptions_and_outputs_are_cut_in_the_middle() -> None:
    noisy = SCORED.model_copy(update={"log_head": "H" * 9000, "log_tail": "T" * 9000})
    shown = build_prompt(Operator.IMPROVE, TASK, [noisy], Surroundings(limits=Limits()))[1].content
    assert "characters cut" in shown
    assert len(shown) < 9000


def test_the_preview_reads_public_files_only_and_names_what_a_model_needs(tmp_path: Path) -> None:
    public = tmp_path / "data" / "public"
    public.mkdir(parents=True)
    (tmp_path / "data" / "private").mkdir()
    (tmp_path / "data" / "private" / "test_answer.csv").write_text("id,y\n1,SECRET\n")
    (public / "description.txt").write_text("words")
    (public / "train.csv").write_text("id,age,city,y\n1,30,Paris,0\n2,,Rome,1\n")
    (public / "weights.bin").write_bytes(b"1234")
    text = preview_data(public, Columns(id=("id",), target=("y",)))
    assert "`train.csv`: 2 rows, 4 columns" in text
    assert "age: number, 1 distinct, 1 missing, 30 to 30" in text
    assert "city: text, 2 distinct, such as 'Paris', 'Rome'" in text
    assert "`weights.bin`: 4 bytes" in text
    assert "SECRET" not in text
    assert "words" not in text


def test_a_wide_table_is_shortened_but_keeps_its_target(tmp_path: Path) -> None:
    names = [f"p{index}" for index in range(200)]
    (tmp_path / "train.csv").write_text(",".join(["id", *names, "y"]) + "\n" + ",".join(["1"] * 202) + "\n")
    text = preview_data(tmp_path, Columns(id=("id",), target=("y",)))
    assert "- p58:" in text
    assert "- p59:" not in text
    assert "- y:" in text
    assert "and 141 more columns, the last of them y" in text


def test_a_budget_says_how_many_columns_are_listed_beside_ids_and_targets(tmp_path: Path) -> None:
    header = ",".join(["id", *(f"x{n}" for n in range(5)), "y"])
    (tmp_path / "train.csv").write_text(f"{header}\n{','.join('1234567')}\n")
    text = preview_data(tmp_path, Columns(id=("id",), target=("y",)), listed=2)
    assert text.splitlines() == [
        "`train.csv`: 1 rows, 7 columns",
        "  - id: integer, 1 distinct, 1 to 1",
        "  - x0: integer, 1 distinct, 2 to 2",
        "  - y: integer, 1 distinct, 7 to 7",
        "  - and 4 more columns, the last of them y",
    ]


def test_a_line_of_packages_that_is_too_long_is_left_out() -> None:
    around = Surroundings(limits=Limits(), packages=("numpy 2.0", "pandas 3.0"))
    line = "- installed packages: numpy 2.0, pandas 3.0"
    for most, shown in ((len(line), True), (len(line) - 1, False), (0, False)):
        text = build_prompt(Operator.DRAFT, TASK, [], around, config=PromptConfig(packages=most))[1].content
        assert (line in text) is shown
