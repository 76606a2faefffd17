"""Asking again: the one loop behind every HTTP call that may be repeated."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx

from openmle_gym.errors import InfrastructureError

RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
LONGEST_DELAY_SECONDS = 30.0

Answer = TypeVar("Answer")


async def retrying(
    call: Callable[[], Awaitable[Answer]],
    *,
    place: str,
    patience_seconds: float,
    unavailable: type[InfrastructureError],
) -> Answer:
    """Makes an idempotent call until it succeeds, is refused, or patience ends.

    Waits as long as a `Retry-After` header says, else with exponential back-off and jitter, at most
    `LONGEST_DELAY_SECONDS` at a time.

    Args:
        call: Raises httpx.TransportError, or httpx.HTTPStatusError with its response read.
        place: Names the call in the error.
        unavailable: What is raised in the end; quotes the last answer.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + patience_seconds
    for attempt in itertools.count():
        delay = min(LONGEST_DELAY_SECONDS, 0.2 * 1.5 ** min(attempt, 20)) * random.uniform(0.5, 1.0)
        try:
            return await call()
        except httpx.TransportError as error:
            cause, trouble = error, f"{type(error).__name__}: {error}"
        except httpx.HTTPStatusError as error:
            cause, trouble = error, f"HTTP {error.response.status_code}: {error.response.text[:500]}"
            if error.response.status_code not in RETRYABLE:
                raise unavailable(f"{place}: {trouble}") from error
            delay = retry_after_seconds(error.response.headers.get("Retry-After"), default=delay)
        if clock() + delay > deadline:
            raise unavailable(f"{place}: {trouble}") from cause
        await asyncio.sleep(delay)
    raise AssertionError("unreachable")


def retry_after_seconds(header: str | None, *, default: float) -> float:
    """A `Retry-After` header as seconds, at most `LONGEST_DELAY_SECONDS`: a number, or an HTTP date."""
    if header is None:
        return default
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return default
    return min(max(seconds, 0.0), LONGEST_DELAY_SECONDS) if seconds == seconds else default
