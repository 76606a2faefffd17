"""Jobs from submit to end: the durable queue, the places that work on it, and who waits for what.

The record decides: every change is first in the store. Places and waiters are woken after the call that changed it
was made, and the store's thread carries out calls in order, so whoever is woken reads the change.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path

from openmle_gym.errors import OpenMLEError, StoreError
from openmle_gym.jobs import MIB, JobRequest, JobState, JobView

from sandbox_service.artifact_store import ArtifactStore
from sandbox_service.dispatch import Dispatcher
from sandbox_service.live import LogFollower, Waiters, kept_output, total_bytes
from sandbox_service.packages import Packages
from sandbox_service.pool import Pool
from sandbox_service.records import (
    ArtifactInfo,
    JobFilter,
    JobLog,
    LogChunk,
    NoSuchResource,
    Page,
    QueueFacts,
    Status,
    Submitted,
)
from sandbox_service.store import JobStore
from sandbox_service.store_thread import StoreThread

EXPIRY_SECONDS = 1.0
"""How often jobs are looked for that have waited for too long."""
RETENTION_SECONDS = 3600.0
LOG_LOOK_SECONDS = 0.5

logger = logging.getLogger(__name__)


class Scheduler:
    """The queue and its places. Use as an async context manager: it works between entry and exit."""

    def __init__(
        self,
        *,
        store: JobStore,
        packages: Packages,
        dispatcher: Dispatcher,
        artifacts: ArtifactStore,
        gpu_on_cpu: bool = True,
        keep_days: float = 30.0,
        most_artifact_bytes: int = 10_240 * MIB,
    ) -> None:
        """Args:
        store: Owned from the entry on.
        dispatcher: Entered and left with this.
        gpu_on_cpu: Whether jobs for a GPU run on the CPU where there is no GPU.
        keep_days: How long logs and artifacts of ended jobs are kept.
        most_artifact_bytes: Kept of all jobs' files; the oldest go first.
        """
        self.packages = packages
        self.isolation = dispatcher.isolation
        self.draining = False
        self._job_store = store
        self._dispatcher = dispatcher
        self._artifacts = artifacts
        self._gpu_on_cpu = gpu_on_cpu
        self._keep_days = keep_days
        self._most_artifact_bytes = most_artifact_bytes
        self._waiters = Waiters()
        self._stopped = False

    async def __aenter__(self) -> "Scheduler":
        await self._dispatcher.__aenter__()
        self._store = StoreThread(self._job_store)
        recovered = await self._store.call(lambda store: store.recover_running())
        if recovered:
            logger.warning(
                "%d jobs ran when the service died; they run again, or fail after their last attempt", recovered
            )
        await asyncio.to_thread(self._artifacts.remove_parts)
        self._pool = Pool(
            self._store,
            dispatcher=self._dispatcher,
            artifacts=self._artifacts,
            waiters=self._waiters,
            gpu_on_cpu=self._gpu_on_cpu,
        )
        self._pool.start()
        self._housekeeping = [asyncio.create_task(self._expire()), asyncio.create_task(self._retain())]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self._store.close()
        await self._dispatcher.__aexit__()

    async def drain(self, seconds: float) -> None:
        """Starts no more jobs, and gives those that run this long to end. Reading and submitting still work."""
        self.draining = True
        await self._pool.drain(seconds)

    async def stop(self) -> None:
        """Kills what runs and queues it again, and answers all who wait. Reading and submitting still work."""
        if self._stopped:
            return
        self.draining = self._stopped = True
        self._waiters.announce_all()
        for task in self._housekeeping:
            task.cancel()
        await asyncio.gather(*self._housekeeping, return_exceptions=True)
        await self._pool.stop()
        await self._store.call(lambda store: store.release_running())

    async def submit(self, request: JobRequest, *, owner: str) -> Submitted:
        """Queues a job; see `JobStore.submit`.

        Raises:
            NoSuchResource: No place here takes jobs of this class.
        """
        self._require_places(request)
        try:
            return await self._store.call(lambda store: store.submit(request, owner=owner))
        finally:
            self._pool.wake()

    async def submit_many(self, requests: Sequence[JobRequest], *, owner: str) -> list[Submitted | OpenMLEError]:
        """Queues jobs in one transaction: each is queued, or has the error that `submit` would raise.

        Raises:
            StoreError: SQLite failed; none was queued.
        """

        def submit(store: JobStore) -> list[Submitted | OpenMLEError]:
            answers: list[Submitted | OpenMLEError] = []
            for request in requests:
                try:
                    self._require_places(request)
                    answers.append(store.submit(request, owner=owner))
                except OpenMLEError as error:
                    answers.append(error)
            return answers

        try:
            return await self._store.call(submit)
        finally:
            self._pool.wake()

    def _require_places(self, request: JobRequest) -> None:
        if not self._pool.serves(request.resource_type):
            raise NoSuchResource(
                f"resource_type {request.resource_type!r}: no worker here has a GPU; submit with 'cpu', or have the"
                " service set gpu_on_cpu=true"
            )

    async def get(self, job_id: str, *, wait_seconds: float = 0.0) -> JobView | None:
        """How a job stands, once it has ended or `wait_seconds` have passed; None when there is no such job."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_seconds
        with self._waiters.on(job_id) as stirred:
            while True:
                stirred.clear()
                view = await self._store.call(lambda store: store.get(job_id))
                if view is None or view.status.terminal or self._stopped or clock() >= deadline:
                    return view
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await stirred.wait()

    async def watch(self, job_id: str) -> AsyncGenerator[JobView, None]:
        """The job now and after every change, until it has ended or the service stops; nothing for an unknown id."""
        seen: JobView | None = None
        with self._waiters.on(job_id) as stirred:
            while True:
                stirred.clear()
                view = await self._store.call(lambda store: store.get(job_id))
                if view is None:
                    return
                if view != seen:
                    seen = view
                    yield view
                if view.status.terminal or self._stopped:
                    return
                await stirred.wait()

    async def log(self, job_id: str) -> JobLog | None:
        """The output of a job's program so far; None when there is no such job."""
        view = await self._store.call(lambda store: store.get(job_id))
        if view is None:
            return None
        live = await self._dispatcher.read_log(job_id) if view.status is JobState.RUNNING else None
        kept = live or (kept_output(view.result) if view.result else None)
        return JobLog(
            text=kept.text if kept else "",
            truncated_bytes=kept.truncated_bytes if kept else 0,
            total_bytes=total_bytes(kept) if kept else 0,
            ended=view.status.terminal,
            attempt=view.attempts,
        )

    async def follow_log(self, job_id: str) -> AsyncGenerator[LogChunk, None]:
        """The output of a job's program as it comes, until the job has ended or the service stops."""
        follower = LogFollower(0)
        with self._waiters.on(job_id) as stirred:
            while True:
                stirred.clear()
                view = await self._store.call(lambda store: store.get(job_id))
                if view is None:
                    return
                if view.attempts != follower.attempt:
                    follower = LogFollower(view.attempts)
                ended = view.status.terminal
                log = kept_output(view.result) if view.result else await self._dispatcher.read_log(job_id)
                for chunk in follower.advance(log, ended=ended) if log else ():
                    yield chunk
                if ended or self._stopped:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOG_LOOK_SECONDS if view.status is JobState.RUNNING else None):
                        await stirred.wait()

    async def page(self, wanted: JobFilter, *, limit: int, before: int | None = None) -> Page:
        """See `JobReader.page`."""
        return await self._store.call(lambda store: store.page(wanted, limit=limit, before=before))

    async def owner(self, job_id: str) -> str | None:
        """Who submitted a job; None when there is no such job."""
        return await self._store.call(lambda store: store.owner(job_id))

    async def cancel(self, job_id: str) -> None:
        """Cancels a job, and has its program killed when it runs; one that has ended stays as it is."""
        try:
            await self._store.call(lambda store: store.cancel(job_id))
        finally:
            self._pool.kill(job_id)
            self._waiters.announce(job_id)

    async def cancel_labelled(self, label: tuple[str, str], *, owner: str | None) -> int:
        """Cancels all jobs with a label, of one owner or of all; returns how many that were."""
        job_ids = await self._store.call(lambda store: store.cancel_labelled(label, owner=owner))
        for job_id in job_ids:
            self._pool.kill(job_id)
            self._waiters.announce(job_id)
        return len(job_ids)

    async def artifacts(self, job_id: str) -> list[ArtifactInfo]:
        """What is kept of the files that a job's program left; empty before its end and when it is too long ago."""
        return await self._store.call(lambda store: store.artifacts(job_id))

    async def artifact_path(self, job_id: str, name: str) -> Path | None:
        """Where such a file lies; None when there is none. It may be removed at any time, but never changes."""
        for info in await self.artifacts(job_id):
            if info.name == name:
                return await asyncio.to_thread(self._artifacts.path, info.sha256)
        return None

    async def status(self) -> Status:
        """What runs and what waits."""
        counts = await self._store.call(lambda store: store.counts())
        return Status(
            workers_show=self._pool.workers(),
            queued=counts[JobState.QUEUED],
            running=counts[JobState.RUNNING],
            isolation=self.isolation,
        )

    async def facts(self) -> QueueFacts:
        """The figures of this moment."""
        lanes, states, outcomes, contents = await self._store.call(
            lambda store: (store.lanes(), store.counts(), store.outcomes(), store.artifact_contents())
        )
        return QueueFacts(
            lanes=lanes,
            states=states,
            outcomes=outcomes,
            workers=self._pool.workers(),
            durations={stage: durations.histogram() for stage, durations in self._pool.durations.items()},
            infrastructure_errors=dict(self._pool.troubles),
            artifact_bytes=sum(contents.values()),
            draining=self.draining,
        )

    async def _expire(self) -> None:
        """Fails the jobs that have waited for too long."""
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            with suppress(StoreError):  # tried again in a second
                for job_id in await self._store.call(lambda store: store.expire_queued()):
                    self._waiters.announce(job_id)

    async def _retain(self) -> None:
        """Forgets the logs and artifacts that are too old or too many."""
        while True:
            try:
                while await self._store.call(self._shed):
                    pass
                wanted = await self._store.call(lambda store: store.artifact_contents())
                await asyncio.to_thread(self._artifacts.remove_all_but, wanted)
            except (StoreError, OSError):
                logger.exception("cannot remove old logs and artifacts; trying again in %g s", RETENTION_SECONDS)
            await asyncio.sleep(RETENTION_SECONDS)

    def _shed(self, store: JobStore) -> bool:
        ended_before = time.time() - self._keep_days * 86400
        return store.shed(ended_before=ended_before, most_artifact_bytes=self._most_artifact_bytes)
