"""The one typed check of a submission, for every task, before any metric sees it.

Rows are aligned to the hidden answers by id. What carries no meaning is harmless: the order of rows and columns, a byte
order mark, line ends, spaces around names and ids, `1.0` for the id `1`, a stray index column. Whatever would have to
be guessed is refused, with the first offending row or column. A message names public facts only, never an answer.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

import pandas as pd

from openmle_gym.manifest import Columns

MAX_BYTES = 256 * 1024 * 1024
Prediction = Literal["number", "probability", "label"]


class SubmissionCode(StrEnum):
    """Why a submission was refused."""

    EMPTY_FILE = "empty_file"
    TOO_LARGE = "too_large"
    NOT_TEXT = "not_text"
    UNREADABLE = "unreadable"
    WRONG_SEPARATOR = "wrong_separator"
    RAGGED_ROW = "ragged_row"
    MISSING_COLUMN = "missing_column"
    DUPLICATE_COLUMN = "duplicate_column"
    MISSING_ID = "missing_id"
    EXTRA_ID = "extra_id"
    DUPLICATE_ID = "duplicate_id"
    MISSING_VALUE = "missing_value"
    NOT_FINITE = "not_finite"
    NOT_A_NUMBER = "not_a_number"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionVerdict:
    """Accepted, with the rows in the answers' order; or refused, with the reason."""

    accepted: bool
    code: SubmissionCode | None = None
    message: str = ""
    """Fit to show a model; empty when accepted."""
    row: int | None = None
    """The first offending row of data, counted from 1."""
    column: str | None = None
    warnings: tuple[str, ...] = ()
    aligned: pd.DataFrame | None = None
    """Id columns as the answers spell them, targets as float (labels as text); None when refused."""


class _Refused(Exception):
    def __init__(
        self, code: SubmissionCode, message: str, *, row: int | None = None, column: str | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.row, self.column = code, row, column


def validate_submission(
    content: bytes,
    *,
    answers: pd.DataFrame,
    columns: Columns,
    prediction: Prediction,
    max_bytes: int = MAX_BYTES,
) -> SubmissionVerdict:
    """Checks a submission against the ids of the hidden answers.

    Args:
        answers: Id and target columns as text, as `TaskPackage.answers` gives them; ids must be distinct.
        prediction: What the target columns must hold. A label may be any text.
    """
    warnings: list[str] = []
    try:
        rows = _rows(_decoded(content, max_bytes))
        places = _locate(next(rows, []), columns, warnings)
        aligned = _align(rows, places, answers, columns, prediction, warnings)
    except _Refused as refused:
        return SubmissionVerdict(
            accepted=False,
            code=refused.code,
            message=str(refused),
            row=refused.row,
            column=refused.column,
            warnings=tuple(warnings),
        )
    return SubmissionVerdict(accepted=True, warnings=tuple(warnings), aligned=aligned)


def _decoded(content: bytes, max_bytes: int) -> str:
    if len(content) > max_bytes:
        raise _Refused(SubmissionCode.TOO_LARGE, f"the file has {len(content)} bytes; at most {max_bytes} are read")
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise _Refused(
            SubmissionCode.NOT_TEXT, f"byte {error.start} is not {encoding.upper()}: write the file as UTF-8 text"
        ) from error
    if not text.strip():
        raise _Refused(SubmissionCode.EMPTY_FILE, "the file is empty")
    return text


def _rows(text: str) -> Iterator[list[str]]:
    """The header and the rows of data, without blank lines."""
    csv.field_size_limit(MAX_BYTES)
    try:
        yield from (row for row in csv.reader(io.StringIO(text, newline="")) if any(map(str.strip, row)))
    except csv.Error as error:
        raise _Refused(SubmissionCode.UNREADABLE, f"the file cannot be read as CSV: {error}") from error


class _Places(NamedTuple):
    """Where the wanted columns stand in a row."""

    id: tuple[int, ...]
    target: tuple[int, ...]
    width: int


def _locate(header: Sequence[str], columns: Columns, warnings: list[str]) -> _Places:
    names = [name.strip() for name in header]
    if len(names) == 1 and (separator := next((sign for sign in ";\t|" if sign in names[0]), None)):
        raise _Refused(
            SubmissionCode.WRONG_SEPARATOR, f"columns are separated by {separator!r}: write them separated by commas"
        )
    wanted = [*columns.id, *columns.target]
    places = {name: _place(name, names, warnings) for name in wanted}
    for name in sorted(set(names) - {names[place] for place in places.values()}):
        kind = "looks like an index and" if not name or name.lower().startswith(("unnamed", "index")) else ""
        warnings.append(f"column {name!r} {kind} was ignored".replace("  ", " "))
    return _Places(
        tuple(places[name] for name in columns.id), tuple(places[name] for name in columns.target), len(names)
    )


def _place(wanted: str, names: Sequence[str], warnings: list[str]) -> int:
    found = [index for index, name in enumerate(names) if name == wanted]
    if not found:
        found = [index for index, name in enumerate(names) if name.lower() == wanted.lower()]
        if len(found) == 1:
            warnings.append(f"column {names[found[0]]!r} was read as {wanted!r}")
    if not found:
        shown = ", ".join(repr(name) for name in names[:10])
        raise _Refused(
            SubmissionCode.MISSING_COLUMN, f"there is no column {wanted!r}; the file has {shown}", column=wanted
        )
    if len(found) > 1:
        raise _Refused(SubmissionCode.DUPLICATE_COLUMN, f"column {wanted!r} is there {len(found)} times", column=wanted)
    return found[0]


def _align(
    rows: Iterator[list[str]],
    places: _Places,
    answers: pd.DataFrame,
    columns: Columns,
    prediction: Prediction,
    warnings: list[str],
) -> pd.DataFrame:
    """Reads row by row; the first unknown or second id ends it, so memory follows from the answers, not the file."""
    ids = _Ids([tuple(row) for row in answers[list(columns.id)].itertuples(index=False, name=None)])
    read = [_reader(prediction, answers[name]) for name in columns.target]
    values: list[list[float | str]] = [[] for _ in columns.target]
    order: list[int] = []
    first_row: dict[int, int] = {}
    for number, row in enumerate(rows, start=1):
        if len(row) != places.width and not _pads(row, places.width):
            raise _Refused(
                SubmissionCode.RAGGED_ROW,
                f"row {number} has {len(row)} fields, the header has {places.width}: is a decimal comma in it?",
                row=number,
            )
        position = ids.position(tuple(row[place].strip() for place in places.id))
        if position is None:
            raise _Refused(
                SubmissionCode.EXTRA_ID,
                f"row {number} has the id {_shown(row, places.id)}, which is not in the test data",
                row=number,
                column=columns.id[0],
            )
        if position in first_row:
            raise _Refused(
                SubmissionCode.DUPLICATE_ID,
                f"row {number} repeats the id {_shown(row, places.id)} of row {first_row[position]}",
                row=number,
                column=columns.id[0],
            )
        first_row[position] = number
        order.append(position)
        for name, place, parse, column in zip(columns.target, places.target, read, values, strict=True):
            try:
                column.append(parse(row[place].strip()))
            except _BadValue as bad:
                message = f"row {number} (id {_shown(row, places.id)}), column {name!r}: {bad}"
                raise _Refused(bad.code, message, row=number, column=name) from bad
    if not order:
        raise _Refused(SubmissionCode.EMPTY_FILE, "the file has a header but no rows")
    missing = [position for position in range(len(answers)) if position not in first_row]
    if missing:
        lacking = ", ".join(answers[list(columns.id)].iloc[missing[0]])
        message = f"{len(missing)} of {len(answers)} ids are missing, the first is {lacking!r}"
        raise _Refused(SubmissionCode.MISSING_ID, message, column=columns.id[0])
    if prediction == "probability":
        _warn_outside_unit(values, columns.target, warnings)
    frame = answers[list(columns.id)].reset_index(drop=True)
    for name, column in zip(columns.target, values, strict=True):
        frame[name] = pd.Series(column, index=order).sort_index()
    return frame


def _pads(row: list[str], width: int) -> bool:
    """A trailing comma: one empty field too many."""
    return len(row) == width + 1 and not row[-1].strip()


def _shown(row: list[str], places: Sequence[int]) -> str:
    return repr(", ".join(row[place].strip() for place in places)[:80])


def _warn_outside_unit(values: list[list[float | str]], names: Sequence[str], warnings: list[str]) -> None:
    for name, column in zip(names, values, strict=True):
        outside = sum(isinstance(value, float) and not 0.0 <= value <= 1.0 for value in column)
        if outside:
            warnings.append(f"column {name!r} has {outside} values outside [0, 1]")


_INTEGER = re.compile(r"([+-]?\d+)(?:\.0*)?")


def _spelling(text: str) -> str:
    """An integer in its plainest spelling: `1.0`, `01` and `+1` are `1`; other text as it is."""
    found = _INTEGER.fullmatch(text)
    return str(int(found[1])) if found and len(text) < 4000 else text


class _Ids:
    """Finds a row of the answers by its id: as spelt, or else by the plainest spelling where that is unambiguous."""

    def __init__(self, ids: list[tuple[str, ...]]) -> None:
        self._exact = {tuple(part.strip() for part in row_id): index for index, row_id in enumerate(ids)}
        self._plain: dict[tuple[str, ...], int | None] = {}
        for row_id, index in self._exact.items():
            plain = tuple(map(_spelling, row_id))
            self._plain[plain] = None if plain in self._plain else index

    def position(self, row_id: tuple[str, ...]) -> int | None:
        exact = self._exact.get(row_id)
        return exact if exact is not None else self._plain.get(tuple(map(_spelling, row_id)))


class _BadValue(Exception):
    def __init__(self, code: SubmissionCode, message: str) -> None:
        super().__init__(message)
        self.code = code


_MISSING = frozenset({"", "na", "nan", "-nan", "n/a", "null", "none", "<na>", "nat"})


def _reader(prediction: Prediction, answers: pd.Series) -> Callable[[str], float | str]:
    if prediction != "label":
        return _read_number
    spelt = {_label_key(label): label for label in answers.unique()}
    return lambda text: _read_label(text, spelt)


def _read_number(text: str) -> float:
    if text.lower() in _MISSING:
        raise _BadValue(SubmissionCode.MISSING_VALUE, "there is no value")
    try:
        number = float(text) if "_" not in text else math.nan
    except ValueError:
        number = math.nan
    if math.isnan(number):
        hint = "; decimals are written with a point" if re.fullmatch(r"-?\d+,\d+", text) else ""
        raise _BadValue(SubmissionCode.NOT_A_NUMBER, f"{text[:40]!r} is not a number{hint}")
    if math.isinf(number):
        raise _BadValue(SubmissionCode.NOT_FINITE, f"{text[:40]!r} is not finite")
    return number


def _read_label(text: str, spelt: dict[str, str]) -> str:
    """The label as the answers spell it, where they have it: `1.0` and `true` are `1` and `True`."""
    known = spelt.get(_label_key(text))
    if known is None and text.lower() in _MISSING:
        raise _BadValue(SubmissionCode.MISSING_VALUE, "there is no value")
    return text if known is None else known


def _label_key(label: str) -> str:
    label = label.strip()
    return label.lower() if label.lower() in ("true", "false") else _spelling(label)
