"""Programs that stand in a reply without a fence of their own: in JSON, in HTML-like elements, in the middle of prose.

Looked for only where no block of the reply is a program.
"""

import html
import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from openmle_gym.reply import IMPORT, Block, Parser, Span

MOST_CUTS = 8
"""How often bare code is cut where Python cannot read on."""
MOST_PROSE_LINES = 200
"""What follows bare code may have so many lines."""
MOST_DOCUMENTS = 8
"""JSON documents of a reply that are tried."""


class Found(NamedTuple):
    """A program and the prose before it."""

    block: Block
    before: str


def bare_program(parser: Parser, text: str) -> Found | None:
    """The program that stands in prose, from the text's begin or its first import on.

    It ends with the text or, when nothing after it is Python, where Python cannot read on.
    """
    import_at = found.start() if (found := IMPORT.search(text)) else 0
    for start in (0, import_at):
        block = _read(parser, text[start:])
        if block.is_program and block.line_count > 1:
            return Found(block, text[:start])
    whole = text[import_at:].split("\n")
    lines, block = whole, _read(parser, text[import_at:])
    for _ in range(MOST_CUTS):
        if block.parses or not block.error_line:
            break
        lines = lines[: block.error_line - 1]
        block = _read(parser, "\n".join(lines))
    rest = whole[len(lines) :]
    if not block.is_program or block.only_defines or block.line_count < 2 or len(rest) > MOST_PROSE_LINES:
        return None
    return None if any(_read(parser, line).is_program for line in rest) else Found(block, text[:import_at])


def _read(parser: Parser, text: str) -> Block:
    return parser.read(Span(text, 0, tagged=False))


def wrapped_code(prose: str) -> Iterator[str]:
    """What stands in the last HTML-like elements that may hold a program, as it is and unescaped."""
    lower = prose.lower()
    for tag in ("code", "pre", "python", "program", "answer"):
        end = lower.rfind(f"</{tag}>")
        start = lower.rfind(f"<{tag}", 0, max(end, 0))
        if start >= 0:
            content = prose[prose.find(">", start) + 1 : end]
            yield content
            yield html.unescape(content)


def _documents(text: str) -> list[object]:
    """The JSON objects and lists that begin a line."""
    decoder, found, position = json.JSONDecoder(strict=False), [], 0
    for _ in range(MOST_DOCUMENTS):
        start = _DOCUMENT.search(text, position)
        if start is None:
            break
        try:
            document, position = decoder.raw_decode(text, start.end() - 1)
            found.append(document)
        except (ValueError, RecursionError):
            position = start.end()
    return found


_DOCUMENT = re.compile(r"^[ \t]*+(?=\{[ \t\n]*+[\"}]|\[[ \t\n]*+[\"{\[])[\[{]", re.MULTILINE)


def texts_in_json(text: str) -> Iterator[str]:
    """The strings of several lines in a reply's JSON, and the code of its notebooks, the last first."""
    strings: list[str] = []
    for document in _documents(text):
        stack = [document]
        while stack:
            value = stack.pop()
            if isinstance(value, str) and "\n" in value.strip():
                strings.append(value)
            elif isinstance(value, dict) and isinstance(cells := value.get("cells"), list):
                strings.append("\n\n".join(_cell_source(cell) for cell in cells))
            elif isinstance(value, dict | list):
                stack += reversed(list(value.values() if isinstance(value, dict) else value))
    return reversed(strings)


def _cell_source(cell: object) -> str:
    """The code of a notebook's cell; empty for one that holds none."""
    if not isinstance(cell, dict) or cell.get("cell_type") != "code":
        return ""
    source = cell.get("source")
    return "".join(map(str, source)) if isinstance(source, list) else str(source or "")
