import codecs
import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openmle_gym.manifest import Columns
from openmle_gym.submission import AnswerKey, Prediction, SubmissionVerdict, validate_submission
from openmle_gym.submission_bulk import read_plain

FILES = Path(__file__).parent / "fixtures" / "submissions"
COLUMNS = Columns(id=("id",), target=("target",))
CLEAN = b"id,target\n1,0.25\n2,0.5\n3,1\n"


def table(text: str) -> pd.DataFrame:
    lines = [line.split(",") for line in text.splitlines()]
    return pd.DataFrame(lines[1:], columns=lines[0], dtype=str)


ANSWERS = table("id,target\n1,0\n2,1\n3,1")


def judged(
    content: bytes,
    *,
    answers: pd.DataFrame = ANSWERS,
    columns: Columns = COLUMNS,
    prediction: Prediction = "number",
    max_bytes: int = 1000,
) -> SubmissionVerdict:
    key = AnswerKey(answers, columns, prediction)
    return validate_submission(content, key=key, max_bytes=max_bytes)


def predictions(verdict: SubmissionVerdict, column: str = "target") -> list:
    assert verdict.accepted, verdict.message
    assert verdict.aligned is not None
    return verdict.aligned[column].tolist()


def collected(name: str) -> SubmissionVerdict:
    answers = pd.read_csv(FILES / "_answers.csv", dtype=str, keep_default_na=False)
    return judged((FILES / f"{name}.csv").read_bytes(), answers=answers, prediction="probability")


@pytest.mark.parametrize("name", ["clean", "shuffled_rows", "bom", "header_spaces", "index_column_Unnamed0"])
def test_a_collected_submission_that_means_the_same_is_aligned_the_same(name: str) -> None:
    verdict, clean = collected(name), collected("clean")
    assert verdict.accepted
    assert clean.aligned is not None
    pd.testing.assert_frame_equal(verdict.aligned, clean.aligned)
    assert clean.aligned["target"].tolist()[:2] == [0.7917, 0.5289]
    assert bool(verdict.warnings) == (name == "index_column_Unnamed0")


@pytest.mark.parametrize(
    ("name", "code", "row", "column"),
    [
        ("nan_pred", "missing_value", 4, "target"),
        ("dup_id_one_missing", "duplicate_id", 2, "id"),
        ("missing_row", "missing_id", None, "id"),
        ("empty_file", "empty_file", None, None),
    ],
)
def test_a_collected_bad_submission_is_refused_with_its_place(
    name: str, code: str, row: int | None, column: str | None
) -> None:
    verdict = collected(name)
    assert not verdict.accepted
    assert (verdict.code, verdict.row, verdict.column) == (code, row, column)
    assert verdict.aligned is None


HARMLESS = {
    "rows in another order": b"id,target\n3,1\n1,0.25\n2,0.5\n",
    "columns in another order": b"target,id\n0.25,1\n0.5,2\n1,3\n",
    "UTF-8 mark": codecs.BOM_UTF8 + CLEAN,
    "UTF-8 mark before a quote": codecs.BOM_UTF8 + b'"id",target\n1,0.25\n2,0.5\n3,1\n',
    "UTF-16": CLEAN.decode().encode("utf-16"),
    "big-endian UTF-16": codecs.BOM_UTF16_BE + CLEAN.decode().encode("utf-16-be"),
    "carriage returns": CLEAN.replace(b"\n", b"\r\n"),
    "old Mac newlines": CLEAN.replace(b"\n", b"\r"),
    "no newline at the end": CLEAN.rstrip(),
    "blank lines": CLEAN.replace(b"\n", b"\n\n") + b"\n \n,\n",
    "spaces around cells": b" id , target \n 1 , 0.25 \n2, 0.5\n3 ,1\n",
    "quotes": b'"id","target"\n"1","0.25"\n"2","0.5"\n"3","1"\n',
    "quotes after spaces": b'id, "target"\n1, "0.25"\n2, "0.5"\n3, "1"\n',
    "ids as floats": b"id,target\n1.0,0.25\n2.0,0.5\n3e0,1\n",
    "numbers in other spellings": b"id,target\n1,2.5e-1\n2,.5\n3,1.000\n",
    "trailing commas": b"id,target\n1,0.25,\n2,0.5,\n3,1,\n",
}


@pytest.mark.parametrize("kind", HARMLESS)
def test_a_harmless_difference_changes_nothing_and_is_not_mentioned(kind: str) -> None:
    verdict = judged(HARMLESS[kind])
    assert predictions(verdict) == [0.25, 0.5, 1.0]
    assert predictions(verdict, "id") == ["1", "2", "3"]
    assert verdict.warnings == ()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"Unnamed: 0,id,target\n0,1,0.25\n1,2,0.5\n2,3,1\n", "'Unnamed: 0'"),
        (b",id,target\n0,1,0.25\n1,2,0.5\n2,3,1\n", "''"),
        (b"id,target,note\n1,0.25,\n2,0.5,x\n3,1,y\n", "'note'"),
        (b"ID,Target\n1,0.25\n2,0.5\n3,1\n", "'ID' was read as 'id'"),
        (b"id,target,ID\n1,0.25,9\n2,0.5,9\n3,1,9\n", "'ID'"),
    ],
)
def test_what_was_put_right_is_told(content: bytes, words: str) -> None:
    verdict = judged(content)
    assert predictions(verdict) == [0.25, 0.5, 1.0]
    assert words in " ".join(verdict.warnings)


REFUSED = {
    "nothing": (b"", "empty_file", None, None),
    "only blanks": (b" \n\n\t\n", "empty_file", None, None),
    "only a mark": (codecs.BOM_UTF8, "empty_file", None, None),
    "only a header": (b"id,target\n", "empty_file", None, None),
    "too large": (CLEAN + b"\n" * 1000, "too_large", None, None),
    "Latin-1": (b"id,target\n1,\xe9\n", "not_text", None, None),
    "a zip": (b"PK\x03\x04\x00\x00", "not_text", None, None),
    "semicolons": (b"id;target\n1;0,25\n2;0,5\n3;1\n", "wrong_separator", None, None),
    "tabs": (b"id\ttarget\n1\t0.25\n2\t0.5\n3\t1\n", "wrong_separator", None, None),
    "bars": (b"id|target\n1|0.25\n", "wrong_separator", None, None),
    "no header": (b"1,0.25\n2,0.5\n3,1\n", "missing_column", None, "id"),
    "no target": (b"id,prediction\n1,0.25\n2,0.5\n3,1\n", "missing_column", None, "target"),
    "two targets": (b"id,target,target\n1,0,0\n2,0,0\n3,0,0\n", "duplicate_column", None, "target"),
    "two targets in other cases": (b"id,Target,TARGET\n1,0,0\n2,0,0\n3,0,0\n", "duplicate_column", None, "target"),
    "short row": (b"id,target\n1,0.25\n2\n3,1\n", "ragged_row", 2, None),
    "long row": (b"id,target\n1,0.25\n2,0.5,7\n3,1\n", "ragged_row", 2, None),
    "decimal comma": (b"id,target\n1,0,25\n2,0,5\n3,1\n", "ragged_row", 1, None),
    "unknown id": (b"id,target\n1,0.25\n2,0.5\n4,1\n", "extra_id", 3, "id"),
    "an id too many": (CLEAN + b"4,1\n", "extra_id", 4, "id"),
    "twice the same id": (b"id,target\n1,0.25\n\n2,0.5\n2,1\n", "duplicate_id", 3, "id"),
    "an id twice, once as a float": (b"id,target\n1,0.25\n1.0,0.5\n2,1\n", "duplicate_id", 2, "id"),
    "an id without its sign": (b"id,target\n-1,0.25\n2,0.5\n3,1\n", "extra_id", 1, "id"),
    "missing id": (b"id,target\n1,0.25\n,0.5\n3,1\n", "missing_value", 2, "id"),
    "missing row": (b"id,target\n1,0.25\n3,1\n", "missing_id", None, "id"),
    "quoted decimal comma": (b'id,target\n1,"0,25"\n2,0.5\n3,1\n', "not_a_number", 1, "target"),
    "text": (b"id,target\n1,0.25\n2,cat\n3,1\n", "not_a_number", 2, "target"),
    "a number with underscores": (b"id,target\n1,1_000\n2,0\n3,1\n", "not_a_number", 1, "target"),
    "overflow": (b"id,target\n1,0.25\n2,1e999\n3,1\n", "not_finite", 2, "target"),
    "open quote": (b'id,target\n1,0.25\n2,"0.5\n3,1\n', "not_a_number", 2, "target"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_wrong_submission_is_refused_with_code_and_place(kind: str) -> None:
    content, code, row, column = REFUSED[kind]
    verdict = judged(content)
    assert (verdict.code, verdict.row, verdict.column) == (code, row, column)
    assert verdict.message
    if row is not None:
        assert verdict.message.startswith(f"row {row}")


@pytest.mark.parametrize("cell", ["", " ", "NA", "nan", "NaN", "None", "null", "n/a", "<NA>", "NaT", "-nan"])
@pytest.mark.parametrize("prediction", ["number", "probability", "label"])
def test_every_spelling_of_a_missing_value_is_refused(cell: str, prediction: Prediction) -> None:
    verdict = judged(f"id,target\n1,0\n2,{cell}\n3,1\n".encode(), prediction=prediction)
    assert (verdict.code, verdict.row, verdict.column) == ("missing_value", 2, "target")
    assert verdict.message == "row 2 (id '2'), column 'target': the prediction is missing"


@pytest.mark.parametrize("cell", ["inf", "-inf", "+Infinity", "-1e400"])
@pytest.mark.parametrize("prediction", ["number", "probability", "label"])
def test_every_spelling_of_an_infinity_is_refused(cell: str, prediction: Prediction) -> None:
    assert judged(f"id,target\n1,0\n2,1\n3,{cell}\n".encode(), prediction=prediction).code == "not_finite"


def test_a_missing_row_is_named_and_counted() -> None:
    assert judged(b"id,target\n1,0\n").message == "2 of 3 rows are missing; the first is that with id '2'"


def test_a_message_quotes_the_submission_and_never_an_answer() -> None:
    answers = table("id,target\n1,secret\n2,secret\n3,hidden")
    for content in (b"id,target\n1,a\n", b"id,target\n9,a\n", b"id,target\n1,a\n2,NA\n3,c\n", b"id,target\n1,a\n1,b\n"):
        verdict = judged(content, answers=answers, prediction="label")
        assert not verdict.accepted
        assert "secret" not in verdict.message
        assert "hidden" not in verdict.message


def test_long_cells_are_cut_in_messages() -> None:
    verdict = judged(b"id,target\n1,0\n2," + b"x" * 500 + b"\n3,1\n")
    assert len(verdict.message) < 150


def test_ids_with_leading_zeros_are_not_numbers() -> None:
    answers = table("id,target\n007,0\n7,1")
    assert predictions(judged(b"id,target\n7,0.7\n007,0.07\n", answers=answers)) == [0.07, 0.7]
    assert judged(b"id,target\n7,0.7\n7.0,0.07\n", answers=answers).code == "duplicate_id"
    assert judged(b"id,target\n7,0.7\n", answers=table("id,target\n007,0")).code == "extra_id"


def test_ids_that_the_answers_spell_as_floats_are_found_by_integers() -> None:
    answers = table("id,target\n1.0,0\n2.0,1")
    verdict = judged(b"id,target\n2,0.2\n1,0.1\n", answers=answers)
    assert predictions(verdict) == [0.1, 0.2]
    assert predictions(verdict, "id") == ["1.0", "2.0"]


def test_ids_that_are_one_number_but_two_texts_stay_two() -> None:
    answers = table("id,target\n1,0\n1.0,1")
    assert predictions(judged(b"id,target\n1.0,0.2\n1,0.1\n", answers=answers)) == [0.1, 0.2]
    assert judged(b"id,target\n1,0.1\n1.00,0.2\n", answers=answers).code == "extra_id"


def test_the_ids_na_and_nan_and_none_are_text() -> None:
    answers = table("id,target\nNA,0\nnan,1\nNone,1")
    assert predictions(judged(b"id,target\nnan,2\nNone,3\nNA,1\n", answers=answers)) == [1.0, 2.0, 3.0]


def test_large_integer_ids_do_not_run_together() -> None:
    answers = table("id,target\n9007199254740992,0\n9007199254740993,1")
    assert judged(b"id,target\n9007199254740992.0,1\n9007199254740993.0,2\n", answers=answers).code == "extra_id"
    assert judged(b"id,target\n9007199254740992,1\n", answers=answers[1:]).code == "extra_id"


def test_a_wanted_column_does_not_stand_in_for_another_in_another_case() -> None:
    columns = Columns(id=("id",), target=("a", "A"))
    verdict = judged(b"id,a\n1,0\n", answers=table("id,a,A\n1,0,0"), columns=columns)
    assert (verdict.code, verdict.column) == ("missing_column", "A")


def test_several_id_columns_name_a_row_together() -> None:
    columns = Columns(id=("store", "day"), target=("sales", "returns"))
    answers = table("day,sales,store,returns\n1,5,a,0\n2,6,a,0\n1,7,b,1")
    verdict = judged(b"store,day,returns,sales\na,2.0,2,6.5\nb,1,3,7.5\na,1,1,5.5\n", answers=answers, columns=columns)
    assert verdict.aligned is not None
    assert verdict.aligned.to_dict("list") == {
        "day": ["1", "2", "1"],
        "sales": [5.5, 6.5, 7.5],
        "store": ["a", "a", "b"],
        "returns": [1.0, 2.0, 3.0],
    }
    refused = judged(b"store,day,returns,sales\na,1,1,1\na,1,1,1\n", answers=answers, columns=columns)
    assert refused.message == "row 2 (store 'a', day '1'): the same id as in row 1"


def test_other_columns_of_the_answers_are_not_asked_for() -> None:
    answers = table("id,target,Usage\n1,0,Public\n2,1,Private")
    verdict = judged(b"id,target\n1,0.5\n2,0.75\n", answers=answers)
    assert verdict.aligned is not None
    assert list(verdict.aligned.columns) == ["id", "target"]


def test_answers_that_name_a_row_twice_are_the_packages_fault() -> None:
    with pytest.raises(ValueError, match="two rows have id '1'"):
        judged(CLEAN, answers=table("id,target\n1,0\n1,1"))
    with pytest.raises(ValueError, match="row 2 has no id"):
        judged(CLEAN, answers=table("id,target\n1,0\n ,1"))
    with pytest.raises(ValueError, match="there is no row"):
        judged(CLEAN, answers=table("id,target"))


def test_probabilities_outside_of_the_unit_interval_are_accepted_with_a_warning() -> None:
    content = b"id,target\n1,-0.5\n2,1.5\n3,1\n"
    verdict = judged(content, prediction="probability")
    assert predictions(verdict) == [-0.5, 1.5, 1.0]
    assert verdict.warnings == ("column 'target': 2 predictions lie outside of [0, 1]",)
    assert judged(content, prediction="number").warnings == ()


@pytest.mark.parametrize(
    ("forms", "cells", "expected"),
    [
        (("0", "1"), ("1.0", "0.0"), ["1", "0"]),
        (("0", "1"), ("True", "false"), ["1", "0"]),
        (("0.0", "1.0"), ("1", "0"), ["1.0", "0.0"]),
        (("False", "True"), ("1", "0.0"), ["True", "False"]),
        (("False", "True"), ("TRUE", "false"), ["True", "False"]),
        (("cat", "dog"), (" dog ", "cow"), ["dog", "cow"]),
        (("cat", "dog"), ("Dog", "cat"), ["Dog", "cat"]),
        (("1", "2"), ("2.0", "3.0"), ["2", "3.0"]),
        (("a", "None"), ("None", "a"), ["None", "a"]),
        (("a", ""), ("NaN", ""), ["", ""]),
        (("01", "1"), ("1.0", "01"), ["1", "01"]),
    ],
)
def test_a_label_takes_the_form_that_the_answers_have(
    forms: tuple[str, str], cells: tuple[str, str], expected: list[str]
) -> None:
    answers = pd.DataFrame({"id": ["1", "2"], "target": list(forms)}, dtype=str)
    content = f"id,target\n1,{cells[0]}\n2,{cells[1]}\n".encode()
    assert predictions(judged(content, answers=answers, prediction="label")) == expected


@pytest.mark.parametrize(("forms", "cell"), [("0,1", "cat"), ("0,1,2", "True"), ("True,False", "yes")])
def test_text_among_labels_that_are_numbers_or_booleans_is_refused(forms: str, cell: str) -> None:
    labels = forms.split(",")
    answers = pd.DataFrame({"id": [str(n) for n in range(len(labels))], "target": labels}, dtype=str)
    verdict = judged(f"id,target\n0,{cell}\n1,1\n2,1\n".encode(), answers=answers, prediction="label")
    assert (verdict.code, verdict.row) == ("not_a_label", 1)


def test_a_target_whose_answers_are_words_holds_labels_whatever_the_manifest_says() -> None:
    answers = table("id,target\n1,cat\n2,dog")
    assert predictions(judged(b"id,target\n1,dog\n2,dog\n", answers=answers, prediction="number")) == ["dog", "dog"]


def test_labels_that_are_all_unknown_raise_a_doubt() -> None:
    answers = table("id,target\n1,cat\n2,dog")
    verdict = judged(b"id,target\n1,0\n2,1\n", answers=answers, prediction="label")
    assert verdict.warnings == ("column 'target': no prediction is one of the labels",)


def test_a_cell_may_be_longer_than_the_csv_modules_default_limit() -> None:
    mask = "1 " * 100_000 + "1"
    verdict = judged(
        f"id,target\n1,{mask}\n2,1 1\n3,1 1\n".encode(),
        answers=table("id,target\n1,1 1\n2,1 1\n3,2 2"),
        prediction="label",
        max_bytes=10**6,
    )
    assert predictions(verdict) == [mask, "1 1", "1 1"]


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def with_index(lines: list[str]) -> list[str]:
    return [f",{lines[0]}"] + [f"{number},{line}" for number, line in enumerate(lines[1:])]


DISGUISES: list[Callable[[list[str]], list[str]]] = [
    lambda lines: lines,
    with_index,
    lambda lines: [line.replace(",", " , ") for line in lines],
    lambda lines: [",".join(reversed(line.split(","))) for line in lines],
    lambda lines: [",".join(f'"{cell}"' for cell in line.split(",")) for line in lines],
    lambda lines: [f"{line}\r" for line in lines],
]


@given(st.data(), st.lists(NUMBERS, min_size=1, max_size=30), st.sampled_from(DISGUISES))
@settings(deadline=None)
def test_every_prediction_comes_back_exactly_in_the_order_of_the_answers(
    data: st.DataObject, values: list[float], disguise: Callable[[list[str]], list[str]]
) -> None:
    answers = pd.DataFrame({"id": [str(n) for n in range(len(values))], "target": ["0.5"] * len(values)}, dtype=str)
    order = data.draw(st.permutations(range(len(values))))
    lines = ["id,target", *(f"{n},{values[n]!r}" for n in order)]
    content = "\n".join(disguise(lines)).encode()
    found = predictions(judged(content, answers=answers, max_bytes=10**6))
    assert found == values
    assert all(math.copysign(1, a) == math.copysign(1, b) for a, b in zip(found, values, strict=True))


@given(st.binary(max_size=200) | st.text(alphabet='id,target\n\r"123. ;\t\0', max_size=80).map(str.encode))
@settings(deadline=None)
def test_any_bytes_get_a_verdict(content: bytes) -> None:
    verdict = judged(content)
    assert verdict.accepted == (verdict.aligned is not None) == (verdict.message == "")


CELLS = st.sampled_from(
    [
        "1",
        "2",
        "3",
        "10",
        "007",
        "1.0",
        "1.",
        "1e0",
        "1.5",
        "+2",
        "-1",
        " 3",
        "3 ",
        "0",
        "00",
        "",
        "9007199254740993",
        "a",
        "b",
        "A",
        "True",
        "false",
        "nan",
        "inf",
        "-inf",
        "1e999",
        "1_0",
        "0x1",
        "--1",
        "1e",
        ".5",
        "-0.0",
        "é",
        "NA",
        "0.1",
        "5e-324",
        "1.7976931348623157e308",
        "0.30000000000000004",
        "1\t",
        "1\xa0",
        "٣",
    ]
)
IDS = st.lists(st.sampled_from(["1", "2", "3", "10", "0", "a", "007", "1.0"]), min_size=1, max_size=4, unique=True)


@given(st.data(), IDS, st.sampled_from(["number", "probability", "label"]))
@settings(max_examples=600)
def test_a_plain_file_gets_the_verdict_that_reading_it_row_by_row_gives(
    data: st.DataObject, ids: list[str], prediction: Prediction
) -> None:
    forms = data.draw(
        st.sampled_from([["0", "1"], ["0.5", "7"], ["a", "b"], ["True", "False"], ["a", ""], ["01", "1"]])
    )
    answers = pd.DataFrame({"id": ids, "target": [forms[n % 2] for n in range(len(ids))]}, dtype=str)
    named = data.draw(st.permutations(ids))
    rows = [(data.draw(CELLS) if data.draw(st.integers(0, 9)) == 0 else name, data.draw(CELLS)) for name in named]
    if data.draw(st.booleans()):
        rows = [(name, data.draw(st.sampled_from(["0", "1", "0.25", *forms]))) for name in named]
    lines = [",".join(row) for row in rows]
    if data.draw(st.integers(0, 5)) == 0:
        lines.insert(data.draw(st.integers(0, len(lines))), data.draw(st.sampled_from(["", "1", "1,2,3", ",", "1,0,"])))
    turned = data.draw(st.booleans())
    lines = [",".join(reversed(line.split(","))) for line in lines] if turned else lines
    header, quoted = ("target,id", 'target,"id"') if turned else ("id,target", '"id",target')
    end = data.draw(st.sampled_from(["\n", "\r\n", ""]))
    plain, by_row = (
        judged(
            "\n".join([head, *lines, ""]).strip("\n").replace("\n", end or "\n").encode() + end.encode(),
            answers=answers,
            prediction=prediction,
        )
        for head in (header, quoted)
    )
    assert (plain.code, plain.message, plain.row, plain.warnings) == (
        by_row.code,
        by_row.message,
        by_row.row,
        by_row.warnings,
    )
    if plain.aligned is not None and by_row.aligned is not None:
        assert [*map(repr, plain.aligned["target"])] == [*map(repr, by_row.aligned["target"])]
        assert plain.aligned["id"].tolist() == by_row.aligned["id"].tolist()


def test_a_plain_file_is_read_in_one_go() -> None:
    key = AnswerKey(ANSWERS, COLUMNS, "number")
    assert read_plain(CLEAN, key) is not None
    assert read_plain(b"target,id\n1,3\n2,1\n3,2\n", key) is not None
    assert read_plain(CLEAN.replace(b"id", b'"id"'), key) is None
