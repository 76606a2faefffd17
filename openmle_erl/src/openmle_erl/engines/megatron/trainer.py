"""The trainer `megatron` of the learning loop: hands each call to all ranks at once and puts their answers together."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from openmle_gym.errors import InfrastructureError

from openmle_erl.engines.megatron.worker import MegatronWorker, StepPart
from openmle_erl.engines.packing import TokenRow
from openmle_erl.engines.protocols import FloatArray, StepReport, TrainingSample, check_step
from openmle_erl.rl.gspo import add_sums, policy_metrics


class Ranks(Protocol):
    """The workers of one trainer, wherever they are: Ray's actors, or one in this process."""

    async def call(self, method: str, *arguments: object) -> list[Any]:
        """Calls a method of every worker at the same time; their results, in any order.

        Raises:
            InfrastructureError: A worker died.
        """
        ...


class OneRank:
    """A worker in this process, for a model that fits one device."""

    def __init__(self, worker: MegatronWorker) -> None:
        self._worker = worker

    async def call(self, method: str, *arguments: object) -> list[Any]:
        return [await asyncio.to_thread(getattr(self._worker, method), *arguments)]


class MegatronTrainer:
    """`openmle_erl.engines.protocols.Trainer` over Megatron's ranks."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    async def logprobs(self, samples: Sequence[TrainingSample]) -> list[FloatArray]:
        """See `Trainer`."""
        found: dict[int, FloatArray] = {}
        for part in await self._ranks.call("logprobs", list(samples)):
            found |= part or {}
        missing = [sample.sample_id for place, sample in enumerate(samples) if place not in found]
        if missing:
            raise InfrastructureError(f"no rank returned log-probabilities of {missing}")
        return [found[place] for place in range(len(samples))]

    async def step(self, samples: Sequence[TrainingSample], old_logprobs: Sequence[FloatArray]) -> StepReport:
        """See `Trainer`.

        Raises:
            ValueError, OpenMLEError: As `check_step`.
        """
        check_step(samples, old_logprobs)
        started = time.monotonic()
        parts = _reported(await self._ranks.call("step", list(samples), list(old_logprobs)))
        metrics = policy_metrics(add_sums(part.sums for part in parts))
        tokens = sum(len(sample.prompt_ids) + len(sample.reply_ids) for sample in samples)
        return _report(parts, metrics, tokens, time.monotonic() - started)

    async def learn(self, rows: Sequence[TokenRow]) -> StepReport:
        """One optimiser step of supervised fine-tuning: mean negative log-likelihood of all wanted tokens."""
        started = time.monotonic()
        parts = _reported(await self._ranks.call("learn", list(rows)))
        wanted = float(sum(int(row.wanted.sum()) for row in rows))
        return _report(parts, {"tokens": wanted}, sum(len(row.ids) for row in rows), time.monotonic() - started)

    async def save_weights(self, folder: Path) -> None:
        """See `Trainer`; the folder is one that all ranks see."""
        await self._ranks.call("save_weights", folder)

    async def save(self, folder: Path) -> None:
        """See `Trainer`; the folder is one that all ranks see."""
        await self._ranks.call("save", folder)

    async def load(self, folder: Path) -> None:
        """See `Trainer`."""
        await self._ranks.call("load", folder)

    async def close(self) -> None:
        """See `Trainer`."""
        await self._ranks.call("close")


def _reported(parts: Sequence[StepPart | None]) -> list[StepPart]:
    reported = [part for part in parts if part is not None]
    if not reported:
        raise InfrastructureError("no rank reported the step")
    return reported


def _report(parts: Sequence[StepPart], metrics: dict[str, float], tokens: int, seconds: float) -> StepReport:
    one = {
        "grad_norm": parts[0].grad_norm,
        "learning_rate": parts[0].learning_rate,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
    }
    return StepReport(loss=sum(part.loss for part in parts), metrics={**metrics, **one})
