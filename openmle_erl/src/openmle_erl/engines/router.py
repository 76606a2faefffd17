"""Several engines as one, and new weights for all of them.

A group's members ask for the same prompt, so requests of one prompt go to one engine, which then reads it once; a new
prompt goes to the engine with the fewest requests. An engine that fails is taken out: all that it was working on raises
`InfrastructureError`, for the caller to queue anew. It is taken back once it is healthy and has the current weights.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from openmle_gym.errors import InfrastructureError, ModelUnavailable

from openmle_erl.engines.protocols import GenerateRequest, Generation, PauseMode, RolloutEngine

KNOWN_PROMPTS = 4096
"""How many prompts are remembered with their engine."""

logger = logging.getLogger(__name__)


class Weights(NamedTuple):
    """A model on disk."""

    folder: Path
    version: int


class Synchronisation(NamedTuple):
    """How new weights came to engines."""

    seconds: float
    """From the pause to the last engine's going on."""
    failed: dict[int, InfrastructureError]
    """By the engine's place; these have neither been given up nor resumed."""


async def synchronise_weights(
    engines: Sequence[RolloutEngine], folder: Path, version: int, mode: PauseMode
) -> Synchronisation:
    """Pauses all engines, has all load the weights and forget what they cached, and has all go on; each step on all at
    once. An engine that fails in one step is left out of the next, and stays paused."""
    clock = asyncio.get_running_loop().time
    started = clock()
    failed: dict[int, InfrastructureError] = {}

    async def everywhere(step: Callable[[RolloutEngine], Awaitable[None]]) -> None:
        places = [place for place in range(len(engines)) if place not in failed]
        answers = await asyncio.gather(*(step(engines[place]) for place in places), return_exceptions=True)
        for place, answer in zip(places, answers, strict=True):
            if isinstance(answer, InfrastructureError):
                failed[place] = answer
            elif isinstance(answer, BaseException):
                raise answer

    await everywhere(lambda engine: engine.pause(mode))
    await everywhere(lambda engine: engine.load_weights(folder, version))
    await everywhere(lambda engine: engine.resume())
    return Synchronisation(clock() - started, failed)


@dataclass(slots=True, eq=False)
class _Member:
    """An engine and what is known of it."""

    name: str
    engine: RolloutEngine
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while it is out."""
    open_requests: int = 0


class Router:
    """A `RolloutEngine` over several. Use as an async context manager, which looks after their health."""

    def __init__(
        self,
        engines: Iterable[tuple[str, RolloutEngine]] = (),
        *,
        look_seconds: float = 5.0,
        patience_seconds: float = 60.0,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        """Args:
        engines: With their names. None of them has been given weights other than those they started with.
        look_seconds: Between two looks at the engines' health.
        patience_seconds: How long a request waits while no engine is left.
        on_lost: Told the name of an engine that was taken out.
        """
        self._members = {name: _Member(name, engine) for name, engine in engines}
        self._look_seconds = look_seconds
        self._patience_seconds = patience_seconds
        self._on_lost = on_lost
        self._weights: Weights | None = None
        self._paused: PauseMode | None = None
        self._control = asyncio.Lock()
        self._prompts: OrderedDict[tuple[int, ...], str] = OrderedDict()
        self._watcher: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watcher:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher

    def live(self) -> list[str]:
        """The engines that requests go to."""
        return [member.name for member in self._live()]

    async def add(self, name: str, engine: RolloutEngine) -> None:
        """Takes an engine in, once it has the current weights; one of the same name is replaced.

        Raises:
            InfrastructureError: It is not healthy, or does not take the weights.
        """
        self.remove(name)
        member = _Member(name, engine)
        await self._admit(member)
        self._members[name] = member
        self._stir()

    def remove(self, name: str) -> None:
        """Takes an engine out for good; what it works on raises."""
        if member := self._members.pop(name, None):
            member.lost.set()

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `RolloutEngine`.

        Raises:
            InfrastructureError: The engine was lost on the way, or none was left for `patience_seconds`.
        """
        member = await self._choose(request.prompt_ids)
        member.open_requests += 1
        work = asyncio.ensure_future(member.engine.generate(request))
        lost = asyncio.ensure_future(member.lost.wait())
        try:
            await asyncio.wait({work, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ModelUnavailable(f"engine {member.name} was lost with request {request.request_id}")
            return work.result()
        except InfrastructureError as error:
            self._lose(member, error)
            raise
        finally:
            member.open_requests -= 1
            for task in (work, lost):
                task.cancel()
            await asyncio.gather(work, lost, return_exceptions=True)

    async def pause(self, mode: PauseMode) -> None:
        """See `RolloutEngine`."""
        async with self._control:
            self._paused = mode
            await self._everywhere(lambda engine: engine.pause(mode))

    async def load_weights(self, folder: Path, version: int) -> None:
        """See `RolloutEngine`. The folder must stay as long as these weights are current: engines that come later get
        them from there."""
        async with self._control:
            self._weights = Weights(folder, version)
            await self._everywhere(lambda engine: engine.load_weights(folder, version))

    async def resume(self) -> None:
        """See `RolloutEngine`."""
        async with self._control:
            self._paused = None
            await self._everywhere(lambda engine: engine.resume())

    async def version(self) -> int:
        """See `RolloutEngine`. The version that all engines have."""
        if not self._live():
            raise ModelUnavailable("no rollout engine is left")
        return self._weights.version if self._weights else 0

    async def look(self) -> None:
        """Takes out engines that are not healthy or were started again with other weights, and takes back those that
        are healthy again."""
        weights = None if self._control.locked() else self._weights
        members = list(self._members.values())
        answers = await asyncio.gather(*(member.engine.version() for member in members), return_exceptions=True)
        for member, answer in zip(members, answers, strict=True):
            if isinstance(answer, InfrastructureError):
                self._lose(member, answer)
            elif isinstance(answer, BaseException):
                raise answer
            elif not member.lost.is_set():
                if weights is not None and weights is self._weights and answer != weights.version:
                    self._lose(member, ModelUnavailable(f"its weights are version {answer}, not {weights.version}"))
            elif self._members.get(member.name) is member:
                try:
                    await self._admit(member)
                except InfrastructureError as error:
                    logger.warning("engine %s is not taken back: %s", member.name, error)

    async def _admit(self, member: _Member) -> None:
        """Brings an engine to where the others are, and lets requests go to it."""
        async with self._control:
            version = await member.engine.version()
            if self._weights and version != self._weights.version:
                await member.engine.pause(PauseMode.ABORT)
                await member.engine.load_weights(*self._weights)
                await member.engine.resume()
            if self._paused is not None:
                await member.engine.pause(self._paused)
            elif member.lost.is_set():
                await member.engine.resume()  # it may have been lost while it was paused
            member.lost.clear()
        logger.info("engine %s is in", member.name)
        self._stir()

    async def _everywhere(self, step: Callable[[RolloutEngine], Awaitable[None]]) -> None:
        """One step on all live engines at once; those that fail are taken out.

        Raises:
            InfrastructureError: None is left.
        """
        members = self._live()
        answers = await asyncio.gather(*(step(member.engine) for member in members), return_exceptions=True)
        for member, answer in zip(members, answers, strict=True):
            if isinstance(answer, InfrastructureError):
                self._lose(member, answer)
            elif isinstance(answer, BaseException):
                raise answer
        if not self._live():
            raise ModelUnavailable("no rollout engine is left")

    async def _choose(self, prompt: tuple[int, ...]) -> _Member:
        try:
            async with asyncio.timeout(self._patience_seconds):
                while not (live := self._live()):
                    await self._changed.wait()
        except TimeoutError:
            raise ModelUnavailable(f"no rollout engine was left for {self._patience_seconds:g} s") from None
        member = self._members.get(self._prompts.get(prompt, ""))
        if member is None or member.lost.is_set():
            member = min(live, key=lambda each: each.open_requests)
        self._prompts[prompt] = member.name
        self._prompts.move_to_end(prompt)
        while len(self._prompts) > KNOWN_PROMPTS:
            self._prompts.popitem(last=False)
        return member

    def _live(self) -> list[_Member]:
        return [member for member in self._members.values() if not member.lost.is_set()]

    def _lose(self, member: _Member, reason: InfrastructureError) -> None:
        if member.lost.is_set():
            return
        logger.warning("engine %s is out: %s", member.name, reason)
        member.lost.set()
        if self._on_lost and self._members.get(member.name) is member:
            self._on_lost(member.name)

    def _stir(self) -> None:
        """Wakes all who wait for an engine."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            await self.look()
