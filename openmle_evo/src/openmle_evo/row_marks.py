"""A mark of a task's rows that stays when they are shuffled, split anew, or get other ids and column names."""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from openmle_gym.check.tables import read_chunks
from openmle_gym.task import TaskPackage

MOST_ROWS = 500_000
"""Of each table, so that a large one costs seconds."""
_SHORTEST = 12
_MISSING = {"", "na", "nan", "null", "none"}


def row_sketch(package: TaskPackage, size: int) -> str:
    """The smallest hashes, in hex, of the rows in the public tables; empty where no table can be read.

    A row is the set of its cells without ids and targets, so that neither names nor order of columns count.

    Args:
        size: How many hashes at most.
    """
    hashes: set[str] = set()
    for path in sorted(package.public_dir.glob("*.csv")):
        if path.name == "sample_submission.csv":
            continue
        rows = islice(_rows(path, {*package.manifest.columns.id, *package.manifest.columns.target}), MOST_ROWS)
        hashes = set(sorted(hashes | {_hash(row) for row in rows if _tells(row)})[:size])
    return " ".join(sorted(hashes))


def _rows(path: Path, left_out: set[str]) -> Iterator[str]:
    """The rows of a table, each as one text; none from where it cannot be read on."""
    try:
        for chunk in read_chunks(path):
            places = [place for place, name in enumerate(chunk.columns) if name not in left_out]
            yield from (_text(cells[place] for place in places) for cells in chunk.rows)
    except ValueError:  # not CSV in UTF-8: its hash is a mark all the same
        return


def _text(cells: Iterable[str]) -> str:
    plain = (cell.strip().lower().removesuffix(".0") for cell in cells)
    return "\x1f".join(sorted(cell for cell in plain if cell not in _MISSING))


def _tells(row: str) -> bool:
    """Whether a row is of this task alone: a few characters, or the name of a file, may be the same in any other."""
    return len(row) >= _SHORTEST and ("\x1f" in row or " " in row)


def _hash(row: str) -> str:
    return hashlib.sha256(row.encode("utf-8", "surrogatepass")).hexdigest()[:12]
