"""What a build has done so far: one JSON file in its work folder, written whole after every stage."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue

from openmle_gym.chat import Usage
from openmle_gym.contracts import Contract, read_record
from openmle_gym.errors import StoreError

STATE = "state.json"


class StageRecord(Contract):
    """How a stage ended."""

    status: Literal["done", "failed", "stopped"]
    """`failed`: what it made will not do, and its attempts are spent; `stopped`: machinery failed, run it again."""
    fingerprint: str
    """Of all that it was made from; another one means that it has to run again."""
    output: str = ""
    """Of what it made."""
    code: str = ""
    """Why it failed, in one word; else empty."""
    message: str = ""
    seconds: float = 0.0
    """Wall clock of all its runs together."""
    attempts: int = 0
    """Replies of the model that were judged."""
    usage: Usage = Usage()
    """Tokens of the model's replies, those that were not good enough included."""
    cost_usd: float | None = None


class BuildState(Contract):
    """The whole of `state.json`."""

    schema_version: Literal[1] = 1
    source: str
    stages: dict[str, StageRecord] = Field(default_factory=dict)
    """By name, in order; the stages of a task are named `<task>/<stage>`."""


class StateFile:
    """The state on disk. Every change is on disk when the call that makes it returns."""

    def __init__(self, work: Path, source: str) -> None:
        """Raises:
        StoreError: The work folder belongs to another source, or its state cannot be read.
        """
        self._path = work / STATE
        self.state = BuildState(source=source)
        if self._path.is_file():
            self.state = read_record(self._path, BuildState)
            if self.state.source != source:
                raise StoreError(
                    f"{work}: holds the build of {self.state.source}, not of {source}; choose another work"
                )

    def record(self, stage: str) -> StageRecord | None:
        """What is known of a stage."""
        return self.state.stages.get(stage)

    def write(self, stage: str, record: StageRecord) -> None:
        """Puts a stage's record on disk."""
        self.state = self.state.model_copy(update={"stages": {**self.state.stages, stage: record}})
        write_whole(self._path, self.state.model_dump_json(indent=2).encode())


@contextmanager
def locked(work: Path) -> Iterator[None]:
    """Keeps a second build out of a work folder; the lock goes with the process.

    Raises:
        StoreError: Another build has it.
    """
    work.mkdir(parents=True, exist_ok=True)
    with open(work / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreError(f"{work}: another build is at work there") from error
        yield


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that a kill at any moment leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    with open(draft, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def fresh(folder: Path) -> Path:
    """An empty folder in the place of whatever was there."""
    if folder.is_dir():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def fingerprint(*parts: JsonValue) -> str:
    """SHA-256, in hex, of some values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def files_below(root: Path) -> list[Path]:
    """Every regular file below a folder, in the order of its relative path; or the file itself."""
    if root.is_file():
        return [root]
    found = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def listing(root: Path) -> str:
    """A digest of names, sizes and times of change: quick, and other when anybody wrote there."""
    facts: list[JsonValue] = []
    for path in files_below(root):
        stat = path.stat()
        facts.append([path.relative_to(root).as_posix(), stat.st_size, stat.st_mtime_ns])
    return fingerprint(facts)


def tree_hashes(root: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by relative path; reads a piece at a time."""
    hashes = {}
    for path in files_below(root):
        with open(path, "rb") as file:
            hashes[path.relative_to(root).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def tree_digest(hashes: Mapping[str, str]) -> str:
    """One digest for `tree_hashes`."""
    return fingerprint(dict(hashes))


def changed_files(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The names that are in one only, or differ."""
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def shortened(names: Iterable[str], most: int = 5) -> str:
    """Some names for a message."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
