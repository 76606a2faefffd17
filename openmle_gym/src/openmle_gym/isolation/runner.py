"""The protocol that every isolation implements, and the records that it exchanges."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol

from openmle_gym.jobs import Limits

PYTHON = "{python}"
"""In an argv: the Python interpreter that the runner offers to programs."""
INPUTS = "{inputs}"
"""In an argv or an environment value: the folder in which `RunSpec.inputs` appear."""


class Isolation(StrEnum):
    """What held a program: docker, zygote and bubblewrap isolate, process does not."""

    DOCKER = "docker"
    ZYGOTE = "zygote"
    BUBBLEWRAP = "bubblewrap"
    PROCESS = "process"


VramEnforcement = Literal["none", "advisory", "watchdog", "kernel", "mig"]
"""What held a program to its share of a GPU's memory: nothing, its own library, a kill by us, the driver, the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuGrant:
    """The GPUs of one run, which nobody else uses meanwhile."""

    uuids: tuple[str, ...]
    vram_bytes: int
    """The most memory that the run may use on each."""
    enforcement: VramEnforcement
    used_bytes: Callable[[], int] | None = None
    """What the run uses now on the fullest of them; called in a thread, raises RunnerUnavailable when the driver
    fails. None where nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """How a run used its GPUs."""

    enforcement: VramEnforcement
    peak_bytes: int | None = None
    """The most that was seen on one GPU; None where nobody watched."""
    over_limit: bool = False
    """We killed it at `GpuGrant.vram_bytes`."""


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
    gpu: GpuGrant | None = None
    on_log: "Callable[[Callable[[], BoundedLog]], None] | None" = None
    """Called once the record exists, with a function that reads the output kept so far; that function raises
    FileNotFoundError when the run is over."""


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
    too_many_processes: bool = False
    """We killed it at `Limits.processes`."""
    too_much_output: bool = False
    """Its supervisor killed it at `Limits.output_bytes`."""
    disk_full: bool = False
    """We killed it because its working directory held more than `Limits.disk_bytes`, or too many files; where the
    kernel keeps that limit, the program's own call fails instead."""
    gpu: GpuUse | None = None
    """None for a run without a GPU."""
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
