"""The HTTP API.

    POST   /api/v1/jobs                 submit; 201, or 200 where the idempotency key has this job already
    GET    /api/v1/jobs                 the newest jobs; ?status= &label=KEY=VALUE &limit=
    GET    /api/v1/jobs/{id}            how a job stands; ?wait=SECONDS answers when it has ended
    DELETE /api/v1/jobs/{id}            cancel
    GET    /api/v1/workers/status       workers, queue, isolation
    GET    /health                      no key needed

Errors are `{"error": "..."}`, with `"field"` where one field of the request is wrong. 503 comes with `Retry-After`.
"""

import asyncio
import math

from openmle_gym.errors import ConfigError, PackageError, StoreError
from openmle_gym.jobs import MIB, JobRequest, JobState, JobView
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sandbox_service import __version__
from sandbox_service.auth import AccessDenied, Caller, Keys, Scope
from sandbox_service.scheduler import Scheduler
from sandbox_service.store import KeyReused, QueueFull

LONGEST_WAIT_SECONDS = 60.0
LONGEST_LIST = 1000
RETRY_AFTER_SECONDS = 5


def create_app(scheduler: Scheduler, keys: Keys, *, max_body_bytes: int = 8 * MIB) -> Starlette:
    """The service as an ASGI application. The scheduler is entered and left by the caller."""
    api = _Api(scheduler, keys, max_body_bytes)
    return Starlette(
        routes=[
            Route("/api/v1/jobs", api.submit, methods=["POST"]),
            Route("/api/v1/jobs", api.newest, methods=["GET"]),
            Route("/api/v1/jobs/{job_id}", api.job, methods=["GET"]),
            Route("/api/v1/jobs/{job_id}", api.cancel, methods=["DELETE"]),
            Route("/api/v1/workers/status", api.status, methods=["GET"]),
            Route("/health", api.health, methods=["GET"]),
        ],
        exception_handlers={
            HTTPException: _http_error,
            AccessDenied: _access_denied,
            StoreError: _unavailable,
            QueueFull: _unavailable,
            ClientDisconnect: _disconnected,
        },
    )


class _Api:
    def __init__(self, scheduler: Scheduler, keys: Keys, max_body_bytes: int) -> None:
        self._scheduler = scheduler
        self._keys = keys
        self._max_body_bytes = max_body_bytes

    async def submit(self, request: Request) -> Response:
        caller = self._keys.caller(request.headers)
        body = await self._body(request)
        try:
            job = JobRequest.model_validate_json(body)
        except ValidationError as error:
            return _invalid(error)
        if job.eval_split != "validation":
            caller.need(Scope.GRADE, f"eval_split {job.eval_split!r}")
        try:
            await asyncio.to_thread(self._scheduler.packages.load, job.data_dir)
        except (ConfigError, PackageError) as error:
            return _error(400, str(error), field="data_dir")
        # Published clients send any number and mean 1 by all but 2; an empty key is none.
        key = job.idempotency_key or None
        job = job.model_copy(update={"priority": 2 if job.priority == 2 else 1, "idempotency_key": key})
        try:
            view, created = await self._scheduler.submit(job, owner=caller.owner)
        except KeyReused as error:
            return _error(409, str(error), field="idempotency_key")
        return _shown(view, caller, status=201 if created else 200)

    async def job(self, request: Request) -> Response:
        caller = self._keys.caller(request.headers)
        wait = _number(request, "wait", default=0.0, most=LONGEST_WAIT_SECONDS)
        return _shown(await self._scheduler.get(_job_id(request), wait_seconds=wait), caller)

    async def cancel(self, request: Request) -> Response:
        caller, job_id = self._keys.caller(request.headers), _job_id(request)
        if await self._scheduler.owner(job_id) not in (caller.owner, None):
            caller.need(Scope.ADMIN, "cancelling a job that another key submitted")
        await self._scheduler.cancel(job_id)
        return _shown(await self._scheduler.get(job_id), caller)

    async def newest(self, request: Request) -> Response:
        caller = self._keys.caller(request.headers)
        limit = int(_number(request, "limit", default=100, most=LONGEST_LIST))
        state = request.query_params.get("status")
        if state is not None and state not in set(JobState):
            raise HTTPException(400, f"status={state}: must be one of {', '.join(JobState)}")
        key, equals, value = request.query_params.get("label", "").partition("=")
        if key and not equals:
            raise HTTPException(400, f"label={key}: must be KEY=VALUE")
        views = await self._scheduler.newest(
            state=None if state is None else JobState(state), label=(key, value) if equals else None, limit=limit
        )
        return JSONResponse({"jobs": [caller.shown(view).model_dump(mode="json", by_alias=True) for view in views]})

    async def status(self, request: Request) -> Response:
        self._keys.caller(request.headers)
        return JSONResponse((await self._scheduler.status()).model_dump(mode="json"))

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__, "isolation": self._scheduler.isolation})

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._max_body_bytes:
                raise HTTPException(413, f"the body is too large; at most {self._max_body_bytes} bytes are accepted")
        return bytes(body)


def _job_id(request: Request) -> str:
    return request.path_params["job_id"]


def _number(request: Request, name: str, *, default: float, most: float) -> float:
    text = request.query_params.get(name)
    try:
        number = default if text is None else float(text)
    except ValueError:
        number = math.nan
    if not number >= 0:
        raise HTTPException(400, f"{name}={text}: must be a number, 0 or more")
    return min(number, most)


def _shown(view: JobView | None, caller: Caller, *, status: int = 200) -> Response:
    if view is None:
        raise HTTPException(404, "no such job")
    return Response(caller.shown(view).model_dump_json(by_alias=True), status, media_type="application/json")


def _error(status: int, message: str, *, field: str | None = None) -> Response:
    return JSONResponse({"error": message} if field is None else {"error": message, "field": field}, status)


def _invalid(error: ValidationError) -> Response:
    problems = [(".".join(map(str, problem["loc"])), problem["msg"]) for problem in error.errors(include_url=False)]
    if error.errors()[0]["type"] == "json_invalid":
        return _error(400, problems[0][1])
    message = "; ".join(f"{field}: {problem}" if field else problem for field, problem in problems)
    return _error(422, message, field=problems[0][0] or None)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


async def _access_denied(request: Request, error: Exception) -> Response:
    assert isinstance(error, AccessDenied)
    return _error(error.status, str(error))


async def _unavailable(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 503, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


async def _disconnected(request: Request, error: Exception) -> Response:
    """Nobody reads this."""
    return Response(status_code=400)
