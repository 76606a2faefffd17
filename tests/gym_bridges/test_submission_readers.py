"""The two parsers of plain submissions see the same in what both take, and neither takes what a row by row reading
would not; free text is a kind of its own."""

import pandas as pd
import pytest
from openmle_gym.manifest import Columns
from openmle_gym.submission import AnswerKey, validate_submission
from openmle_gym.submission_bulk import _Cells, _Labels, _read_by_arrow, _read_by_pandas, read_plain

COLUMNS = Columns(id=("id",), target=("y",))


def key(rows: list[tuple[str, str]], prediction: str) -> AnswerKey:
    return AnswerKey(pd.DataFrame(rows, columns=["id", "y"], dtype=str), COLUMNS, prediction)  # pyright: ignore


NUMBERS = key([("1", "0.5"), ("2", "1"), ("30", "2")], "number")
LABELS = key([("a", "cat"), ("b", "dog"), ("c", "cat")], "label")


def shown(columns: dict[str, _Cells] | None) -> dict[str, list] | None:
    if columns is None:
        return None
    return {
        name: [cells.spellings[code] for code in cells.codes] if isinstance(cells, _Labels) else cells.tolist()
        for name, cells in columns.items()
    }


@pytest.mark.parametrize("body", ["1,0.1\n2,1e-3\n30,7\n", "30,-0.30000000000000004\n1,.5\n2,5e-324\n"])
def test_both_parsers_read_numbers_exactly(body: str) -> None:
    content = f"id,y\n{body}".encode()
    read = [parser(content, ["id", "y"], NUMBERS, numbered=True) for parser in (_read_by_arrow, _read_by_pandas)]
    rows = [line.split(",") for line in body.split()]
    wanted = {"id": [int(row[0]) for row in rows], "y": [float(row[1]) for row in rows]}
    assert shown(read[0]) == shown(read[1]) == wanted


@pytest.mark.parametrize("body", ["a,cat\nb,\nc,x y\n", "c,NA\na,None\nb,1.0\n"])
def test_both_parsers_leave_text_as_it_is(body: str) -> None:
    content = f"id,y\n{body}".encode()
    read = [parser(content, ["id", "y"], LABELS, numbered=False) for parser in (_read_by_arrow, _read_by_pandas)]
    rows = [line.split(",") for line in body.splitlines()]
    assert shown(read[0]) == shown(read[1]) == {"id": [row[0] for row in rows], "y": [row[1] for row in rows]}


@pytest.mark.parametrize(
    "body",
    [
        "1,0.5\n2\n30,1\n",
        "1,0.5\n2,\n30,1\n",
        "1,0.5,9\n2,1,9\n30,1,9\n",
        "1,0.5\n2,1,9\n30,1\n",
        "1,0.5\n02,1\n30,1\n",
        "1,0.5\n+2,1\n30,1\n",
        "1,0.5\n2,inf\n30,1\n",
        "1,0.5\n2,nan\n30,1\n",
        "1,0.5\n2,1_0\n30,1\n",
        "1,0.5\n2,1\n",
        "1,0.5\n2,1\n2,1\n",
        "1,0.5\n2,1\n30,1\n30,1\n",
        "0",
        "",
    ],
)
def test_what_is_not_plain_is_left_to_the_slow_road(body: str) -> None:
    content = f"id,y\n{body}".encode()
    assert read_plain(content, NUMBERS) is None


def test_free_text_is_taken_as_it_is_whatever_the_answers_look_like() -> None:
    text = key([("1", "7"), ("2", "nan"), ("3", "")], "text")
    for content in (b"id,y\n3,\n1,NA\n2,07\n", b'id,y\n3,""\n1,"NA"\n2,07\n'):
        verdict = validate_submission(content, key=text)
        assert verdict.aligned is not None
        assert verdict.aligned["y"].tolist() == ["NA", "07", ""]
        assert verdict.warnings == ()


def test_answers_that_name_a_row_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="two rows have id '1'"):
        key([("1", "0"), (" 1", "1")], "number")
