"""Tables on their way to the grading process: as arrays, so that nothing is written as text and read again.

A file is a row of `.npy` arrays, none of them pickled: a JSON header as bytes, then one array for each column. A column
of text is an array of codes, and its distinct values are in the header. `grading_child.py` reads them. Types are those
with which `pandas.read_csv` would read the column, of which it is asked once for each distinct text.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from openmle_gym.submission_bulk import FLOAT_PRECISION


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column."""

    values: np.ndarray
    """[rows] Numbers or booleans; where there are `texts`, the position of each row's value among them."""
    texts: Sequence[str | bool | None] | None = None
    """The distinct values of a column that is no plain array; None is a missing one."""


def pack(columns: Mapping[str, Column], arrays: Sequence[np.ndarray] = (), **header: object) -> bytes:
    """A table as `grading_child.py` reads it.

    Args:
        arrays: Others to append.
        header: Others to put into the header, as JSON.
    """
    named = [{"name": name, "texts": column.texts} for name, column in columns.items()]
    words = json.dumps({**header, "columns": named}).encode()
    pieces: list[bytes | memoryview] = []
    for array in (np.frombuffer(words, dtype=np.uint8), *(column.values for column in columns.values()), *arrays):
        plain = np.ascontiguousarray(array)
        file = io.BytesIO()
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(plain))
        pieces += [file.getvalue(), plain.view(np.uint8).data]
    return b"".join(pieces)


def text_column(cells: pd.Series, *, verbatim: bool = False) -> Column:
    """A column of text with the type that pandas would give it on reading it from a file; or as text that it is."""
    codes, forms = pd.factorize(cells.to_numpy(dtype=object))
    return coded_column(codes, forms.tolist(), verbatim=verbatim)


def coded_column(codes: np.ndarray, forms: Sequence[str], *, verbatim: bool = False) -> Column:
    """As `text_column`, of which the distinct cells are known."""
    if verbatim:
        return Column(values=codes.astype(np.int32), texts=forms)
    file = io.StringIO(newline="")
    csv.writer(file).writerows([[form, ""] for form in ("name", *forms)])
    read = pd.read_csv(
        io.StringIO(file.getvalue(), newline=""),
        usecols=[0],
        skip_blank_lines=False,
        low_memory=False,
        float_precision=FLOAT_PRECISION,
    ).iloc[:, 0]
    if isinstance(read.dtype, np.dtype) and read.dtype.kind in "iufb":
        return Column(values=read.to_numpy()[codes])
    texts = [None if missing else value for value, missing in zip(read.tolist(), read.isna(), strict=True)]
    return Column(values=codes.astype(np.int32), texts=texts)
