"""Jobs on this machine: its slots, its runner, its copy of the task packages."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from openmle_gym.execute import JobRun, run_job
from openmle_gym.isolation.runner import BoundedLog, Isolation, Runner, RunResult, RunSpec
from openmle_gym.jobs import GRADING_LIMITS, JobRequest, Limits

from sandbox_service.dispatch import Order, Place
from sandbox_service.packages import Packages
from sandbox_service.records import ResourceClass
from sandbox_service.slots import Slot, Slots

SERVICE_LABEL, JOB_LABEL, ATTEMPT_LABEL = "openmle.service", "openmle.job", "openmle.attempt"


class LocalDispatcher:
    """A `Dispatcher` on one machine."""

    def __init__(
        self,
        *,
        runner: Runner,
        packages: Packages,
        limits: Limits,
        grading_limits: Limits = GRADING_LIMITS,
        slots: Slots,
        artifact_bytes: int = 0,
        node: str = "local",
        service_id: str = "",
    ) -> None:
        """Args:
        artifact_bytes: The most that is kept of one job's files, together.
        service_id: On everything that runs here, so that a later life of this service knows its own.
        """
        self.isolation: str = runner.isolation
        self._runner = runner
        self._packages = packages
        self._limits = limits
        self._grading_limits = grading_limits
        self._slots = slots
        self._artifact_bytes = artifact_bytes
        self._node = node
        self._service_id = service_id
        self._held: dict[str, Slot] = {}
        self._logs: dict[str, Callable[[], BoundedLog]] = {}

    async def __aenter__(self) -> "LocalDispatcher":
        await self._slots.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._slots.__aexit__()

    async def check(self) -> None:
        """See `Dispatcher`."""
        await self._runner.check()

    def places(self) -> list[Place]:
        """See `Dispatcher`."""
        return [
            Place(
                worker_id=self._worker_id(view.slot_id),
                node=self._node,
                resource_class=view.resource_type,
                state="lost" if view.state == "quarantined" else "usable",
            )
            for view in self._slots.views()
        ]

    async def acquire(self, resource_class: ResourceClass) -> Place:
        """See `Dispatcher`."""
        slot = await self._slots.acquire(resource_class)
        worker_id = self._worker_id(slot.slot_id)
        self._held[worker_id] = slot
        return Place(worker_id=worker_id, node=self._node, resource_class=resource_class)

    async def still_usable(self, place: Place) -> bool:
        """See `Dispatcher`."""
        return await self._slots.still_usable(self._held[place.worker_id])

    def release(self, place: Place) -> None:
        """See `Dispatcher`."""
        self._slots.release(self._held.pop(place.worker_id))

    async def run(self, place: Place, order: Order) -> JobRun:
        """See `Dispatcher`."""
        request = JobRequest.model_validate_json(order.request_json)
        package = await asyncio.to_thread(self._packages.load, request.data_dir)
        data = await asyncio.to_thread(self._packages.shared_data, package)
        labels = {
            SERVICE_LABEL: self._service_id, JOB_LABEL: order.job_id, ATTEMPT_LABEL: str(order.attempt)
        }  # fmt: skip
        slot = self._held[place.worker_id]

        def adapted(spec: RunSpec) -> RunSpec:
            return replace(
                spec,
                inputs={**spec.inputs, "data": data},
                gpu=slot.gpu,
                on_log=lambda read: self._logs.update({order.job_id: read}),
            )

        try:
            return await run_job(
                request,
                package=package,
                runner=_Labelled(self._runner, labels),
                limits=self._limits,
                grading_limits=self._grading_limits,
                artifact_bytes=self._artifact_bytes,
                adapted=adapted,
            )
        finally:
            self._logs.pop(order.job_id, None)

    async def read_log(self, job_id: str) -> BoundedLog | None:
        """See `Dispatcher`."""
        read = self._logs.get(job_id)
        try:
            return None if read is None else await asyncio.to_thread(read)
        except FileNotFoundError:  # the program has ended, and is being graded
            return None

    def _worker_id(self, slot_id: str) -> str:
        return slot_id if self._node == "local" else f"{self._node}/{slot_id}"


class _Labelled:
    """A runner that puts labels on all that it runs, the grading too; a client's labels do not replace them."""

    def __init__(self, runner: Runner, labels: Mapping[str, str]) -> None:
        self._runner = runner
        self._labels = labels

    @property
    def isolation(self) -> Isolation:
        return self._runner.isolation

    async def check(self) -> None:
        await self._runner.check()

    async def run(self, spec: RunSpec) -> RunResult:
        return await self._runner.run(replace(spec, labels={**spec.labels, **self._labels}))
