"""Server-sent events of one job: each change of its state, and its output as it comes.

    id: 1:2048              the attempt, and how many bytes of its output came before or with this event
    event: log              data: {"text": "...", "skipped_bytes": 0, "attempt": 1}
    event: state            data: the job, its result without the log
    event: end              data: {}; nothing follows. A client that comes back with this event's id is answered 204

A client that comes back with `Last-Event-ID` is told the state, and the output from there on. A comment is sent when
there is nothing to say, so that proxies keep the connection and a client that has gone is noticed. A stream that ends
without `end` was cut by a stop of the service.
"""

import asyncio
import logging
import re
from contextlib import aclosing
from typing import NamedTuple

from openmle_gym.contracts import Contract
from openmle_gym.jobs import JobView
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandbox_service.auth import Caller
from sandbox_service.records import LogChunk
from sandbox_service.scheduler import Scheduler

HEARTBEAT_SECONDS = 15.0
STUCK_READER_SECONDS = 60.0
"""A client that takes nothing for so long is dropped."""
RECONNECT_MILLISECONDS = 2000
END_ID = "end"

logger = logging.getLogger(__name__)


class Position(NamedTuple):
    """How far a stream has come."""

    attempt: int
    bytes_sent: int
    """Of the attempt's output, what was cut from it included."""

    @classmethod
    def parse(cls, event_id: str | None) -> "Position":
        """The position that a `Last-Event-ID` names; the start, when it names none."""
        match = re.fullmatch(r"(\d{1,9}):(\d{1,18})", event_id or "")
        return cls(int(match[1]), int(match[2])) if match else cls(0, 0)

    def __str__(self) -> str:
        return f"{self.attempt}:{self.bytes_sent}"


class LogPiece(Contract):
    """Data of the event `log`."""

    text: str
    skipped_bytes: int
    """Output that was cut; it lies before `text`."""
    attempt: int
    """Another number than before: the job was started again, and so was its output."""


class Nothing(Contract):
    """Data of the event `end`."""


class Resumed:
    """Output from the start of an attempt, less what a client has had already."""

    def __init__(self, had: Position) -> None:
        self.position = Position(0, 0)
        self._had = had

    def piece(self, chunk: LogChunk) -> LogPiece | None:
        """What of the chunk is new; None when nothing is."""
        before = self.position.bytes_sent if chunk.attempt == self.position.attempt else 0
        encoded = chunk.text.encode("utf-8", errors="replace")
        start = before + chunk.skipped_bytes
        self.position = Position(chunk.attempt, start + len(encoded))
        had = self._had.bytes_sent if self._had.attempt == chunk.attempt else 0
        if self.position.bytes_sent <= had:
            return None
        text = encoded[max(0, had - start) :].decode("utf-8", errors="replace")
        return LogPiece(text=text, skipped_bytes=start - max(had, before) if had < start else 0, attempt=chunk.attempt)


class EventStream(Response):
    """The answer that goes on until the job ends, the client leaves or the service stops."""

    def __init__(
        self, scheduler: Scheduler, job_id: str, caller: Caller, *, had: Position, head_only: bool = False
    ) -> None:
        """Args:
        had: What the client has had of the output.
        head_only: Only the headers are wanted.
        """
        super().__init__(
            media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        del self.headers["content-length"]
        self._scheduler = scheduler
        self._job_id = job_id
        self._caller = caller
        self._output = Resumed(had)
        self._head_only = head_only
        self._sending = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if not self._head_only:
            talk = asyncio.create_task(self._talk(send))
            gone = asyncio.create_task(_disconnected(receive))
            try:
                await asyncio.wait({talk, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (talk, gone):
                    task.cancel()
                await asyncio.wait({talk, gone})
            if talk.cancelled() or not talk.result():
                return
        await send({"type": "http.response.body", "body": b""})

    async def _talk(self, send: Send) -> bool:
        """Tells all that there is to tell; False when the client has stopped reading."""
        try:
            async with asyncio.TaskGroup() as together:
                heartbeat = together.create_task(self._heartbeat(send))
                output = together.create_task(self._tell_output(send))
                await self._tell_states(send, output)
                heartbeat.cancel()
                output.cancel()
        except* TimeoutError:
            logger.info("job %s: a reader of its events took nothing for %g s", self._job_id, STUCK_READER_SECONDS)
            told = False
        else:
            told = True
        return told

    async def _tell_states(self, send: Send, output: asyncio.Task[None]) -> None:
        async with aclosing(self._scheduler.watch(self._job_id)) as views:
            async for view in views:
                if view.status.terminal:
                    await output
                await self._event(send, "state", _without_log(self._caller.shown(view)))
                if view.status.terminal:
                    await self._event(send, "end", Nothing(), event_id=END_ID)

    async def _tell_output(self, send: Send) -> None:
        async with aclosing(self._scheduler.follow_log(self._job_id)) as chunks:
            async for chunk in chunks:
                piece = self._output.piece(chunk)
                if piece is not None:
                    await self._event(send, "log", piece)

    async def _heartbeat(self, send: Send) -> None:
        await self._send(send, f"retry: {RECONNECT_MILLISECONDS}\n\n")
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await self._send(send, ": still here\n\n")

    async def _event(self, send: Send, kind: str, data: BaseModel, *, event_id: str | None = None) -> None:
        # JSON has no raw line break, so that no output can begin an event of its own.
        body = data.model_dump_json(by_alias=True)
        await self._send(send, f"id: {event_id or self._output.position}\nevent: {kind}\ndata: {body}\n\n")

    async def _send(self, send: Send, text: str) -> None:
        async with asyncio.timeout(STUCK_READER_SECONDS), self._sending:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


def _without_log(view: JobView) -> JobView:
    if view.result is None:
        return view
    return view.model_copy(update={"result": view.result.model_copy(update={"run_log": ""})})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
