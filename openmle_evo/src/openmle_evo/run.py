"""A run's directory: everything that the run knows is in it, so that it can be killed at any moment and resumed.

<run>/manifest.json    what is searched, and how; written once
<run>/store.sqlite     cards (append-only), and the attempts that are under way
<run>/best.py          the best program so far; derived, rewritten whole
<run>/final.json       the one grading on the test split; written once, at the end
<run>/report.html      made by `openmle-evo report`
"""

import fcntl
import json
import os
import sqlite3
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from openmle_gym.chat import Completion
from openmle_gym.contracts import Contract
from openmle_gym.errors import ConfigError, StoreError
from openmle_gym.evaluate import Attempt
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.manifest import Metric
from openmle_gym.operators import Operator
from openmle_gym.scores import TestScore, ValidationScore
from openmle_gym.store import CardStore
from pydantic import JsonValue, ValidationError


class RunManifest(Contract):
    """What a run is; fixed at its start."""

    schema_version: int = 1
    run_id: str
    created_at: str
    """ISO 8601 with Z."""
    openmle_version: str
    task: str
    title: str
    metric: Metric
    package: str
    """The task package's folder, as it was given."""
    policy: str
    executor: str
    """Where programs ran: a service's address, or `local`."""
    isolation: str
    settings: dict[str, JsonValue]
    """The search's settings, without secrets."""


class Standing(Contract):
    """A score among the task's reference leaderboard."""

    entries: int
    rank: int
    """1 is best; ties share a rank."""
    fraction_beaten: float
    medal: str | None
    made_by: str
    """Who made the leaderboard; `machine` for one made by running baselines."""


class FinalReport(Contract):
    """The chosen program's one grading on the test split."""

    attempt: int
    program_id: str
    validation: ValidationScore
    test: TestScore | None
    """None when the program failed this time; `message` says how."""
    message: str = ""
    sample_submission: TestScore | None
    """The sample submission's score on the same rows; None when the metric refuses it."""
    standing: Standing | None
    """None when the task has no leaderboard or there is no test score."""
    finished_at: str


Record = TypeVar("Record", bound=Contract)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS pending (
    attempt INTEGER PRIMARY KEY,
    choice TEXT NOT NULL,
    reply TEXT
);
"""


class _Choice(Contract):
    operator: Operator
    parents: tuple[int, ...]
    selection: Selection


class PendingAttempt(NamedTuple):
    """An attempt that is under way: what was chosen, and the policy's reply once there is one."""

    attempt: Attempt
    reply: Completion | None


class RunDirectory:
    """Opened by one process at a time; a second one is refused."""

    def __init__(self, path: Path, manifest: RunManifest) -> None:
        """Use `create` or `resume`."""
        self.path = path
        self.manifest = manifest
        self._lock = (path / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"{path}: another process is running this run") from error
        self.store = CardStore(path / "store.sqlite")
        self._pending = sqlite3.connect(path / "store.sqlite", isolation_level=None)
        self._pending.execute("PRAGMA synchronous=FULL")
        self._pending.executescript(_SCHEMA)

    @classmethod
    def create(cls, path: Path, manifest: RunManifest) -> Self:
        """Starts a run in a new directory.

        Raises:
            ConfigError: The directory already holds a run.
        """
        path.mkdir(parents=True, exist_ok=True)
        if (path / "manifest.json").exists():
            raise ConfigError(f"{path}: already holds a run; resume it, or choose another run_dir")
        write_whole(path / "manifest.json", manifest.model_dump_json(indent=2))
        return cls(path, manifest)

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Opens a run that was started before, finished or not."""
        return cls(path, read_run_manifest(path))

    def choose(self, attempt: Attempt) -> None:
        """Records what an attempt is about to do; it is on disk when this returns."""
        choice = _Choice(operator=attempt.operator, parents=attempt.parents, selection=attempt.selection)
        self._pending.execute("INSERT INTO pending VALUES (?, ?, NULL)", (attempt.attempt, choice.model_dump_json()))

    def replied(self, attempt: Attempt, reply: Completion) -> None:
        """Records the policy's reply, so that a resumed run does not ask (and pay) again."""
        self._pending.execute(
            "UPDATE pending SET reply = ? WHERE attempt = ?", (reply.model_dump_json(), attempt.attempt)
        )

    def judged(self, card: ExperienceCard) -> None:
        """Commits an attempt's card; from here on the attempt is over.

        A kill between the two statements leaves a pending attempt that has a card; `pending` passes it over.
        """
        self.store.append(card)
        self._pending.execute("DELETE FROM pending WHERE attempt = ?", (card.attempt,))

    def cards(self) -> list[ExperienceCard]:
        """The run's cards, in the order of their commits."""
        return self.store.cards(run_id=self.manifest.run_id)

    def pending(self) -> list[PendingAttempt]:
        """The attempts that were under way when the run stopped, by number."""
        done = {card.attempt for card in self.cards()}
        rows = self._pending.execute("SELECT attempt, choice, reply FROM pending ORDER BY attempt").fetchall()
        return [self._restore(*row) for row in rows if row[0] not in done]

    def _restore(self, number: int, choice: str, reply: str | None) -> PendingAttempt:
        chosen = _Choice.model_validate_json(choice)
        attempt = Attempt(
            run_id=self.manifest.run_id,
            task=self.manifest.task,
            attempt=number,
            operator=chosen.operator,
            parents=chosen.parents,
            selection=chosen.selection,
        )
        return PendingAttempt(attempt, Completion.model_validate_json(reply) if reply else None)

    def write_best(self, card: ExperienceCard) -> None:
        """Rewrites `best.py`."""
        write_whole(self.path / "best.py", card.source)

    def write_final(self, final: FinalReport) -> None:
        """Writes `final.json`."""
        write_whole(self.path / "final.json", final.model_dump_json(indent=2))

    def close(self) -> None:
        """Closes the files and lets the next process in."""
        self.store.close()
        self._pending.close()
        self._lock.close()


def read_run_manifest(path: Path) -> RunManifest:
    """Reads a run's manifest.

    Raises:
        StoreError: There is no run in the directory, or its manifest is damaged.
    """
    return _read(path / "manifest.json", RunManifest)


def read_final(path: Path) -> FinalReport | None:
    """Reads a run's final report; None when the run has not come that far."""
    return _read(path / "final.json", FinalReport) if (path / "final.json").is_file() else None


def _read(path: Path, record: type[Record]) -> Record:
    try:
        return record.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StoreError(f"{path.parent}: holds no run (no {path.name})") from error
    except (ValidationError, json.JSONDecodeError) as error:
        raise StoreError(f"{path}: {error}") from error


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that a reader, or a kill, sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
