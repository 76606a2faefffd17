"""The head and the tail of a program's output, read back from the record that its supervisor kept."""

import os
import signal
from dataclasses import dataclass

from openmle_gym.isolation.runner import BoundedLog
from openmle_gym.isolation.supervisor import ENDED, HEADER, PREPARED


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a supervisor wrote down; the program may have tampered with it where it shares the supervisor's user."""

    started: bool
    exit_code: int | None
    """None while it runs, and when a signal ended it."""
    signal: int | None
    total_bytes: int
    """Output so far, what was cut included."""
    log: BoundedLog

    def killed_for_output(self, most_bytes: int) -> bool:
        """Whether the supervisor, told to allow so many bytes, killed the program because it wrote more."""
        return self.signal == signal.SIGKILL and self.total_bytes > most_bytes


def record_bytes(log_bytes: int) -> int:
    """The size of a record file."""
    return HEADER.size + 2 * (log_bytes // 2)


def has_started(descriptor: int) -> bool:
    """Whether the supervisor has started the program."""
    return HEADER.unpack(os.pread(descriptor, HEADER.size, 0))[2] != PREPARED


def read_record(descriptor: int, log_bytes: int) -> Record:
    """Reads a record at any time, also after its writer was killed."""
    # A record that was cut short reads as zeros, so that nothing here depends on who wrote it.
    raw = os.pread(descriptor, record_bytes(log_bytes), 0).ljust(record_bytes(log_bytes), b"\0")
    total, status, phase = HEADER.unpack_from(raw)
    half = log_bytes // 2
    first, ring = raw[HEADER.size : HEADER.size + half], raw[HEADER.size + half :]
    in_ring = total - half
    if in_ring <= half:
        head, tail = first[:total], ring[: max(0, in_ring)]
    else:
        oldest = in_ring % half
        head, tail = first, ring[oldest:] + ring[:oldest]
    code = (
        os.waitstatus_to_exitcode(status)
        if phase == ENDED and (os.WIFEXITED(status) or os.WIFSIGNALED(status))
        else None
    )
    return Record(
        started=phase != PREPARED,
        exit_code=code if code is not None and code >= 0 else None,
        signal=-code if code is not None and code < 0 else None,
        total_bytes=total,
        log=bounded_log(head, tail, total, log_bytes),
    )


def bounded_log(head: bytes, tail: bytes, total_bytes: int, log_bytes: int) -> BoundedLog:
    """Decodes what was kept of `total_bytes` of output; the text, encoded again, still fits `log_bytes`.

    What is not UTF-8, and a character cut in two, becomes U+FFFD, which is three bytes long: so output that is not
    text is cut further.
    """
    if len(head) + len(tail) == total_bytes:
        text = (head + tail).decode(errors="replace")
        if len(text.encode()) <= log_bytes:
            return BoundedLog(head=text)
    head_kept, head_text = _fitting(head, log_bytes // 2, from_end=False)
    tail_kept, tail_text = _fitting(tail, log_bytes // 2, from_end=True)
    return BoundedLog(head=head_text, tail=tail_text, truncated_bytes=total_bytes - head_kept - tail_kept)


def _fitting(raw: bytes, budget: int, *, from_end: bool) -> tuple[int, str]:
    """The longest part that we find whose text fits: its length in bytes, and the text."""
    while True:
        text = raw.decode(errors="replace")
        excess = len(text.encode()) - budget
        if excess <= 0:
            return len(raw), text
        # A byte becomes at most three, so at least this many have to go.
        surplus = -(-excess // 3)
        raw = raw[surplus:] if from_end else raw[:-surplus]
