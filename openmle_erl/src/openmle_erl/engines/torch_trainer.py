"""The trainer `torch`: one policy-gradient step of a Hugging Face model, in this process or over several.

`TorchTrainerWorker` is one process's part, with plain methods; `TorchTrainer` is the protocol `Trainer` over one in this
process, or over several in processes of their own. A cluster wraps the worker in actors instead.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from openmle_erl.engines.packing import MicroBatch, TokenRow
from openmle_erl.engines.processes import Place, WorkerProcesses
from openmle_erl.engines.protocols import FloatArray, StepReport, TrainingSample, check_step
from openmle_erl.engines.settings import TorchTrainerConfig
from openmle_erl.engines.torch_engine import TorchEngine
from openmle_erl.rl.gspo import add_sums, policy_loss, policy_metrics


class TorchTrainerWorker:
    """One process of the trainer. All processes are called at once, with the same arguments, and answer the same."""

    def __init__(self, config: TorchTrainerConfig, place: Place = Place()) -> None:  # noqa: B008
        self._config = config
        self._engine = TorchEngine(config.engine, config.optimiser, place)
        self._reference = None
        if config.objective.kl_coefficient > 0.0:
            self._reference = self._engine.load_frozen(config.reference or config.engine.model)

    def logprobs(self, samples: Sequence[TrainingSample]) -> list[FloatArray]:
        """See `Trainer.logprobs`."""
        return self._logprobs(samples, None)

    def _logprobs(self, samples: Sequence[TrainingSample], model: torch.nn.Module | None) -> list[FloatArray]:
        rows = [self._row(sample) for sample in samples]
        own: dict[int, FloatArray] = {}
        for micro in self._engine.passes(rows, model=model, gradient=False):
            values = micro.logprobs_N.cpu().split(list(micro.batch.counts))
            own |= {place: value.numpy() for place, value in zip(micro.batch.items, values, strict=True)}
        found = {place: values for part in self._engine.gather(own) for place, values in part.items()}
        return [found[place] for place in range(len(samples))]

    def step(self, samples: Sequence[TrainingSample], old_logprobs: Sequence[FloatArray]) -> StepReport:
        """See `Trainer.step`.

        Raises:
            ValueError, OpenMLEError: As `check_step`.
            OpenMLEError: The gradient is not finite; nothing was changed.
        """
        check_step(samples, old_logprobs)
        started = time.perf_counter()
        engine, objective = self._engine, self._config.objective
        reference = self._logprobs(samples, self._reference) if self._reference is not None else None
        loss_sum = torch.zeros((), dtype=torch.float64, device=engine.device)
        sums: list[dict[str, Tensor]] = []
        passes = engine.passes(
            [self._row(sample) for sample in samples],
            entropy=True,
            entropy_gradient=objective.entropy_coefficient > 0.0,
        )
        for micro in passes:
            batch = micro.batch
            if not batch.items:
                engine.backward(micro.logprobs_N.sum())
                continue
            chosen = [samples[place] for place in batch.items]

            def padded(values: Callable[[int], Any], batch: MicroBatch = batch) -> Tensor:
                joined = np.concatenate([values(place) for place in batch.items])
                return batch.padded(torch.from_numpy(joined).to(engine.device))

            assert micro.entropy_N is not None
            found = policy_loss(
                batch.padded(micro.logprobs_N),
                padded(lambda place: old_logprobs[place]),
                padded(lambda place: samples[place].rollout_logprobs_T),
                padded(lambda place: samples[place].loss_mask_T),
                torch.tensor([sample.advantage for sample in chosen], dtype=torch.float32, device=engine.device),
                objective,
                global_batch=len(samples),
                ref_logprobs_BT=None if reference is None else padded(lambda place: reference[place]),
                entropy_BT=batch.padded(micro.entropy_N),
            )
            engine.backward(found.loss)
            loss_sum += found.loss.detach()
            sums.append(found.sums)
        added = add_sums(engine.gather(_on_cpu(sums, loss_sum)))
        update = engine.update()
        loss = float(added.pop("loss"))
        seconds = time.perf_counter() - started
        tokens = sum(len(sample.prompt_ids) + len(sample.reply_ids) for sample in samples)
        return StepReport(
            loss=loss,
            metrics=policy_metrics(added)
            | {
                "grad_norm": update.grad_norm,
                "learning_rate": update.learning_rate,
                "seconds": seconds,
                "tokens_per_second": tokens / seconds,
            },
        )

    def learn(self, rows: Sequence[TokenRow]) -> StepReport:
        """One optimiser step of supervised fine-tuning: the mean negative log-likelihood of all wanted tokens.

        Raises:
            ValueError: No token is wanted.
            OpenMLEError: The gradient is not finite; nothing was changed.
        """
        started = time.perf_counter()
        engine = self._engine
        wanted = sum(int(row.wanted.sum()) for row in rows)
        if not wanted:
            raise ValueError(f"none of {len(rows)} sequences has a token that is to be learnt")
        loss_sum = torch.zeros((), dtype=torch.float64, device=engine.device)
        for micro in engine.passes(rows):
            loss = -micro.logprobs_N.sum() / wanted
            engine.backward(loss)
            loss_sum += loss.detach()
        loss = sum(engine.gather(float(loss_sum)))
        update = engine.update()
        seconds = time.perf_counter() - started
        tokens = sum(len(row.ids) for row in rows)
        return StepReport(
            loss=loss,
            metrics={
                "grad_norm": update.grad_norm,
                "learning_rate": update.learning_rate,
                "tokens": float(wanted),
                "seconds": seconds,
                "tokens_per_second": tokens / seconds,
            },
        )

    def save_weights(self, folder: Path) -> None:
        """See `Trainer.save_weights`."""
        self._engine.save_weights(folder)

    def save(self, folder: Path) -> None:
        """See `Trainer.save`."""
        self._engine.save(folder)

    def load(self, folder: Path) -> None:
        """See `Trainer.load`."""
        self._engine.load(folder)

    def close(self) -> None:
        """See `Trainer.close`."""
        self._engine.close()

    def _row(self, sample: TrainingSample) -> TokenRow:
        """The reply's tokens are wanted, all of them: those that are not learnt are masked in the loss."""
        ids = np.array([*sample.prompt_ids, *sample.reply_ids], dtype=np.int64)
        experts = sample.experts_NLK if self._config.replay_routing else None
        return TokenRow(ids=ids, wanted=np.arange(len(ids)) >= len(sample.prompt_ids), experts_NLK=experts)


def _on_cpu(sums: Sequence[dict[str, Tensor]], loss_sum: Tensor) -> dict[str, Tensor]:
    return {name: value.cpu() for name, value in (add_sums(sums) | {"loss": loss_sum}).items()}


class TorchTrainer:
    """The protocol `Trainer`."""

    def __init__(self, call: Callable[..., Any], end: Callable[[], None], thread: ThreadPoolExecutor) -> None:
        self._call = call
        self._end = end
        self._thread = thread  # one for all calls: torch keeps its current device by thread

    @classmethod
    async def start(cls, config: TorchTrainerConfig, *, processes: int = 1) -> Self:
        """Loads the model: in this process, or in that many others."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer")
        loop = asyncio.get_running_loop()
        if processes == 1:
            worker = await loop.run_in_executor(thread, TorchTrainerWorker, config)
            return cls(lambda method, *arguments: getattr(worker, method)(*arguments), lambda: None, thread)
        group = await loop.run_in_executor(thread, WorkerProcesses, TorchTrainerWorker, (config,), processes)
        return cls(lambda method, *arguments: group.call(method, *arguments)[0], group.close, thread)

    async def _run(self, method: str, *arguments: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._call, method, *arguments)

    async def logprobs(self, samples: Sequence[TrainingSample]) -> list[FloatArray]:
        """See `Trainer.logprobs`."""
        return await self._run("logprobs", list(samples)) if samples else []

    async def step(self, samples: Sequence[TrainingSample], old_logprobs: Sequence[FloatArray]) -> StepReport:
        """See `Trainer.step`."""
        return await self._run("step", list(samples), list(old_logprobs))

    async def learn(self, rows: Sequence[TokenRow]) -> StepReport:
        """One optimiser step of supervised fine-tuning: the mean negative log-likelihood of all wanted tokens."""
        return await self._run("learn", list(rows))

    async def save_weights(self, folder: Path) -> None:
        """See `Trainer.save_weights`."""
        await self._run("save_weights", folder)

    async def save(self, folder: Path) -> None:
        """See `Trainer.save`."""
        await self._run("save", folder)

    async def load(self, folder: Path) -> None:
        """See `Trainer.load`."""
        await self._run("load", folder)

    async def close(self) -> None:
        """See `Trainer.close`."""
        await self._run("close")
        await asyncio.to_thread(self._end)
        self._thread.shutdown()
