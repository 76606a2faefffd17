"""The durable queue: one SQLite file that says what jobs there are, how they stand and how they ended.

    queued --lease--> running --complete--> completed
       ^                 |  \\---fail/retry--> failed
       '--- retry -------'         (cancel: queued or running -> cancelled)

A lease carries a fence, one more at every lease of a job. What ends a job must show the fence of the lease that it
comes from and find the job running, so a worker whose lease was lost changes nothing.

`JobStore` is for one thread; the service reaches it through `store_thread.StoreThread`.
"""

import json
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from openmle_gym.errors import OpenMLEError, StoreError
from openmle_gym.jobs import JobRequest, JobResult, JobState, JobView

SCHEMA_VERSION = 1
_SCHEMA = f"""
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    idempotency_key TEXT,
    priority INTEGER NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    fence INTEGER NOT NULL DEFAULT 0,
    worker_id TEXT,
    created_at REAL NOT NULL,
    started_at REAL,
    completed_at REAL,
    labels TEXT NOT NULL,
    error TEXT,
    request TEXT NOT NULL,
    result TEXT,
    UNIQUE (owner, idempotency_key)
);
CREATE INDEX jobs_to_lease ON jobs (priority, seq) WHERE state = 'queued';
CREATE INDEX jobs_by_state ON jobs (state, seq);
CREATE TABLE counts (state TEXT PRIMARY KEY, jobs INTEGER NOT NULL);
INSERT INTO counts VALUES ('queued', 0), ('running', 0), ('completed', 0), ('failed', 0), ('cancelled', 0);
CREATE TRIGGER a_job_is_counted AFTER INSERT ON jobs BEGIN
    UPDATE counts SET jobs = jobs + 1 WHERE state = NEW.state;
END;
CREATE TRIGGER a_change_is_counted AFTER UPDATE OF state ON jobs WHEN OLD.state <> NEW.state BEGIN
    UPDATE counts SET jobs = jobs - 1 WHERE state = OLD.state;
    UPDATE counts SET jobs = jobs + 1 WHERE state = NEW.state;
END;
PRAGMA user_version = {SCHEMA_VERSION};
"""
_VIEW = "job_id, state, created_at, started_at, completed_at, worker_id, attempts, labels, error"


class QueueFull(OpenMLEError):
    """As many jobs wait as may."""


class KeyReused(OpenMLEError):
    """An idempotency key came again with another payload."""


class Submitted(NamedTuple):
    """A job, and whether this submit made it."""

    view: JobView
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A worker's right to run a job and to say how it ended."""

    job_id: str
    fence: int
    attempts: int
    """Leases of this job so far, this one included."""
    queue_seconds: float
    request_json: str


class JobStore:
    """The jobs in one file. Its methods take part in the transaction around them; see `transaction`."""

    def __init__(self, path: Path) -> None:
        """Opens or creates the file.

        Raises:
            StoreError: The file is not a job store, or one of another version.
        """
        self.path = path
        try:
            self._sql = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._sql.row_factory = sqlite3.Row
            self._sql.execute("PRAGMA journal_mode=WAL")
            self._sql.execute("PRAGMA synchronous=FULL")
            (version,) = self._sql.execute("PRAGMA user_version").fetchone()
            (tables,) = self._sql.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if (version, tables) == (0, 0):
                self._sql.executescript(f"BEGIN;{_SCHEMA}COMMIT;")
        except sqlite3.Error as error:
            raise StoreError(f"{path}: not a job store: {error}") from error
        if tables and version != SCHEMA_VERSION:
            raise StoreError(f"{path}: has schema version {version}; this program reads version {SCHEMA_VERSION}")

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

    def submit(self, request: JobRequest, *, owner: str, max_queued: int) -> Submitted:
        """Queues a job, unless the owner's idempotency key has one already.

        Raises:
            KeyReused: It has, with another payload.
            QueueFull: `max_queued` jobs wait.
        """
        key = request.idempotency_key
        if key is not None:
            query = f"SELECT {_VIEW}, result, request FROM jobs WHERE owner = ? AND idempotency_key = ?"
            row = self._sql.execute(query, (owner, key)).fetchone()
            if row is not None:
                if JobRequest.model_validate_json(row["request"]) != request:
                    raise KeyReused(f"idempotency_key {key!r} belongs to job {row['job_id']}, with another payload")
                return Submitted(_view(row), created=False)
        if self.count(JobState.QUEUED) >= max_queued:
            raise QueueFull(f"{max_queued} jobs wait already; try again later")
        row = self._sql.execute(
            "INSERT INTO jobs (job_id, owner, idempotency_key, priority, state, created_at, labels, request)"
            f" VALUES (?, ?, ?, ?, 'queued', ?, ?, ?) RETURNING {_VIEW}, result",
            (
                uuid.uuid4().hex,
                owner,
                key,
                request.priority,
                time.time(),
                json.dumps(request.labels),
                request.model_dump_json(by_alias=True),
            ),
        ).fetchone()
        return Submitted(_view(row), created=True)

    def lease(self, worker_id: str) -> Lease | None:
        """The next job, now running on that worker: lowest priority number first, then first come; None when idle."""
        row = self._sql.execute(
            "UPDATE jobs SET state = 'running', worker_id = ?, started_at = ?, fence = fence + 1,"
            " attempts = attempts + 1 WHERE seq = (SELECT seq FROM jobs WHERE state = 'queued' ORDER BY priority, seq"
            " LIMIT 1) RETURNING job_id, fence, attempts, started_at - created_at AS queue_seconds, request AS request_json",
            (worker_id, time.time()),
        ).fetchone()
        return None if row is None else Lease(**row)

    def complete(self, lease: Lease, result_json: str) -> bool:
        """Ends a job with its result; False when the lease was lost, and nothing changed."""
        return self._end(lease, "state = 'completed', completed_at = :now, result = :text", result_json)

    def fail(self, lease: Lease, error: str) -> bool:
        """Ends a job without a result; False when the lease was lost."""
        return self._end(lease, "state = 'failed', completed_at = :now, error = :text", error)

    def retry(self, lease: Lease, error: str, *, max_attempts: int) -> bool:
        """Queues a job again in its old place, or fails it after its last attempt; False when the lease was lost."""
        if lease.attempts >= max_attempts:
            return self.fail(lease, f"given up after {lease.attempts} attempts: {error}")
        return self._end(lease, "state = 'queued', worker_id = NULL, started_at = NULL")

    def _end(self, lease: Lease, change: str, text: str = "") -> bool:
        changed = self._sql.execute(
            f"UPDATE jobs SET {change} WHERE job_id = :job_id AND fence = :fence AND state = 'running'",
            {"job_id": lease.job_id, "fence": lease.fence, "now": time.time(), "text": text},
        )
        return changed.rowcount == 1

    def cancel(self, job_id: str) -> None:
        """Cancels a job that is queued or running; any other stays as it is."""
        self._sql.execute(
            "UPDATE jobs SET state = 'cancelled', completed_at = ? WHERE job_id = ? AND state IN ('queued', 'running')",
            (time.time(), job_id),
        )

    def release_running(self) -> None:
        """Queues again what runs, as if it had not been started: for a stop in order."""
        self._sql.execute(
            "UPDATE jobs SET state = 'queued', attempts = attempts - 1, worker_id = NULL, started_at = NULL"
            " WHERE state = 'running'"
        )

    def recover_running(self, *, max_attempts: int) -> int:
        """Queues again, or fails after its last attempt, what ran when the service died; returns how many."""
        return self._sql.execute(
            "UPDATE jobs SET worker_id = NULL, started_at = NULL,"
            " state = CASE WHEN attempts < :most THEN 'queued' ELSE 'failed' END,"
            " completed_at = CASE WHEN attempts < :most THEN NULL ELSE :now END,"
            " error = CASE WHEN attempts < :most THEN NULL"
            " ELSE 'given up after ' || attempts || ' attempts: the service died while the job ran' END"
            " WHERE state = 'running'",
            {"most": max_attempts, "now": time.time()},
        ).rowcount

    def get(self, job_id: str) -> JobView | None:
        """A job with its result; None when there is no such job."""
        row = self._sql.execute(f"SELECT {_VIEW}, result FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        return None if row is None else _view(row)

    def owner(self, job_id: str) -> str | None:
        """Who submitted a job; None when there is no such job."""
        row = self._sql.execute("SELECT owner FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        return None if row is None else row["owner"]

    def newest(self, *, state: JobState | None, label: tuple[str, str] | None, limit: int) -> list[JobView]:
        """The newest jobs, newest first, results without their logs."""
        key, value = label or (None, None)
        rows = self._sql.execute(
            f"SELECT {_VIEW}, json_remove(result, '$.run_log') AS result FROM jobs"
            " WHERE (:state IS NULL OR state = :state)"
            " AND (:key IS NULL OR EXISTS (SELECT 1 FROM json_each(labels) AS l WHERE l.key = :key AND l.value = :value))"
            " ORDER BY seq DESC LIMIT :limit",
            {"state": state, "key": key, "value": value, "limit": limit},
        )
        return [_view(row) for row in rows]

    def count(self, state: JobState) -> int:
        """How many jobs are in a state; costs the same however many there are."""
        return self._sql.execute("SELECT jobs FROM counts WHERE state = ?", (state,)).fetchone()["jobs"]

    def close(self) -> None:
        """Closes the file."""
        self._sql.close()


def _view(row: sqlite3.Row) -> JobView:
    return JobView(
        job_id=row["job_id"],
        status=JobState(row["state"]),
        created_at=datetime.fromtimestamp(row["created_at"], UTC),
        started_at=_moment(row["started_at"]),
        completed_at=_moment(row["completed_at"]),
        worker_id=row["worker_id"],
        attempts=row["attempts"],
        labels=json.loads(row["labels"]),
        result=None if row["result"] is None else JobResult.model_validate_json(row["result"]),
        error=row["error"],
    )


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
