"""The durable queue: one SQLite file that says what jobs there are, how they stand and how they ended.

    queued --lease--> running --complete--> completed
       ^                 |  \\---fail/retry--> failed
       '--- retry -------'         (cancel: queued or running -> cancelled; queued for too long -> failed)

A lease carries a fence, one more at every lease of a job. What ends a job must show the fence of the lease that it
comes from and find the job running, so a worker whose lease was lost changes nothing.

Who is next, among the jobs that a worker can run:

1. High priority before low; but when the oldest job of low priority has waited for `aging_seconds`, every fourth lease
   is of low priority, so that it is never starved.
2. The key with the fewest running jobs; of several, the one whose last lease is longest ago. A key at its cap is passed
   over.
3. Of that key the run (label `run`) with the fewest running jobs; of several, the one longest without a lease.
4. Of that run the job that came first.

`JobStore` is for one thread; the service reaches it through `store_thread.StoreThread`.
"""

import json
import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from openmle_gym.errors import StoreError
from openmle_gym.jobs import JobRequest, JobResult, JobState, JobView

from sandbox_service.reading import VIEW, JobReader, view_of
from sandbox_service.records import (
    RUN_LABEL,
    ArtifactInfo,
    KeyOverCap,
    KeyReused,
    Lease,
    QueueFull,
    QueuePolicy,
    ResourceClass,
    Submitted,
)
from sandbox_service.schema import prepare

LEASES_PER_AGED_JOB = 4
CACHE_KIB = 32 * 1024
"""Holds the indexes of 50,000 waiting jobs."""
ANY_CLASS: tuple[ResourceClass, ...] = ("cpu", "gpu")
_WAITS_AGAIN = "state = 'queued', worker_id = NULL, started_at = NULL, deadline = deadline + :now - started_at"


class JobStore(JobReader):
    """The jobs in one file. Its methods take part in the transaction around them; see `transaction`."""

    def __init__(self, path: Path, policy: QueuePolicy | None = None) -> None:
        """Opens or creates the file.

        Raises:
            StoreError: The file is not a job store, or one of another version.
        """
        self.path = path
        self.policy = policy or QueuePolicy()
        try:
            self._sql = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._sql.row_factory = sqlite3.Row
            self._sql.execute("PRAGMA journal_mode=WAL")
            self._sql.execute("PRAGMA synchronous=FULL")
            self._sql.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
            prepare(self._sql, path)
            (self._served,) = self._sql.execute("SELECT coalesce(max(served), 0) FROM owners").fetchone()
        except sqlite3.Error as error:
            raise StoreError(f"{path}: not a job store: {error}") from error
        self._leases_since_low = 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is done inside is on disk afterwards, or, after an exception, was never done.

        Raises:
            StoreError: SQLite failed (disk full, input/output error).
        """
        try:
            self._sql.execute("BEGIN")
            yield
            self._sql.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error
        finally:
            if self._sql.in_transaction:
                self._sql.execute("ROLLBACK")

    def submit(self, request: JobRequest, *, owner: str) -> Submitted:
        """Queues a job, unless the owner's idempotency key has one already.

        Raises:
            KeyReused: It has, with another payload.
            QueueFull: As many jobs wait as may.
            KeyOverCap: As many jobs of this owner wait as may.
        """
        key = request.idempotency_key
        if key is not None:
            query = f"SELECT {VIEW}, result, request FROM jobs WHERE owner = ? AND idempotency_key = ?"
            row = self._sql.execute(query, (owner, key)).fetchone()
            if row is not None:
                if JobRequest.model_validate_json(row["request"]) != request:
                    raise KeyReused(f"idempotency_key {key!r} belongs to job {row['job_id']}, with another payload")
                return Submitted(view_of(row), created=False)
        self._require_room(owner)
        now = time.time()
        patience = [seconds for seconds in (request.queue_timeout_seconds, self.policy.queue_seconds) if seconds]
        view = JobView(
            job_id=uuid.uuid4().hex,
            status=JobState.QUEUED,
            created_at=datetime.fromtimestamp(now, UTC),
            labels=request.labels,
        )
        seq = self._sql.execute(
            "INSERT INTO jobs (job_id, owner, idempotency_key, resource_class, priority, run, state, created_at,"
            " deadline, labels, request) VALUES (?, ?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?)",
            (
                view.job_id,
                owner,
                key,
                request.resource_type,
                request.priority,
                request.labels.get(RUN_LABEL, ""),
                now,
                now + min(patience) if patience else None,
                json.dumps(request.labels),
                request.model_dump_json(by_alias=True),
            ),
        ).lastrowid
        self._sql.executemany(
            "INSERT INTO labels VALUES (?, ?, ?)", [(*label, seq) for label in request.labels.items()]
        )
        return Submitted(view, created=True)

    def _require_room(self, owner: str) -> None:
        if self.count(JobState.QUEUED) >= self.policy.max_queued:
            raise QueueFull(f"{self.policy.max_queued} jobs wait already; try again later")
        if most := self.policy.max_queued_per_key:
            query = "SELECT coalesce(sum(queued), 0) FROM owners WHERE owner = ?"
            if self._sql.execute(query, (owner,)).fetchone()[0] >= most:
                raise KeyOverCap(f"{most} jobs of this key wait already; try again later")

    def lease(self, worker_id: str, classes: Sequence[ResourceClass] = ANY_CLASS) -> Lease | None:
        """The next job of these classes, now running on that worker; None when there is none. See the module."""
        priority = self._next_lane(classes)
        if priority is None:
            return None
        owner = self._sql.execute(
            f"SELECT owner, resource_class FROM owners WHERE priority = ? AND {self._leasable(classes)}"
            " ORDER BY running, served LIMIT 1",
            (priority,),
        ).fetchone()
        share = (owner["owner"], owner["resource_class"], priority)
        of_share = "owner = ? AND resource_class = ? AND priority = ?"
        run = self._sql.execute(
            f"SELECT run FROM shares WHERE {of_share} AND queued > 0 ORDER BY running, served LIMIT 1", share
        ).fetchone()["run"]
        row = self._sql.execute(
            "UPDATE jobs SET state = 'running', worker_id = ?, started_at = ?, fence = fence + 1,"
            " attempts = attempts + 1"
            f" WHERE seq = (SELECT seq FROM jobs WHERE {of_share} AND run = ? AND state = 'queued' ORDER BY seq LIMIT 1)"
            " RETURNING job_id, fence, attempts, started_at - created_at AS queue_seconds, request AS request_json,"
            " error AS trouble",
            (worker_id, time.time(), *share, run),
        ).fetchone()
        self._served += 2
        self._sql.execute(f"UPDATE owners SET served = ? WHERE {of_share}", (self._served, *share))
        self._sql.execute(f"UPDATE shares SET served = ? WHERE {of_share} AND run = ?", (self._served, *share, run))
        return Lease(**row)

    def _next_lane(self, classes: Sequence[ResourceClass]) -> int | None:
        """The priority that has its turn; None when no job can be leased."""
        query = f"SELECT DISTINCT priority FROM owners WHERE {self._leasable(classes)} ORDER BY priority"
        lanes = [row["priority"] for row in self._sql.execute(query)]
        if not lanes:
            return None
        self._leases_since_low += 1
        turn = len(lanes) > 1 and self._leases_since_low >= LEASES_PER_AGED_JOB
        if turn and self._oldest_seconds(classes, lanes[-1]) >= self.policy.aging_seconds:
            lanes.reverse()
        if lanes[0] == max(lanes):
            self._leases_since_low = 0
        return lanes[0]

    def _leasable(self, classes: Sequence[ResourceClass]) -> str:
        """The condition on `owners` that they have jobs for these classes and are not at their cap."""
        named = ", ".join(f"'{name}'" for name in classes)
        condition = f"queued > 0 AND resource_class IN ({named})"
        if most := self.policy.max_running_per_key:
            condition += f" AND (SELECT sum(o.running) FROM owners AS o WHERE o.owner = owners.owner) < {most}"
        return condition

    def complete(self, lease: Lease, result: JobResult, artifacts: Sequence[ArtifactInfo] = ()) -> bool:
        """Ends a job with its result; False when the lease was lost, and nothing changed."""
        change = "state = 'completed', completed_at = :now, result = :result, outcome = :outcome, error = NULL"
        text = result.model_dump_json(by_alias=True)
        if not self._end(lease, change, result=text, outcome=result.outcome.value):
            return False
        (seq,) = self._sql.execute("SELECT seq FROM jobs WHERE job_id = ?", (lease.job_id,)).fetchone()
        self._sql.executemany(
            "INSERT INTO artifacts VALUES (?, ?, ?, ?)", [(seq, a.name, a.sha256, a.size_bytes) for a in artifacts]
        )
        return True

    def fail(self, lease: Lease, error: str) -> bool:
        """Ends a job without a result; False when the lease was lost."""
        return self._end(lease, "state = 'failed', completed_at = :now, error = :error", error=error)

    def retry(self, lease: Lease, error: str, *, most_attempts: int | None = None) -> bool:
        """Queues a job again in its old place, or fails it after its last attempt; False when the lease was lost.

        Args:
            most_attempts: A bound for this kind of trouble, below the policy's.
        """
        if lease.attempts >= min(self.policy.max_attempts, most_attempts or self.policy.max_attempts):
            return self.fail(lease, f"given up after {lease.attempts} attempts: {error}")
        return self._end(lease, f"{_WAITS_AGAIN}, error = :error", error=f"attempt {lease.attempts}: {error}")

    def _end(self, lease: Lease, change: str, **values: str) -> bool:
        changed = self._sql.execute(
            f"UPDATE jobs SET {change} WHERE job_id = :job_id AND fence = :fence AND state = 'running'",
            {"job_id": lease.job_id, "fence": lease.fence, "now": time.time(), **values},
        )
        return changed.rowcount == 1

    def cancel(self, job_id: str) -> None:
        """Cancels a job that is queued or running; any other stays as it is."""
        self._sql.execute(
            "UPDATE jobs SET state = 'cancelled', completed_at = ? WHERE job_id = ? AND state IN ('queued', 'running')",
            (time.time(), job_id),
        )

    def cancel_labelled(self, label: tuple[str, str], *, owner: str | None) -> list[str]:
        """Cancels all queued and running jobs with a label, of one owner or of all; returns their ids."""
        rows = self._sql.execute(
            "UPDATE jobs SET state = 'cancelled', completed_at = :now WHERE state IN ('queued', 'running')"
            " AND seq IN (SELECT seq FROM labels WHERE key = :key AND value = :value)"
            " AND (:owner IS NULL OR owner = :owner) RETURNING job_id",
            {"now": time.time(), "key": label[0], "value": label[1], "owner": owner},
        )
        return [row["job_id"] for row in rows.fetchall()]

    def expire_queued(self) -> list[str]:
        """Fails the jobs that have waited for longer than they may; returns their ids."""
        rows = self._sql.execute(
            "UPDATE jobs SET state = 'failed', completed_at = :now,"
            " error = 'queue timeout: no worker was free for it in time' || coalesce('; ' || error, '')"
            " WHERE state = 'queued' AND deadline IS NOT NULL AND deadline < :now RETURNING job_id",
            {"now": time.time()},
        )
        return [row["job_id"] for row in rows.fetchall()]

    def release_running(self) -> None:
        """Queues again what runs, as if it had not been started: for a stop in order."""
        self._sql.execute(
            f"UPDATE jobs SET {_WAITS_AGAIN}, attempts = attempts - 1 WHERE state = 'running'", {"now": time.time()}
        )

    def recover_running(self) -> int:
        """Queues again, or fails after its last attempt, what ran when the service died; returns how many."""
        values = {"most": self.policy.max_attempts, "now": time.time()}
        failed = self._sql.execute(
            "UPDATE jobs SET state = 'failed', completed_at = :now,"
            " error = 'given up after ' || attempts || ' attempts: the service died while the job ran'"
            " WHERE state = 'running' AND attempts >= :most",
            values,
        )
        requeued = self._sql.execute(
            f"UPDATE jobs SET {_WAITS_AGAIN},"
            " error = 'attempt ' || attempts || ': the service died while the job ran' WHERE state = 'running'",
            values,
        )
        return failed.rowcount + requeued.rowcount

    def shed(self, *, ended_before: float, most_artifact_bytes: int, jobs: int = 200) -> bool:
        """Forgets the logs and artifacts of some jobs that ended before a time (seconds since the epoch), and the
        oldest artifacts where there are too many bytes; the jobs stay. False when nothing was left to forget."""
        rows = self._sql.execute(
            "UPDATE jobs SET shed = 1, result = json_set(result, '$.run_log', '') WHERE seq IN (SELECT seq FROM jobs"
            " WHERE completed_at IS NOT NULL AND shed = 0 AND completed_at < ? LIMIT ?) RETURNING seq",
            (ended_before, jobs),
        ).fetchall()
        self._sql.executemany("DELETE FROM artifacts WHERE seq = ?", [(row["seq"],) for row in rows])
        counted: set[str] = set()
        room = most_artifact_bytes
        for row in self._sql.execute("SELECT seq, sha256, size_bytes FROM artifacts ORDER BY seq DESC").fetchall():
            room -= 0 if row["sha256"] in counted else row["size_bytes"]
            counted.add(row["sha256"])
            if room < 0:
                self._sql.execute("DELETE FROM artifacts WHERE seq <= ?", (row["seq"],))
                break
        return bool(rows)

    def close(self) -> None:
        """Closes the file."""
        self._sql.close()
