"""Reading a run: without its lock, and without changing a file, so also while it is running."""

import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from openmle_gym.chat import Message, Usage
from openmle_gym.contracts import one_line
from openmle_gym.errors import StoreError
from openmle_gym.experience import ExperienceCard
from pydantic import ValidationError

from openmle_evo.budget import ModelCall
from openmle_evo.run import FinalReport, RunManifest, read_final, read_run_manifest


class Seconds(NamedTuple):
    """Where a run's time went."""

    wall: float
    """From the start to the last result, pauses included."""
    sandbox: float
    """Programs and their grading, those of the final choice included; what ran side by side is added up, here and
    below."""
    model: float
    queue: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A run as it stood when it was read."""

    path: Path
    manifest: RunManifest
    final: FinalReport | None
    """None when the run has not come that far."""
    cards: tuple[ExperienceCard, ...]
    """In the order of their commits."""
    calls: tuple[ModelCall, ...]
    """Every model call, notes and failed ones included."""
    under_way: int
    """Attempts that were chosen and are not judged yet; after a kill, those that a resume takes up."""

    @property
    def last_result_at(self) -> str | None:
        """When the latest card, or the final report, was finished; None before the first card."""
        moments = [card.finished_at for card in self.cards] + ([self.final.finished_at] if self.final else [])
        return max(moments, key=datetime.fromisoformat, default=None)

    @property
    def seconds(self) -> Seconds:
        """Where the run's time went."""
        start = self.manifest.created_at
        wall = datetime.fromisoformat(self.last_result_at or start) - datetime.fromisoformat(start)
        return Seconds(
            wall=max(wall.total_seconds(), 0.0),
            sandbox=sum(card.sandbox_seconds for card in self.cards)
            + (self.final.sandbox_seconds if self.final else 0.0),
            model=sum(call.seconds for call in self.calls),
            queue=sum(card.queue_seconds for card in self.cards),
        )

    @property
    def usage(self) -> Usage:
        """The tokens of all model calls."""
        return sum((call.usage for call in self.calls), Usage())


class Exchange(NamedTuple):
    """What the policy was shown and what it said, for one attempt."""

    messages: tuple[Message, ...]
    reply: str
    reasoning: str


def read_exchanges(path: Path, attempt: int | None = None) -> dict[int, Exchange]:
    """The prompts and replies of a run, or of one attempt alone, by attempt.

    Raises:
        StoreError: There is no run in the directory, or its store is damaged.
    """
    read_run_manifest(path)
    query = "SELECT attempt, messages, reply FROM exchanges WHERE ?1 IS NULL OR attempt = ?1 ORDER BY attempt"
    with _reading(path / "store.sqlite") as connection:
        rows = _rows(connection, "exchanges", query, attempt)
    return {attempt: _exchange(messages, reply) for attempt, messages, reply in rows}


def _exchange(messages: bytes, reply: bytes) -> Exchange:
    said = json.loads(zlib.decompress(reply))
    shown = tuple(Message.model_validate(message) for message in json.loads(zlib.decompress(messages)))
    return Exchange(shown, said["text"], said["reasoning"])


def read_notes(path: Path) -> dict[int, str]:
    """The notes that a model wrote on attempts."""
    with _reading(path / "store.sqlite") as connection:
        return dict(_rows(connection, "notes", "SELECT attempt, note FROM notes"))


def read_run(path: Path) -> RunFacts:
    """Reads a run, finished or not.

    Raises:
        StoreError: There is no run in the directory, or a file of it is damaged.
    """
    manifest = read_run_manifest(path)
    final = read_final(path)
    stored = _read_store(path / "store.sqlite", manifest.run_id)
    under_way = len(stored.chosen - {card.attempt for card in stored.cards})
    return RunFacts(
        path=path, manifest=manifest, final=final, cards=stored.cards, calls=stored.calls, under_way=under_way
    )


class _Stored(NamedTuple):
    cards: tuple[ExperienceCard, ...] = ()
    chosen: frozenset[int] = frozenset()
    calls: tuple[ModelCall, ...] = ()


def _read_store(store: Path, run_id: str) -> _Stored:
    """The run's cards, its pending attempts and its model calls; nothing of these before the store is made."""
    if not store.is_file():
        return _Stored()
    with _reading(store) as connection:
        cards = _rows(connection, "cards", "SELECT card FROM cards WHERE run_id = ? ORDER BY rowid", run_id)
        chosen = _rows(connection, "pending", "SELECT attempt FROM pending")
        calls = _rows(connection, "calls", "SELECT call FROM calls ORDER BY rowid")
    try:
        return _Stored(
            cards=tuple(ExperienceCard.model_validate_json(row) for (row,) in cards),
            chosen=frozenset(number for (number,) in chosen),
            calls=tuple(ModelCall.model_validate_json(row) for (row,) in calls),
        )
    except ValidationError as error:
        raise StoreError(f"{store}: a {error.title}: {one_line(error)}") from error


@contextmanager
def _reading(store: Path) -> Iterator[sqlite3.Connection]:
    """One consistent view of a store that may be in use.

    A store that no process has open has no write-ahead log; it is then read as an immutable file, because SQLite
    would otherwise leave an empty log beside it.
    """
    mode = "mode=ro" if store.with_name(f"{store.name}-wal").exists() else "immutable=1"
    try:
        with closing(sqlite3.connect(f"{store.absolute().as_uri()}?{mode}", uri=True)) as connection:
            connection.execute("BEGIN")
            yield connection
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{store}: {error}") from error


def _rows(connection: sqlite3.Connection, table: str, query: str, *values: object) -> list[tuple]:
    """What a query of a table finds; nothing where the table was not made yet."""
    exists = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
    return connection.execute(query, values).fetchall() if exists else []
