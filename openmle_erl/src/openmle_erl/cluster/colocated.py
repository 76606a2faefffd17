"""Trainer and engines on the same GPUs, in turns: the engines let go of their memory while the trainer works."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from openmle_erl.engines.protocols import FloatArray, StepReport, Trainer, TrainingSample


class Yielding(Protocol):
    """Engines that can give their memory away."""

    async def release_memory(self) -> None:
        """Gives it; nothing may be running."""
        ...

    async def reclaim_memory(self) -> None:
        """Takes it again; the weights must be loaded next."""
        ...


class TakingTurns:
    """The protocol `Trainer`, which has the memory from the first work of a step until its weights are written."""

    def __init__(self, trainer: Trainer, engines: Yielding) -> None:
        self._trainer = trainer
        self._engines = engines
        self._ours = False

    async def logprobs(self, samples: Sequence[TrainingSample]) -> list[FloatArray]:
        """See `Trainer.logprobs`."""
        await self._take()
        return await self._trainer.logprobs(samples)

    async def step(self, samples: Sequence[TrainingSample], old_logprobs: Sequence[FloatArray]) -> StepReport:
        """See `Trainer.step`."""
        await self._take()
        return await self._trainer.step(samples, old_logprobs)

    async def save_weights(self, folder: Path) -> None:
        """See `Trainer.save_weights`; then the engines have the memory, and load them."""
        await self._trainer.save_weights(folder)
        if self._ours:
            self._ours = False
            await self._engines.reclaim_memory()

    async def save(self, folder: Path) -> None:
        """See `Trainer.save`."""
        await self._trainer.save(folder)

    async def load(self, folder: Path) -> None:
        """See `Trainer.load`."""
        await self._trainer.load(folder)

    async def close(self) -> None:
        """See `Trainer.close`. A trainer that died in its turn leaves the memory to the engines, without weights."""
        try:
            await self._trainer.close()
        finally:
            if self._ours:
                self._ours = False
                await self._engines.reclaim_memory()

    async def _take(self) -> None:
        if not self._ours:
            self._ours = True
            await self._engines.release_memory()
