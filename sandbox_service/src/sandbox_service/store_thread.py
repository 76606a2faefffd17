"""The one thread that touches the job store: many calls share one transaction, so one wait for the disk."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from openmle_gym.errors import OpenMLEError, StoreError

from sandbox_service.store import JobStore

TURNS_PER_TRANSACTION = 64

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    operation: Callable[[JobStore], object]
    answer: asyncio.Future


class StoreThread:
    """Carries out calls on a store, first come, first served; a call once made is carried out, awaited or not."""

    def __init__(self, store: JobStore) -> None:
        """Args:
        store: Owned from here on.
        """
        self._store = store
        self._made: list[_Call] = []  # in this turn of the loop
        self._turns: queue.SimpleQueue[list[_Call] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._serve, name="job-store", daemon=True)
        self._thread.start()

    async def call(self, operation: Callable[[JobStore], Answer]) -> Answer:
        """What the operation returns; what it changed is on disk by then.

        An operation that raises an OpenMLEError must not have changed anything: others share its transaction.

        Raises:
            StoreError: SQLite failed; nothing was changed.
        """
        answer = self._loop.create_future()
        if not self._made:
            self._loop.call_soon(self._hand_over)  # at the end of the turn, so that its calls share a transaction
        self._made.append(_Call(operation=operation, answer=answer))
        return await answer

    def _hand_over(self) -> None:
        self._turns.put(self._made)
        self._made = []

    async def close(self) -> None:
        """Ends the thread after the calls made so far, and closes the store."""
        self._hand_over()
        self._turns.put(None)
        await asyncio.to_thread(self._thread.join)
        self._store.close()

    def _serve(self) -> None:
        turns: list[list[_Call] | None] = []
        while None not in turns:
            turns = [self._turns.get()]
            while None not in turns and len(turns) < TURNS_PER_TRANSACTION and not self._turns.empty():
                turns.append(self._turns.get())
            batch = [call for turn in turns if turn is not None for call in turn]
            self._loop.call_soon_threadsafe(_answer, batch, self._carry_out(batch))

    def _carry_out(self, batch: list[_Call]) -> list[object]:
        """What each call returned or raised."""
        outcomes: list[object] = []
        try:
            with self._store.transaction():
                for call in batch:
                    try:
                        outcomes.append(call.operation(self._store))
                    except OpenMLEError as error:
                        outcomes.append(error)
        except StoreError as error:
            return [error] * len(batch)
        except Exception as error:
            logger.exception("a call on the job store failed")
            return [error] * len(batch)
        return outcomes


def _answer(batch: list[_Call], outcomes: list[object]) -> None:
    for call, outcome in zip(batch, outcomes, strict=True):
        if call.answer.done():
            continue
        if isinstance(outcome, Exception):
            call.answer.set_exception(outcome)
        else:
            call.answer.set_result(outcome)
