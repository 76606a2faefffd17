"""Tables of every usual format, streamed: how many rows they have, and a fixed sample of them as text."""

import json
import random
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from openmle_gym.build.text_files import detect_dialect, detect_encoding, read_rows

try:
    import pyarrow.lib as arrow
    import pyarrow.parquet as parquet
except ImportError:  # the extra is not installed
    arrow = parquet = None
try:
    import openpyxl
except ImportError:
    openpyxl = None

SAMPLE_ROWS = 10_000
STREAMED_BYTES = 4 * 2**30
"""Of a longer file the rows are counted as far as this, and the rest is estimated."""
JSON_BYTES = 256 * 2**20
"""A JSON document is read whole; a longer one is not read."""
FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".xlsx": "excel",
    ".xlsm": "excel",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A table as far as it was read."""

    format: str
    columns: list[str]
    frame: pd.DataFrame
    """At most `SAMPLE_ROWS` rows, the same ones every time, in their order, as text; missing cells are empty."""
    rows: int
    exact: bool
    """Whether `rows` was counted to the end."""
    encoding: str = ""
    delimiter: str = ""
    sheet: str = ""
    ragged: int = 0
    """Rows whose number of cells is not that of the header; they are in no sample."""


class NotATable(Exception):
    """A file cannot be read as a table; says why."""


class _Reservoir:
    """Keeps a uniform sample of a stream, the same one for the same stream."""

    def __init__(self, size: int) -> None:
        self._size, self._random = size, random.Random(0)
        self._kept: list[tuple[int, list[str]]] = []
        self.seen = 0

    def add(self, row: list[str]) -> None:
        if self.seen < self._size:
            self._kept.append((self.seen, row))
        elif (place := self._random.randrange(self.seen + 1)) < self._size:
            self._kept[place] = (self.seen, row)
        self.seen += 1

    def frame(self, columns: Sequence[str]) -> pd.DataFrame:
        return pd.DataFrame([row for _, row in sorted(self._kept)], columns=list(columns), dtype=str)


def read_samples(path: Path, *, sample_rows: int = SAMPLE_ROWS) -> list[Sample]:
    """The tables of a file: one, or one for each sheet of a workbook.

    Raises:
        NotATable: It cannot be read as the format that its name says.
    """
    kind = FORMATS.get(path.suffix.casefold(), "")
    try:
        if kind in ("csv", "tsv"):
            return [_delimited(path, kind, sample_rows)]
        if kind == "jsonl":
            return [_records(_json_lines(path), kind, sample_rows)]
        if kind == "json":
            return [_records(iter(_json_records(path)), kind, sample_rows)]
        if kind == "parquet":
            return [_parquet(path, sample_rows)]
        if kind == "excel":
            return _workbook(path, sample_rows)
    except (OSError, ValueError, LookupError, RecursionError, RuntimeError, SyntaxError, zipfile.BadZipFile) as error:
        raise NotATable(f"{type(error).__name__}: {error}"[:300]) from error
    raise NotATable(f"{path.suffix}: no format of a table")


def _delimited(path: Path, kind: str, sample_rows: int) -> Sample:
    encoding = detect_encoding(path)
    if encoding is None:
        raise NotATable("not text")
    dialect = detect_dialect(path, encoding)
    rows = read_rows(path, dialect)
    header = [cell.strip() for cell in next(rows, [])]
    if not header:
        raise NotATable("empty")
    names = _distinct(header)
    kept, ragged, read = _Reservoir(sample_rows), 0, 0
    exact = True
    for row in rows:
        if len(row) == len(names):
            kept.add(row)
        else:
            ragged += 1
        read += sum(map(len, row)) + len(row)
        if read > STREAMED_BYTES:
            exact = False
            break
    count = kept.seen + ragged
    if not exact:
        count = int(count * path.stat().st_size / read)
    return Sample(
        format=kind,
        columns=names,
        frame=kept.frame(names),
        rows=count,
        exact=exact,
        encoding=encoding,
        delimiter=dialect.delimiter,
        ragged=ragged,
    )


def _distinct(header: Sequence[str]) -> list[str]:
    """Names, each once: an empty or repeated one gets its place."""
    return [
        name if name and name not in header[:place] else f"{name or 'column'}#{place}"
        for place, name in enumerate(header)
    ]


def _json_lines(path: Path) -> Iterator[object]:
    encoding = detect_encoding(path)
    if encoding is None:
        raise NotATable("not text")
    with open(path, encoding=encoding, errors="replace") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def _json_records(path: Path) -> list[object]:
    """A list of records, or a mapping that holds one, of rows or of columns."""
    if path.stat().st_size > JSON_BYTES:
        raise NotATable(f"a JSON document of more than {JSON_BYTES} bytes")
    encoding = detect_encoding(path)
    if encoding is None:
        raise NotATable("not text")
    content = json.loads(path.read_text(encoding=encoding))
    if isinstance(content, list):
        return content
    if isinstance(content, dict):
        lists = [value for value in content.values() if isinstance(value, list)]
        if len(lists) == 1 and lists[0] and isinstance(lists[0][0], dict):
            return lists[0]
        if lists and len(lists) == len(content) and len({len(value) for value in lists}) == 1:
            return [dict(zip(content, row, strict=True)) for row in zip(*lists, strict=True)]
        if content and all(isinstance(value, dict) for value in content.values()):
            return list(content.values())
    raise NotATable("a JSON document without records")


def _records(records: Iterator[object], kind: str, sample_rows: int) -> Sample:
    head = list(islice(records, sample_rows))
    if not head or not all(isinstance(record, dict) for record in head):
        raise NotATable("no records")
    columns = list(dict.fromkeys(str(key) for record in head if isinstance(record, dict) for key in record))
    kept = _Reservoir(sample_rows)
    for record in (*head, *records):
        if isinstance(record, dict):
            kept.add([_cell(record.get(name)) for name in columns])
    return Sample(format=kind, columns=columns, frame=kept.frame(columns), rows=kept.seen, exact=True)


def _cell(value: object) -> str:
    if value is None or value != value:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _parquet(path: Path, sample_rows: int) -> Sample:
    if parquet is None or arrow is None:
        raise NotATable("a Parquet file; install openmle-gym[build] to read it")
    try:
        with parquet.ParquetFile(path) as file:
            columns = [str(name) for name in file.schema_arrow.names]
            batch = next(file.iter_batches(batch_size=sample_rows), None)
            rows = file.metadata.num_rows
    except arrow.ArrowException as error:
        raise NotATable(str(error)[:300]) from error
    frame = batch.to_pandas() if batch is not None else pd.DataFrame(columns=columns)
    text = frame.map(
        lambda value: "" if value is None or value is pd.NaT or value is pd.NA else _cell(_plain(value))
    ).astype(str)
    return Sample(format="parquet", columns=columns, frame=text, rows=rows, exact=True)


def _plain(value: object) -> object:
    """Without numpy's and Arrow's own types."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value if isinstance(value, str | int | float | bool | list | dict) else str(value)


def _workbook(path: Path, sample_rows: int) -> list[Sample]:
    if openpyxl is None:
        raise NotATable("a workbook; install openmle-gym[build] to read it")
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    samples = []
    try:
        for sheet in book.worksheets:
            rows = sheet.iter_rows(values_only=True)
            header = [_cell(value).strip() for value in next(rows, ())]
            if not any(header):
                continue
            names, kept = _distinct(header), _Reservoir(sample_rows)
            for row in rows:
                if any(value is not None for value in row):
                    cells = [_cell(value) if not hasattr(value, "isoformat") else str(value) for value in row]
                    kept.add([*cells, *[""] * len(names)][: len(names)])
            samples.append(
                Sample(
                    format="excel",
                    columns=names,
                    frame=kept.frame(names),
                    rows=kept.seen,
                    exact=True,
                    sheet=sheet.title,
                )
            )
    finally:
        book.close()
    if not samples:
        raise NotATable("a workbook without a table")
    return samples
