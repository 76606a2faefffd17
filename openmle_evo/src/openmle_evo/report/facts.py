"""Reading a run for a report: without its lock, and without changing a file, so also while it is running."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from openmle_gym.chat import Usage
from openmle_gym.errors import StoreError
from openmle_gym.experience import ExperienceCard
from pydantic import ValidationError

from openmle_evo.run import FinalReport, RunManifest, read_final, read_run_manifest


class Seconds(NamedTuple):
    """Where a run's time went."""

    wall: float
    """From the start to the last result, pauses included."""
    sandbox: float
    """Programs and their grading; the attempts that ran side by side are added up, here and below."""
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
            sandbox=sum(card.sandbox_seconds for card in self.cards),
            model=sum(card.model_seconds for card in self.cards),
            queue=sum(card.queue_seconds for card in self.cards),
        )

    @property
    def usage(self) -> Usage:
        """The policy's tokens over all attempts."""
        return sum((card.usage for card in self.cards), Usage())


def read_run(path: Path) -> RunFacts:
    """Reads a run, finished or not.

    Raises:
        StoreError: There is no run in the directory, or a file of it is damaged.
    """
    manifest = read_run_manifest(path)
    final = read_final(path)
    cards, chosen = _read_store(path / "store.sqlite", manifest.run_id)
    under_way = len(chosen - {card.attempt for card in cards})
    return RunFacts(path=path, manifest=manifest, final=final, cards=cards, under_way=under_way)


def _read_store(store: Path, run_id: str) -> tuple[tuple[ExperienceCard, ...], set[int]]:
    """The run's cards, and the numbers of its pending attempts; nothing of either before the store is made.

    A store that no process has open has no write-ahead log; it is then read as an immutable file, because SQLite
    would otherwise leave an empty log beside it.
    """
    if not store.is_file():
        return (), set()
    mode = "mode=ro" if store.with_name(f"{store.name}-wal").exists() else "immutable=1"
    try:
        with closing(sqlite3.connect(f"{store.absolute().as_uri()}?{mode}", uri=True)) as connection:
            connection.execute("BEGIN")
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            rows = []
            if "cards" in tables:
                rows = connection.execute(
                    "SELECT card FROM cards WHERE run_id = ? ORDER BY rowid", (run_id,)
                ).fetchall()
            chosen = connection.execute("SELECT attempt FROM pending").fetchall() if "pending" in tables else []
        return tuple(ExperienceCard.model_validate_json(row) for (row,) in rows), {number for (number,) in chosen}
    except (sqlite3.DatabaseError, ValidationError) as error:
        raise StoreError(f"{store}: {error}") from error
