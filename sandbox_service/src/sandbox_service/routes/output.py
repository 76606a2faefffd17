"""What a job's program left: its log, at the end or as it comes, and its files."""

import asyncio
import re

from openmle_gym.contracts import Contract, ForeignContract
from openmle_gym.jobs import JobView
from pydantic import Field
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response

from sandbox_service.auth import Keys
from sandbox_service.events import END_ID, EventStream, Position
from sandbox_service.records import ArtifactInfo
from sandbox_service.routes.table import Answer, Endpoint
from sandbox_service.routes.wire import Refused, json_response, read_query
from sandbox_service.scheduler import Scheduler


class LogQuery(ForeignContract):
    """How much of a log to show; without both, all that was kept."""

    head: int | None = Field(default=None, ge=0, le=1_000_000)
    """So many lines from its beginning."""
    tail: int | None = Field(default=None, ge=0, le=1_000_000)
    """So many lines from its end."""


class LogAnswer(Contract):
    """The output of a job's program, as far as it was kept."""

    job_id: str
    text: str
    left_out_lines: int
    """Lines that `head` and `tail` left out; a line of the text stands for them."""
    truncated_bytes: int
    """Bytes that the service did not keep; a line of the text stands for them."""
    total_bytes: int
    """Output so far, what was cut included."""
    ended: bool
    """Nothing will be added."""
    attempt: int
    """Which start of the job this is the output of; 0 before the first."""


class ArtifactList(Contract):
    """The files that a job's program left."""

    artifacts: list[ArtifactInfo]


class OutputRoutes:
    """The routes under `/api/v1/jobs/{id}/` that show what its program wrote."""

    def __init__(self, scheduler: Scheduler, keys: Keys) -> None:
        self._scheduler = scheduler
        self._keys = keys

    def endpoints(self) -> list[Endpoint]:
        """This part of the route table."""
        return [
            Endpoint(
                method="GET",
                path="/api/v1/jobs/{job_id}/logs",
                handler=self.log,
                query=LogQuery,
                headers={"Accept": "`application/json` for JSON; plain text otherwise."},
                answers={200: Answer(description="The log.", body=LogAnswer, media_types=("text/plain",))},
                refusals=(404, 503),
            ),
            Endpoint(
                method="GET",
                path="/api/v1/jobs/{job_id}/events",
                handler=self.events,
                headers={"Last-Event-ID": "The id of the last event that the client has had."},
                answers={
                    200: Answer(description="Server-sent events.", media_types=("text/event-stream",)),
                    204: Answer(description="The client has had the last event."),
                },
                refusals=(404, 503),
            ),
            Endpoint(
                method="GET",
                path="/api/v1/jobs/{job_id}/artifacts",
                handler=self.artifacts,
                answers={200: Answer(description="The files.", body=ArtifactList)},
                refusals=(404, 503),
            ),
            Endpoint(
                method="GET",
                path="/api/v1/jobs/{job_id}/artifacts/{name}",
                handler=self.artifact,
                headers={"Range": "Bytes of the file, as HTTP has it."},
                answers={
                    200: Answer(description="The file.", media_types=("application/octet-stream",)),
                    206: Answer(description="A part of the file.", media_types=("application/octet-stream",)),
                },
                refusals=(404, 416, 503),
            ),
        ]

    async def log(self, request: Request) -> Response:
        """Read a job's log

        Standard output and error, as they came: control characters are not removed.
        """
        self._keys.caller(request.headers)
        query = read_query(request, LogQuery)
        job_id = request.path_params["job_id"]
        log = await self._scheduler.log(job_id)
        if log is None:
            raise Refused(404, "no such job")
        text, left_out = excerpt(log.text, head=query.head, tail=query.tail)
        if "application/json" not in request.headers.get("accept", ""):
            return PlainTextResponse(text.encode("utf-8", errors="replace"))
        return json_response(
            LogAnswer(
                job_id=job_id,
                text=text,
                left_out_lines=left_out,
                truncated_bytes=log.truncated_bytes,
                total_bytes=log.total_bytes,
                ended=log.ended,
                attempt=log.attempt,
            )
        )

    async def events(self, request: Request) -> Response:
        """Follow a job

        Its state and its output as they come, until it ends. Events: `state`, `log`, `end`.
        """
        caller, job_id = self._keys.caller(request.headers), request.path_params["job_id"]
        await self._existing(job_id)
        last = request.headers.get("last-event-id")
        if last == END_ID:
            return Response(status_code=204)
        return EventStream(
            self._scheduler, job_id, caller, had=Position.parse(last), head_only=request.method == "HEAD"
        )

    async def artifacts(self, request: Request) -> Response:
        """List the files that a job's program left

        For whoever submitted the job, and the scope `admin`. There are none while the program runs.
        """
        job_id = await self._own(request)
        return json_response(ArtifactList(artifacts=await self._scheduler.artifacts(job_id)))

    async def artifact(self, request: Request) -> Response:
        """Download a file that a job's program left

        For whoever submitted the job, and the scope `admin`.
        """
        job_id, name = await self._own(request), request.path_params["name"]
        path = await self._scheduler.artifact_path(job_id, name)
        try:
            status = await asyncio.to_thread(path.stat) if path else None
        except FileNotFoundError:
            status = None
        if path is None or status is None:
            raise Refused(404, f"the job has no file {name[:100]!r}")
        _check_range(request.headers.get("range"), status.st_size)
        return FileResponse(path, filename=name, media_type="application/octet-stream", stat_result=status)

    async def _own(self, request: Request) -> str:
        """The id of the job, which is there and which the caller may take files of."""
        caller, job_id = self._keys.caller(request.headers), request.path_params["job_id"]
        caller.need_own(await self._scheduler.owner(job_id), "taking files of")
        await self._existing(job_id)
        return job_id

    async def _existing(self, job_id: str) -> JobView:
        view = await self._scheduler.get(job_id)
        if view is None:
            raise Refused(404, "no such job")
        return view


def _check_range(wanted: str | None, size_bytes: int) -> None:
    """Raises:
    Refused: It is not one range that lies in the file; 416.
    """
    if wanted is None:
        return
    match = re.fullmatch(r"bytes=(?:(\d{1,18})-(\d{0,18})|-(\d{1,18}))", wanted, re.ASCII)
    if match:
        start, end, last = match.groups()
        within = int(last) > 0 if start is None else int(start) < size_bytes and int(end or size_bytes) >= int(start)
        if within and size_bytes > 0:
            return
    raise Refused(416, f"Range: not one range within the file's {size_bytes} bytes: {wanted[:100]!r}", field="Range")


def excerpt(text: str, *, head: int | None, tail: int | None) -> tuple[str, int]:
    """So many lines from both ends, and how many lines between them are left out; a line stands for these."""
    lines = text.split("\n")
    ends_with_line = lines[-1] == ""
    if ends_with_line:
        lines.pop()
    left_out = 0 if head is tail is None else max(0, len(lines) - (head or 0) - (tail or 0))
    if not left_out:
        return text, 0
    shown = [*lines[: head or 0], f"[... {left_out} lines left out ...]", *lines[len(lines) - (tail or 0) :]]
    return "\n".join(shown) + ("\n" if ends_with_line or not tail else ""), left_out
