"""What the columns of a table hold, and which of them may be ids, targets, groups and times."""

import re
import warnings
from collections.abc import Sequence
from typing import Literal

import pandas as pd

from openmle_gym.build.numerals import MISSING, plain_numbers
from openmle_gym.contracts import Contract

ColumnKind = Literal["integer", "number", "boolean", "date", "category", "text", "object", "empty"]

FEW_VALUES = 50
"""Text with at most so many distinct values is a category."""
_EXAMPLES = 3
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_INTEGER = re.compile(r"[-+]?\d+")
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2}([ T]\d{1,2}:\d{2}.*)?)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}( \d{1,2}:\d{2}.*)?"
)
_BOOLEANS = ({"true", "false"}, {"yes", "no"}, {"t", "f"}, {"y", "n"})
_ID_NAME = re.compile(r"(id|index|key|uuid|guid|row|rowid|.*_id|.*[a-z]Id|.*[A-Za-z]ID|.*[ _-]?(no|number|code))", re.I)
_TARGET_NAME = re.compile(
    r"(?i)(y|target|label|labels|class|classes|outcome|output|response|result|score|survived|price|sale_?price|"
    r"diagnosis|churn|default|fraud|is_?fraud|rating|quality|species|category|sentiment|toxic|demand|sales|count|"
    r".*_(target|label|class))"
)
GROUP_NAME = re.compile(
    r"(?i)(.*[ _-])?(id|group|user|patient|customer|client|session|ticket|household|subject|speaker|author|writer|"
    r"store|site|family|batch|device|machine|player|team|well|scene|sequence|series)s?([ _-]?(id|no|code))?|.*[a-z]Id"
)
_TIME_NAME = re.compile(r"(?i)(.*[ _-])?(date|datetime|time|timestamp|year|month|day|week|quarter|epoch|dt)([ _-].*)?")


class ColumnProfile(Contract):
    """One column, as a sample of its rows shows it."""

    name: str
    kind: ColumnKind
    rows: int
    """Rows of the sample."""
    missing: int
    """Of the sample's rows."""
    distinct: int
    """Values in the sample, the missing one aside."""
    minimum: str = ""
    """Of numbers and dates; else empty."""
    maximum: str = ""
    examples: tuple[str, ...] = ()
    longest: int = 0
    """Characters of the longest cell."""

    @property
    def unique(self) -> bool:
        """Whether no value of the sample is missing or there twice."""
        return self.missing == 0 and self.distinct == self.rows

    @property
    def numeric(self) -> bool:
        """Whether it holds numbers."""
        return self.kind in ("integer", "number")


class Candidates(Contract):
    """Columns of a table by what they may be, the likeliest first."""

    ids: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    times: tuple[str, ...] = ()


def known(cells: pd.Series) -> pd.Series:
    """The cells that hold a value, without spaces around them."""
    cells = cells.astype(str).str.strip()
    return cells[~cells.isin(MISSING)]


def as_numbers(cells: pd.Series, *, delimiter: str = "") -> pd.Series | None:
    """The values as numbers, those with commas included (see `plain_numbers`); None where one is none."""
    if not len(cells):
        return None
    plain = plain_numbers(cells, delimiter=delimiter)
    return plain.astype(float) if plain.str.fullmatch(_NUMBER).all() else None


def as_times(cells: pd.Series) -> pd.Series | None:
    """The values as times, NaT where one is none; None where a tenth or more of them are not."""
    if not len(cells) or cells.str.fullmatch(_DATE).mean() < 0.9:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = pd.to_datetime(cells, errors="coerce", format="mixed", utc=True)
    return times if times.notna().mean() >= 0.9 else None


def profile_column(name: str, cells: pd.Series, *, delimiter: str = "") -> ColumnProfile:
    """Looks at the cells of one column, text all of them, and told apart by `delimiter`."""
    values = known(cells)
    low = high = ""
    kind: ColumnKind
    distinct = int(values.nunique())
    numbers = as_numbers(values, delimiter=delimiter)
    if not len(values):
        kind = "empty"
    elif numbers is not None:
        plain = plain_numbers(values, delimiter=delimiter)
        kind = "integer" if plain.str.fullmatch(_INTEGER).all() else "number"
        low, high = f"{numbers.min():.6g}", f"{numbers.max():.6g}"
    elif set(values.str.casefold().unique()[:3]) in _BOOLEANS:
        kind = "boolean"
    elif (times := as_times(values)) is not None:
        kind = "date"
        low, high = str(times.min())[:19], str(times.max())[:19]
    elif values.str.startswith(("{", "[")).all():
        kind = "object"
    else:
        kind = "category" if distinct <= min(FEW_VALUES, max(2, len(values) // 2)) else "text"
    return ColumnProfile(
        name=name,
        kind=kind,
        rows=len(cells),
        missing=len(cells) - len(values),
        distinct=distinct,
        minimum=low,
        maximum=high,
        examples=tuple(value[:40] for value in sorted(values.unique()[:_EXAMPLES])),
        longest=int(values.str.len().max()) if len(values) else 0,
    )


def find_candidates(columns: Sequence[ColumnProfile]) -> Candidates:
    """Judges columns by name and content; `relate_tables` adds what other tables say."""
    ids = [column for column in columns if column.unique and column.kind in ("integer", "text", "category", "date")]
    named = [column.name for column in ids if _ID_NAME.fullmatch(column.name)]
    first = [column.name for column in ids if column is columns[0] and column.name not in named]
    targets = [column.name for column in columns if _TARGET_NAME.fullmatch(column.name) and _may_be_target(column)]
    last = [column.name for column in columns[-1:] if column.name not in targets and _may_be_target(column)]
    return Candidates(
        ids=tuple(named + first),
        targets=tuple(targets + last),
        groups=tuple(column.name for column in columns if _may_be_group(column)),
        times=tuple(
            column.name
            for column in columns
            if column.kind == "date" or (_TIME_NAME.fullmatch(column.name) and column.numeric and column.distinct >= 5)
        ),
    )


def _may_be_target(column: ColumnProfile) -> bool:
    return (
        column.distinct > 1
        and column.kind not in ("empty", "date", "object")
        and not (column.kind == "text" and column.unique)
    )


def _may_be_group(column: ColumnProfile) -> bool:
    """Values that come back, by a name that says so."""
    repeated = 10 <= column.distinct <= (column.rows - column.missing) / 1.1
    return bool(repeated and column.kind in ("integer", "text", "category") and GROUP_NAME.fullmatch(column.name))
