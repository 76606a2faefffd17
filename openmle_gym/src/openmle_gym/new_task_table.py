"""Reads a CSV file that somebody has: any usual separator, encoding and decimal sign, as text."""

import csv
import io
import logging
import re
from pathlib import Path

import pandas as pd

from openmle_gym.errors import PackageError

SEPARATORS = (",", ";", "\t", "|")

_DECIMAL_COMMA = re.compile(r"[-+]?\d+(,\d+)?")

logger = logging.getLogger(__name__)


def read_table(path: Path) -> pd.DataFrame:
    """A table of text, whatever its separator and encoding; header names without spaces around them.

    Raises:
        PackageError: There is no such file, it is no table, or a column's name is missing or there twice.
    """
    text = _read_text(path)
    separator = _separator(text)
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True) if row]
    except csv.Error as error:
        raise PackageError(f"{path}: cannot be read as a table: {error}") from error
    if not rows:
        raise PackageError(f"{path}: the file is empty")
    header = [column.strip() for column in rows[0]]
    for position, column in enumerate(header, start=1):
        if not column:
            raise PackageError(f"{path}: column {position} has no name")
        if header.count(column) > 1:
            raise PackageError(f"{path}: two columns are called {column!r}")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise PackageError(f"{path}: row {number} has {len(row)} fields, the header has {len(header)}")
    table = pd.DataFrame(rows[1:], columns=header, dtype=str)
    return table if separator == "," else table.apply(_with_decimal_points)


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PackageError(f"{path}: {error.strerror}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        logger.warning("%s: not UTF-8 (byte %d); read as Latin-1", path, error.start)
        return content.decode("latin-1")


def _separator(text: str) -> str:
    """The candidate that splits the header and the first rows into the same number of fields, the most of them."""
    head = io.StringIO("".join(text.splitlines(keepends=True)[:50]), newline="")
    best, most = ",", 1
    for separator in SEPARATORS:
        head.seek(0)
        widths = {len(row) for row in csv.reader(head, delimiter=separator) if row}
        if len(widths) == 1 and max(widths) > most:
            best, most = separator, max(widths)
    return best


def _with_decimal_points(column: pd.Series) -> pd.Series:
    """A column of numbers with decimal commas, with points; any other as it is."""
    cells = column[column != ""]
    if cells.str.contains(",").any() and cells.str.fullmatch(_DECIMAL_COMMA).all():
        return column.str.replace(",", ".")
    return column
