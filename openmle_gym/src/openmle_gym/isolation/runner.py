"""The protocol that every isolation implements, and the records that it exchanges."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from openmle_gym.jobs import Limits

PYTHON = "{python}"
"""In an argv: the Python interpreter that the runner offers to programs."""
INPUTS = "{inputs}"
"""In an argv or an environment value: the folder in which `RunSpec.inputs` appear."""


class Isolation(StrEnum):
    """How strongly a program was held, strongest first."""

    DOCKER = "docker"
    BUBBLEWRAP = "bubblewrap"
    PROCESS = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One command to run. Its working directory is fresh, writable, and gone afterwards."""

    argv: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Written into the working directory before the start, by plain file name."""
    inputs: Mapping[str, Path] = field(default_factory=dict)
    """Files and folders of the host, read-only, visible as `{inputs}/<name>`; nothing else of the host's data is."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The whole environment, beside PATH, HOME, TMPDIR, LANG and the thread-count variables; nothing is inherited."""
    limits: Limits = field(default_factory=Limits)
    artifacts: Mapping[str, int] = field(default_factory=dict)
    """Files to read back from the working directory after death: plain name to the most bytes accepted."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedLog:
    """Standard output and error as they came, cut in the middle when they exceed the budget."""

    head: str
    """Everything, when nothing was cut."""
    tail: str = ""
    """Empty when nothing was cut."""
    truncated_bytes: int = 0

    @property
    def text(self) -> str:
        """Head and tail with a line between them that says how much is missing."""
        if not self.truncated_bytes:
            return self.head + self.tail
        return f"{self.head}\n[... {self.truncated_bytes} bytes cut ...]\n{self.tail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file read back, or why it was not."""

    content: bytes | None = None
    refusal: str | None = None
    """`missing`, `not_regular` (link, FIFO, device, folder), `too_large`, `hard_link`, or `unreadable`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a command ended."""

    exit_code: int | None
    """None when a signal or we ended it."""
    signal: int | None = None
    """The signal that ended it, when one did."""
    timed_out: bool = False
    """We killed it at `Limits.wall_seconds`."""
    out_of_memory: bool = False
    """It, or one of its processes, was killed at `Limits.memory_bytes`."""
    wall_seconds: float
    log: BoundedLog
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    isolation: Isolation
    warnings: tuple[str, ...] = ()


class Runner(Protocol):
    """One way to hold an untrusted command."""

    @property
    def isolation(self) -> Isolation:
        """What this runner guarantees; on every result."""
        ...

    async def check(self) -> None:
        """Proves by a tiny run that this machine can do it.

        Raises:
            RunnerUnavailable: It cannot; the message says why and what to do.
        """
        ...

    async def run(self, spec: RunSpec) -> RunResult:
        """Runs one command to its end; when it returns, or is cancelled, no process of the command is alive.

        Raises:
            RunnerUnavailable: The command could not be started for reasons that are not its own.
        """
        ...
