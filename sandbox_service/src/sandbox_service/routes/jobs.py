"""Jobs: submit one or many, ask how they stand, list and cancel them."""

import asyncio
from collections.abc import Iterable
from typing import Annotated

from openmle_gym.contracts import Contract, ForeignContract
from openmle_gym.errors import ConfigError, OpenMLEError, PackageError
from openmle_gym.jobs import JobRequest, JobState, JobView
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from sandbox_service.auth import AccessDenied, Caller, Keys, Scope
from sandbox_service.records import JobFilter, Submitted
from sandbox_service.routes.table import Answer, Endpoint
from sandbox_service.routes.wire import (
    RETRY_AFTER_SECONDS,
    Refused,
    json_response,
    problem_of,
    read_body,
    read_json,
    read_model,
    read_query,
    status_of,
)
from sandbox_service.scheduler import Scheduler

LONGEST_WAIT_SECONDS = 60.0
LONGEST_LIST = 1000
LARGEST_BATCH = 1000

Label = Annotated[str, Field(pattern="^[^=]+=")]


class WaitQuery(ForeignContract):
    """How long an answer may take."""

    wait: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds to wait for the job's end before answering; more than 60 means 60."""


class ListQuery(ForeignContract):
    """Which jobs to list."""

    status: tuple[JobState, ...] = ()
    """Only jobs in this state; may be given several times."""
    label: Label | None = None
    """Only jobs with this label: KEY=VALUE."""
    priority: int | None = Field(default=None, ge=1, le=2)
    """Only jobs of this priority."""
    owner: str | None = None
    """Only jobs of this owner; `me` is the sender."""
    limit: int = Field(default=100, ge=1, le=LONGEST_LIST)
    """At most so many."""
    before: int | None = Field(default=None, ge=0, lt=2**63)
    """Where to go on: `next_before` of the page before."""


class CancelQuery(ForeignContract):
    """Which jobs to cancel."""

    label: Label
    """Jobs with this label: KEY=VALUE."""


class Batch(ForeignContract):
    """Many jobs in one request."""

    jobs: list[JobRequest] = Field(min_length=1, max_length=LARGEST_BATCH)


class _Batch(ForeignContract):
    """A batch whose items are looked at one by one, so that a wrong one does not refuse the others."""

    jobs: list[object] = Field(min_length=1, max_length=LARGEST_BATCH)


class BatchItem(Contract):
    """What came of one job of a batch."""

    status: int
    """As HTTP would answer a single submit: 201, 200, 400, 403, 409, 422, 429 or 503."""
    job: JobView | None = None
    error: str | None = None
    field: str | None = None


class BatchAnswer(Contract):
    """What came of each job of a batch, in its order."""

    jobs: list[BatchItem]


class JobList(Contract):
    """Some jobs, newest first, without the logs of their results."""

    jobs: list[JobView]
    next_before: int | None
    """`before` of the next page; null on the last."""


class Cancelled(Contract):
    """How many jobs a request has cancelled; those that had ended are not counted."""

    cancelled: int


class JobRoutes:
    """The routes under `/api/v1/jobs` that deal with jobs as such."""

    def __init__(self, scheduler: Scheduler, keys: Keys, *, max_body_bytes: int) -> None:
        self._scheduler = scheduler
        self._keys = keys
        self._max_body_bytes = max_body_bytes

    def endpoints(self) -> list[Endpoint]:
        """This part of the route table."""
        one = Answer(description="The job.", body=JobView)
        return [
            Endpoint(
                method="POST",
                path="/api/v1/jobs",
                handler=self.submit,
                body=JobRequest,
                answers={
                    201: Answer(description="The job, which is new.", body=JobView),
                    200: Answer(description="The job that the idempotency key has already.", body=JobView),
                },
                refusals=(400, 409, 413, 422, 429, 503),
            ),
            Endpoint(
                method="GET",
                path="/api/v1/jobs",
                handler=self.list_jobs,
                query=ListQuery,
                answers={200: Answer(description="A page of jobs.", body=JobList)},
                refusals=(503,),
            ),
            Endpoint(
                method="DELETE",
                path="/api/v1/jobs",
                handler=self.cancel_labelled,
                query=CancelQuery,
                answers={200: Answer(description="How many were cancelled.", body=Cancelled)},
                refusals=(503,),
            ),
            Endpoint(
                method="POST",
                path="/api/v1/jobs/batch",
                handler=self.submit_batch,
                body=Batch,
                answers={200: Answer(description="What came of each job.", body=BatchAnswer)},
                refusals=(400, 413, 422, 503),
            ),
            Endpoint(
                method="GET",
                path="/api/v1/jobs/{job_id}",
                handler=self.get_job,
                query=WaitQuery,
                answers={200: one},
                refusals=(404, 503),
            ),
            Endpoint(
                method="DELETE",
                path="/api/v1/jobs/{job_id}",
                handler=self.cancel_job,
                answers={200: one},
                refusals=(404, 503),
            ),
        ]

    async def submit(self, request: Request) -> Response:
        """Submit a job

        With an idempotency key the same payload is the same job for ever, and another payload is refused with 409.
        """
        caller = self._keys.caller(request.headers)
        job = _admitted(read_json(await read_body(request, most_bytes=self._max_body_bytes)), caller)
        await self._check_packages([job])
        view, created = await self._scheduler.submit(job, owner=caller.owner)
        return json_response(caller.shown(view), status=201 if created else 200)

    async def submit_batch(self, request: Request) -> Response:
        """Submit many jobs

        Each is answered as a single submit would be; some may be accepted and others not. `Retry-After` is set when
        some may be accepted later: send the same batch again, with idempotency keys.
        """
        caller = self._keys.caller(request.headers)
        batch = read_model(_Batch, read_json(await read_body(request, most_bytes=self._max_body_bytes)))
        admitted: dict[int, JobRequest] = {}
        outcomes: dict[int, Submitted | OpenMLEError] = {}
        for place, item in enumerate(batch.jobs):
            try:
                admitted[place] = _admitted(item, caller)
            except (Refused, AccessDenied) as error:
                outcomes[place] = error
        troubles = await self._package_troubles(admitted.values())
        outcomes |= {place: troubles[job.data_dir] for place, job in admitted.items() if job.data_dir in troubles}
        usable = {place: job for place, job in admitted.items() if place not in outcomes}
        submitted = await self._scheduler.submit_many(list(usable.values()), owner=caller.owner)
        outcomes |= dict(zip(usable, submitted, strict=True))
        items = [_batch_item(outcomes[place], caller) for place in range(len(batch.jobs))]
        response = json_response(BatchAnswer(jobs=items))
        if any(item.status in (429, 503) for item in items):
            response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        return response

    async def get_job(self, request: Request) -> Response:
        """Ask how a job stands

        With `wait` the answer comes when the job has ended, or after so many seconds.
        """
        caller = self._keys.caller(request.headers)
        wait = min(read_query(request, WaitQuery).wait, LONGEST_WAIT_SECONDS)
        view = await self._scheduler.get(request.path_params["job_id"], wait_seconds=wait)
        return json_response(caller.shown(_existing(view)))

    async def list_jobs(self, request: Request) -> Response:
        """List jobs, newest first"""
        caller = self._keys.caller(request.headers)
        query = read_query(request, ListQuery)
        views, next_before = await self._scheduler.page(
            JobFilter(
                states=frozenset(query.status),
                label=None if query.label is None else _pair(query.label),
                owner=caller.owner if query.owner == "me" else query.owner,
                priority=query.priority,
            ),
            limit=query.limit,
            before=query.before,
        )
        return json_response(JobList(jobs=[caller.shown(view) for view in views], next_before=next_before))

    async def cancel_job(self, request: Request) -> Response:
        """Cancel a job

        The program of a running job is killed. A job that has ended stays as it is.
        """
        caller, job_id = self._keys.caller(request.headers), request.path_params["job_id"]
        caller.need_own(await self._scheduler.owner(job_id), "cancelling")
        await self._scheduler.cancel(job_id)
        return json_response(caller.shown(_existing(await self._scheduler.get(job_id))))

    async def cancel_labelled(self, request: Request) -> Response:
        """Cancel all jobs that carry a label

        One's own; with the scope `admin` everybody's.
        """
        caller = self._keys.caller(request.headers)
        label = _pair(read_query(request, CancelQuery).label)
        owner = None if caller.scope >= Scope.ADMIN else caller.owner
        return json_response(Cancelled(cancelled=await self._scheduler.cancel_labelled(label, owner=owner)))

    async def _check_packages(self, jobs: Iterable[JobRequest]) -> None:
        for refused in (await self._package_troubles(jobs)).values():
            raise refused

    async def _package_troubles(self, jobs: Iterable[JobRequest]) -> dict[str, Refused]:
        """What is wrong with the packages that these jobs name, by `data_dir`."""
        data_dirs = {job.data_dir for job in jobs}
        unknown = [data_dir for data_dir in data_dirs if not self._scheduler.packages.believed(data_dir)]
        return await asyncio.to_thread(lambda: dict(self._unusable(unknown))) if unknown else {}

    def _unusable(self, data_dirs: Iterable[str]) -> Iterable[tuple[str, Refused]]:
        for data_dir in data_dirs:
            try:
                self._scheduler.packages.load(data_dir)
            except (ConfigError, PackageError) as error:
                yield data_dir, Refused(400, str(error), field="data_dir")


def _admitted(value: object, caller: Caller) -> JobRequest:
    """A job as the queue takes it.

    Raises:
        Refused: It is malformed.
        AccessDenied: It asks for what the caller may not have.
    """
    job = read_model(JobRequest, value)
    if job.eval_split != "validation":
        caller.need(Scope.GRADE, f"eval_split {job.eval_split!r}")
    # Published clients send any number and mean 1 by all but 2; an empty key is none.
    priority, key = 2 if job.priority == 2 else 1, job.idempotency_key or None
    if (priority, key) == (job.priority, job.idempotency_key):
        return job
    return job.model_copy(update={"priority": priority, "idempotency_key": key})


def _batch_item(outcome: Submitted | OpenMLEError, caller: Caller) -> BatchItem:
    if isinstance(outcome, OpenMLEError):
        problem = problem_of(outcome)
        return BatchItem(status=status_of(outcome), error=problem.error, field=problem.field)
    return BatchItem(status=201 if outcome.created else 200, job=caller.shown(outcome.view))


def _existing(view: JobView | None) -> JobView:
    if view is None:
        raise Refused(404, "no such job")
    return view


def _pair(label: str) -> tuple[str, str]:
    key, _, value = label.partition("=")
    return key, value
