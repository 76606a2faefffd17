"""Following a job: who waits for its changes, and what of its output is new."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from openmle_gym.execute import LOG_END, LOG_START
from openmle_gym.isolation.runner import BoundedLog
from openmle_gym.jobs import JobResult

from sandbox_service.records import LogChunk


class Waiters:
    """Those who wait for a job's next change."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def on(self, job_id: str) -> Iterator[asyncio.Event]:
        """An event that every change of the job sets, from now to the end of the block."""
        stirred = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(stirred)
        try:
            yield stirred
        finally:
            self._waiting[job_id].discard(stirred)
            if not self._waiting[job_id]:
                del self._waiting[job_id]

    def announce(self, job_id: str) -> None:
        """The job has changed."""
        for stirred in self._waiting.get(job_id, ()):
            stirred.set()

    def announce_all(self) -> None:
        """Everything has changed."""
        for job_id in list(self._waiting):
            self.announce(job_id)


def kept_output(result: JobResult) -> BoundedLog:
    """What a result holds of the program's output."""
    text = result.run_log.removeprefix(f"{LOG_START}\n").removesuffix(f"\n{LOG_END}\n")
    head, cut, tail = text.partition(f"\n[... {result.truncated_bytes} bytes cut ...]\n")
    if not (cut and result.truncated_bytes):
        return BoundedLog(head=text)
    return BoundedLog(head=head, tail=tail, truncated_bytes=result.truncated_bytes)


def total_bytes(log: BoundedLog) -> int:
    """The length of the whole output; exact for UTF-8."""
    return len(log.head.encode()) + log.truncated_bytes + len(log.tail.encode())


class LogFollower:
    """Tells what of a growing log is new. Where output that is not UTF-8 was cut, a joint may be some bytes off."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self._position = 0

    def advance(self, log: BoundedLog, *, ended: bool) -> list[LogChunk]:
        """What came since the last call: of the head, of the tail, or of both with a gap between them."""
        head, tail = log.head.encode(), log.tail.encode()
        chunks = [self._piece(head, 0, whole=ended or log.truncated_bytes > 0)]
        if log.truncated_bytes:
            chunks.append(self._piece(tail, len(head) + log.truncated_bytes, whole=ended))
        return [chunk for chunk in chunks if chunk.text or chunk.skipped_bytes]

    def _piece(self, kept: bytes, start: int, *, whole: bool) -> LogChunk:
        """What is new of a piece that begins at byte `start` of the output."""
        skipped = max(0, start - self._position)
        text = kept[max(0, self._position - start) :].decode(errors="replace")
        if not whole:
            text = text.removesuffix("\N{REPLACEMENT CHARACTER}")  # perhaps the first half of a character
        self._position = max(self._position, start) + len(text.encode())
        return LogChunk(text=text, skipped_bytes=skipped, attempt=self.attempt)
