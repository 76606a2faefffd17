"""Text as files hold it: its encoding, its separator, and its rows one by one, whatever the size."""

import codecs
import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DELIMITERS = (",", ";", "\t", "|")
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_PIECE = 1 << 20
_HEAD_BYTES = 1 << 16
_HEAD_LINES = 60
_FIELD_BYTES = 2**31 - 1
_HIGH_BYTES = re.compile(rb"[\x80-\xff]+")
_CONTROLS = frozenset(range(32)) - {7, 8, 9, 10, 12, 13, 27}


class Dialect(NamedTuple):
    """How a table's text is read."""

    encoding: str
    delimiter: str


def detect_encoding(path: Path, *, most_bytes: int = 2**30) -> str | None:
    """A codec that reads the file: by its byte order mark, by its NUL bytes, UTF-8 where it is valid, else GB 18030 where
    it looks Chinese, else Windows-1252, which Latin-1 is a part of but for control characters.

    None where it is no text. Looks at the first `most_bytes`.
    """
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return encoding
    if b"\0" in head:
        return _utf16_without_mark(head)
    if head and sum(byte in _CONTROLS for byte in head) > 0.02 * len(head):
        return None
    for encoding in ("utf-8", *(["gb18030"] if _looks_chinese(head) else []), "cp1252"):
        if _decodes(path, encoding, most_bytes):
            return encoding
    return "latin-1"


def _decodes(path: Path, encoding: str, most_bytes: int) -> bool:
    decoder = codecs.getincrementaldecoder(encoding)()
    read = 0
    with open(path, "rb") as file:
        try:
            while read < most_bytes and (piece := file.read(_PIECE)):
                read += len(piece)
                decoder.decode(piece)
            if read < most_bytes:
                decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True


def _looks_chinese(head: bytes) -> bool:
    """Whether what is not ASCII is pairs of bytes, and most of them the commonest characters of GB 2312."""
    runs = _HIGH_BYTES.findall(head)[: -1 if head[-1:] > b"\x7f" else None]
    pairs = [run[place] for run in runs for place in range(0, len(run), 2)]
    common = sum(0xB0 <= first <= 0xD7 or 0xA1 <= first <= 0xA3 for first in pairs)
    even = sum(len(run) % 2 == 0 for run in runs)
    return bool(runs) and even >= 0.95 * len(runs) and common >= 0.7 * len(pairs)


def _utf16_without_mark(head: bytes) -> str | None:
    even, odd = head[0::2].count(0), head[1::2].count(0)
    half = max(len(head) // 2, 1)
    for encoding, zeros, others in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if zeros > 0.4 * half and others < 0.05 * half:
            return encoding
    return None


def detect_delimiter(path: Path, encoding: str, *, default: str = ",") -> str:
    """The candidate that splits the first rows into the same number of cells, the most of them."""
    with open(path, encoding=encoding, errors="replace", newline="") as file:
        head = [line for _, line in zip(range(_HEAD_LINES), file, strict=False)]
    best, most = default, 1
    for delimiter in DELIMITERS:
        try:
            widths = {
                len(row) for row in csv.reader(io.StringIO("".join(head), newline=""), delimiter=delimiter) if row
            }
        except csv.Error:
            continue
        if len(widths) == 1 and max(widths) > most:
            best, most = delimiter, max(widths)
    return best


def detect_dialect(path: Path, encoding: str) -> Dialect:
    """See `detect_delimiter`; a `.tsv` is separated by tabs where nothing says otherwise."""
    default = "\t" if path.suffix.casefold() in (".tsv", ".tab") else ","
    return Dialect(encoding, detect_delimiter(path, encoding, default=default))


def read_rows(path: Path, dialect: Dialect) -> Iterator[list[str]]:
    """A table's rows, the header first; blank lines are none. A damaged end of the text is replaced, not raised."""
    csv.field_size_limit(_FIELD_BYTES)
    with open(path, encoding=dialect.encoding, errors="replace", newline="") as file:
        lines = (line.replace("\0", "") for line in file)
        for row in csv.reader(lines, delimiter=dialect.delimiter):
            if any(map(str.strip, row)):
                yield row


def read_head(path: Path, encoding: str, characters: int) -> str:
    """The first characters of a text."""
    with open(path, encoding=encoding, errors="replace") as file:
        return file.read(characters)
