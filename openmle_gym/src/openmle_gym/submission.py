"""Typed validation of a submission, in our own process, before any metric sees it.

What two people would call the same submission scores the same: row order, column order, byte order marks, newlines,
spaces around cells, a stray index column and `1.0` for `1` change nothing. What a metric might silently make the best
of is refused: a missing, doubled or unknown row, a missing column, a missing or infinite value, text for a number.
"""

import codecs
import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from openmle_gym.jobs import MIB
from openmle_gym.manifest import Columns
from openmle_gym.submission_bulk import read_plain
from openmle_gym.submission_key import (
    AnswerIds,
    AnswerKey,
    AnswerTarget,
    BadCell,
    Prediction,
    Predictions,
    SubmissionFault,
    shown,
)

__all__ = ["AnswerKey", "Prediction", "SubmissionFault", "SubmissionVerdict", "validate_submission"]

MAX_SUBMISSION_BYTES = 256 * MIB


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
    """Id and target columns, rows and ids as in the answers; None when refused. Numbers are floats, labels categories."""

    @property
    def accepted(self) -> bool:
        """Whether it may be graded."""
        return self.code is None


def validate_submission(content: bytes, *, key: AnswerKey, max_bytes: int = MAX_SUBMISSION_BYTES) -> SubmissionVerdict:
    """Reads a submission and aligns it with the answers."""
    columns = read_plain(content, key) if len(content) <= max_bytes else None
    notes: list[str] = []
    if columns is None:
        try:
            columns, notes = _read_rows(content, key, max_bytes)
        except _Refusal as refusal:
            return refusal.verdict
    wanted = {*key.columns.id, *key.columns.target}
    aligned = key.answers[[name for name in key.answers.columns if name in wanted]].assign(**columns)
    doubts = [doubt for target in key.targets if (doubt := target.doubt(aligned[target.name]))]
    return SubmissionVerdict(warnings=(*notes, *doubts), aligned=aligned)


def _read_rows(content: bytes, key: AnswerKey, max_bytes: int) -> tuple[dict[str, Predictions], list[str]]:
    """The predictions of each target, and what is to be told about the header."""
    rows = _rows(_decoded(content, max_bytes))
    header = [cell.strip(_BLANKS) for cell in next(rows, ())]
    if not any(header):
        raise _Refusal(SubmissionFault.EMPTY_FILE, "the submission is empty")
    places = _places(header, key.columns)
    values = _values(rows, len(header), places, key.ids, key.targets)
    columns: dict[str, Predictions] = {
        target.name: np.array(column, dtype=float) if target.is_number else pd.Categorical(column)
        for target, column in zip(key.targets, values, strict=True)
    }
    renamed = [
        f"column {header[place]!r} was read as {name!r}" for name, place in places.items() if header[place] != name
    ]
    extra = [shown(name) for place, name in enumerate(header) if place not in places.values()]
    ignored = [f"columns that were not asked for were ignored: {', '.join(extra[:10])}"] if extra else []
    return columns, [*renamed, *ignored]


class _Refusal(Exception):
    """Carries a verdict out of the reading."""

    def __init__(
        self, code: SubmissionFault, message: str, *, row: int | None = None, column: str | None = None
    ) -> None:
        super().__init__(message)
        self.verdict = SubmissionVerdict(code=code, message=message, row=row, column=column)


_BLANKS = " \t\r\n\u00a0\ufeff\u200b"
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


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
            listed = ", ".join(shown(cell) for cell in header[:20])
            raise _Refusal(SubmissionFault.MISSING_COLUMN, f"no column {name!r}; the header is {listed}", column=name)
        places[name] = found[0]
    return places


def _values(
    rows: Iterator[list[str]], width: int, places: dict[str, int], ids: AnswerIds, targets: Sequence[AnswerTarget]
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
            raise _unknown(ids, key, number)
        if rows_seen[index]:
            message = f"row {number} ({ids.spelled(key)}): the same id as in row {rows_seen[index]}"
            raise _Refusal(SubmissionFault.DUPLICATE_ID, message, row=number, column=ids.names[0])
        rows_seen[index] = number
        for target, place, column in zip(targets, target_places, values, strict=True):
            try:
                column[index] = target.value(cells[place].strip())
            except BadCell as bad:
                message = f"row {number} ({ids.spelled(key)}), column {target.name!r}: {bad}"
                raise _Refusal(bad.code, message, row=number, column=target.name) from bad
    if number == 0:
        raise _Refusal(SubmissionFault.EMPTY_FILE, "the submission has a header but no rows")
    if number < len(ids):
        first = ids.spelled(ids.key(rows_seen.index(0)))
        message = f"{len(ids) - number} of {len(ids)} rows are missing; the first is that with {first}"
        raise _Refusal(SubmissionFault.MISSING_ID, message, column=ids.names[0])
    return values


def _unknown(ids: AnswerIds, key: Sequence[str], number: int) -> _Refusal:
    for name, cell in zip(ids.names, key, strict=True):
        if not cell:
            message = f"row {number}, column {name!r}: the id is missing"
            return _Refusal(SubmissionFault.MISSING_VALUE, message, row=number, column=name)
    example = ids.spelled(ids.key(0))
    message = f"row {number} ({ids.spelled(key)}): no such row is asked for; they are such as {example}"
    return _Refusal(SubmissionFault.EXTRA_ID, message, row=number, column=ids.names[0])
