"""The quick road of a plain submission: pandas reads it in one go.

Plain is a UTF-8 file without quotes that has the wanted columns and no others, one of them the id, and one row for each
row of the answers. What this road returns is exactly what reading row by row would; whatever it is not sure of, errors
above all, it leaves to that.
"""

import codecs
import csv
import io
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from openmle_gym.submission_key import AnswerIds, AnswerKey, AnswerTarget, BadCell, Predictions

_NEWLINE, _COMMA, _ZERO = b"\n,0"
FLOAT_PRECISION = None if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else "round_trip"
"""With which `pandas.read_csv` reads numbers exactly."""


def read_plain(content: bytes, key: AnswerKey) -> dict[str, Predictions] | None:
    """The predictions of each target in the answers' order, numbers or labels; None when the submission is not plain."""
    content = content.removeprefix(codecs.BOM_UTF8)
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n")
    if key.ids.texts is None or any(byte in content for byte in (b'"', b"\r", b"\0")):
        return None
    end = content.find(b"\n")
    header = content[: max(end, 0)].decode(errors="replace").split(",")
    if sorted(header) != sorted((*key.columns.id, *key.columns.target)):
        return None
    body = np.frombuffer(content, dtype=np.uint8)[end + 1 :]
    rows = len(key.ids)
    if np.count_nonzero(body == _COMMA) != rows * (len(header) - 1):
        return None
    numbered = key.ids.places_by_number is not None and header[0] == key.columns.id[0] and _starts_are_plain(body, rows)
    table = _table(content, header, key, numbered=numbered)
    if table is None or len(table) != rows:
        return None
    places = _places(table[key.columns.id[0]], key.ids, numbered=numbered)
    if places is None:
        return None
    columns: dict[str, Predictions] = {}
    for target in key.targets:
        column = _predictions(table[target.name], target, places)
        if column is None:
            return None
        columns[target.name] = column
    return columns


def _starts_are_plain(body: np.ndarray, rows: int) -> bool:
    """Whether each row starts with a digit from 1 to 9, or with a lone 0, so that equal numbers are equal text."""
    starts = np.flatnonzero(body[:-1] == _NEWLINE) + 1
    starts = np.concatenate(([0], starts)) if len(body) else starts
    first = body[starts]
    odd = starts[(first < _ZERO + 1) | (first > _ZERO + 9)]
    return len(starts) == rows and bool(np.all(body[odd] == _ZERO) and np.all(body[odd + 1] == _COMMA))


def _table(content: bytes, header: Sequence[str], key: AnswerKey, *, numbered: bool) -> pd.DataFrame | None:
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
    return table if isinstance(table.index, pd.RangeIndex) else None  # pandas takes a cell too many for an index


def _places(cells: pd.Series, ids: AnswerIds, *, numbered: bool) -> np.ndarray | None:
    """[rows] The row of the answers that each row is about; None when these are not all of them, each once."""
    if numbered:
        assert ids.places_by_number is not None
        places = ids.places_by_number(cells.to_numpy())
    else:
        assert ids.texts is not None
        places = ids.texts.get_indexer(pd.Index(cells.to_numpy()))
    if (places < 0).any():
        return None
    seen = np.zeros(len(ids), dtype=bool)
    seen[places] = True
    return places if seen.all() else None


def _predictions(cells: pd.Series, target: AnswerTarget, places: np.ndarray) -> Predictions | None:
    if target.is_number:
        numbers = cells.to_numpy()
        if not np.isfinite(numbers).all():
            return None
        aligned = np.empty_like(numbers)
        aligned[places] = numbers
        return aligned
    spelt_codes, spellings = pd.factorize(cells.to_numpy(dtype=object))
    try:
        labels = [str(target.value(spelling.strip())) for spelling in spellings]
    except BadCell:
        return None
    codes, forms = pd.factorize(np.array(labels, dtype=object))  # two spellings may be one label
    aligned = np.empty(len(cells), dtype=np.int64)
    aligned[places] = codes[spelt_codes]
    return cast("pd.Categorical", pd.Categorical.from_codes(aligned, categories=pd.Index(forms)))
