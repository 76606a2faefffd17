"""A circuit breaker: pauses admission while machinery fails too often, and resumes by itself.

    closed     work is admitted; the last results are watched
    open       nothing is admitted until the pause is over
    half open  one try is admitted; if it works the breaker closes, if not it pauses again, twice as long

A paused run waits. It is not aborted, and nothing that failed for want of machinery becomes a reward.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from openmle_gym.errors import ConfigError


@dataclass
class BreakerConfig:
    """When admission pauses."""

    window: int = 64
    """The last so many tries are watched."""
    least: int = 16
    """Fewer results say nothing."""
    failure_share: float = 0.5
    """Admission pauses when more than this share of the watched tries failed for want of machinery."""
    pause_seconds: float = 30.0
    """The first pause; each probe that fails doubles it."""
    longest_pause_seconds: float = 600.0
    """No pause is longer."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.window:
            raise ConfigError(f"breaker.least: must be from 1 to breaker.window={self.window}, got {self.least}")
        if not 0.0 < self.failure_share < 1.0:
            raise ConfigError(f"breaker.failure_share: must be in (0, 1), got {self.failure_share}")
        if not 0.0 < self.pause_seconds <= self.longest_pause_seconds:
            raise ConfigError(
                f"breaker.pause_seconds: must be in (0, {self.longest_pause_seconds}], got {self.pause_seconds}"
            )


class Breaker:
    """Watches the tries of one run. `clock` is in seconds and never goes back."""

    def __init__(self, config: BreakerConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._results: deque[bool] = deque(maxlen=config.window)
        self._pause_seconds = config.pause_seconds
        self._resumes_at: float | None = None  # None while closed
        self._probing = False
        self.opened = 0
        """How often it has opened."""

    @property
    def is_open(self) -> bool:
        """Whether admission is paused, a probe under way or not."""
        return self._resumes_at is not None

    def wait_seconds(self) -> float:
        """How long whoever wants to start must wait; 0.0 to start now."""
        return 0.0 if self._resumes_at is None else max(0.0, self._resumes_at - self._clock())

    async def enter(self) -> bool:
        """Waits until a try may start, and starts it; after a pause that is one try alone, the probe.

        A probe that tells nothing for the length of a pause is given up, and another one may start.

        Returns:
            Whether it is the probe.
        """
        while True:
            wait = self.wait_seconds()
            if wait == 0.0:
                break
            await asyncio.sleep(wait)
        if self._resumes_at is None:
            return False
        self._pause(probing=True)
        return True

    def record(self, *, ok: bool) -> None:
        """Tells how a try ended: whether the machinery worked, whatever the program did.

        While paused, tries that had started before say nothing.
        """
        if self._resumes_at is None:
            self._results.append(ok)
            failed = self._results.count(False)
            if len(self._results) >= self._config.least and failed > self._config.failure_share * len(self._results):
                self.opened += 1
                self._pause(probing=False)
        elif self._probing and ok:
            self._resumes_at = None
            self._probing = False
            self._results.clear()
            self._pause_seconds = self._config.pause_seconds
        elif self._probing:
            self._pause_seconds = min(2.0 * self._pause_seconds, self._config.longest_pause_seconds)
            self._pause(probing=False)

    def _pause(self, *, probing: bool) -> None:
        self._resumes_at = self._clock() + self._pause_seconds
        self._probing = probing
