"""What a build is asked for, and what comes of it."""

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from openmle_gym.build.run_prepare import PrepareSettings
from openmle_gym.build.source import Source
from openmle_gym.build.unpack import UnpackLimits
from openmle_gym.chat import Usage
from openmle_gym.contracts import Contract


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """One source to build from."""

    source: Source
    work: Path
    """The build's own folder: its state, and all that it downloads and makes; the same one resumes."""
    output: Path
    """The folder that packages are put into, each by its name."""
    name: str = ""
    """By default the source's."""
    title: str = ""
    targets: tuple[str, ...] = ()
    """Wishes, as the next ones; empty where there are none."""
    id_column: str = ""
    metric: str = ""
    table: str = ""
    licence: str = ""
    """Where the source does not state it."""
    tasks: int = 1
    attempts: int = 3
    """How many answers of a stage are judged before it fails."""
    seed: int = 0
    keep_raw: bool = True
    allow_mle_bench: bool = False
    prepare: PrepareSettings = field(default_factory=PrepareSettings)
    unpacking: UnpackLimits = field(default_factory=UnpackLimits)

    def wishes(self) -> list[str]:
        """What was wished for, in words for a prompt."""
        said = [
            ("predict exactly the columns", ", ".join(self.targets)),
            ("score by the metric", self.metric),
            ("name rows by the column", self.id_column),
            ("take the labelled rows from", self.table),
        ]
        return [f"{what} {value}" for what, value in said if value]


class BuiltTask(Contract):
    """What became of one task."""

    name: str
    package: str | None = None
    """The package's folder; None where there is none."""
    failed_stage: str = ""
    code: str = ""
    """Why it failed, in one word; else empty."""
    message: str = ""
    warnings: tuple[str, ...] = ()
    """What `check` would have somebody look at."""


class BuildReport(Contract):
    """What became of a build."""

    source: str
    work: str
    tasks: tuple[BuiltTask, ...] = ()
    dropped: dict[str, str] = Field(default_factory=dict)
    """Tasks that were proposed and not built, and why."""
    usage: Usage = Usage()
    """Tokens of all calls, those of earlier runs of the same build included."""
    cost_usd: float | None = None
    """None where the price of a token is not known, or nothing was asked."""

    @property
    def ok(self) -> bool:
        """Whether every task became a package, and there is one."""
        return bool(self.tasks) and all(task.package for task in self.tasks)
