"""What the queue hands out and takes in: submits, pages, logs, artifacts, figures, and how it refuses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from openmle_gym.contracts import Contract
from openmle_gym.errors import OpenMLEError
from openmle_gym.jobs import JobState, JobView

ResourceClass = Literal["cpu", "gpu"]
RUN_LABEL = "run"
"""The label by which an owner's jobs share the workers among themselves."""


class QueueFull(OpenMLEError):
    """As many jobs wait as may."""

    retry_after_seconds = 5


class KeyOverCap(OpenMLEError):
    """As many jobs of this key wait as may."""

    retry_after_seconds = 5


class KeyReused(OpenMLEError):
    """An idempotency key came again with another payload."""


class NoSuchResource(OpenMLEError):
    """A job asks for a class of worker that this service does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """How many may wait and run, and for how long. Where 0 is allowed it means no limit."""

    max_queued: int = 100_000
    """Jobs that may wait."""
    max_queued_per_key: int = 0
    max_running_per_key: int = 0
    queue_seconds: float = 0.0
    """How long a job may wait, all its waiting together; a job that asks for less gets less."""
    aging_seconds: float = 600.0
    """When the oldest job of low priority has waited this long, every fourth lease is of low priority."""
    max_attempts: int = 3
    """How often a job is started before infrastructure trouble fails it."""


class Submitted(NamedTuple):
    """A job, and whether this submit made it."""

    view: JobView
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs to list; what is None, or empty, filters nothing."""

    states: frozenset[JobState] = frozenset()
    label: tuple[str, str] | None = None
    owner: str | None = None
    priority: int | None = None


class Page(NamedTuple):
    """Some jobs, newest first, without the logs of their results."""

    views: list[JobView]
    next_before: int | None
    """Where the next page starts; None on the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A worker's right to run a job and to say how it ended."""

    job_id: str
    fence: int
    attempts: int
    """Leases of this job so far, this one included."""
    queue_seconds: float
    request_json: str
    trouble: str | None
    """What ended the attempt before this one; None at the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLog:
    """The output of a job's program, as far as it was kept."""

    text: str
    """Head and tail, with a line between them that says how much is missing; empty while the job waits."""
    truncated_bytes: int
    total_bytes: int
    """Output so far, what was cut included."""
    ended: bool
    """Nothing will be added."""
    attempt: int
    """Which start of the job this is the output of; 0 before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A further piece of a running program's output."""

    text: str
    skipped_bytes: int
    """Output that was cut before anybody read it; it lies before `text`."""
    attempt: int
    """Another number than the chunk's before: the job was started again, and so was its output."""


class ArtifactInfo(Contract):
    """A file that a program left behind."""

    name: str
    size_bytes: int
    sha256: str


class WorkerView(Contract):
    """One worker, as the wire protocol shows it."""

    worker_id: str
    status: Literal["idle", "busy", "lost"]
    """`lost`: its node is gone, or its slot is quarantined; it takes no job."""
    job_id: str | None
    resource_class: ResourceClass = "cpu"
    node: str = "local"


class Status(Contract):
    """What runs and what waits."""

    workers_show: list[WorkerView]
    queued: int
    running: int
    isolation: str


class LaneFacts(NamedTuple):
    """The jobs of one resource class and priority that have not ended."""

    resource_class: ResourceClass
    priority: int
    queued: int
    oldest_seconds: float
    """For how long the oldest one has waited; 0 when none waits."""
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """A distribution of seconds since the service started."""

    bounds: tuple[float, ...]
    """Upper bounds of the buckets, in seconds; a last one without a bound follows."""
    counts: tuple[int, ...]
    """[bounds + 1] observations per bucket, not cumulative."""
    sum_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """The figures of one moment, for `/metrics` and the status page."""

    lanes: list[LaneFacts]
    states: Mapping[JobState, int]
    """Jobs on record by state."""
    outcomes: Mapping[str, int]
    """Completed jobs on record by outcome."""
    workers: list[WorkerView]
    durations: Mapping[Literal["queue", "program", "grading"], Histogram]
    infrastructure_errors: Mapping[str, int] = field(default_factory=dict)
    """Attempts since the start that machinery failed under, by the error's class."""
    artifact_bytes: int = 0
    draining: bool = False

    def slots(self) -> dict[ResourceClass, tuple[int, int]]:
        """Workers in use and workers in all, by class; lost ones count in neither."""
        found: dict[ResourceClass, tuple[int, int]] = {}
        for worker in self.workers:
            if worker.status != "lost":
                used, total = found.get(worker.resource_class, (0, 0))
                found[worker.resource_class] = (used + (worker.status == "busy"), total + 1)
        return found
