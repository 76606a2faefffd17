"""CSV files with every cell as it is written, and nothing guessed.

pandas by itself fills up a row that is too short, takes the first cell of rows that are too long for an index, and gives
a second column of one name another; here these are errors that name the row.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from openmle_gym.errors import PackageError

if TYPE_CHECKING:  # slow to import, and not needed for a header
    import pandas as pd

_FIELD_BYTES = 2**31 - 1


def read_rows(path: Path) -> Iterator[list[str]]:
    """The header, and then the rows that are not blank, each with as many cells as the header.

    Raises:
        PackageError: The file cannot be opened, is empty, is not CSV in UTF-8, or a row has another number of cells, or
            the header a name twice.
    """
    csv.field_size_limit(_FIELD_BYTES)
    header: list[str] = []
    number = 0
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            for cells in csv.reader(file, strict=True):
                if not cells or (len(cells) == 1 and not cells[0].strip()):
                    continue
                if not header:
                    header = cells
                    if twice := next((name for name in header if header.count(name) > 1), None):
                        raise PackageError(f"{path}: the header has two columns {twice!r}")
                elif len(cells) != len(header):
                    raise PackageError(
                        f"{path}: row {number} has {len(cells)} cells where the header has {len(header)}"
                    )
                yield cells
                number += 1
    except OSError as error:
        raise PackageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PackageError(f"{path}: line {_undecodable_line(path)} is not text in UTF-8") from error
    except csv.Error as error:
        raise PackageError(f"{path}: row {number}: not CSV: {error}") from error
    if not header:
        raise PackageError(f"{path}: is empty")


def _undecodable_line(path: Path) -> int:
    """The first line that is not UTF-8, from 1: a decoder reads ahead of the rows, so that these do not tell."""
    with open(path, "rb") as file:
        return next(number for number, line in enumerate(file, start=1) if not _is_text(line))


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_header(path: Path) -> list[str]:
    """The names of a table's columns.

    Raises:
        PackageError: As `read_rows`.
    """
    return next(read_rows(path))


def read_text_table(path: Path) -> "pd.DataFrame":
    """A table with every cell as text.

    Raises:
        PackageError: As `read_rows`.
    """
    import pandas as pd

    for _ in read_rows(path):
        pass
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # pandas' own errors among them
        raise PackageError(f"{path}: cannot be read: {error}") from error
