"""Running stages: each once, until what it was made from changes, with its outcome on disk before the next begins."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pydantic import JsonValue

from openmle_gym.build.state import StageRecord, StateFile, fingerprint
from openmle_gym.chat import Usage
from openmle_gym.errors import InfrastructureError, PackageError

Progress = Callable[[str, StageRecord, bool], None]
"""Told of a stage, its record, and whether it was done already."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a stage's work ended."""

    output: str = ""
    """A digest of what it made."""
    code: str = ""
    """Why it failed, in one word; empty where it did not."""
    message: str = ""
    attempts: int = 0
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = None


class StageFailed(Exception):
    """A stage failed for good; ends the road of its task within `build_package`, and never leaves it."""

    def __init__(self, stage: str, record: StageRecord) -> None:
        super().__init__(f"{stage}: {record.code}: {record.message}")
        self.stage, self.record = stage, record


class Stages:
    """The stages of one build."""

    def __init__(self, file: StateFile, progress: Progress) -> None:
        self._file, self._progress = file, progress

    async def run(
        self,
        name: str,
        made_from: list[JsonValue],
        work: Callable[[bool], Awaitable[Outcome]],
        *,
        intact: Callable[[], bool],
    ) -> StageRecord:
        """The stage's record: the one on disk where it is done, from the same things, and what it made is there.

        Args:
            work: Told whether it goes on with an earlier, unfinished run from the same things; else it starts afresh.

        Raises:
            StageFailed: What it made will not do.
            InfrastructureError: Machinery failed; the record says `stopped`.
        """
        mark = fingerprint(name.rpartition("/")[2], *made_from)
        before = self._file.record(name)
        goes_on = before is not None and before.fingerprint == mark
        if before is not None and goes_on and before.status == "done" and await asyncio.to_thread(intact):
            self._progress(name, before, True)
            return before
        spent_before = before.seconds if before is not None and goes_on else 0.0
        if not goes_on:
            self._file.write(name, StageRecord(status="stopped", fingerprint=mark, message="begun"))
        logger.info("%s ...", name)
        clock = asyncio.get_running_loop().time
        started = clock()
        try:
            outcome = await work(goes_on)
        except (InfrastructureError, asyncio.CancelledError) as error:
            message = str(error) or "interrupted"
            seconds = spent_before + clock() - started
            self._file.write(name, StageRecord(status="stopped", fingerprint=mark, message=message, seconds=seconds))
            raise
        except PackageError as error:
            outcome = Outcome(code="unusable", message=str(error))
        record = StageRecord(
            status="failed" if outcome.code else "done",
            fingerprint=mark,
            output=outcome.output,
            code=outcome.code,
            message=outcome.message,
            seconds=round(spent_before + clock() - started, 3),
            attempts=outcome.attempts,
            usage=outcome.usage,
            cost_usd=outcome.cost_usd,
        )
        self._file.write(name, record)
        self._progress(name, record, False)
        if record.status == "failed":
            raise StageFailed(name, record)
        return record
