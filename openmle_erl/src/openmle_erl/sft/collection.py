"""A collection on disk: parallel Drafts of many tasks, resumable after a kill at any moment.

<collection>/manifest.json   what is sampled, and how; written once
<collection>/store.sqlite    cards (append-only); the prompt and the reply of each attempt

An attempt that was cut off between its reply and its verdict is judged when the collection goes on, and nothing is
asked again. What is accepted follows from the cards on read; there are no counters that could fall behind.
"""

from pathlib import Path
from typing import Self

from openmle_gym.chat import Completion, Message
from openmle_gym.contracts import Contract, read_record
from openmle_gym.errors import ConfigError, StoreError
from openmle_gym.experience import ExperienceCard
from openmle_gym.locked import LockedFolder
from pydantic import JsonValue

from openmle_erl.sft.exchanges import Exchange, ExchangeStore
from openmle_erl.sft.files import write_whole

FREE_TO_CHANGE = frozenset({"workers", "tasks", "out", "service", "runner", "allow_process", "docker_image"})
"""Settings that may differ when a collection goes on: they do not change what is asked or accepted."""


class CollectionManifest(Contract):
    """What a collection is; fixed at its start."""

    schema_version: int = 1
    kind: str = "collection"
    collection_id: str
    created_at: str
    """ISO 8601 with Z."""
    openmle_version: str
    policy: str
    isolation: str
    settings: dict[str, JsonValue]
    """The collection's settings, without secrets."""


class Collection:
    """Opened by one process at a time; a second one is refused."""

    def __init__(self, path: Path, manifest: CollectionManifest) -> None:
        """Use `open`."""
        self.path = path
        self.manifest = manifest
        self._folder = LockedFolder(path, doing="is collecting there")
        self._cards = self._folder.store
        self._exchanges = ExchangeStore(path / "store.sqlite")

    @classmethod
    def open(cls, path: Path, manifest: CollectionManifest) -> Self:
        """Starts a collection, or goes on with the one that is there.

        Raises:
            ConfigError: The one that is there has other settings; names them.
        """
        path.mkdir(parents=True, exist_ok=True)
        if (path / "manifest.json").exists():
            there = read_collection_manifest(path)
            changed = _changed(there.settings, manifest.settings)
            if changed:
                raise ConfigError(
                    f"{path}: holds a collection with other settings ({', '.join(changed)}); "
                    "go on with those, or choose another out"
                )
            return cls(path, there)
        write_whole(path / "manifest.json", manifest.model_dump_json(indent=2))
        return cls(path, manifest)

    def run_id(self, task: str) -> str:
        """The run that a task's cards belong to."""
        return f"{self.manifest.collection_id}-{task}"

    def cards(self, task: str) -> list[ExperienceCard]:
        """A task's cards, by attempt."""
        return sorted(self._cards.cards(run_id=self.run_id(task)), key=lambda card: card.attempt)

    def exchanges(self, task: str) -> dict[int, Exchange]:
        """A task's exchanges by attempt, judged or not."""
        return self._exchanges.exchanges(self.run_id(task))

    def replied(self, task: str, attempt: int, messages: list[Message], reply: Completion) -> None:
        """Records a reply; it is on disk when this returns."""
        self._exchanges.record(self.run_id(task), attempt, messages, reply)

    def judged(self, card: ExperienceCard) -> None:
        """Commits an attempt's card; from here on the attempt is over."""
        self._cards.append(card)

    def close(self) -> None:
        """Closes the files and lets the next process in."""
        self._exchanges.close()
        self._folder.close()


def read_collection_manifest(path: Path) -> CollectionManifest:
    """Reads a collection's manifest.

    Raises:
        StoreError: There is no collection in the folder, or its manifest is damaged.
    """
    try:
        return read_record(path / "manifest.json", CollectionManifest)
    except FileNotFoundError as error:
        raise StoreError(f"{path}: holds no collection (no manifest.json)") from error


def _changed(there: dict[str, JsonValue], here: dict[str, JsonValue]) -> list[str]:
    return sorted(name for name in (there.keys() | here.keys()) - FREE_TO_CHANGE if there.get(name) != here.get(name))
