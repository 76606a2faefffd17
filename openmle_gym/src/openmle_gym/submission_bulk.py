"""The quick road of a plain submission: one parser reads it in one go, Arrow's where it is installed, else pandas'.

Plain is a UTF-8 file without quotes that has the wanted columns and no others, one of them the id, and one row for each
row of the answers. What this road returns is exactly what reading row by row would; whatever it is not sure of, errors
above all, it leaves to that.
"""

import codecs
import csv
import importlib.util
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd

from openmle_gym.submission_key import AnswerIds, AnswerKey, AnswerTarget, BadCell, Predictions

_HAS_ARROW = importlib.util.find_spec("pyarrow") is not None
_NEWLINE, _COMMA, _ZERO = b"\n,0"
FLOAT_PRECISION = None if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else "round_trip"
"""With which `pandas.read_csv` reads numbers exactly."""
_BLOCK_BYTES = 1 << 21


class _Labels(NamedTuple):
    """A column of text."""

    codes: np.ndarray
    """[rows] Of its cells among the spellings."""
    spellings: Sequence[str]


_Cells = np.ndarray | _Labels
"""A column: float64 or int64 numbers, or labels; ids that are text are an object array."""


def read_plain(content: bytes, key: AnswerKey) -> dict[str, Predictions] | None:
    """The predictions of each target in the answers' order, numbers or labels; None when the submission is not plain."""
    content = content.removeprefix(codecs.BOM_UTF8)
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n")
    if len(key.ids.names) != 1 or any(byte in content for byte in (b'"', b"\r", b"\0")):
        return None
    end = content.find(b"\n")
    header = content[: max(end, 0)].decode(errors="replace").split(",")
    if sorted(header) != sorted((*key.columns.id, *key.columns.target)):
        return None
    numbered = key.ids.places_by_number is not None and header[0] == key.columns.id[0]
    with ThreadPoolExecutor(max_workers=1) as helper:  # both let go of Python's lock
        looking = helper.submit(_rows_are_plain, content, end, header, key, numbered=numbered)
        table = _read(content, header, key, numbered=numbered)
    if not looking.result():
        return None
    id_cells = table[key.columns.id[0]] if table is not None else None
    if table is None or not isinstance(id_cells, np.ndarray) or len(id_cells) != len(key.ids):
        return None
    places = _places(id_cells, key.ids, numbered=numbered)
    if places is None:
        return None
    columns: dict[str, Predictions] = {}
    for target in key.targets:
        column = _predictions(table[target.name], target, places)
        if column is None:
            return None
        columns[target.name] = column
    return columns


def _rows_are_plain(content: bytes, end: int, header: Sequence[str], key: AnswerKey, *, numbered: bool) -> bool:
    """Whether the rows have as many cells as the header, and ids that are numbers start with a digit from 1 to 9, or are
    a lone 0, so that equal numbers are equal text.

    Args:
        end: Where the header's newline is.
    """
    rows = len(key.ids)
    body = np.frombuffer(content, dtype=np.uint8)[end:]
    numbers_alone = numbered and all(target.is_number for target in key.targets)
    # a number that is missing is not finite, so that the commas of numbers need no counting
    if not numbers_alone and np.count_nonzero(body == _COMMA) != rows * (len(header) - 1):
        return False
    if not numbered:
        return True
    from_one = body[1:] - np.uint8(_ZERO + 1)  # wraps around below `1`
    odd = 1 + np.flatnonzero((body[:-1] == _NEWLINE) & (from_one > 8))
    after = np.minimum(odd + 1, len(body) - 1)
    return bool(np.all(body[odd] == _ZERO) and np.all(body[after] == _COMMA))


def _read(content: bytes, header: Sequence[str], key: AnswerKey, *, numbered: bool) -> dict[str, _Cells] | None:
    """The columns as numbers or text; None when they are not."""
    return (_read_by_arrow if _HAS_ARROW else _read_by_pandas)(content, header, key, numbered=numbered)


def _read_by_arrow(
    content: bytes, header: Sequence[str], key: AnswerKey, *, numbered: bool
) -> dict[str, _Cells] | None:
    import pyarrow as pa  # an extra
    import pyarrow.csv as pa_csv

    kinds = {target.name: pa.float64() if target.is_number else pa.string() for target in key.targets}
    kinds[key.columns.id[0]] = pa.int64() if numbered else pa.string()
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(content),
            read_options=pa_csv.ReadOptions(column_names=list(header), skip_rows=1, block_size=_BLOCK_BYTES),
            parse_options=pa_csv.ParseOptions(quote_char=False),
            convert_options=pa_csv.ConvertOptions(column_types=kinds, null_values=[], strings_can_be_null=False),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # not UTF-8, no number, another number of cells
        return None
    columns: dict[str, _Cells] = {}
    for name in header:
        column = table.column(name)
        if column.null_count:
            return None
        if not pa.types.is_string(column.type):
            columns[name] = column.to_numpy()
        elif name == key.columns.id[0]:
            columns[name] = column.to_numpy(zero_copy_only=False)
        else:
            coded = column.dictionary_encode().combine_chunks()
            coded = coded.chunk(0) if isinstance(coded, pa.ChunkedArray) else coded
            columns[name] = _Labels(coded.indices.to_numpy(), coded.dictionary.to_pylist())
    return columns


def _read_by_pandas(
    content: bytes, header: Sequence[str], key: AnswerKey, *, numbered: bool
) -> dict[str, _Cells] | None:
    kinds: dict[str, object] = {target.name: float if target.is_number else object for target in key.targets}
    kinds[key.columns.id[0]] = np.int64 if numbered else object
    try:
        table = pd.read_csv(
            io.BytesIO(content),
            names=list(header),
            header=0,
            dtype=cast("Any", kinds),
            na_filter=False,
            quoting=csv.QUOTE_NONE,
            float_precision=FLOAT_PRECISION,
        )
    except (ValueError, OverflowError):  # pandas' own errors, and text that is not UTF-8, among them
        return None
    if not isinstance(table.index, pd.RangeIndex):  # pandas takes a cell too many for an index
        return None
    columns: dict[str, _Cells] = {name: table[name].to_numpy() for name in header}
    for target in key.targets:
        if not target.is_number:
            codes, spellings = pd.factorize(table[target.name].to_numpy(dtype=object))
            columns[target.name] = _Labels(codes, spellings.tolist())
    return columns


def _places(cells: np.ndarray, ids: AnswerIds, *, numbered: bool) -> np.ndarray | None:
    """[rows] The row of the answers that each row is about; None when a row is about none, or two about one."""
    if numbered:
        assert ids.places_by_number is not None
        places = ids.places_by_number(cells)
    else:
        assert ids.texts is not None
        places = ids.texts.get_indexer(pd.Index(cells))
    if (places < 0).any():
        return None
    seen = np.zeros(len(ids), dtype=bool)
    seen[places] = True
    return places if seen.all() else None


def _predictions(cells: _Cells, target: AnswerTarget, places: np.ndarray) -> Predictions | None:
    if target.is_number:
        assert isinstance(cells, np.ndarray)
        aligned = np.empty(len(cells), dtype=np.float64)
        aligned[places] = cells
        return aligned if np.isfinite(aligned).all() else None
    assert isinstance(cells, _Labels)
    try:
        labels = [str(target.value(spelling.strip())) for spelling in cells.spellings]
    except BadCell:
        return None
    codes, forms = pd.factorize(np.array(labels, dtype=object))  # two spellings may be one label
    aligned_codes = np.empty(len(cells.codes), dtype=np.int64)
    aligned_codes[places] = codes[cells.codes]
    return cast("pd.Categorical", pd.Categorical.from_codes(aligned_codes, categories=pd.Index(forms)))
