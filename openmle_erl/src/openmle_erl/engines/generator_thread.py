"""A `Generator` in a thread of its own, asked from an event loop."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Self, TypeVar

from openmle_gym.errors import InfrastructureError

from openmle_erl.engines.generator import Generator
from openmle_erl.engines.protocols import GenerateRequest, Generation

Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)


class GeneratorThread:
    """Runs a generator. Use as an async context manager; in the end, what is open is aborted."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="generator", daemon=True)
        self._closing = False
        self._open: set[Future[Generation]] = set()
        self.failure: BaseException | None = None
        """Why nothing is generated any more; None while all is well."""

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        def close() -> None:
            self._closing = True
            self._generator.abort(None)

        self._orders.put(close)
        await asyncio.to_thread(self._thread.join)

    async def ask(self, order: Callable[[Generator], Answer]) -> Answer:
        """What the generator answers, between two steps.

        Raises:
            InfrastructureError: It has failed.
        """
        done: Future[Answer] = Future()

        def obey() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(order(self._generator))
            except BaseException as error:  # whatever it is, it is the asker's to know
                done.set_exception(error)

        self._check()
        self._orders.put(obey)
        return await asyncio.wrap_future(done)

    async def generate(self, request: GenerateRequest, *, stop_ids: Iterable[int]) -> Generation:
        """A request's generation. Cancelling this call aborts the request.

        Raises:
            InfrastructureError: The generator failed.
        """
        done: Future[Generation] = Future()
        done.set_running_or_notify_cancel()  # from here on only the generator ends it
        self._open.add(done)
        try:
            await self.ask(lambda generator: generator.add(request, done.set_result, stop_ids=stop_ids))
            return await asyncio.shield(asyncio.wrap_future(done))
        except asyncio.CancelledError:
            self._orders.put(lambda: self._generator.abort(request.request_id))
            raise
        finally:
            self._open.discard(done)

    def _work(self) -> None:
        try:
            while not self._closing:
                self._obey()
                self._generator.step()
        except Exception as error:  # the thread's edge: those who wait must hear of it
            logger.exception("the generator failed")
            self.failure = error
            for done in list(self._open):
                if not done.done():
                    done.set_exception(InfrastructureError(f"the generator failed: {error}"))
            self._obey()

    def _obey(self) -> None:
        """Carries out all orders there are; waits for one when there is nothing else to do."""
        wait = self._generator.idle and self.failure is None
        while True:
            try:
                self._orders.get(block=wait)()
            except queue.Empty:
                return
            wait = False

    def _check(self) -> None:
        if self.failure is not None:
            raise InfrastructureError(f"the generator failed: {self.failure}")
