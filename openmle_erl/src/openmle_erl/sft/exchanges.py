"""What was said: the prompt and the reply of each attempt, beside the cards in a store's file.

A card keeps a reply's program and plan. Training needs the exact prompt and the thinking as well; and a sampler that
is killed between reply and verdict must not ask, and pay, again. A prompt that many attempts share is kept once.
"""

import hashlib
import sqlite3
import zlib
from pathlib import Path
from typing import NamedTuple

from openmle_gym.chat import Completion, Message
from pydantic import TypeAdapter

_SCHEMA = """
CREATE TABLE IF NOT EXISTS prompts (digest TEXT PRIMARY KEY, messages TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS replies (
    run_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    prompt TEXT NOT NULL,
    reply TEXT NOT NULL,
    PRIMARY KEY (run_id, attempt)
);
"""
_MESSAGES = TypeAdapter(list[Message])


class Exchange(NamedTuple):
    """A prompt and its reply."""

    messages: list[Message]
    reply: Completion


class ExchangeStore:
    """Append-only; lives in the same SQLite file as a `CardStore`, or in one of its own."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.executescript(_SCHEMA)

    def record(self, run_id: str, attempt: int, messages: list[Message], reply: Completion) -> None:
        """Keeps an exchange; it is on disk when this returns."""
        text = _MESSAGES.dump_json(messages).decode()
        digest = hashlib.sha256(text.encode()).hexdigest()
        with self._connection:
            self._connection.execute("BEGIN")
            self._connection.execute("INSERT OR IGNORE INTO prompts VALUES (?, ?)", (digest, text))
            row = (run_id, attempt, digest, reply.model_dump_json())
            self._connection.execute("INSERT INTO replies VALUES (?, ?, ?, ?)", row)

    def exchanges(self, run_id: str) -> dict[int, Exchange]:
        """A run's exchanges by attempt."""
        query = (
            "SELECT attempt, messages, reply FROM replies JOIN prompts ON prompts.digest = replies.prompt "
            "WHERE run_id = ? ORDER BY attempt"
        )
        return {
            attempt: Exchange(_MESSAGES.validate_json(messages), Completion.model_validate_json(reply))
            for attempt, messages, reply in self._connection.execute(query, (run_id,))
        }

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()


def recorded_exchanges(path: Path, run_id: str) -> dict[int, Exchange]:
    """A run's exchanges, from the store of a collection or of a search, which may have none; it is not changed."""
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "exchanges" in tables:
            rows = connection.execute("SELECT attempt, messages, reply FROM exchanges ORDER BY attempt").fetchall()
            return {attempt: _of_search(messages, reply) for attempt, messages, reply in rows}
    finally:
        connection.close()
    if not {"prompts", "replies"} <= tables:
        return {}
    store = ExchangeStore(path)
    try:
        return store.exchanges(run_id)
    finally:
        store.close()


def _of_search(messages: bytes, reply: bytes) -> Exchange:
    """An exchange as searches keep it: JSON, compressed by zlib; of the reply its text and reasoning."""
    return Exchange(
        _MESSAGES.validate_json(zlib.decompress(messages)), Completion.model_validate_json(zlib.decompress(reply))
    )
