"""One execution of a program: what is asked, how it stands, how it ended.

The field names on the wire are the published clients' (POST /api/v1/jobs and GET /api/v1/jobs/{id}); our own names
carry units. Every model reads both.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, Protocol

from pydantic import AfterValidator, AliasChoices, Field, PlainSerializer, computed_field

from openmle_gym.contracts import Contract, ForeignContract
from openmle_gym.scores import SelfReportedScore, TestScore, ValidationScore

MIB = 1024 * 1024


class Outcome(StrEnum):
    """How a program's execution ended; the labels are the published wire protocol's, `rejected` is ours."""

    SUCCESS = "success"
    CODE_EXECUTION_ERROR = "code_execution_error"
    CODE_MISSING = "code_missing"
    SUBMISSION_MISSING = "submission_missing"
    SCORING_FAILED = "scoring_failed"
    """The submission was refused, or the metric failed on it."""
    TIMEOUT = "timeout"
    REJECTED = "rejected"
    """The reward-hack reviewer refused to run the program."""


class JobState(StrEnum):
    """Where a job stands in the service."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    """There is a result, good or bad: `JobView.result`."""
    FAILED = "failed"
    """Infrastructure trouble; there is no result: `JobView.error`."""
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether the state is final."""
        return self in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


class Limits(Contract):
    """What one execution may use."""

    wall_seconds: float = Field(default=60.0, gt=0)
    """Wall clock from start to kill."""
    memory_bytes: int = Field(default=2048 * MIB, gt=0)
    """All processes together; swap is not extra."""
    cpus: float = Field(default=1.0, gt=0)
    """Cores; thread-count variables follow from it."""
    processes: int = Field(default=256, gt=0)
    """Processes and threads alive at once."""
    disk_bytes: int = Field(default=1024 * MIB, gt=0)
    """Size of the working directory and of each temporary file system, and the largest file. Where these are held in
    memory, which they are for a root service, they count against `memory_bytes` too."""
    log_bytes: int = Field(default=64 * 1024, ge=2048)
    """Bytes of output kept: half from the head, half from the tail."""
    output_bytes: int = Field(default=4096 * MIB, gt=0)
    """Bytes of output, kept or not, after which the program is killed: who writes so much is in a loop."""


GRADING_LIMITS = Limits(wall_seconds=300.0, memory_bytes=4096 * MIB, processes=64)
"""What a metric may use, where nothing else is said."""

EvalSplit = Literal["validation", "test", "both"]
SUBMISSION = "submission.csv"
"""What a program writes its predictions to."""


def _plain_names(names: list[str]) -> list[str]:
    for name in names:
        if name in ("", ".", "..") or "/" in name or not name.isprintable() or len(name.encode()) > 200:
            raise ValueError(f"{name[:200]!r} is not a plain file name")
    if len(set(names)) < len(names):
        raise ValueError("a name comes twice")
    return names


class JobRequest(ForeignContract):
    """What a client submits."""

    code: str
    """The program's whole source."""
    data_dir: str = Field(min_length=1)
    """The task package, as the service sees it: absolute inside one of its task roots, or relative to one."""
    timeout_seconds: float = Field(
        default=60.0,
        gt=0,
        allow_inf_nan=False,
        validation_alias=AliasChoices("timeout", "timeout_seconds"),
        serialization_alias="timeout",
    )
    name: str = ""
    resource_type: Literal["cpu", "gpu"] = "cpu"
    priority: int = 2
    """1 is high, 2 is low."""
    idempotency_key: str | None = Field(default=None, max_length=200)
    """The same key and payload is the same job forever."""
    eval_split: EvalSplit = "validation"
    """Which rows of the hidden answers to grade on; `test` and `both` need a key with the `grade` scope."""
    environment: dict[str, str | None] = Field(default_factory=dict)
    """Accepted for the published clients' sake; the service sets the program's environment itself."""
    labels: dict[str, str] = Field(default_factory=dict, max_length=64)
    """Free labels (run, attempt); on the container, in the logs, and to filter by. The runs of one owner, by the label
    `run`, get equal shares of the workers."""
    artifacts: Annotated[list[str], AfterValidator(_plain_names)] = Field(default=[SUBMISSION], max_length=16)
    """Files in the program's working directory to keep when it is dead, by plain name; those that fit the service's
    limit can be fetched for a time."""
    queue_timeout_seconds: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        validation_alias=AliasChoices("queue_timeout", "queue_timeout_seconds"),
        serialization_alias="queue_timeout",
    )
    """How long the job may wait for a worker, all its waiting together, before it fails; None is the service's limit."""


class JobResult(ForeignContract):
    """How one execution ended; the `result` object of the wire protocol."""

    outcome: Outcome = Field(validation_alias=AliasChoices("result", "outcome"), serialization_alias="result")
    score: float | None = None
    """The score on the split that was asked for: the test score for `test`, else the validation score."""
    validation_score: float | None = None
    test_score: float | None = None
    higher_is_better: bool | None = None
    eval_split: EvalSplit = "validation"
    self_reported_score: float | None = None
    """Printed by the program as `Final Validation Score: x`; the last one counts."""
    error_signature: str | None = None
    """Equal for equal failures: exception type and last frame of the program's own code, or `oom`, `timeout`, ..."""
    message: str = ""
    """One paragraph on what went wrong, fit to show a model; empty on success."""
    warnings: list[str] = Field(default_factory=list)
    exit_code: int | None = None
    """None when the program was killed, or never started."""
    program_seconds: float = 0.0
    """Wall clock of the candidate program alone."""
    grading_seconds: float = 0.0
    queue_seconds: float = 0.0
    run_log: str = ""
    """Standard output and error, head and tail, between the published marker lines."""
    truncated_bytes: int = 0
    """Bytes cut from the middle of the log."""
    isolation: str = ""
    """What held the program: `docker`, `bubblewrap` or `process`."""
    vram_enforcement: str | None = None
    """What held the program to its share of a GPU's memory: `none`, `advisory` (its own library), `watchdog` (a kill by
    us), `kernel` or `mig` (the GPU); None for a run without a GPU."""
    peak_vram_bytes: int | None = None
    """The most GPU memory that was seen in use; None where nobody watched."""

    @computed_field
    @property
    def valid_score(self) -> float | None:
        """The validation score under the second name that published clients read."""
        return self.validation_score

    @computed_field
    @property
    def scores_by_split(self) -> dict[str, float]:
        """The scores that were asked for, by split."""
        pairs = {"validation": self.validation_score, "test": self.test_score}
        return {split: score for split, score in pairs.items() if score is not None}

    def validation(self) -> ValidationScore | None:
        """The score that search and RL may select on."""
        if self.validation_score is None or self.higher_is_better is None:
            return None
        return ValidationScore(value=self.validation_score, higher_is_better=self.higher_is_better)

    def test(self) -> TestScore | None:
        """The score for the final report; None unless the job asked for it with a key that may."""
        if self.test_score is None or self.higher_is_better is None:
            return None
        return TestScore(value=self.test_score, higher_is_better=self.higher_is_better)

    def self_reported(self) -> SelfReportedScore | None:
        """What the program claims."""
        if self.self_reported_score is None or self.higher_is_better is None:
            return None
        return SelfReportedScore(value=self.self_reported_score, higher_is_better=self.higher_is_better)


def _iso_z(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


Moment = Annotated[datetime, PlainSerializer(_iso_z, return_type=str, when_used="json")]
"""A time with zone; written as ISO 8601 with Z."""


class JobView(ForeignContract):
    """What the service says of a job."""

    job_id: str
    status: JobState
    created_at: Moment
    started_at: Moment | None = None
    completed_at: Moment | None = None
    worker_id: str | None = None
    attempts: int = 0
    """How often a worker took the job; more than 1 after infrastructure trouble."""
    labels: dict[str, str] = Field(default_factory=dict)
    result: JobResult | None = None
    """Set when the state is `completed`."""
    error: str | None = None
    """What failed in the infrastructure: set when the state is `failed`, and while a job waits or runs again after
    trouble."""


class Executor(Protocol):
    """Anything that runs a job to its end."""

    async def run(self, job: JobRequest) -> JobResult:
        """Runs the job and returns how the program ended, well or badly.

        Raises:
            InfrastructureError: Machinery failed; nothing is known about the program.
        """
        ...
