"""Where jobs run: the narrow waist between the queue and the machines.

The queue claims a place, leases a job for it and has it run there; everything that crosses is plain data, so that a
place may be on this machine (`local`) or on another.
"""

from typing import Literal, Protocol

from openmle_gym.contracts import Contract
from openmle_gym.execute import JobRun
from openmle_gym.isolation.runner import BoundedLog

from sandbox_service.records import ResourceClass


class Place(Contract):
    """Room for one job."""

    worker_id: str
    """Unique among all places of a service."""
    node: str
    resource_class: ResourceClass
    state: Literal["usable", "lost"] = "usable"
    """`lost`: the node is gone or the GPU quarantined; it comes back by itself or never."""


class Order(Contract):
    """One start of one job."""

    job_id: str
    attempt: int
    request_json: str
    """A `JobRequest`."""


class Dispatcher(Protocol):
    """A pool of places. An async context manager: it has places between entry and exit."""

    isolation: str
    """What holds the programs."""

    async def __aenter__(self) -> "Dispatcher": ...

    async def __aexit__(self, *_: object) -> None: ...

    async def check(self) -> None:
        """Proves that programs can be started somewhere.

        Raises:
            RunnerUnavailable: They cannot; the message says why.
        """
        ...

    def places(self) -> list[Place]:
        """All places, in use or not."""
        ...

    async def acquire(self, resource_class: ResourceClass) -> Place:
        """Waits for a free place of a class, for ever where there is none, and keeps it for the caller."""
        ...

    async def still_usable(self, place: Place) -> bool:
        """Whether a job could start now on a place that was acquired, perhaps long ago; if not, give it back."""
        ...

    def release(self, place: Place) -> None:
        """Gives a place back; nothing runs there any more."""
        ...

    async def run(self, place: Place, order: Order) -> JobRun:
        """Runs a job to its verdict. When this is cancelled, the program is dead before it ends.

        Raises:
            JobLost: The node was lost, with all that ran there.
            InfrastructureError: Machinery failed; nothing is known about the program.
            ConfigError, PackageError: The job's task package cannot be used.
        """
        ...

    async def read_log(self, job_id: str) -> BoundedLog | None:
        """The output so far of a job that runs; None before its program starts, and when it has ended."""
        ...
