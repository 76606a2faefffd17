"""Typed validation of a submission, in our own process, before any metric sees it.

What two people would call the same submission scores the same: row order, column order, byte order marks, newlines,
spaces around cells, a stray index column and `1.0` for `1` change nothing. What a metric might silently make the best
of is refused: a missing, doubled or unknown row, a missing column, a missing or infinite value, text for a number.
"""

import codecs
import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Literal

import pandas as pd

from openmle_gym.errors import PackageError
from openmle_gym.jobs import MIB
from openmle_gym.manifest import Columns

MAX_SUBMISSION_BYTES = 256 * MIB
SHOWN_CHARACTERS = 40

Prediction = Literal["number", "probability", "label"]


class SubmissionFault(StrEnum):
    """Why a submission is refused."""

    EMPTY_FILE = "empty_file"
    """Nothing at all, or a header without rows."""
    TOO_LARGE = "too_large"
    NOT_TEXT = "not_text"
    UNREADABLE = "unreadable"
    """Not CSV."""
    RAGGED_ROW = "ragged_row"
    """A row has more or fewer cells than the header."""
    WRONG_SEPARATOR = "wrong_separator"
    MISSING_COLUMN = "missing_column"
    DUPLICATE_COLUMN = "duplicate_column"
    MISSING_ID = "missing_id"
    EXTRA_ID = "extra_id"
    DUPLICATE_ID = "duplicate_id"
    MISSING_VALUE = "missing_value"
    NOT_FINITE = "not_finite"
    NOT_A_NUMBER = "not_a_number"
    NOT_A_LABEL = "not_a_label"
    """Labels are numbers, or booleans, and this is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionVerdict:
    """Whether a submission may be graded."""

    code: SubmissionFault | None = None
    """None when it may."""
    message: str = ""
    """What is wrong, fit to show a model: it quotes the submission and names ids, never an answer."""
    row: int | None = None
    """The first offending row, counted from 1 without the header and blank lines."""
    column: str | None = None
    warnings: tuple[str, ...] = ()
    """What was put right or left out."""
    aligned: pd.DataFrame | None = None
    """Id and target columns, rows and ids as in the answers; None when refused. Numbers are floats, labels text."""

    @property
    def accepted(self) -> bool:
        """Whether it may be graded."""
        return self.code is None


def validate_submission(
    content: bytes,
    *,
    answers: pd.DataFrame,
    columns: Columns,
    prediction: Prediction,
    max_bytes: int = MAX_SUBMISSION_BYTES,
) -> SubmissionVerdict:
    """Reads a submission and aligns it with the answers.

    Args:
        answers: All cells as text, as `TaskPackage.answers` has them.
        prediction: What the targets hold. A target whose answers are not all numbers holds labels, whatever this says.

    Raises:
        PackageError: The answers name a row twice.
    """
    ids = _Ids(answers, columns.id)
    targets = [_Target(name, answers[name], prediction) for name in columns.target]
    try:
        rows = _rows(_decoded(content, max_bytes))
        header = [cell.strip(_BLANKS) for cell in next(rows, ())]
        if not any(header):
            raise _Refusal(SubmissionFault.EMPTY_FILE, "the submission is empty")
        places = _places(header, columns)
        values = _values(rows, len(header), places, ids, targets)
    except _Refusal as refusal:
        return refusal.verdict
    aligned = answers[[name for name in answers.columns if name in places]].copy()
    for target, column in zip(targets, values, strict=True):
        aligned[target.name] = column
    renamed = [
        f"column {header[place]!r} was read as {name!r}" for name, place in places.items() if header[place] != name
    ]
    extra = [_shown(name) for place, name in enumerate(header) if place not in places.values()]
    ignored = [f"columns that were not asked for were ignored: {', '.join(extra[:10])}"] if extra else []
    doubts = [doubt for target in targets if (doubt := target.doubt(aligned[target.name]))]
    return SubmissionVerdict(warnings=(*renamed, *ignored, *doubts), aligned=aligned)


class _Refusal(Exception):
    """Carries a verdict out of the reading."""

    def __init__(
        self, code: SubmissionFault, message: str, *, row: int | None = None, column: str | None = None
    ) -> None:
        super().__init__(message)
        self.verdict = SubmissionVerdict(code=code, message=message, row=row, column=column)


_BLANKS = " \t\r\n\u00a0\ufeff\u200b"
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_MISSING = frozenset({"", "na", "n/a", "nan", "-nan", "+nan", "null", "none", "<na>", "nat", "#n/a"})
_PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d*)?(?:[eE][-+]?\d+)?", re.ASCII)
_TRUTH = {"true": "1", "false": "0"}


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}...")


def _decoded(content: bytes, max_bytes: int) -> str:
    if len(content) > max_bytes:
        raise _Refusal(SubmissionFault.TOO_LARGE, f"the submission has {len(content)} bytes, more than {max_bytes}")
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"the submission is not text in UTF-8: byte {error.start} cannot be read"
        raise _Refusal(SubmissionFault.NOT_TEXT, message) from error
    if "\0" in text:
        raise _Refusal(SubmissionFault.NOT_TEXT, "the submission is not text: it holds null characters")
    return text


def _rows(text: str) -> Iterator[list[str]]:
    """The rows that are not blank, the header first."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a mask may fill one cell with a megabyte
    count = 0
    try:
        for cells in csv.reader(io.StringIO(text, newline=""), skipinitialspace=True):
            if any(map(str.strip, cells)):
                yield cells
                count += 1
    except csv.Error as error:
        raise _Refusal(SubmissionFault.UNREADABLE, f"row {count}: not CSV: {error}", row=count or None) from error


def _places(header: list[str], columns: Columns) -> dict[str, int]:
    """The position of each wanted column: the one of that name or, without one, of that name in another case."""
    places: dict[str, int] = {}
    wanted = (*columns.id, *columns.target)
    for name in wanted:
        found = [place for place, cell in enumerate(header) if cell == name]
        found = found or [
            place for place, cell in enumerate(header) if cell.casefold() == name.casefold() and cell not in wanted
        ]
        if len(found) > 1:
            message = f"the header has {len(found)} columns {name!r}"
            raise _Refusal(SubmissionFault.DUPLICATE_COLUMN, message, column=name)
        if not found:
            for separator, word in _SEPARATORS.items():
                if {cell.strip(_BLANKS) for cell in ",".join(header).split(separator)}.issuperset(wanted):
                    message = f"the columns are separated by {word}; separate them by commas"
                    raise _Refusal(SubmissionFault.WRONG_SEPARATOR, message)
            listed = ", ".join(_shown(cell) for cell in header[:20])
            raise _Refusal(SubmissionFault.MISSING_COLUMN, f"no column {name!r}; the header is {listed}", column=name)
        places[name] = found[0]
    return places


def _values(
    rows: Iterator[list[str]], width: int, places: dict[str, int], ids: "_Ids", targets: Sequence["_Target"]
) -> list[list[float | str]]:
    """The predictions of each target, in the answers' order."""
    id_places = [places[name] for name in ids.names]
    target_places = [places[target.name] for target in targets]
    rows_seen = [0] * len(ids)
    values: list[list[float | str]] = [[""] * len(ids) for _ in targets]
    number = 0
    for number, cells in enumerate(rows, start=1):
        if len(cells) != width and not (len(cells) == width + 1 and not cells[-1].strip()):  # a trailing comma
            hint = "; write decimals with a point, and quote cells that hold commas" if len(cells) > width else ""
            message = f"row {number} has {len(cells)} cells where the header has {width}{hint}"
            raise _Refusal(SubmissionFault.RAGGED_ROW, message, row=number)
        key = [cells[place].strip() for place in id_places]
        index = ids.find(key)
        if index is None:
            raise ids.unknown(key, number)
        if rows_seen[index]:
            message = f"row {number} ({ids.spelled(key)}): the same id as in row {rows_seen[index]}"
            raise _Refusal(SubmissionFault.DUPLICATE_ID, message, row=number, column=ids.names[0])
        rows_seen[index] = number
        for target, place, column in zip(targets, target_places, values, strict=True):
            try:
                column[index] = target.value(cells[place].strip())
            except _BadCell as bad:
                message = f"row {number} ({ids.spelled(key)}), column {target.name!r}: {bad}"
                raise _Refusal(bad.code, message, row=number, column=target.name) from bad
    if number == 0:
        raise _Refusal(SubmissionFault.EMPTY_FILE, "the submission has a header but no rows")
    if number < len(ids):
        first = ids.spelled(ids.key(rows_seen.index(0)))
        message = f"{len(ids) - number} of {len(ids)} rows are missing; the first is that with {first}"
        raise _Refusal(SubmissionFault.MISSING_ID, message, column=ids.names[0])
    return values


class _Ids:
    """The rows of the answers by their ids."""

    def __init__(self, answers: pd.DataFrame, names: Sequence[str]) -> None:
        self.names = names
        self._cells = [answers[name].str.strip().tolist() for name in names]
        self._rows: dict[str, int] = {}
        for index, key in enumerate(zip(*self._cells, strict=True)):
            if self._rows.setdefault("\x1f".join(key), index) != index:
                raise PackageError(f"the answers have two rows with {self.spelled(key)}")

    @cached_property
    def _rows_by_number(self) -> dict[str, int | None]:
        """As `_rows`, with integers in one spelling; None where several rows come together."""
        rows: dict[str, int | None] = {}
        for index, key in enumerate(zip(*self._cells, strict=True)):
            canonical = "\x1f".join(map(_canonical, key))
            rows[canonical] = None if canonical in rows else index
        return rows

    def __len__(self) -> int:
        return len(self._rows)

    def key(self, index: int) -> list[str]:
        return [column[index] for column in self._cells]

    def find(self, key: Sequence[str]) -> int | None:
        """The row with exactly this id or, without one, the only row with this id as a number: `1.0` finds `1`."""
        index = self._rows.get("\x1f".join(key))
        return self._rows_by_number.get("\x1f".join(map(_canonical, key))) if index is None else index

    def spelled(self, key: Sequence[str]) -> str:
        return ", ".join(f"{name} {_shown(cell)}" for name, cell in zip(self.names, key, strict=True))

    def unknown(self, key: Sequence[str], number: int) -> _Refusal:
        for name, cell in zip(self.names, key, strict=True):
            if not cell:
                message = f"row {number}, column {name!r}: the id is missing"
                return _Refusal(SubmissionFault.MISSING_VALUE, message, row=number, column=name)
        example = self.spelled(self.key(0))
        message = f"row {number} ({self.spelled(key)}): no such row is asked for; they are such as {example}"
        return _Refusal(SubmissionFault.EXTRA_ID, message, row=number, column=self.names[0])


def _canonical(cell: str) -> str:
    """An integer that is written as a float as an integer; other text as it is, also `007`."""
    if _PLAIN_NUMBER.fullmatch(cell):
        number = float(cell)
        if number.is_integer() and abs(number) < 2**53:
            return str(int(number))
    return cell


class _BadCell(Exception):
    """A cell that is no prediction."""

    def __init__(self, code: SubmissionFault, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Target:
    """One target column: what its answers look like, and how a prediction is read."""

    def __init__(self, name: str, answers: pd.Series, prediction: Prediction) -> None:
        self.name = name
        forms = {form.strip(): form for form in answers.unique()}
        words = {form.casefold() for form in forms if form.casefold() not in _MISSING}
        self._numeric = bool(words) and all(_as_number(word) is not None for word in words)
        self._boolean = bool(words) and words <= {"true", "false", "0", "1", "0.0", "1.0"}
        self._is_number = self._numeric and prediction != "label"
        self._bounded = self._is_number and prediction == "probability"
        self._forms = forms
        self._by_meaning = {self._meaning(form): spelled for form, spelled in forms.items()}

    def value(self, cell: str) -> float | str:
        """Reads a prediction.

        Raises:
            _BadCell: It is none.
        """
        if not self._is_number and cell in self._forms:
            return self._forms[cell]
        if cell.casefold() in _MISSING:
            if not self._is_number and "" in self._forms:
                return ""
            raise _BadCell(SubmissionFault.MISSING_VALUE, "the prediction is missing")
        number = _as_number(cell)
        if self._numeric and number is not None and math.isinf(number):
            raise _BadCell(SubmissionFault.NOT_FINITE, f"{_shown(cell)} is not finite")
        if self._is_number:
            if number is None:
                hint = "; write decimals with a point" if "," in cell else ""
                raise _BadCell(SubmissionFault.NOT_A_NUMBER, f"{_shown(cell)} is not a number{hint}")
            return number
        meaning = self._meaning(cell)
        if meaning in self._by_meaning:
            return self._by_meaning[meaning]
        if (self._numeric or self._boolean) and number is None:
            kind = "numbers" if self._numeric else "booleans"
            raise _BadCell(SubmissionFault.NOT_A_LABEL, f"{_shown(cell)} is no label here; labels are {kind}")
        return cell

    def _meaning(self, label: str) -> str:
        """Equal for `1`, `1.0` and, where the labels are booleans, `True`."""
        truth = _TRUTH.get(label.casefold()) if self._boolean else None
        return truth or _canonical(label)

    def doubt(self, predictions: pd.Series) -> str | None:
        """What looks wrong with a column and yet can be graded."""
        if self._bounded:
            outside = int(((predictions < 0) | (predictions > 1)).sum())
            return f"column {self.name!r}: {outside} predictions lie outside of [0, 1]" if outside else None
        if not self._is_number and not predictions.isin(list(self._forms.values())).any():
            return f"column {self.name!r}: no prediction is one of the labels"
        return None


def _as_number(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None
