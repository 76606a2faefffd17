"""The sandbox service as an `Executor`.

Submitting is idempotent (the key), and so is asking; both are repeated when the service does not answer. A job that
the service gave up is submitted again under a new key, a bounded number of times.
"""

import asyncio
import uuid
from types import TracebackType
from typing import Self
from urllib.parse import quote

import httpx
from pydantic import SecretStr, ValidationError

from openmle_gym.contracts import ForeignContract, one_line
from openmle_gym.errors import ExecutorUnavailable, JobCancelled, JobLost
from openmle_gym.jobs import SUBMISSION, JobRequest, JobResult, JobState, JobView
from openmle_gym.retry import retrying

POLL_SECONDS = 20.0
SUBMISSIONS = 4
"""How often a job is submitted in all when it keeps being lost."""
REATTACHMENTS = 20
"""How many jobs that had ended without a result before we asked are passed over when a run is resumed."""


class JobClient:
    """Runs jobs on a sandbox service over HTTP. Use as an async context manager."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: SecretStr | None = None,
        patience_seconds: float = 120.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Args:
        patience_seconds: How long a service that does not answer, or says that it is overloaded, is asked again.
        transport: For tests: how requests travel.
        """
        self.base_url = base_url
        self._patience_seconds = patience_seconds
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers={"X-API-Key": api_key.get_secret_value()} if api_key else {},
            transport=transport,
            trust_env=False,
            timeout=httpx.Timeout(30.0, read=POLL_SECONDS + 40.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def run(self, job: JobRequest) -> JobResult:
        """See `openmle_gym.jobs.Executor`. Cancelling this call cancels the job.

        Raises:
            ExecutorUnavailable: The service did not answer in time, or refused the request (a wrong key, a `data_dir`
                outside its roots); the message quotes it.
            JobLost: The service gave the job up, each time that it was submitted.
            JobCancelled: Somebody else cancelled the job while we waited.
        """
        _, result = await self._ended(job)
        return result

    async def _ended(self, job: JobRequest) -> tuple[str, JobResult]:
        """The id of the job that has a result in the end, and the result."""
        key = job.idempotency_key or uuid.uuid4().hex
        lost = 0
        for submission in range(SUBMISSIONS + REATTACHMENTS):
            view = await self.submit(job.model_copy(update={"idempotency_key": _numbered(key, submission)}))
            if view.status in (JobState.FAILED, JobState.CANCELLED):
                continue  # ended so in an earlier life of this run
            view = await self._wait(view)
            if view.result is not None:
                return view.job_id, view.result
            if view.status is JobState.CANCELLED:
                raise JobCancelled(f"job {view.job_id} was cancelled")
            lost += 1
            if lost == SUBMISSIONS:
                raise JobLost(f"job {view.job_id}: {view.error or 'no result'}")
        raise JobLost(f"job {key}: was given up or cancelled {SUBMISSIONS + REATTACHMENTS} times")

    async def _wait(self, view: JobView) -> JobView:
        try:
            while not view.status.terminal:
                view = await self.get(view.job_id, wait_seconds=POLL_SECONDS)
        except asyncio.CancelledError:
            await self._cancel_quietly(view.job_id)
            raise
        return view

    async def submit(self, job: JobRequest) -> JobView:
        """Submits a job; with the same idempotency key and payload it is the same job."""
        return await self._view("POST", "/api/v1/jobs", json=job.model_dump(mode="json", by_alias=True))

    async def get(self, job_id: str, *, wait_seconds: float = 0.0) -> JobView:
        """How the job stands; waits up to `wait_seconds` for its end."""
        return await self._view("GET", f"/api/v1/jobs/{job_id}", params={"wait": wait_seconds})

    async def cancel(self, job_id: str) -> JobView:
        """Cancels the job; one that has ended stays as it is."""
        return await self._view("DELETE", f"/api/v1/jobs/{job_id}")

    async def _cancel_quietly(self, job_id: str) -> None:
        """Cancels a job that nobody waits for any more; a service that is gone has no job to cancel."""
        try:
            async with asyncio.timeout(5.0):
                await self.cancel(job_id)
        except (ExecutorUnavailable, TimeoutError):
            return

    async def submission(self, job: JobRequest) -> bytes | None:
        """See `openmle_gym.submissions.SubmissionSource`; raises as `run` does."""
        job_id, _ = await self._ended(job)
        return await self.artifact(job_id, SUBMISSION)

    async def artifact(self, job_id: str, name: str) -> bytes | None:
        """A file that a job's program left; None when it left none, or the service does not keep it any more."""
        response = await self._send("GET", f"/api/v1/jobs/{job_id}/artifacts/{quote(name, safe='')}", absent=404)
        return None if response.status_code == 404 else response.content

    async def isolation(self) -> str:
        """What holds the programs at the service: `docker`, `bubblewrap` or `process`.

        Raises:
            ExecutorUnavailable: The service did not answer, or not as a sandbox service does.
        """
        response = await self._send("GET", "/health")
        try:
            return _Health.model_validate_json(response.content).isolation
        except ValidationError as error:
            raise ExecutorUnavailable(f"{self.base_url}/health: not a sandbox service: {one_line(error)}") from error

    async def _view(
        self,
        method: str,
        path: str,
        *,
        json: dict[str, object] | None = None,
        params: dict[str, float] | None = None,
    ) -> JobView:
        response = await self._send(method, path, json=json, params=params)
        try:
            return JobView.model_validate_json(response.content)
        except ValidationError as error:
            raise ExecutorUnavailable(
                f"{method} {self.base_url}{path}: the answer is not a job: {one_line(error)}"
            ) from error

    async def _send(
        self,
        method: str,
        path: str,
        *,
        json: dict[str, object] | None = None,
        params: dict[str, float] | None = None,
        absent: int | None = None,
    ) -> httpx.Response:
        """The answer, which is not a refusal unless with the status that means `absent`."""

        async def call() -> httpx.Response:
            response = await self._http.request(method, path, json=json, params=params)
            return response if response.status_code == absent else response.raise_for_status()

        return await retrying(
            call,
            place=f"{method} {self.base_url}{path}",
            patience_seconds=self._patience_seconds,
            unavailable=ExecutorUnavailable,
        )


class _Health(ForeignContract):
    isolation: str


def _numbered(key: str, submission: int) -> str:
    return key if submission == 0 else f"{key}.{submission}"
