"""Jobs from submit to end: the durable queue, the workers that lease from it, and who waits for an end.

The record decides: every change is first in the store. Workers and waiters are woken after the call that changed it
was made, and the store's thread carries out calls in order, so whoever is woken reads the change.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, TypeVar

from openmle_gym.contracts import Contract
from openmle_gym.errors import InfrastructureError, OpenMLEError, RunnerUnavailable, StoreError
from openmle_gym.execute import run_job
from openmle_gym.isolation.runner import Runner
from openmle_gym.jobs import JobRequest, JobState, JobView, Limits

from sandbox_service.packages import Packages
from sandbox_service.store import JobStore, Lease, Submitted
from sandbox_service.store_thread import StoreThread

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class WorkerView(Contract):
    """One worker, as the wire protocol shows it."""

    worker_id: str
    status: Literal["idle", "busy"]
    job_id: str | None


class Status(Contract):
    """What runs and what waits."""

    workers_show: list[WorkerView]
    queued: int
    running: int
    isolation: str


class Scheduler:
    """The queue and its workers. Use as an async context manager: it works between entry and exit."""

    def __init__(
        self,
        *,
        store: JobStore,
        packages: Packages,
        runner: Runner,
        limits: Limits,
        workers: int,
        max_attempts: int,
        max_queued: int,
    ) -> None:
        """Args:
        store: Owned from the entry on.
        workers: Jobs that run at once.
        max_attempts: How often a job is started before infrastructure trouble fails it.
        max_queued: Jobs that may wait.
        """
        self.packages = packages
        self.isolation = runner.isolation
        self._job_store = store
        self._runner = runner
        self._limits = limits
        self._max_attempts = max_attempts
        self._max_queued = max_queued
        self._arrival = asyncio.Event()
        self._held: dict[str, str | None] = dict.fromkeys(f"worker-{number}" for number in range(1, workers + 1))
        self._attempts: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._stopping = False
        self._runner_in_doubt = False
        self._proving = asyncio.Lock()
        self._workers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Scheduler":
        self._store = StoreThread(self._job_store)
        recovered = await self._store.call(lambda store: store.recover_running(max_attempts=self._max_attempts))
        if recovered:
            logger.warning(
                "%d jobs ran when the service died; they run again, or fail after their last attempt", recovered
            )
        self._workers = [asyncio.create_task(self._work(worker_id)) for worker_id in self._held]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self._store.close()

    async def stop(self) -> None:
        """Kills what runs and queues it again, and answers all who wait. Reading and submitting still work."""
        self._stopping = True
        for job_id in list(self._waiting):
            self._announce(job_id)
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        await self._store.call(lambda store: store.release_running())

    async def submit(self, request: JobRequest, *, owner: str) -> Submitted:
        """See `JobStore.submit`."""
        try:
            return await self._store.call(lambda store: store.submit(request, owner=owner, max_queued=self._max_queued))
        finally:
            self._wake_workers()

    async def get(self, job_id: str, *, wait_seconds: float = 0.0) -> JobView | None:
        """How a job stands, once it has ended or `wait_seconds` have passed; None when there is no such job."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_seconds
        stirred = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(stirred)
        try:
            while True:
                stirred.clear()
                view = await self._store.call(lambda store: store.get(job_id))
                if view is None or view.status.terminal or self._stopping or clock() >= deadline:
                    return view
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await stirred.wait()
        finally:
            self._waiting[job_id].discard(stirred)
            if not self._waiting[job_id]:
                del self._waiting[job_id]

    async def newest(self, *, state: JobState | None, label: tuple[str, str] | None, limit: int) -> list[JobView]:
        """See `JobStore.newest`."""
        return await self._store.call(lambda store: store.newest(state=state, label=label, limit=limit))

    async def owner(self, job_id: str) -> str | None:
        """Who submitted a job; None when there is no such job."""
        return await self._store.call(lambda store: store.owner(job_id))

    async def cancel(self, job_id: str) -> None:
        """Cancels a job, and has its program killed when it runs; one that has ended stays as it is."""
        try:
            await self._store.call(lambda store: store.cancel(job_id))
        finally:
            if job_id in self._attempts:
                self._attempts[job_id].cancel()
            self._announce(job_id)

    async def status(self) -> Status:
        """What runs and what waits."""
        queued, running = await self._store.call(
            lambda store: (store.count(JobState.QUEUED), store.count(JobState.RUNNING))
        )
        workers = [
            WorkerView(worker_id=worker_id, status="idle" if job_id is None else "busy", job_id=job_id)
            for worker_id, job_id in self._held.items()
        ]
        return Status(workers_show=workers, queued=queued, running=running, isolation=self.isolation)

    def _announce(self, job_id: str) -> None:
        for stirred in self._waiting.get(job_id, ()):
            stirred.set()

    def _wake_workers(self) -> None:
        """Whoever took hold of the old event before looking into the queue is woken, however late they wait on it."""
        self._arrival.set()
        self._arrival = asyncio.Event()

    async def _work(self, worker_id: str) -> None:
        while True:
            await self._prove_runner()
            arrival = self._arrival
            lease = await self._patiently(lambda store: store.lease(worker_id))
            if lease is None:
                await arrival.wait()
                continue
            # No await between lease and registration: a cancel in that gap would find no attempt to kill.
            self._held[worker_id] = lease.job_id
            attempt = self._attempts[lease.job_id] = asyncio.create_task(self._attempt(lease))
            try:
                await asyncio.wait({attempt})
            finally:
                attempt.cancel()
                await asyncio.wait({attempt})
                del self._attempts[lease.job_id]
                self._held[worker_id] = None

    async def _attempt(self, lease: Lease) -> None:
        record = await self._verdict(lease)
        await self._patiently(record)
        self._announce(lease.job_id)
        self._wake_workers()

    async def _verdict(self, lease: Lease) -> Callable[[JobStore], bool]:
        """Runs the job; returns what to record of it."""
        try:
            request = JobRequest.model_validate_json(lease.request_json)
            package = await asyncio.to_thread(self.packages.load, request.data_dir)
            result = await run_job(request, package=package, runner=self._runner, limits=self._limits)
            result_json = result.model_copy(update={"queue_seconds": lease.queue_seconds}).model_dump_json(
                by_alias=True
            )
            return lambda store: store.complete(lease, result_json)
        except InfrastructureError as error:
            self._runner_in_doubt |= isinstance(error, RunnerUnavailable)
            trouble = f"{type(error).__name__}: {error}"
            logger.warning("job %s, attempt %d: %s", lease.job_id, lease.attempts, trouble)
        except OpenMLEError as error:
            failure = f"{type(error).__name__}: {error}"
            return lambda store: store.fail(lease, failure)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
            logger.exception("job %s, attempt %d", lease.job_id, lease.attempts)
        return lambda store: store.retry(lease, trouble, max_attempts=self._max_attempts)

    async def _prove_runner(self) -> None:
        """After RunnerUnavailable nobody leases until the runner's check passes: an engine that restarts costs the
        jobs it held an attempt, and the queue nothing."""
        async with self._proving:
            pause = FIRST_PAUSE_SECONDS
            while self._runner_in_doubt:
                try:
                    await self._runner.check()
                    self._runner_in_doubt = False
                except RunnerUnavailable as error:
                    logger.warning("no job starts for %g s: %s", pause, error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _patiently(self, operation: Callable[[JobStore], Answer]) -> Answer:
        """A worker's call on the store, until it succeeds: a full disk must lose neither results nor workers."""
        while True:
            try:
                return await self._store.call(operation)
            except StoreError:
                logger.exception("the job store failed; trying again in %g s", LONGEST_PAUSE_SECONDS)
                await asyncio.sleep(LONGEST_PAUSE_SECONDS)
