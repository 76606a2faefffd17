"""The runs in a folder, read again only when their files have changed."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from openmle_gym.errors import StoreError
from openmle_gym.history import History

from openmle_evo.protocols import all_seen
from openmle_evo.reading import RunFacts, read_run
from openmle_evo.report.payload import page_payload
from openmle_evo.run import read_run_manifest

DEPTH = 4
"""How far below the folder runs are looked for: a suite keeps them two folders down."""


class Look(NamedTuple):
    """A run as it was when its files were at a version."""

    facts: RunFacts
    version: str
    running: bool
    """Whether a process has the run open; on systems without /proc/locks it never seems so."""


class Runs:
    """What is served. May be asked from several threads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._looks: dict[str, Look] = {}
        self._lock = threading.Lock()

    @property
    def is_one(self) -> bool:
        """Whether the root is a run itself."""
        return (self.root / "manifest.json").is_file()

    def paths(self) -> dict[str, Path]:
        """The runs by name: their path below the root. Only what is in here is ever read."""
        if self.is_one:
            return {self.root.resolve().name: self.root}
        return {str(path.relative_to(self.root)): path for path in sorted(_below(self.root, DEPTH)) if _is_run(path)}

    def look(self, name: str) -> Look:
        """Reads a run.

        Raises:
            KeyError: There is no run of that name.
            StoreError: A file of it is damaged.
        """
        path = self.paths()[name]
        running = _is_open(path)
        version = f"{_version(path)}{'+' if running else ''}"
        with self._lock:
            if (kept := self._looks.get(name)) is None or kept.version != version:
                kept = self._looks[name] = Look(read_run(path), version, running)
            return kept


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / "manifest.json").is_file():
        yield folder
    elif depth:
        for child in folder.iterdir():
            if child.is_dir() and not child.is_symlink():
                yield from _below(child, depth - 1)


def _is_run(path: Path) -> bool:
    try:
        read_run_manifest(path)
    except StoreError:
        return False
    return True


def _version(path: Path) -> str:
    """Changes whenever the run does."""
    marks = []
    for name in ("store.sqlite", "store.sqlite-wal", "final.json"):
        try:
            stat = (path / name).stat()
        except FileNotFoundError:
            continue
        marks.append(f"{stat.st_mtime_ns:x}.{stat.st_size:x}")
    return "-".join(marks)


def _is_open(path: Path) -> bool:
    """Whether a process holds the run's lock; asked of the kernel, as taking the lock could keep a run from starting."""
    try:
        stat = (path / ".lock").stat()
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return False
    file = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    return any(" FLOCK " in line and file in line.split() for line in locks.splitlines())


def live_payload(look: Look, name: str, *, have: int = 0) -> dict[str, Any]:
    """What the page of a run shows.

    Args:
        have: So many attempts the page has already; of those only what may have changed is told again.
    """
    payload = page_payload(look.facts)
    told = [
        {key: attempt[key] for key in ("attempt", "rank")} if place < have else attempt
        for place, attempt in enumerate(payload["attempts"])
    ]
    live = {"name": name, "version": look.version}
    return payload | {"attempts": told, "running": look.running, "live": live}


def summary(look: Look, name: str) -> dict[str, Any]:
    """A run in a list of runs."""
    facts = look.facts
    manifest = facts.manifest
    history = History(all_seen(facts.cards, manifest.protocol))
    place = {card.attempt: number for number, card in enumerate(facts.cards, start=1)}
    budget = manifest.settings.get("budget")
    return {
        "name": name,
        "task": manifest.task,
        "title": manifest.title or manifest.task,
        "metric": manifest.metric.name,
        "higher_is_better": manifest.metric.higher_is_better,
        "policy": manifest.policy,
        "protocol": manifest.protocol,
        "state": "finished" if facts.final else "running" if look.running else "stopped",
        "attempts": len(facts.cards),
        "asked": budget.get("attempts") if isinstance(budget, dict) else None,
        "valid": len(history.ranked),
        "best": history.best.validation.value if history.best and history.best.validation else None,
        "test": facts.final.test.value if facts.final and facts.final.test else None,
        "curve": [[place[card.attempt], card.validation.value] for card in history.new_bests if card.validation],
        "sandbox_seconds": facts.seconds.sandbox,
        "tokens": facts.usage.prompt_tokens + facts.usage.completion_tokens,
        "created_at": manifest.created_at,
        "last_result_at": facts.last_result_at,
    }
