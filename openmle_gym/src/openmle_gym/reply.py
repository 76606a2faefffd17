"""The code blocks, the prose and the thinking of a model's reply.

A reply is read as a person reads it. Where that departs from Markdown's rules:

* Thinking is never program text: `<think>...</think>` and its kin, unclosed, or with only the closing tag.
* What chat templates leave behind (`<|im_end|>`, `assistant`) is no text, and notebooks' magics are comments.
* A fence inside a string of a Python block does not end the block. Outside of strings a backtick is no Python, so a run
  of backticks ends the block wherever it stands.
* An untagged block counts when it is a Python program, and prose when all of it is, or all from its first import on.
* Fences may stand in lists, in block quotes or at the end of a line of prose, and among characters that nobody sees.
"""

import ast
import html
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from openmle_gym.parsing import Parsed, parse_source

PARSE_BUDGET_CHARACTERS = 600_000
"""What a reply holds beyond this is not parsed: Python parses a few hundred characters in a millisecond."""
QUOTE_DEPTH = 3
NEAR_CHARACTERS = 80
"""How far a line is looked at around a tag or a fence, so that long lines do not take quadratic time."""


class Span(NamedTuple):
    """A block as it stands in a reply, unread."""

    raw: str
    indent: int
    """Characters that its opening line was indented by."""
    tagged: bool
    """The fence says that it is Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block that was read as Python."""

    source: str
    tagged: bool
    tree: ast.Module | None
    """None when it does not parse."""
    error: str | None
    """None when it parses."""
    error_line: int | None = None
    """Where Python cannot read on, counted from 1; None when it parses, or nobody knows."""

    @property
    def parses(self) -> bool:
        return self.tree is not None

    @property
    def imports(self) -> bool:
        return IMPORT.search(self.source) is not None

    @property
    def finishes(self) -> bool:
        """Whether it names the file that a program must write."""
        return _SUBMISSION.search(self.source) is not None

    @property
    def line_count(self) -> int:
        return sum(1 for line in self.source.split("\n") if line.strip())

    @property
    def is_program(self) -> bool:
        """Whether it is code that does something: no transcript, diff, shell, data or output."""
        if not self.source.strip() or _TRANSCRIPT_OR_DIFF.match(self.source) or _is_patch(self.source):
            return False
        if self.tree is None:
            return self.tagged and not _is_shell(self.source)
        return any(_acts(statement, strict=not self.tagged) for statement in self.tree.body)

    @property
    def only_defines(self) -> bool:
        """Whether running it does nothing: imports, functions and classes."""
        return self.tree is not None and all(
            isinstance(each, _DEFINITION) or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            for each in self.tree.body
        )


_DEFINITION = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORT = re.compile(r"^[ \t]*+(?:import[ \t]+\w|from[ \t]+[\w.]++[ \t]+import\b)", re.MULTILINE)
_SUBMISSION = re.compile(r"""["'/]submission\.csv""")
_TRANSCRIPT_OR_DIFF = re.compile(r"\s*+(?:>>> |diff --git |@@ |--- \S|\+\+\+ \S)")
_SHELL = re.compile(r"[ \t]*+(?:[$!%]|(?:pip3?|python3?|conda|uv|bash|sh|cd|export) )")


def _is_shell(source: str) -> bool:
    return all(_SHELL.match(line) for line in source.split("\n") if line.strip())


def _is_patch(source: str) -> bool:
    marks = {line[0] for line in source.split("\n") if line.strip()}
    return marks <= {"+", "-", " "} and marks != {" "}


def _acts(statement: ast.stmt, *, strict: bool) -> bool:
    """Whether a statement does something; strictly, `loss = 0.1` does not, for printed results look like that."""
    if isinstance(statement, ast.Pass) or (isinstance(statement, ast.AnnAssign) and statement.value is None):
        return False
    if isinstance(statement, ast.Expr):
        return any(
            isinstance(node, ast.Await) or (isinstance(node, ast.Call) and not isinstance(node.func, ast.Constant))
            for node in ast.walk(statement)
        )
    if strict and isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign) and statement.value is not None:
        return any(isinstance(node, ast.Name | ast.Call) for node in ast.walk(statement.value))
    return True


class Parser:
    """Parses the blocks of one reply, each once, within a budget."""

    def __init__(self) -> None:
        self._budget = PARSE_BUDGET_CHARACTERS
        self._parsed: dict[str, Parsed] = {}

    def read(self, span: Span) -> Block:
        """Reads a block in the first way in which it parses; in the plainest when none does."""
        plainest: Block | None = None
        for source in dict.fromkeys(_trim(reading) for reading in _readings(span)):
            if source not in self._parsed:
                self._parsed[source] = self._parse(source)
            tree, error, line = self._parsed[source]
            block = Block(source=source, tagged=span.tagged, tree=tree, error=error, error_line=line)
            if block.parses:
                return block
            plainest = plainest or block
        assert plainest is not None
        return plainest

    def _parse(self, source: str) -> Parsed:
        if len(source) > self._budget:
            return Parsed(None, f"not parsed: the reply holds more than {PARSE_BUDGET_CHARACTERS} characters of code")
        self._budget -= len(source)
        return parse_source(source)


def _readings(span: Span) -> Iterator[str]:
    """The ways to read a block, the plainest first."""
    lines = span.raw.split("\n")
    margins = [len(line) - len(line.lstrip(" \t")) for line in lines]
    exact = "\n".join(line[min(span.indent, margin) :] for line, margin in zip(lines, margins, strict=True))
    first, _, rest = exact.lstrip("\n").partition("\n")
    if first.strip().lower() in ("python", "python3", "py"):
        exact = rest
    yield exact
    yield textwrap.dedent(exact)
    yield exact.translate(_INVISIBLE_REMOVED)
    if exact.count("\\n") >= 2 and "\n" not in exact.strip():
        yield _unescape(exact)
    if _ENTITY.search(exact):
        yield html.unescape(exact)
    if _MAGIC.search(exact):
        yield _MAGIC.sub(r"\1pass  # \2", exact)
    if all(_NUMBERED.match(line) for line in lines if line.strip()):
        yield "\n".join(_NUMBERED.sub("", line, count=1) for line in lines)


_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|#39|#x27);")
_MAGIC = re.compile(r"^([ \t]*+)([!%]{1,2}[A-Za-z_].*)$", re.MULTILINE)
"""A notebook's line for the shell or for the notebook itself."""
_NUMBERED = re.compile(r"[ \t]*+\d++[ \t]*+[:|\u2502][ \t]?")


def _trim(source: str) -> str:
    return re.sub(r"\A(?:[ \t]*+\n)++", "", source).rstrip() + "\n"


_SPACES = dict.fromkeys("\u00a0\u2007\u202f", " ")
_ZERO_WIDTH = "\ufeff\u200b\u200c\u200d\u2060\u00ad"
_INVISIBLE_AS_SPACES = str.maketrans(_SPACES | dict.fromkeys(_ZERO_WIDTH, " "))
_INVISIBLE_REMOVED = str.maketrans(_SPACES | dict.fromkeys(_ZERO_WIDTH, ""))


def normalise_reply(text: str) -> str:
    """The reply as proper Unicode, with LF newlines, also where they came as a backslash and an n."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    for _ in range(4):
        text = text.rstrip()
        text = text.removesuffix(token[0]) if (token := _END_TOKEN.search(text[-50:])) else text
    text = _ROLE.sub("", text)
    if "\n" not in text.strip() and text.count("\\n") >= 2 and not _is_json(text):
        return _unescape(text)
    return text


_END_TOKEN = re.compile(r"(?:<[|\uff5c][^<>\s]{1,40}[|\uff5c]>|</s>|<eos>|<end_of_turn>)\Z")
_ROLE = re.compile(r"\A\s*+(?:<\|[^|<>\s]{1,40}\|>)?assistant(?:<\|[^|<>\s]{1,40}\|>)?[ \t:]*+\n")


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text, strict=False), dict | list)
    except (ValueError, RecursionError):
        return False


def _unescape(text: str) -> str:
    """Undoes one level of backslashes, as in a reply that was sent as the inside of a JSON string."""
    special = {"n": "\n", "t": "\t", "r": ""}
    return re.sub(r"\\(.)", lambda match: special.get(match[1], match[1]), text, flags=re.DOTALL)


_PYTHON_INFO = (
    r"[ \t{.]*+(?:(?:lang(?:uage)?[-=:][\"']?)?(?:i?python|py)[23]?(?:\.\d+)*+(?![\w-])|[\w./-]{1,100}\.py(?!\w))"
)
_PYTHON_TAG = re.compile(_PYTHON_INFO, re.IGNORECASE)
_OPENS_PYTHON = re.compile(_PYTHON_INFO + r"[^`\n]*+$", re.IGNORECASE | re.MULTILINE)
_BLANK = re.compile(r"[ \t]*+$", re.MULTILINE)
_LEAD = r"^(?P<lead>[ \t>]*+)(?P<item>(?:[-*+]|\d{1,3}[.)])[ \t]++)?"
_FENCE = re.compile(_LEAD + r"(?P<run>`{3,}+|~{3,}+)(?P<info>[^`\n]*+)$", re.MULTILINE)
_THINKING = r"(?:seed:)?(?P<tag>think(?:ing)?|thoughts?|reasoning)"
_TAG_END = r"(?:[ \t]++[\w-]++=[^<>\n]{0,80})?[ \t]{0,30}>"
_EVENT = re.compile(
    rf"{_FENCE.pattern}"
    rf"|(?<!`)(?P<late_run>`{{3,}}+)(?P<late_info>(?:{_PYTHON_INFO}[^`\n]*+|[ \t]*+))$"
    rf"|<(?P<slash>/?){_THINKING}{_TAG_END}",
    re.MULTILINE | re.IGNORECASE,
)
_CLOSING_TAG = re.compile(rf"</{_THINKING}{_TAG_END}", re.IGNORECASE)
_OTHER_TAGS = {
    "[THINK]": "<think",
    "[/THINK]": "</think",
    "\u25c1think\u25b7": "<think",
    "\u25c1/think\u25b7": "</think",
    "<|begin_of_thought|>": "<thought",
    "<|end_of_thought|>": "</thought",
    "<|channel|>analysis<|message|>": "<thinking",
    "<|channel|>final<|message|>": "</thinking",
}
"""How models that were taught other marks of thinking spell them."""
_QUOTED = re.compile(r"""(?<!`)`[^`\n]++`(?!`)|"[^"\n]*+"|(?<!\w)[rbfuRBFU]{0,2}'[^'\n]*+'""")
_QUOTE_MARK = re.compile(r"""[`"']""")
_LEXEME = re.compile(
    r"""\#[^\n]*+
    | \"{3}(?:[^"\\]++|\\.|"(?!""))*+\"{3} | '{3}(?:[^'\\]++|\\.|'(?!''))*+'{3}
    | (?P<open>\"{3}|'{3})
    | "(?:[^"\\\n]++|\\.)*+"? | '(?:[^'\\\n]++|\\.)*+'?
    | (?P<run>`{3,}+|~{3,}+)""",
    re.DOTALL | re.VERBOSE,
)


class _End(NamedTuple):
    """Where a block ends, and where reading goes on; both are the text's end for a block that stays open."""

    content: int
    resume: int


class Scan:
    """One pass over a reply: its blocks, the block that is open at its end, and its prose; thinking is left out."""

    def __init__(self, text: str, parser: Parser, depth: int = 0) -> None:
        self.spans: list[Span] = []
        self.unclosed: Span | None = None
        self.prose: list[str] = []
        self.others: list[str] = []
        """What is in blocks that say they are something other than Python."""
        self._text = text
        self._clean = text.translate(_INVISIBLE_AS_SPACES)  # as long as the text, so positions agree
        for mark, tag in _OTHER_TAGS.items():
            self._clean = self._clean.replace(mark, f"{tag:{len(mark) - 1}}>")
        self._parser = parser
        self._nowhere = _End(len(text), len(text))
        self._depth = depth
        self._patience = (
            4 * len(text) + 100_000
        )  # characters that may be read in vain, so that no text takes quadratic time
        self._never_closed: set[str] = set()
        position = 0
        while event := _EVENT.search(self._clean, position):
            self.prose.append(text[position : event.start()])
            position = self._tag(event) if event["tag"] else self._fence(event)
        self.prose.append(text[position:])

    def _tag(self, event: re.Match[str]) -> int:
        """Skips thinking from its opening tag; forgets all that stands before a closing tag without an opening one."""
        if self._is_quoted(*event.span()):
            return self._spoken_of(event)
        if event["slash"]:
            self.spans.clear()
            self.prose.clear()
            self.others.clear()
            return event.end()
        tag = event["tag"].lower()
        if tag not in self._never_closed:
            closing_tag = re.compile(rf"</(?:seed:)?{tag}{_TAG_END}", re.IGNORECASE)
            for closing in closing_tag.finditer(self._clean, event.end()):
                if not self._is_quoted(*closing.span()):
                    return closing.end()
            self._never_closed.add(tag)
        return self._spoken_of(event) if self._before(event.start()).strip(" \t>") else len(self._text)

    def _spoken_of(self, event: re.Match[str]) -> int:
        self.prose.append(self._text[event.start() : event.end()])
        return event.end()

    def _before(self, position: int) -> str:
        """What stands before a position on its line, or the nearer part of it."""
        near = max(position - NEAR_CHARACTERS, 0)
        return self._clean[max(self._clean.rfind("\n", near, position) + 1, near) : position]

    def _is_quoted(self, start: int, end: int) -> bool:
        """Whether a tag is only spoken of: inside quotes or backticks on its line."""
        left, right = start - len(self._before(start)), end + NEAR_CHARACTERS
        if not _QUOTE_MARK.search(self._clean, left, start):
            return False
        quotes = (match.span() for match in _QUOTED.finditer(self._clean, left, right))
        return any(first < start and end < last for first, last in quotes)

    def _closing_tag(self, start: int, end: int) -> int | None:
        for tag in _CLOSING_TAG.finditer(self._clean, start, end):
            if not self._is_quoted(*tag.span()):
                return tag.start()
        return None

    def _fence(self, event: re.Match[str]) -> int:
        """Reads the block that an opening fence begins; returns where reading goes on."""
        if ">" in (event["lead"] or "") and self._depth < QUOTE_DEPTH:
            return self._quote(event)
        run, info = event["run"] or event["late_run"], (event["info"] or event["late_info"] or "").strip()
        start = min(event.end() + 1, len(self._text))
        python = _PYTHON_TAG.match(info)
        if python or info.lower() in ("", "code", "tool_code"):
            indent = len(event["lead"] or "") + len(event["item"] or "")
            code_on_line = info[python.end() :].strip() if python else ""
            head = f"{code_on_line}\n" if IMPORT.match(code_on_line) else ""
            return self._code(start, run, indent, head=head, tagged=python is not None)
        if info.lower() in ("markdown", "md"):
            return start
        end = self._bare_end(start, run) if self._patience >= 0 else self._nowhere
        thinking = self._closing_tag(start, end.content)
        if thinking is not None:
            self._patience -= end.content - thinking
            return thinking
        self.others.append(self._text[start : end.content])
        return end.resume

    def _code(self, start: int, run: str, indent: int, *, head: str, tagged: bool) -> int:
        """Reads a block that is, or may be, Python."""
        if not tagged and self._patience < 0:
            return start
        end = self._end(start, run, indent, tagged=tagged)
        content = self._text[start : end.content]
        is_open = end.content == len(self._text)
        if is_open and content.rstrip().endswith(("`", "~")):
            content = content.rstrip().rstrip("`~")  # the closing fence itself was cut, or is of the other kind
        span = Span(head + content, indent, tagged)
        thinking = self._closing_tag(start, end.content) if self._patience >= 0 else None
        if thinking is not None and not self._parser.read(span).parses:
            self._patience -= end.content - thinking
            return thinking
        if not tagged and (is_open or end.resume == end.content):
            # Perhaps no opening fence at all, but one that closes what was never opened.
            block = self._parser.read(span)
            if not block.is_program and not (is_open and block.imports):
                self._patience -= len(content)
                return start
        if is_open:
            self.unclosed = span
        else:
            self.spans.append(span)
        return end.resume

    def _end(self, start: int, run: str, indent: int, *, tagged: bool) -> _End:
        """Where a block ends: the first of both readings, heeding Python's strings or not, under which it parses."""
        bare = self._bare_end(start, run)
        if self._patience < 0:
            return bare
        aware = self._string_aware_end(start, run)
        if aware == bare == self._nowhere:
            aware = self._string_aware_end(start, run[:3])
        if aware is None:
            self._patience -= len(self._text) - start
        if aware is None or aware.content == bare.content:
            return bare
        for end in (aware, bare):
            if self._parser.read(Span(self._text[start : end.content], indent, tagged=True)).parses:
                break
        else:
            skipped = self._clean[bare.content : aware.content]
            swallows = any(_PYTHON_TAG.match(fence["info"]) for fence in _FENCE.finditer(skipped))
            end = aware if bare == self._nowhere or (tagged and skipped and not swallows) else bare
        self._patience -= max(aware.content, bare.content) - end.content
        return end

    def _bare_end(self, start: int, run: str) -> _End:
        """The next line that is a fence of the same kind and at least as long, bare or opening a Python block."""
        for fence in _FENCE.finditer(self._clean, start):
            if fence["run"].startswith(run):
                if _PYTHON_TAG.match(fence["info"]):
                    return _End(fence.start(), fence.start())
                if not fence["item"] and not fence["info"].strip():
                    return _End(fence.start(), min(fence.end() + 1, len(self._text)))
        return self._nowhere

    def _string_aware_end(self, start: int, run: str) -> _End | None:
        """The next fence outside of Python's strings and comments; None where a string is never closed."""
        for lexeme in _LEXEME.finditer(self._clean, start):
            if lexeme["open"]:
                return None
            if not (lexeme["run"] or "").startswith(run):
                continue
            before = self._before(lexeme.start())
            line_start = max(lexeme.start() - len(before), start)
            before = self._clean[line_start : lexeme.start()].strip(" \t>")
            if _OPENS_PYTHON.match(self._clean, lexeme.end()):
                return _End(line_start, line_start)
            if blank := _BLANK.match(self._clean, lexeme.end()):
                return _End(lexeme.start() if before else line_start, min(blank.end() + 1, len(self._text)))
            if not before and run[0] == "`":
                return _End(line_start, lexeme.end())
        return self._nowhere

    def _quote(self, event: re.Match[str]) -> int:
        """Reads a block quote that holds a fence, without its marks."""
        marks = re.compile(rf"(?:[ \t]{{0,3}}>[ ]?){{1,{min(event['lead'].count('>'), 8)}}}")
        lines: list[str] = []
        position = event.start()
        while position < len(self._text) and (mark := marks.match(self._clean, position)):
            line_end = self._clean.find("\n", position)
            line_end = line_end if line_end >= 0 else len(self._text)
            lines.append(self._text[mark.end() : line_end])
            position = line_end + 1
        quote = Scan("\n".join(lines), self._parser, self._depth + 1)
        self.spans += quote.spans
        self.prose += quote.prose
        self.others += quote.others
        if quote.unclosed is not None and position < len(self._text):
            self.spans.append(quote.unclosed)
        else:
            self.unclosed = quote.unclosed
        return min(position, len(self._text))
