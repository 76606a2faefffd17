"""Append-only storage of cards: SQLite in WAL mode, one writer, many readers."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from openmle_gym.contracts import one_line
from openmle_gym.errors import StoreError
from openmle_gym.experience import ExperienceCard

_SCHEMA = """
CREATE TABLE IF NOT EXISTS cards (
    run_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    task TEXT NOT NULL,
    card TEXT NOT NULL,
    PRIMARY KEY (run_id, attempt)
);
CREATE INDEX IF NOT EXISTS cards_by_task ON cards (task);
CREATE TRIGGER IF NOT EXISTS cards_are_never_changed BEFORE UPDATE ON cards
    BEGIN SELECT RAISE(ABORT, 'cards are append-only'); END;
CREATE TRIGGER IF NOT EXISTS cards_are_never_removed BEFORE DELETE ON cards
    BEGIN SELECT RAISE(ABORT, 'cards are append-only'); END;
"""


class CardStore:
    """Cards of one or many runs. The same store serves search runs and the RL program database."""

    def __init__(self, path: Path | str) -> None:
        """Opens or creates the store.

        Raises:
            StoreError: The file is there but is not a card store.
        """
        self.path = Path(path)
        try:
            self.connection = sqlite3.connect(self.path, isolation_level=None)
            """For the tables that the store's owner keeps in the same file."""
            self.connection.execute("PRAGMA journal_mode=WAL")
            self.connection.execute("PRAGMA synchronous=FULL")
            self.connection.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{self.path}: not a card store: {error}") from error

    def append(self, card: ExperienceCard) -> None:
        """Adds a card; it is on disk when this returns.

        Raises:
            StoreError: The run already has a card for this attempt.
        """
        row = (card.run_id, card.attempt, card.task, card.model_dump_json())
        try:
            self.connection.execute("INSERT INTO cards VALUES (?, ?, ?, ?)", row)
        except sqlite3.IntegrityError as error:
            raise StoreError(f"{self.path}: run {card.run_id} already has attempt {card.attempt}") from error

    def cards(self, *, run_id: str | None = None, task: str | None = None) -> list[ExperienceCard]:
        """The cards of a run or of a task or all of them, ordered by when they were added.

        Raises:
            StoreError: One is damaged.
        """
        try:
            return [ExperienceCard.model_validate_json(row) for row in self._rows(run_id, task)]
        except ValidationError as error:
            raise StoreError(f"{self.path}: a damaged card: {one_line(error)}") from error

    def _rows(self, run_id: str | None, task: str | None) -> Iterator[str]:
        query = "SELECT card FROM cards WHERE (?1 IS NULL OR run_id = ?1) AND (?2 IS NULL OR task = ?2) ORDER BY rowid"
        return (row for (row,) in self.connection.execute(query, (run_id, task)))

    def export_jsonl(self, path: Path | str) -> int:
        """Writes every card as one line of JSON; returns how many."""
        rows = list(self._rows(None, None))
        with Path(path).open("w", encoding="utf-8") as lines:
            lines.writelines(row + "\n" for row in rows)
        return len(rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is written inside, cards too, or nothing; it is on disk in the end."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        finally:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    @contextmanager
    def unsynced(self) -> Iterator[None]:
        """What is written inside outlives this process at once, and a loss of power with the next write after it."""
        self.connection.execute("PRAGMA synchronous=NORMAL")
        try:
            yield
        finally:
            self.connection.execute("PRAGMA synchronous=FULL")

    def close(self) -> None:
        """Closes the file."""
        self.connection.close()
