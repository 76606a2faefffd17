"""A program's text, and which of the code in a model's reply it is."""

import ast
import builtins
import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from openmle_gym.errors import ReplyError
from openmle_gym.reply import IMPORT, Block, Parser, Scan, Span, normalise_reply
from openmle_gym.unfenced import bare_program, texts_in_json, wrapped_code

CONSIDERED_BLOCKS = 24
"""The last so many; a reply with more is no attempt at one program."""
ASIDE_LINES = 5
NESTED_REPLIES = 3
"""How deep a reply may lie in the JSON of another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A candidate's source, and what its author said beside it."""

    source: str
    """Without blank lines around it, with one newline at its end; newlines are LF."""
    plan: str = ""
    """The reply's prose, without thinking and without code blocks."""
    syntax_error: str | None = None
    """Why this process's Python cannot parse the source; None when it can."""

    @property
    def program_id(self) -> str:
        """The program's identity: see the function `program_id`."""
        return program_id(self.source)


def program_id(source: str) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the source in UTF-8."""
    return hashlib.sha256(source.encode("utf-8", errors="surrogatepass")).hexdigest()[:16]


def parse_reply(text: str, *, truncated: bool = False) -> Program:
    """Finds the final program in a model's reply.

    A block that does not parse is a program too, so that it can be mended. An open block at the end is the program
    when it parses; when it does not, an earlier block stands in only if the open one was not a new program.

    Args:
        truncated: The reply was cut at the token limit, so what is open at its end is incomplete.

    Raises:
        ReplyError: `no_code`, or `truncated_reply` when the reply ends within its program.
    """
    return _parse(text, truncated=truncated, depth=0)


def _parse(text: str, *, truncated: bool, depth: int) -> Program:
    text = normalise_reply(text)
    parser = Parser()
    whole = parser.read(Span(text, 0, tagged=False))
    if whole.is_program and whole.line_count > 1 and not truncated:
        return Program(source=whole.source)
    scan = Scan(text, parser)
    prose = "".join(scan.prose)
    blocks = [block for span in scan.spans[-CONSIDERED_BLOCKS:] if (block := parser.read(span)).is_program]
    if scan.unclosed is not None:
        last = parser.read(scan.unclosed)
        if last.parses and last.is_program and not truncated:
            blocks.append(last)
        elif truncated or not blocks or (last.imports and not last.parses):
            raise ReplyError("truncated_reply", "the reply ends within a code block that was never closed")
    if blocks:
        chosen = _choose(blocks)
        return Program(source=chosen.source, plan=_plan(prose), syntax_error=chosen.error)
    if truncated:
        raise ReplyError("truncated_reply", "the reply was cut before its program was complete")
    if found := _unfenced(scan, parser, depth):
        return found
    raise ReplyError("no_code", "the reply holds no Python program")


def _unfenced(scan: Scan, parser: Parser, depth: int) -> Program | None:
    """The program of a reply none of whose blocks is one."""
    prose = "".join(scan.prose)
    if depth < NESTED_REPLIES:
        for text in islice(
            (text for piece in (*scan.others, prose) for text in texts_in_json(piece)), CONSIDERED_BLOCKS
        ):
            with suppress(ReplyError):
                return _parse(text, truncated=False, depth=depth + 1)
    for other in reversed(scan.others):
        block = parser.read(Span(other, 0, tagged=False))
        if block.is_program and block.imports and block.finishes:
            return Program(source=block.source, plan=_plan(prose))
    for piece in (*wrapped_code(prose), *reversed(scan.prose)):
        if "\n" in piece.strip() and (found := bare_program(parser, piece)):
            return Program(source=found.block.source, plan=_plan(found.before))
    block = parser.read(Span(prose, 0, tagged=False))
    begins_as_code = IMPORT.match(block.source) is not None and not scan.others
    return Program(source=block.source, syntax_error=block.error) if begins_as_code and block.finishes else None


def _choose(blocks: Sequence[Block]) -> Block:
    """The final program among the blocks of a reply, in order.

    A person takes the last block, unless it is an aside (a few lines after something much longer) or a fragment (it
    uses names that only earlier blocks bind, and is no program by itself). Fragments after a whole program are
    patches or examples and change nothing; fragments after the mere beginning of a program are its continuation, and
    are joined to it.
    """
    if any(block.tagged for block in blocks):
        blocks = [block for block in blocks if block.tagged or block.imports]
    index = len(blocks) - 1
    fragments: list[Block] = []
    while index > 0:
        if _is_fragment(blocks[index], blocks[:index]):
            fragments.insert(0, blocks[index])
        elif not _is_aside(blocks[index], blocks[:index]):
            break
        index -= 1
    head = blocks[index]
    are_longer = sum(block.line_count for block in fragments) >= head.line_count
    if fragments and not head.finishes and (are_longer or any(block.finishes for block in fragments)):
        return Block(
            source="\n".join(block.source for block in (head, *fragments)),
            tagged=True,
            tree=head.tree,
            error=head.error,
        )
    return fragments[-1] if fragments and are_longer else head


def _is_fragment(block: Block, earlier: Sequence[Block]) -> bool:
    if block.tree is None or (block.imports and block.finishes):
        return False
    used, bound = _names(block.tree)
    missing = used - bound - set(dir(builtins))
    return any(other.tree is not None and missing & _names(other.tree).bound for other in earlier)


def _is_aside(block: Block, earlier: Sequence[Block]) -> bool:
    lines = block.line_count
    if block.only_defines and any(other.finishes and not other.only_defines for other in earlier):
        return True
    return lines <= ASIDE_LINES and any(other.parses and other.line_count >= 4 * lines for other in earlier)


class _Names(NamedTuple):
    used: set[str]
    bound: set[str]


def _names(tree: ast.Module) -> _Names:
    """The names that a program reads, and those that it binds anywhere."""
    used: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.alias(name=name, asname=alias):
                bound.add(alias or name.split(".")[0])
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                bound.add(name)
    return _Names(used, bound)


def _plan(prose: str) -> str:
    prose = re.sub(r"^[ \t]*+</?\w++>[ \t]*+$", "", prose, flags=re.MULTILINE)
    return re.sub(r"\n{3,}+", "\n\n", prose).strip()
