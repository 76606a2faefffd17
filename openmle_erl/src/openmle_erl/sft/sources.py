"""What a corpus is built from: collections of parallel Drafts, and run directories of searches."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path

from openmle_gym.chat import Message
from openmle_gym.contracts import ForeignContract, read_record
from openmle_gym.errors import ConfigError, StoreError
from openmle_gym.experience import ExperienceCard
from openmle_gym.jobs import MIB, Limits
from openmle_gym.memory import MemoryConfig, recall, remembered
from openmle_gym.prompts import PublicTask, Surroundings, build_prompt, public_task
from openmle_gym.store import CardStore
from openmle_gym.task import TaskPackage
from pydantic import Field, JsonValue

from openmle_erl.sft.acceptance import TaskFacts, task_facts
from openmle_erl.sft.collection import read_collection_manifest
from openmle_erl.sft.config import BuildConfig
from openmle_erl.sft.exchanges import Exchange, recorded_exchanges
from openmle_erl.sft.files import find_packages


class RunFacts(ForeignContract):
    """What is read of a search run's `manifest.json`."""

    run_id: str
    task: str
    package: str
    packages: tuple[str, ...] = ()
    settings: dict[str, JsonValue] = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task as examples need it."""

    facts: TaskFacts
    package: TaskPackage

    @cached_property
    def public(self) -> PublicTask:
        """Its public half, read when it is first needed."""
        return public_task(self.package)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that a prompt says of it."""
        text = self.public.manifest.model_dump_json() + self.public.description + self.public.data
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, kw_only=True)
class RunSource:
    """One run's cards: a task's Drafts in a collection, or a search."""

    kind: str
    """`parallel` or `search`."""
    path: Path
    run_id: str
    task: Task
    cards: tuple[ExperienceCard, ...]
    """In order of commit."""
    exchanges: Mapping[int, Exchange]
    limits: Limits
    memory: MemoryConfig
    packages: tuple[str, ...] = ()
    """What prompts said is installed where programs run."""

    @cached_property
    def by_attempt(self) -> dict[int, ExperienceCard]:
        """The cards by their numbers."""
        return {card.attempt: card for card in self.cards}

    @property
    def digest(self) -> str:
        """SHA-256 of the cards and of what was said, in order of attempts."""
        digest = hashlib.sha256()
        for card in sorted(self.cards, key=lambda each: each.attempt):
            digest.update(card.model_dump_json().encode("utf-8", "surrogatepass"))
        for number, exchange in sorted(self.exchanges.items()):
            digest.update(f"{number}{exchange.messages}{exchange.reply}".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def prompt(self, card: ExperienceCard) -> list[Message]:
        """The prompt that the card's reply answered: the recorded one, or the same built again.

        One that is built again may differ from the original in what was left of the run's budgets, which cards do not
        tell, and in the earlier attempts that it lists where several attempts were under way at once.
        """
        if card.attempt in self.exchanges:
            return self.exchanges[card.attempt].messages
        earlier = self._known_to(card)
        parents = [self.by_attempt[number] for number in card.parents]
        lines = remembered(recall(card.operator, parents, earlier, self.memory), earlier, {}, self.memory)
        around = Surroundings(limits=self.limits, packages=self.packages, earlier=lines)
        return build_prompt(card.operator, self.task.public, parents, around)

    def _known_to(self, card: ExperienceCard) -> list[ExperienceCard]:
        """The cards that were committed when the attempt began."""
        seconds = card.model_seconds + card.queue_seconds + card.sandbox_seconds
        began = datetime.fromisoformat(card.finished_at) - timedelta(seconds=seconds)
        return [
            each
            for each in self.cards
            if each.attempt < card.attempt and datetime.fromisoformat(each.finished_at) <= began
        ]


class TaskBook:
    """Finds the packages of tasks, by name."""

    def __init__(self, config: BuildConfig, references: Mapping[str, float]) -> None:
        self._references = references
        self._packages = {package.name: package for package in find_packages(config.tasks, setting="tasks")}
        self._tasks: dict[str, Task] = {}

    def add(self, places: Sequence[str]) -> None:
        """Takes packages from where a source found them, as far as they are still there; `tasks` goes before."""
        for place in places:
            if Path(place).is_dir():
                for package in find_packages([place], setting="tasks"):
                    self._packages.setdefault(package.name, package)

    def task(self, name: str, *, wanted_by: Path) -> Task:
        """A task.

        Raises:
            ConfigError: Its package was not found.
        """
        if name not in self._tasks:
            if name not in self._packages:
                raise ConfigError(f"tasks: no package of task {name!r}, which {wanted_by} needs; name its folder")
            package = self._packages[name]
            self._tasks[name] = Task(facts=task_facts(package, self._references), package=package)
        return self._tasks[name]


def read_collection(path: Path, book: TaskBook) -> list[RunSource]:
    """A collection's tasks, one source each, by name.

    Raises:
        StoreError: There is no collection.
        ConfigError: A task's package was not found.
    """
    manifest = read_collection_manifest(path)
    settings = manifest.settings
    places = settings.get("tasks")
    book.add([str(place) for place in places] if isinstance(places, list) else [])
    by_run: dict[str, list[ExperienceCard]] = {}
    for card in _cards(path):
        by_run.setdefault(card.run_id, []).append(card)
    return [
        RunSource(
            kind="parallel",
            path=path,
            run_id=run_id,
            task=book.task(cards[0].task, wanted_by=path),
            cards=tuple(sorted(cards, key=lambda card: card.attempt)),
            exchanges=recorded_exchanges(path / "store.sqlite", run_id),
            limits=_limits(settings),
            memory=MemoryConfig(),
        )
        for run_id, cards in sorted(by_run.items())
    ]


def read_run(path: Path, book: TaskBook) -> RunSource:
    """A search run.

    Raises:
        StoreError: There is no run in the directory, or its manifest is damaged.
        ConfigError: Its task's package was not found.
    """
    try:
        facts = read_record(path / "manifest.json", RunFacts)
    except FileNotFoundError as error:
        raise StoreError(f"{path}: holds no run (no manifest.json)") from error
    book.add([facts.package])
    memory = facts.settings.get("memory")
    known = {field.name for field in dataclasses.fields(MemoryConfig)}
    told = {name: value for name, value in memory.items() if name in known} if isinstance(memory, dict) else {}
    return RunSource(
        kind="search",
        path=path,
        run_id=facts.run_id,
        task=book.task(facts.task, wanted_by=path),
        cards=tuple(card for card in _cards(path) if card.run_id == facts.run_id),
        exchanges=recorded_exchanges(path / "store.sqlite", facts.run_id),
        limits=_limits(facts.settings),
        memory=MemoryConfig(**told),  # pyright: ignore[reportArgumentType]
        packages=facts.packages,
    )


def _cards(path: Path) -> list[ExperienceCard]:
    if not (path / "store.sqlite").is_file():
        raise StoreError(f"{path}: holds no store.sqlite")
    store = CardStore(path / "store.sqlite")
    try:
        return store.cards()
    finally:
        store.close()


def _limits(settings: Mapping[str, JsonValue]) -> Limits:
    """The limits that programs were told, from a run's settings; those of a job where they do not say."""
    limits = Limits()
    changes: dict[str, object] = {}
    if isinstance(seconds := settings.get("timeout_seconds"), int | float):
        changes["wall_seconds"] = float(seconds)
    if isinstance(memory := settings.get("memory_mib"), int):
        changes["memory_bytes"] = memory * MIB
    return limits.model_copy(update=changes)
