"""CSV files in one pass, some thousand rows at a time, whatever their size.

What is kept of a file is bounded but for eight bytes a row, the hashes of its ids: counts, digests, and the rows whose
hash is smallest. As the hash of a row's id does not depend on the file, the rows kept of two files are about the same
ids, and as that of its features does not either, so are the rows that two files share.
"""

import csv
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

CHUNK_ROWS = 10_000
SAMPLE_ROWS = 20_000
SHOWN_ROWS = 5
_FIELD_BYTES = 2**31 - 1


@dataclass(slots=True, kw_only=True)
class Table:
    """What is known of a CSV file."""

    path: Path
    columns: list[str]
    rows: int = 0
    ragged: int = 0
    """Rows whose number of cells is not that of the header."""
    first_ragged: list[int] = field(default_factory=list)
    """Their numbers, from 1, the first few."""
    loose_quote: str = ""
    """Where quotes do not pair, so that one cell may have swallowed rows; empty where they all do."""
    digests: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each column's cells, in order."""
    id_hashes: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    """[rows] of the ids; empty where the file has not all of the id columns."""
    sample: pd.DataFrame = field(default_factory=pd.DataFrame)
    """The rows with the smallest hashes of their ids, at most `SAMPLE_ROWS`, as text, indexed by that hash."""

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    @property
    def label(self) -> str:
        """The file's name as the original's finding ids have it."""
        return self.name.replace(".", "_")

    def ids_digest(self) -> str:
        """Equal for the same ids in the same order."""
        return hashlib.sha256(self.id_hashes.tobytes()).hexdigest()

    def repeated_ids(self) -> int:
        """How many rows have an id that an earlier row had."""
        return len(self.id_hashes) - len(np.unique(self.id_hashes))


def scan(path: Path, ids: Sequence[str], *, sample_rows: int = SAMPLE_ROWS, chunk_rows: int = CHUNK_ROWS) -> Table:
    """Reads a table once.

    Raises:
        ValueError: It is not text in UTF-8, or not CSV.
    """
    table = Table(path=path, columns=next(read_chunks(path, 1)).columns, loose_quote=loose_quote(path))
    if len(set(table.columns)) < len(table.columns):
        names = [
            f"{name}#{place}" if name in table.columns[:place] else name for place, name in enumerate(table.columns)
        ]
    else:
        names = table.columns
    digests = {name: hashlib.sha256() for name in names}
    has_ids = bool(ids) and set(ids) <= set(names)
    hashes: list[np.ndarray] = []
    kept = pd.DataFrame(columns=names)
    for chunk in read_chunks(path, chunk_rows):
        table.ragged += len(chunk.ragged)
        table.first_ragged += chunk.ragged[: SHOWN_ROWS - len(table.first_ragged)]
        frame = pd.DataFrame(chunk.rows, columns=names, dtype=object)
        for name, digest in digests.items():
            digest.update("".join(f"{cell.strip()}\x1e" for cell in frame[name]).encode("utf-8", "surrogatepass"))
        by = hash_rows(frame[list(ids)]) if has_ids else hash_rows(frame)
        if has_ids:
            hashes.append(by)
        table.rows += len(frame) + len(chunk.ragged)
        frame.index = pd.Index(by)
        kept = smallest(pd.concat([kept, frame]) if len(kept) else frame, sample_rows)
    table.sample = kept
    table.digests = {name: digest.hexdigest() for name, digest in digests.items()}
    table.id_hashes = np.concatenate(hashes) if hashes else table.id_hashes
    return table


@dataclass(slots=True, kw_only=True)
class Chunk:
    """Some rows in the order of the file."""

    columns: list[str]
    rows: list[list[str]]
    ragged: list[int]
    """The numbers of the rows left out because their number of cells is not that of the header."""


def read_chunks(path: Path, chunk_rows: int = CHUNK_ROWS) -> Iterator[Chunk]:
    """A file's rows, `chunk_rows` at a time and at least one chunk; blank lines are none.

    Raises:
        ValueError: It is not text in UTF-8, or not CSV.
    """
    csv.field_size_limit(_FIELD_BYTES)
    number = 0
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            columns = [cell.strip() for cell in next(reader, [])]
            chunk = Chunk(columns=columns, rows=[], ragged=[])
            for cells in reader:
                if not any(map(str.strip, cells)):
                    continue
                number += 1
                if len(cells) == len(columns):
                    chunk.rows.append(cells)
                else:
                    chunk.ragged.append(number)
                if len(chunk.rows) + len(chunk.ragged) == chunk_rows:
                    yield chunk
                    chunk = Chunk(columns=columns, rows=[], ragged=[])
            yield chunk
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path.name}: row {number + 1}: {error}") from error


def loose_quote(path: Path) -> str:
    """Where a row begins whose quotes do not pair, and how; empty where they all do.

    Other readers, and ours, go on: a quote that is not closed takes all lines to the next one, or to the end, into its
    cell, and where that is the row's last cell no row has a wrong width.
    """
    csv.field_size_limit(_FIELD_BYTES)
    line = 1
    with open(path, encoding="utf-8-sig", newline="", errors="replace") as file:
        reader = csv.reader(file, strict=True)
        try:
            for _ in reader:
                line = reader.line_num + 1
        except csv.Error as error:
            return f"the row that begins in line {line}, up to line {reader.line_num}: {error}"
    return ""


def hash_rows(frame: pd.DataFrame) -> np.ndarray:
    """[rows] uint64, equal for rows with equal texts, spaces around them aside."""
    joined = ["\x1f".join(map(str.strip, row)) for row in frame.itertuples(index=False, name=None)]
    return pd.util.hash_array(np.array(joined, dtype=object), categorize=False)


def smallest(frame: pd.DataFrame, most: int) -> pd.DataFrame:
    """The rows with the smallest index, in the order of it."""
    return frame.sort_index(kind="stable").iloc[:most]


def sketch(
    path: Path,
    hashes: Callable[[pd.DataFrame], np.ndarray],
    columns: Sequence[str],
    *,
    sample_rows: int = SAMPLE_ROWS,
) -> pd.DataFrame:
    """Some columns of the rows with the smallest hashes, at most `sample_rows`, indexed by the hash."""
    kept = pd.DataFrame(columns=list(columns))
    for chunk in read_chunks(path):
        frame = pd.DataFrame(chunk.rows, columns=chunk.columns, dtype=object)
        part = frame[list(columns)].set_axis(pd.Index(hashes(frame)), axis=0)
        kept = smallest(pd.concat([kept, part]) if len(kept) else part, sample_rows)
    return kept


def common_range(
    left: pd.DataFrame, right: pd.DataFrame, *, sample_rows: int = SAMPLE_ROWS
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The parts of two sketches in which either is whole, so that what they share there is what their files share."""
    ends = [frame.index[-1] for frame in (left, right) if len(frame) == sample_rows]
    if not ends:
        return left, right
    return left[left.index <= min(ends)], right[right.index <= min(ends)]
