"""Reads a CSV file that somebody has: any usual separator, encoding and decimal sign, as text."""

import csv
import io
import logging
import re
from pathlib import Path

import pandas as pd

from openmle_gym.build.numerals import plain_numbers
from openmle_gym.build.text_files import detect_encoding
from openmle_gym.errors import ConfigError, PackageError

SEPARATORS = (",", ";", "\t", "|")
INDEX = "index"
"""What a first column is called that has no name and tells the rows apart, as pandas writes it."""

_UNICODE = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32")
_EXCEL_SEPARATOR = re.compile(r"sep=(.)\r?\n")
_PACKED = {b"PK": "a zip archive or a workbook", b"\x1f\x8b": "gzip", b"7z\xbc\xaf": "7z", b"PAR1": "Parquet"}
_FIELD_BYTES = 2**31 - 1

logger = logging.getLogger(__name__)


def read_table(path: Path, *, encoding: str | None = None) -> pd.DataFrame:
    """A table of text, whatever its separator and encoding; header names without spaces around them.

    Columns without a name that are empty are left out, and so are rows of empty cells.

    Args:
        encoding: A codec of Python's; by default it is found.

    Raises:
        ConfigError: There is no such codec.
        PackageError: There is no such file, it is no table, or a column's name is missing or there twice.
    """
    csv.field_size_limit(_FIELD_BYTES)
    text = _read_text(path, encoding)
    if said := _EXCEL_SEPARATOR.match(text):
        text = text[said.end() :]
    separator = said[1] if said else _separator(text)
    rows: list[list[str]] = []
    try:
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True):
            if any(map(str.strip, row)):
                rows.append(row)
    except csv.Error as error:
        raise PackageError(f"{path}: row {len(rows) + 1} cannot be read: {error}") from error
    if not rows:
        raise PackageError(f"{path}: the file is empty")
    header = [column.strip() for column in rows[0]]
    if len(rows) > 1 and all(len(row) == len(header) + 1 and not row[-1].strip() for row in rows[1:]):
        header.append("")  # a separator at the end of every row but the header
        rows[0] = header
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise PackageError(f"{path}: row {number} has {len(row)} fields, the header has {len(header)}")
    header = _named(header, rows[1:])
    for position, column in enumerate(header, start=1):
        if column == "":
            raise PackageError(f"{path}: column {position} has no name")
        if header.count(column) > 1 and column != _LEFT_OUT:
            raise PackageError(f"{path}: two columns are called {column!r}")
    table = pd.DataFrame(rows[1:], columns=header, dtype=str)
    table = table[[column for column in header if column != _LEFT_OUT]]
    if separator == "," and '"' not in text:
        return table  # no cell holds a comma
    return table.apply(plain_numbers, delimiter=separator)


_LEFT_OUT = "\0"


def _named(header: list[str], rows: list[list[str]]) -> list[str]:
    """The header with a name for an index, and a mark on columns without a name that hold nothing."""
    names = list(header)
    for place, name in enumerate(header):
        if name:
            continue
        cells = {row[place] for row in rows}
        if not any(map(str.strip, cells)):
            names[place] = _LEFT_OUT
        elif place == 0 and len(cells) == len(rows) and INDEX not in header:
            names[place] = INDEX
    return names


def _read_text(path: Path, encoding: str | None) -> str:
    try:
        content = path.read_bytes()
        found = encoding or detect_encoding(path)
    except OSError as error:
        raise PackageError(f"{path}: {error.strerror}") from error
    if found is None:
        kind = next((f", but {kind}" for mark, kind in _PACKED.items() if content.startswith(mark)), "")
        raise PackageError(f"{path}: is no text{kind}; `openmle-gym build` reads other formats than CSV")
    if encoding is None and found not in _UNICODE:
        logger.warning("%s: not UTF-8; read as %s (another: --encoding)", path, found)
    try:
        return content.decode("utf-8-sig" if found == "utf-8" else found).removeprefix("\ufeff")
    except LookupError as error:
        raise ConfigError(f"encoding {encoding!r}: Python has no such codec") from error
    except UnicodeDecodeError as error:
        raise PackageError(f"{path}: byte {error.start} cannot be read as {found}") from error


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
