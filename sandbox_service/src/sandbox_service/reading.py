"""What can be asked of the job database without changing it."""

import heapq
import json
import sqlite3
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from openmle_gym.jobs import JobResult, JobState, JobView

from sandbox_service.records import ArtifactInfo, JobFilter, LaneFacts, Page, ResourceClass

VIEW = "job_id, state, created_at, started_at, completed_at, worker_id, attempts, labels, error"


class JobReader:
    """The questions that `JobStore` answers."""

    _sql: sqlite3.Connection

    def get(self, job_id: str) -> JobView | None:
        """A job with its result; None when there is no such job."""
        row = self._sql.execute(f"SELECT {VIEW}, result FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        return None if row is None else view_of(row)

    def owner(self, job_id: str) -> str | None:
        """Who submitted a job; None when there is no such job."""
        row = self._sql.execute("SELECT owner FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        return None if row is None else row["owner"]

    def page(self, wanted: JobFilter, *, limit: int, before: int | None = None) -> Page:
        """The newest jobs that pass the filter; `before` is where the page before said that this one starts."""
        conditions, source = ["(:priority IS NULL OR priority = :priority)"], ""
        if wanted.owner is not None:
            conditions.append("owner = :owner")
        if before is not None:
            conditions.append("jobs.seq < :before")
        if wanted.label is not None:
            source = " JOIN labels ON labels.seq = jobs.seq AND labels.key = :key AND labels.value = :value"
        key, value = wanted.label or (None, None)
        values = {"owner": wanted.owner, "priority": wanted.priority, "before": before, "key": key, "value": value}
        # One query per state reads each from its index in order; together they would have to be sorted.
        by_state = [
            self._sql.execute(
                f"SELECT jobs.seq, {VIEW}, json_remove(result, '$.run_log') AS result FROM jobs{source}"
                f" WHERE {' AND '.join([*conditions, *(['state = :state'] if state else [])])}"
                " ORDER BY jobs.seq DESC LIMIT :limit",
                {**values, "state": state, "limit": limit + 1},
            ).fetchall()
            for state in (wanted.states or (None,))
        ]
        found = list(heapq.merge(*by_state, key=lambda row: row["seq"], reverse=True))
        rows = found[:limit]
        return Page([view_of(row) for row in rows], rows[-1]["seq"] if rows and len(found) > limit else None)

    def count(self, state: JobState) -> int:
        """How many jobs are in a state; costs the same however many there are."""
        return self._sql.execute("SELECT jobs FROM counts WHERE state = ?", (state,)).fetchone()["jobs"]

    def counts(self) -> dict[JobState, int]:
        """How many jobs are in each state."""
        return {JobState(row["state"]): row["jobs"] for row in self._sql.execute("SELECT state, jobs FROM counts")}

    def outcomes(self) -> dict[str, int]:
        """How many jobs completed with each outcome."""
        return {row["outcome"]: row["jobs"] for row in self._sql.execute("SELECT outcome, jobs FROM outcomes")}

    def lanes(self) -> list[LaneFacts]:
        """What waits and runs, by resource class and priority."""
        rows = self._sql.execute(
            "SELECT resource_class, priority, sum(queued) AS queued, sum(running) AS running FROM owners GROUP BY 1, 2"
        ).fetchall()
        return [
            LaneFacts(**row, oldest_seconds=self._oldest_seconds((row["resource_class"],), row["priority"]))
            for row in rows
        ]

    def artifacts(self, job_id: str) -> list[ArtifactInfo]:
        """What is kept of a job's files."""
        rows = self._sql.execute(
            "SELECT name, size_bytes, sha256 FROM artifacts JOIN jobs USING (seq) WHERE job_id = ? ORDER BY name",
            (job_id,),
        )
        return [ArtifactInfo(**row) for row in rows]

    def artifact_contents(self) -> dict[str, int]:
        """All contents that some job refers to: SHA-256 to size in bytes."""
        rows = self._sql.execute("SELECT DISTINCT sha256, size_bytes FROM artifacts")
        return {row["sha256"]: row["size_bytes"] for row in rows}

    def _oldest_seconds(self, classes: Sequence[ResourceClass], priority: int) -> float:
        """For how long the oldest job of a lane has waited; 0 when none waits."""
        query = (
            "SELECT created_at FROM jobs WHERE state = 'queued' AND resource_class = ? AND priority = ?"
            " ORDER BY seq LIMIT 1"
        )
        rows = [self._sql.execute(query, (name, priority)).fetchone() for name in classes]
        now = time.time()
        return max((now - row["created_at"] for row in rows if row is not None), default=0.0)


def view_of(row: sqlite3.Row) -> JobView:
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
