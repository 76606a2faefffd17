"""What submissions are read against: the ids and targets of the hidden answers, made ready once for any number of them."""

import math
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from openmle_gym.manifest import Columns

SHOWN_CHARACTERS = 40

Prediction = Literal["number", "probability", "label", "text"]
Predictions = np.ndarray | pd.Categorical
"""[rows] The predictions of one target in the answers' order: finite float64 numbers, or labels as categories."""


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


_MISSING = frozenset({"", "na", "n/a", "nan", "-nan", "+nan", "null", "none", "<na>", "nat", "#n/a"})
_PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d*)?(?:[eE][-+]?\d+)?", re.ASCII)
_WHOLE_NUMBER = r"0|[1-9][0-9]{0,14}"
_ORDINARY_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
"""What `float` reads, too; it reads more."""
_TRUTH = {"true": "1", "false": "0"}


class AnswerKey:
    """The hidden answers, as validation needs them."""

    def __init__(self, answers: pd.DataFrame, columns: Columns, prediction: Prediction) -> None:
        """Takes the answers as `TaskPackage.answers` has them: every cell text.

        Args:
            prediction: What the targets hold. A target whose answers are not all numbers holds labels, whatever this
                says.

        Raises:
            ValueError: There are no answers, or a row of them has no id, or the id of another.
        """
        self.answers = answers
        self.columns = columns
        self.ids = AnswerIds(answers, columns.id)
        self.targets = [AnswerTarget(name, answers[name], prediction) for name in columns.target]


class AnswerIds:
    """The rows of the answers by their ids."""

    def __init__(self, answers: pd.DataFrame, names: Sequence[str]) -> None:
        self.names = names
        self._columns = [answers[name].str.strip() for name in names]
        ids = pd.DataFrame(dict(enumerate(self._columns)))
        if ids.empty:
            raise ValueError("there is no row")
        if (nameless := (ids == "").all(axis=1)).any():
            raise ValueError(f"row {nameless.argmax() + 1} has no {' and no '.join(names)}")
        if (doubled := ids.duplicated()).any():
            raise ValueError(f"two rows have {self.spelled(ids[doubled].iloc[0].tolist())}")

    @cached_property
    def _cells(self) -> list[list[str]]:
        return [column.tolist() for column in self._columns]

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {"\x1f".join(key): index for index, key in enumerate(zip(*self._cells, strict=True))}

    @cached_property
    def _rows_by_number(self) -> dict[str, int | None]:
        """As `_rows`, with integers in one spelling; None where several rows come together."""
        rows: dict[str, int | None] = {}
        for index, key in enumerate(zip(*self._cells, strict=True)):
            canonical = "\x1f".join(map(_canonical, key))
            rows[canonical] = None if canonical in rows else index
        return rows

    @cached_property
    def texts(self) -> pd.Index | None:
        """The ids as text, without spaces around them; None where they take several columns."""
        return pd.Index(self._columns[0].to_numpy(dtype=object)) if len(self.names) == 1 else None

    @cached_property
    def places_by_number(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """From [rows] int64 ids to the rows of the answers, -1 for none; None unless every id is a plain whole number."""
        if len(self.names) != 1 or not self._columns[0].str.fullmatch(_WHOLE_NUMBER).all():
            return None
        numbers = self._columns[0].astype(np.int64).to_numpy()
        least, span = int(numbers.min()), int(np.ptp(numbers)) + 1
        if span > 8 * len(numbers) + 1024:
            index = pd.Index(numbers)
            return lambda found: index.get_indexer(pd.Index(found))
        table = np.full(span + 2, -1, dtype=np.int32)  # with a place on either side for all that lie outside
        table[numbers - least + 1] = np.arange(len(numbers))
        return lambda found: table.take(found - (least - 1), mode="clip")

    def __len__(self) -> int:
        return len(self._columns[0])

    def key(self, index: int) -> list[str]:
        """The id of a row."""
        return [column[index] for column in self._cells]

    def find(self, key: Sequence[str]) -> int | None:
        """The row with exactly this id or, without one, the only row with this id as a number: `1.0` finds `1`."""
        index = self._rows.get("\x1f".join(key))
        return self._rows_by_number.get("\x1f".join(map(_canonical, key))) if index is None else index

    def spelled(self, key: Sequence[str]) -> str:
        """An id as messages show it."""
        return ", ".join(f"{name} {shown(cell)}" for name, cell in zip(self.names, key, strict=True))


def shown(text: str) -> str:
    """Text as messages quote it: cut when it is long."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}...")


def _canonical(cell: str) -> str:
    """An integer that is written as a float as an integer; other text as it is, also `007`."""
    if _PLAIN_NUMBER.fullmatch(cell):
        number = float(cell)
        if number.is_integer() and abs(number) < 2**53:
            return str(int(number))
    return cell


class BadCell(Exception):
    """A cell that is no prediction."""

    def __init__(self, code: SubmissionFault, message: str) -> None:
        super().__init__(message)
        self.code = code


class AnswerTarget:
    """One target column: what its answers look like, and how a prediction is read."""

    def __init__(self, name: str, answers: pd.Series, prediction: Prediction) -> None:
        self.name = name
        self._answers = answers
        cells = answers.str.strip()
        ordinary = cells.str.fullmatch(_ORDINARY_NUMBER)
        odd = [cell for cell in cells[~ordinary].unique() if cell.casefold() not in _MISSING]
        self._numeric = bool(ordinary.any() or odd) and all(_as_number(cell) is not None for cell in odd)
        self.is_number = self._numeric and prediction in ("number", "probability")
        """Predictions are numbers; otherwise they are labels."""
        self._bounded = self.is_number and prediction == "probability"
        self.is_text = prediction == "text"
        """Predictions are free text, which is never read as anything else."""
        self.is_whole = bool(cells.str.fullmatch(r"-?[0-9]{1,15}").all())
        """Every answer is written as an integer."""

    @cached_property
    def _forms(self) -> dict[str, str]:
        """The answers' distinct cells by what they are without spaces around them."""
        return {form.strip(): form for form in self._answers.unique()}

    @cached_property
    def _boolean(self) -> bool:
        words = {form.casefold() for form in self._forms} - _MISSING
        return bool(words) and words <= {"true", "false", "0", "1", "0.0", "1.0"}

    @cached_property
    def _by_meaning(self) -> dict[str, str]:
        return {self._meaning(form): spelled for form, spelled in self._forms.items()}

    def value(self, cell: str) -> float | str:
        """Reads a prediction.

        Raises:
            BadCell: It is none.
        """
        if self.is_text:
            return cell
        if not self.is_number and cell in self._forms:
            return self._forms[cell]
        if cell.casefold() in _MISSING:
            if not self.is_number and "" in self._forms:
                return ""
            raise BadCell(SubmissionFault.MISSING_VALUE, "the prediction is missing")
        number = _as_number(cell)
        if self._numeric and number is not None and math.isinf(number):
            raise BadCell(SubmissionFault.NOT_FINITE, f"{shown(cell)} is not finite")
        if self.is_number:
            if number is None:
                hint = "; write decimals with a point" if "," in cell else ""
                raise BadCell(SubmissionFault.NOT_A_NUMBER, f"{shown(cell)} is not a number{hint}")
            return number
        meaning = self._meaning(cell)
        if meaning in self._by_meaning:
            return self._by_meaning[meaning]
        if (self._numeric or self._boolean) and number is None:
            kind = "numbers" if self._numeric else "booleans"
            raise BadCell(SubmissionFault.NOT_A_LABEL, f"{shown(cell)} is no label here; labels are {kind}")
        return cell

    def _meaning(self, label: str) -> str:
        """Equal for `1`, `1.0` and, where the labels are booleans, `True`."""
        truth = _TRUTH.get(label.casefold()) if self._boolean else None
        return truth or _canonical(label)

    def doubt(self, predictions: pd.Series) -> str | None:
        """What looks wrong with a column and yet can be graded."""
        if self._bounded:
            values = predictions.to_numpy()
            outside = int(np.count_nonzero((values < 0) | (values > 1)))
            return f"column {self.name!r}: {outside} predictions lie outside of [0, 1]" if outside else None
        if not self.is_number and not self.is_text and not set(predictions.cat.categories) & set(self._forms.values()):
            return f"column {self.name!r}: no prediction is one of the labels"
        return None


def _as_number(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None
