"""The places at work: claims them, leases jobs for them, records what came of each, and stops in order."""

import asyncio
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Literal, TypeVar

from openmle_gym.errors import RunnerUnavailable, StoreError
from openmle_gym.jobs import JobResult

from sandbox_service.artifact_store import ArtifactStore
from sandbox_service.dispatch import Dispatcher, Place
from sandbox_service.live import Waiters
from sandbox_service.records import Histogram, Lease, ResourceClass, WorkerView
from sandbox_service.store import JobStore
from sandbox_service.store_thread import StoreThread
from sandbox_service.worker import run_lease

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
LONGEST_STOP_SECONDS = 30.0
"""How long a stop waits for programs to be dead."""
BOUNDS_SECONDS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")
Stage = Literal["queue", "program", "grading"]


class Durations:
    """Counts seconds into buckets."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self._sum_seconds = 0.0

    def add(self, seconds: float) -> None:
        """One more observation."""
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self._sum_seconds += seconds

    def histogram(self) -> Histogram:
        """The distribution so far."""
        return Histogram(bounds=BOUNDS_SECONDS, counts=tuple(self._counts), sum_seconds=self._sum_seconds)


class Pool:
    """Keeps a dispatcher's places busy with the jobs of a store."""

    def __init__(
        self,
        store: StoreThread,
        *,
        dispatcher: Dispatcher,
        artifacts: ArtifactStore,
        waiters: Waiters,
        gpu_on_cpu: bool,
    ) -> None:
        self.durations: dict[Stage, Durations] = {"queue": Durations(), "program": Durations(), "grading": Durations()}
        self.troubles: Counter[str] = Counter()
        self._store = store
        self._dispatcher = dispatcher
        self._artifacts = artifacts
        self._waiters = waiters
        self._gpu_on_cpu = gpu_on_cpu
        self._arrival = asyncio.Event()
        self._leases: dict[str, Lease] = {}  # by worker
        self._attempts: dict[str, asyncio.Task[None]] = {}
        self._pumps: list[asyncio.Task[None]] = []
        self._runner_in_doubt = False
        self._proving = asyncio.Lock()

    def start(self) -> None:
        """From here on places are claimed and jobs leased."""
        classes: tuple[ResourceClass, ...] = ("cpu", "gpu")
        self._pumps = [asyncio.create_task(self._pump(name)) for name in classes]

    async def drain(self, seconds: float) -> None:
        """Starts nothing more, and gives what runs this long to end."""
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        if self._attempts:
            logger.info("%d jobs run; they have %g s to end", len(self._attempts), seconds)
            await asyncio.wait(set(self._attempts.values()), timeout=seconds)

    async def stop(self) -> None:
        """Starts nothing more, and kills what runs; its jobs stay as they are on record."""
        await self.drain(0.0)
        for attempt in self._attempts.values():
            attempt.cancel()
        if self._attempts:
            await asyncio.wait(set(self._attempts.values()), timeout=LONGEST_STOP_SECONDS)

    def kill(self, job_id: str) -> None:
        """Kills a job's program, if it runs."""
        if job_id in self._attempts:
            self._attempts[job_id].cancel()

    def wake(self) -> None:
        """There may be something to lease. Whoever took hold of the old event before looking into the queue is woken,
        however late they wait on it."""
        self._arrival.set()
        self._arrival = asyncio.Event()

    def workers(self) -> list[WorkerView]:
        """All places, and what runs there."""
        views: list[WorkerView] = []
        for place in self._dispatcher.places():
            lease = self._leases.get(place.worker_id)
            status = "lost" if place.state == "lost" else "busy" if lease else "idle"
            views.append(
                WorkerView(
                    worker_id=place.worker_id,
                    status=status,
                    job_id=lease.job_id if lease else None,
                    resource_class=place.resource_class,
                    node=place.node,
                )
            )
        return views

    def serves(self, resource_class: ResourceClass) -> bool:
        """Whether jobs of this class find a place here."""
        if resource_class == "cpu" or self._gpu_on_cpu:
            return True
        return any(place.resource_class == "gpu" for place in self._dispatcher.places())

    def _classes(self, place: Place) -> tuple[ResourceClass, ...]:
        """The jobs that a place takes: those for a GPU run on the CPU only where there is no GPU at all."""
        if place.resource_class == "gpu":
            return ("gpu",)
        has_gpu = any(other.resource_class == "gpu" for other in self._dispatcher.places())
        return ("cpu", "gpu") if self._gpu_on_cpu and not has_gpu else ("cpu",)

    async def _pump(self, resource_class: ResourceClass) -> None:
        while True:
            try:
                place = await self._dispatcher.acquire(resource_class)
            except RunnerUnavailable as error:
                logger.warning("no %s place for %g s: %s", resource_class, LONGEST_PAUSE_SECONDS, error)
                await asyncio.sleep(LONGEST_PAUSE_SECONDS)
                continue
            lease = None
            try:
                lease = await self._next(place)
            finally:
                if lease is None:
                    self._dispatcher.release(place)
            if lease is None:
                continue
            # No await between lease and registration: a cancel in that gap would find no attempt to kill.
            attempt = self._attempts[lease.job_id] = asyncio.create_task(self._attempt(lease, place))
            self._leases[place.worker_id] = lease
            attempt.add_done_callback(lambda attempt, lease=lease, place=place: self._ended(attempt, lease, place))
            self._waiters.announce(lease.job_id)

    async def _next(self, place: Place) -> Lease | None:
        """The next job for a place, whenever it comes; None when the place was lost meanwhile."""
        while True:
            await self._prove_runner()
            if not await self._dispatcher.still_usable(place):
                return None
            arrival, classes = self._arrival, self._classes(place)
            lease = await self._patiently(lambda store, classes=classes: store.lease(place.worker_id, classes))
            if lease is not None:
                return lease
            await arrival.wait()

    async def _attempt(self, lease: Lease, place: Place) -> None:
        verdict = await run_lease(lease, place, dispatcher=self._dispatcher, artifacts=self._artifacts)
        self._runner_in_doubt |= verdict.runner_in_doubt
        # The call is made before the place is free: what is leased for it next comes after the verdict on record, and
        # both share one wait for the disk.
        recording = asyncio.create_task(self._patiently(verdict.record))
        self._vacate(lease, place)
        try:
            recorded = await recording
        finally:
            self._artifacts.unpin(verdict.artifacts)
        if verdict.trouble:
            self.troubles[verdict.trouble] += 1
        if verdict.result is not None and recorded:
            self._observe(verdict.result)

    def _vacate(self, lease: Lease, place: Place) -> None:
        """Frees the place, once."""
        if self._leases.get(place.worker_id) is lease:
            del self._leases[place.worker_id]
            self._dispatcher.release(place)

    def _ended(self, attempt: asyncio.Task[None], lease: Lease, place: Place) -> None:
        if self._attempts.get(lease.job_id) is attempt:  # and not the job's next attempt
            del self._attempts[lease.job_id]
        self._vacate(lease, place)
        self._waiters.announce(lease.job_id)
        self.wake()

    def _observe(self, result: JobResult) -> None:
        self.durations["queue"].add(result.queue_seconds)
        self.durations["program"].add(result.program_seconds)
        self.durations["grading"].add(result.grading_seconds)

    async def _prove_runner(self) -> None:
        """After RunnerUnavailable nobody leases until the runner's check passes: an engine that restarts costs the
        jobs it held an attempt, and the queue nothing."""
        async with self._proving:
            pause = FIRST_PAUSE_SECONDS
            while self._runner_in_doubt:
                try:
                    await self._dispatcher.check()
                    self._runner_in_doubt = False
                except RunnerUnavailable as error:
                    logger.warning("no job starts for %g s: %s", pause, error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _patiently(self, operation: Callable[[JobStore], Answer]) -> Answer:
        """A call on the store, until it succeeds: a full disk must lose neither results nor places."""
        while True:
            try:
                return await self._store.call(operation)
            except StoreError:
                logger.exception("the job store failed; trying again in %g s", LONGEST_PAUSE_SECONDS)
                await asyncio.sleep(LONGEST_PAUSE_SECONDS)
