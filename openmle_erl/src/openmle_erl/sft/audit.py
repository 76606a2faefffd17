"""The audit of a corpus that is already a file: ours, or the released traces; JSON lines or Parquet of `id`, `messages`.

Rows are read one at a time. Problems are what a row must not have; all else is counted.
"""

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from openmle_gym.chat import Message
from openmle_gym.errors import ConfigError, ReplyError
from openmle_gym.program import parse_reply
from pydantic import TypeAdapter, ValidationError

from openmle_erl.sft.config import AuditConfig
from openmle_erl.sft.dedup import message_hash
from openmle_erl.sft.masks import mask_conversation
from openmle_erl.sft.messages import split_thinking
from openmle_erl.sft.reserved import Reserved, read_reserved
from openmle_erl.sft.shingles import MinHashIndex
from openmle_erl.sft.tokens import ChatTokenizer, count_tokens, load_tokenizer

LISTED = 20
"""Problems, and near-duplicates, that a report lists; it counts them all."""
DETAIL_CHARACTERS = 200
_MESSAGES = TypeAdapter(list[Message])


class Problem(NamedTuple):
    """What is wrong with a row."""

    row: int
    """Counted from 1; of JSON lines the line's number."""
    kind: str
    detail: str


class Row(NamedTuple):
    """A row as it was read; `raw` is None where it is no JSON."""

    number: int
    raw: Any


@dataclass(kw_only=True)
class Audit:
    """What was found so far."""

    config: AuditConfig
    reserved: Reserved
    tokenizer: ChatTokenizer | None
    rows: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    listed: list[Problem] = field(default_factory=list)
    shapes: Counter[str] = field(default_factory=Counter)
    programs: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    thinking: int = 0
    masked: int = 0
    characters: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    near: list[dict[str, object]] = field(default_factory=list)
    near_count: int = 0
    _ids: dict[str, int] = field(default_factory=dict)
    _hashes: dict[str, int] = field(default_factory=dict)
    _index: MinHashIndex = field(init=False)

    def __post_init__(self) -> None:
        self._index = MinHashIndex(self.config.similarity)

    def take(self, row: Row) -> None:
        """Looks at one row."""
        self.rows += 1
        if not isinstance(row.raw, dict):
            self._problem(row, "not_an_object", "" if row.raw is None else str(row.raw))
            return
        row_id = row.raw.get("id")
        if not isinstance(row_id, str | int) or isinstance(row_id, bool) or row_id == "":
            self._problem(row, "no_id", f"{row_id!r}")
        elif (first := self._ids.setdefault(str(row_id), row.number)) != row.number:
            self._problem(row, "id_twice", f"as in row {first}: {row_id!r}")
        messages = self._messages(row)
        if messages is not None:
            self._look(row, str(row_id), messages)

    def _messages(self, row: Row) -> list[Message] | None:
        raw = row.raw.get("messages")
        if not isinstance(raw, list) or not raw:
            self._problem(row, "no_messages", f"{raw!r}")
            return None
        try:
            messages = _MESSAGES.validate_python(
                [
                    {key: each.get(key) for key in ("role", "content")} if isinstance(each, dict) else each
                    for each in raw
                ]
            )
        except ValidationError as error:
            first = error.errors()[0]
            self._problem(row, "bad_message", f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
            return None
        for number, message in enumerate(messages):
            if not _is_text(message.content):
                self._problem(row, "bad_message", f"{number}.content: holds half of a character (a lone surrogate)")
                return None
        if messages[-1].role != "assistant" or not messages[-1].content.strip():
            self._problem(row, "no_reply", f"the last message is of {messages[-1].role}, or empty")
            return None
        return messages

    def _look(self, row: Row, row_id: str, messages: Sequence[Message]) -> None:
        reply = messages[-1].content
        self.shapes[" ".join(message.role for message in messages)] += 1
        self.thinking += bool(split_thinking(reply).thinking)
        self.programs[_program_state(reply)] += 1
        self.operators[_operator(messages)] += 1
        self.characters.append(sum(len(message.content) for message in messages))
        first = self._hashes.setdefault(message_hash(messages), row.number)
        if first != row.number:
            self._problem(row, "messages_twice", f"as in row {first}")
        elif (twin := self._index.add(row_id, reply)) is not None:
            self.near_count += 1
            if len(self.near) < LISTED:
                self.near.append(twin._asdict())
        match = self.reserved.match(messages)
        if match is not None:
            self._problem(row, match.drop.value, f"{match.task}: {match.similarity:.2f}")
        if self.tokenizer is not None:
            self._tokens(row, messages, self.tokenizer)

    def _tokens(self, row: Row, messages: Sequence[Message], tokenizer: ChatTokenizer) -> None:
        tokens = count_tokens(tokenizer, messages)
        self.tokens.append(tokens)
        if self.config.max_tokens is not None and tokens > self.config.max_tokens:
            self._problem(row, "too_many_tokens", f"{tokens} tokens")
        if self.masked < self.config.masks:
            self.masked += 1
            try:
                mask_conversation(tokenizer, messages)
            except ValueError as error:
                self._problem(row, "mask", str(error))

    def _problem(self, row: Row, kind: str, detail: str) -> None:
        self.problems[kind] += 1
        if len(self.listed) < LISTED:
            self.listed.append(Problem(row.number, kind, detail[:DETAIL_CHARACTERS]))

    def report(self) -> dict[str, object]:
        """What was found.

        Raises:
            ConfigError: All token counts were equal though the texts were not: the counter is broken.
        """
        if len(set(self.tokens)) == 1 and len(set(self.characters)) > 1:
            raise ConfigError(f"tokenizer: counted {self.tokens[0]} tokens for each of {len(self.tokens)} rows")
        return {
            "rows": self.rows,
            "problems": dict(self.problems.most_common()),
            "first_problems": [problem._asdict() for problem in self.listed],
            "roles": dict(self.shapes.most_common()),
            "operators": dict(self.operators.most_common()),
            "programs": dict(self.programs.most_common()),
            "with_thinking": self.thinking,
            "characters": _spread(self.characters),
            "tokens": _spread(self.tokens) | {"total": sum(self.tokens)} if self.tokenizer is not None else None,
            "masks_checked": self.masked,
            "near_duplicates": self.near_count,
            "first_near_duplicates": self.near,
            "reserved_tasks": len(self.reserved),
        }


def audit_file(path: Path, config: AuditConfig) -> dict[str, object]:
    """Audits a file.

    Raises:
        ConfigError: It cannot be read, or a setting cannot work.
    """
    tokenizer = load_tokenizer(Path(config.tokenizer)) if config.tokenizer else None
    audit = Audit(config=config, reserved=read_reserved(config.reserved), tokenizer=tokenizer)
    for row in read_rows(path):
        audit.take(row)
    return {"file": str(path), **audit.report()}


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a corpus, Parquet by its suffix, else JSON lines.

    Raises:
        ConfigError: It cannot be read.
    """
    return _parquet_rows(path) if path.suffix.lower() == ".parquet" else _json_rows(path)


def _json_rows(path: Path) -> Iterator[Row]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    try:
                        yield Row(number, json.loads(line))
                    except (ValueError, RecursionError):
                        yield Row(number, None)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def _parquet_rows(path: Path) -> Iterator[Row]:
    try:
        import pyarrow as pa  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(f"{path}: needs pyarrow: pip install pyarrow") from error
    number = 0
    try:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=100, columns=["id", "messages"]):
            for raw in batch.to_pylist():
                number += 1
                yield Row(number, raw)
    except (OSError, ValueError, OverflowError, pa.ArrowException) as error:
        raise ConfigError(f"{path}: after row {number}: {str(error).strip()}") from error


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON may hold half of a character; UTF-8, tokenizers and Parquet may not
        return False
    return True


def _program_state(reply: str) -> str:
    try:
        program = parse_reply(reply)
    except ReplyError as error:
        return error.code
    return "program" if program.syntax_error is None else "syntax_error"


def _operator(messages: Sequence[Message]) -> str:
    for message in messages:
        head, _, rest = message.content.partition("# Operator: ")
        if message.role == "user" and rest and not head.strip():
            return rest.split("\n", 1)[0].strip()
    return "not stated"


def _spread(values: Sequence[int]) -> dict[str, int]:
    if not values:
        return {}
    ordered = sorted(values)
    return {
        "least": ordered[0],
        "median": int(statistics.median(ordered)),
        "p95": ordered[int(0.95 * (len(ordered) - 1))],
        "most": ordered[-1],
    }
