"""A run's directory: everything that the run knows is in it, so that it can be killed at any moment and resumed.

<run>/manifest.json    what is searched, and how; written once
<run>/store.sqlite     cards (append-only), the attempts that are under way, prompts and replies, model calls, notes, the
                       time spent
<run>/best.py          the best program so far; derived, rewritten whole
<run>/final/           what was run on the validation split, after the search, to choose among the best programs
<run>/best_blend.py    the blend that was submitted, where one was
<run>/final.json       the grading on the test split at the end; again only when a resumed run found a better program
<run>/report.html      made by `openmle-evo report`
"""

import contextlib
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from openmle_gym.chat import Completion, Message
from openmle_gym.contracts import Contract, read_record
from openmle_gym.errors import ConfigError, StoreError
from openmle_gym.evaluate import Attempt
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.locked import LockedFolder
from openmle_gym.manifest import Metric
from openmle_gym.operators import Operator
from openmle_gym.prompts import Remaining
from openmle_gym.scores import TestScore, ValidationScore
from pydantic import JsonValue

from openmle_evo.budget import ModelCall
from openmle_evo.choice_record import BlendRecord, Considered, Strategy
from openmle_evo.config import SearchConfig
from openmle_evo.protocols import FinalPackage
from openmle_evo.skills import SkillsRecord


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
    packages: tuple[str, ...] = ()
    """Installed where programs run, as `name version`."""
    settings: dict[str, JsonValue]
    """The search's settings, without secrets."""
    protocol: str = "holdout"
    """On which scores it selects; `self_valid` is on those that programs print themselves."""
    final_package: FinalPackage | None = None
    """With `two_package`: where the chosen program is graded."""
    skills: SkillsRecord = SkillsRecord()
    """Experience from other tasks: what prompts show, the files that it is from, and those that were refused."""


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
    sandbox_seconds: float = 0.0
    """What the final choice and all gradings on test took in the sandbox, over all lives; charged as attempts are."""
    cards: int = 0
    """How many cards the run had when the program was chosen."""
    finished_at: str
    strategy: Strategy = "best"
    considered: tuple[Considered, ...] = ()
    """With `top_k` and `blend`: the programs that could have been chosen, best first by the search."""
    blend: BlendRecord | None = None
    """With `blend`: what was found. Where it was chosen, `attempt` is the best program's alone."""

    @property
    def chosen_blend(self) -> BlendRecord | None:
        """The blend that was graded; None when it was a program of the search."""
        return self.blend if self.blend is not None and self.blend.chosen else None


Record = TypeVar("Record", bound=Contract)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS pending (
    attempt INTEGER PRIMARY KEY,
    choice TEXT NOT NULL,
    reply TEXT
);
CREATE TABLE IF NOT EXISTS exchanges (attempt INTEGER PRIMARY KEY, messages BLOB NOT NULL, reply BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS calls (call TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS notes (attempt INTEGER PRIMARY KEY, note TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS final_runs (seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS lives (seconds REAL NOT NULL);
"""


class _Choice(Contract):
    operator: Operator
    parents: tuple[int, ...]
    selection: Selection
    remaining: Remaining


class PendingAttempt(NamedTuple):
    """An attempt that is under way: what was chosen, what was left then, and the policy's reply once there is one."""

    attempt: Attempt
    remaining: Remaining
    reply: Completion | None


class RunDirectory:
    """Opened by one process at a time; a second one is refused."""

    def __init__(self, path: Path, manifest: RunManifest) -> None:
        """Use `create` or `resume`."""
        self.path = path
        self.manifest = manifest
        self._folder = LockedFolder(path, doing="is running this run")
        self.store = self._folder.store
        self._tables = self.store.connection
        with _writing(self.store.path):
            self._tables.executescript(_SCHEMA)
            (self._earlier_seconds,) = self._tables.execute("SELECT total(seconds) FROM lives").fetchone()
            self._life = self._tables.execute("INSERT INTO lives VALUES (0)").lastrowid
        self._born = time.monotonic()

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

    def choose(self, attempt: Attempt, remaining: Remaining) -> None:
        """Records what an attempt is about to do; its reply, or the next card, carries it to the disk."""
        choice = _Choice(
            operator=attempt.operator, parents=attempt.parents, selection=attempt.selection, remaining=remaining
        )
        with self.store.unsynced():
            self._tables.execute("INSERT INTO pending VALUES (?, ?, NULL)", (attempt.attempt, choice.model_dump_json()))

    def replied(self, attempt: Attempt, messages: Sequence[Message], reply: Completion) -> None:
        """Records the prompt and the policy's reply, so that a resumed run does not ask (and pay) again."""
        asked = json.dumps([message.model_dump() for message in messages], ensure_ascii=False)
        said = json.dumps({"text": reply.text, "reasoning": reply.reasoning}, ensure_ascii=False)
        with self.store.transaction():
            self._tables.execute(
                "INSERT OR REPLACE INTO exchanges VALUES (?, ?, ?)",
                (attempt.attempt, zlib.compress(asked.encode()), zlib.compress(said.encode())),
            )
            self._tables.execute(
                "UPDATE pending SET reply = ? WHERE attempt = ?", (reply.model_dump_json(), attempt.attempt)
            )

    def judged(self, card: ExperienceCard) -> None:
        """Commits an attempt's card; from here on the attempt is over."""
        with self.store.transaction():
            self.store.append(card)
            self._tables.execute("DELETE FROM pending WHERE attempt = ?", (card.attempt,))
            self._tables.execute("UPDATE lives SET seconds = ? WHERE rowid = ?", (self._this_life(), self._life))

    def cards(self) -> list[ExperienceCard]:
        """The run's cards, in the order of their commits."""
        return self.store.cards(run_id=self.manifest.run_id)

    def pending(self) -> list[PendingAttempt]:
        """The attempts that were under way when the run stopped, by number."""
        rows = self._tables.execute(
            "SELECT attempt, choice, reply FROM pending WHERE attempt NOT IN (SELECT attempt FROM cards WHERE run_id = ?)"
            " ORDER BY attempt",
            (self.manifest.run_id,),
        ).fetchall()
        return [self._restore(*row) for row in rows]

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
        return PendingAttempt(attempt, chosen.remaining, Completion.model_validate_json(reply) if reply else None)

    def called(self, call: ModelCall) -> None:
        """Records a model call; what comes of it carries it to the disk."""
        with self.store.unsynced():
            self._tables.execute("INSERT INTO calls VALUES (?)", (call.model_dump_json(),))

    def calls(self) -> list[ModelCall]:
        """Every model call so far, in order."""
        rows = self._tables.execute("SELECT call FROM calls ORDER BY rowid").fetchall()
        return [ModelCall.model_validate_json(row) for (row,) in rows]

    def noted(self, attempt: int, note: str) -> None:
        """Records a model's note on an attempt."""
        self._tables.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (attempt, note))

    def notes(self) -> dict[int, str]:
        """The models' notes by attempt."""
        return dict(self._tables.execute("SELECT attempt, note FROM notes").fetchall())

    def wall_seconds(self) -> float:
        """For how long the run has been open, over all its lives; of a life that was killed, up to its last card."""
        return self._earlier_seconds + self._this_life()

    def charge_final(self, seconds: float) -> None:
        """Records sandbox seconds of a final choice, or of the grading of what it chose."""
        self._tables.execute("INSERT INTO final_runs VALUES (?)", (seconds,))

    def final_seconds(self) -> float:
        """What the final choices and gradings so far took in the sandbox."""
        (seconds,) = self._tables.execute("SELECT total(seconds) FROM final_runs").fetchone()
        return seconds

    def _this_life(self) -> float:
        return time.monotonic() - self._born

    def write_best(self, card: ExperienceCard) -> None:
        """Rewrites `best.py`."""
        write_whole(self.path / "best.py", card.source)

    def write_final(self, final: FinalReport) -> None:
        """Writes `final.json`."""
        write_whole(self.path / "final.json", final.model_dump_json(indent=2))

    def close(self) -> None:
        """Closes the files and lets the next process in."""
        try:
            self._tables.execute("UPDATE lives SET seconds = ? WHERE rowid = ?", (self._this_life(), self._life))
        finally:
            self._folder.close()

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Closes the run in the end, however that comes.

        Raises:
            StoreError: The store could not be written, as on a full disk; all that was committed before is kept.
        """
        with _writing(self.store.path):
            try:
                yield
            finally:
                self.close()


@contextlib.contextmanager
def _writing(store: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        kept = f"what was committed is kept: go on with `openmle-evo resume {store.parent}`"
        raise StoreError(f"{store}: {error}; {kept}") from error


def read_run_manifest(path: Path) -> RunManifest:
    """Reads a run's manifest.

    Raises:
        StoreError: There is no run in the directory, or its manifest is damaged.
    """
    return _read(path / "manifest.json", RunManifest)


def settings_of(manifest: RunManifest, path: Path) -> SearchConfig:
    """The settings that a run was started with.

    Args:
        path: The run, for the error.

    Raises:
        StoreError: They are not settings of this version.
    """
    try:
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(SearchConfig), manifest.settings))
    except (OmegaConfBaseException, ConfigError) as error:
        raise StoreError(f"{path}: the manifest's settings: {str(error).splitlines()[0]}") from error
    assert isinstance(config, SearchConfig)
    return config


def read_final(path: Path) -> FinalReport | None:
    """Reads a run's final report; None when the run has not come that far."""
    return _read(path / "final.json", FinalReport) if (path / "final.json").is_file() else None


def _read(path: Path, record: type[Record]) -> Record:
    try:
        return read_record(path, record)
    except FileNotFoundError as error:
        raise StoreError(f"{path.parent}: holds no run (no {path.name})") from error


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that a reader, or a kill, sees the old content or the new, never a part.

    Raises:
        OSError: It cannot be written; names the file, of which nothing new is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)  # on a full disk a part of it would keep the disk full
        raise OSError(error.errno, error.strerror, str(path)) from error
