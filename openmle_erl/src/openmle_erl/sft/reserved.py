"""Reserved tasks: those that evaluation needs, so that no example may come from them.

An example is recognised by its task's name, by the reserved description standing in its prompt, exactly or up to
case, spacing and punctuation, and by most of its word runs. Nothing depends on a marker in the prompt: where no
description can be told apart, the whole prompt is compared. A reserved task without a description is an error.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from openmle_gym.chat import Message
from openmle_gym.errors import ConfigError

from openmle_erl.sft.config import ReservedConfig
from openmle_erl.sft.files import find_packages
from openmle_erl.sft.reasons import Drop
from openmle_erl.sft.shingles import overlap, plain_words, word_runs

SHORT_WORDS = 20
"""A description of fewer words is no evidence where it stands within another text: it must be all of it."""
_OURS, _OURS_END = re.compile(r"^# Task\n\n", re.MULTILINE), "\n\n# Facts\n\n- metric:"
_RELEASED = re.compile(r"^[^\w\n]*Task Description\b[^\w\n]*", re.MULTILINE | re.IGNORECASE)
_RELEASED_END = re.compile(
    r"^[^\w\n]*(?:Data Description|Data Preview|Output Instructions)\b", re.MULTILINE | re.IGNORECASE
)


class ReservedTask(NamedTuple):
    """A task that is kept for evaluation."""

    name: str
    description: str


class Match(NamedTuple):
    """A reserved task that an example comes from."""

    drop: Drop
    task: str
    similarity: float


class Reserved:
    """All reserved tasks, ready to compare with."""

    def __init__(self, tasks: Sequence[ReservedTask], *, similarity: float) -> None:
        """Args:
        similarity: See `ReservedConfig`.
        """
        self._similarity = similarity
        self._known: dict[str, Match | None] = {}
        self._tasks = [(task, " ".join(plain_words(task.description)), word_runs(task.description)) for task in tasks]

    def __len__(self) -> int:
        return len(self._tasks)

    def match(self, messages: Sequence[Message], task: str | None = None) -> Match | None:
        """The reserved task that an example comes from; None where it comes from none.

        Args:
            task: The example's task, where it is known.
        """
        for reserved, _, _ in self._tasks:
            if task is not None and plain_words(task) == plain_words(reserved.name):
                return Match(Drop.RESERVED_NAME, reserved.name, 1.0)
        text = task_text(messages)
        if text not in self._known:
            self._known[text] = self._compare(text)
        return self._known[text]

    def _compare(self, text: str) -> Match | None:
        plain = " ".join(plain_words(text))
        runs = word_runs(text)
        near: Match | None = None
        for reserved, reserved_plain, reserved_runs in self._tasks:
            short = min(reserved_plain.count(" "), plain.count(" ")) + 1 < SHORT_WORDS
            description = reserved.description.strip()
            if description == text.strip() or (not short and description in text):
                return Match(Drop.RESERVED_EXACT, reserved.name, 1.0)
            if reserved_plain == plain or (not short and f" {reserved_plain} " in f" {plain} "):
                return Match(Drop.RESERVED_NORMALISED, reserved.name, 1.0)
            share = overlap(runs, reserved_runs)
            if not short and share >= self._similarity and (near is None or share > near.similarity):
                near = Match(Drop.RESERVED_NEAR_DUPLICATE, reserved.name, share)
        return near


def task_text(messages: Sequence[Message]) -> str:
    """The task's description in a prompt of ours or of the released traces; else all that comes before the reply."""
    prompt = "\n\n".join(message.content for message in messages if message.role == "user")
    if (start := _OURS.search(prompt)) and (end := prompt.find(_OURS_END, start.end())) >= 0:
        return prompt[start.end() : end].strip()
    if start := _RELEASED.search(prompt):
        end = _RELEASED_END.search(prompt, start.end())
        return prompt[start.end() : end.start() if end else len(prompt)].strip()
    return prompt


def read_reserved(config: ReservedConfig) -> Reserved:
    """Reads the reserved tasks that the settings name.

    Raises:
        ConfigError: One has no description, or a place holds no task.
    """
    tasks: list[ReservedTask] = []
    for place in config.tasks:
        path = Path(place)
        if path.is_file():
            tasks += _read_lines(path)
        else:
            packages = find_packages([place], setting="reserved.tasks")
            tasks += [ReservedTask(package.name, package.description) for package in packages]
    for task in tasks:
        if not plain_words(task.description):
            raise ConfigError(f"reserved.tasks: {task.name}: has no description to compare with")
    return Reserved(tasks, similarity=config.similarity)


def _read_lines(path: Path) -> list[ReservedTask]:
    tasks = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"reserved.tasks: {path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                entry = json.loads(line)
                name = entry.get("task") or entry["task_name"]
                tasks.append(ReservedTask(str(name), str(entry.get("description") or entry["task_description"])))
            except (ValueError, KeyError, AttributeError) as error:
                raise ConfigError(
                    f'{path}:{number}: expected {{"task": ..., "description": ...}}: {error!r}'
                ) from error
    return tasks
