"""What SFT and RL share: a model, its optimiser and their state, on one device or sharded over processes by FSDP2.

Every process is given the same sequences and takes its share; sums of losses over all processes are what one process
alone would have. A process of several calls each method when all others do.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from openmle_gym.errors import ConfigError, OpenMLEError
from pydantic import JsonValue
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from openmle_erl.engines import routing
from openmle_erl.engines.checkpoint import Checkpoints
from openmle_erl.engines.models import compute_dtype, load_model, merged_state, prepare, token_logprobs, write_weights
from openmle_erl.engines.packing import MicroBatch, TokenRow, collate, plan
from openmle_erl.engines.processes import Place
from openmle_erl.engines.settings import OptimiserConfig, TorchEngineConfig, learning_rate_at

Gathered = TypeVar("Gathered")


class Update(NamedTuple):
    """What an optimiser step did."""

    grad_norm: float
    """Before the clip."""
    learning_rate: float


class Micro(NamedTuple):
    """A micro-batch and what the model says of its wanted tokens."""

    batch: MicroBatch
    logprobs_N: Tensor
    entropy_N: Tensor | None


class TorchEngine:
    """See the module."""

    def __init__(self, config: TorchEngineConfig, optimiser: OptimiserConfig, place: Place = Place()) -> None:  # noqa: B008
        self.config = config
        self.place = place
        self.device = _device(config, place)
        self.steps = 0
        """Optimiser steps that were done."""
        self._optimiser_config = optimiser
        learning_rate_at(0, optimiser)  # complains now, not after the first batch
        self._dtype = compute_dtype(config, self.device)
        self._sharded = place.processes > 1 or self.device.type == "cuda" or self._dtype is torch.bfloat16
        self._owns_group = self._sharded and _join(self.device, place)
        torch.manual_seed(config.seed)
        model = load_model(config.model, attention=config.attention)
        self.model_config = model.config
        self.parameters_total = model.num_parameters()
        mesh = init_device_mesh(self.device.type, (place.processes,)) if self._sharded else None
        self._mesh = mesh
        self.model = prepare(model, config, self.device, mesh)
        self.optimiser = _adamw(self.model, optimiser)
        self._checkpoints = Checkpoints(self.model, self.optimiser, adapters=config.lora.rank > 0)
        torch.manual_seed(config.seed + place.rank)  # from here on, processes draw different numbers

    def load_frozen(self, folder: str) -> nn.Module:
        """Another model on the same devices that is not trained: the reference."""
        plain = TorchEngineConfig(
            model=folder, precision=self.config.precision, device=self.config.device, attention=self.config.attention
        )
        return prepare(load_model(folder, attention=plain.attention), plain, self.device, self._mesh).requires_grad_(
            False
        )

    def passes(
        self,
        rows: Sequence[TokenRow],
        *,
        model: nn.Module | None = None,
        entropy: bool = False,
        entropy_gradient: bool = False,
        gradient: bool = True,
    ) -> Iterator[Micro]:
        """Forward passes over this process's share of the sequences, one micro-batch after the other.

        The caller goes back (`backward`) through one before it asks for the next. Micro-batches without items keep step
        with other processes: go back through their (empty) log-probabilities' sum as well.
        """
        config = self.config
        bins = plan(
            [len(row.ids) for row in rows],
            budget=config.max_tokens_per_micro_batch,
            packing=config.packing,
            processes=self.place.processes,
        )[self.place.rank]
        network = self.model if model is None else model
        network.train(gradient)  # dropout is for learning: what is only asked for is the model's own answer
        for places in bins:
            batch = collate(rows, places, packing=config.packing).to(self.device)
            with routing.replayed(network, batch.experts_NLK):
                with torch.set_grad_enabled(gradient):
                    found = token_logprobs(
                        network,
                        batch,
                        temperature=config.temperature,
                        entropy=entropy,
                        entropy_gradient=entropy_gradient,
                    )
                yield Micro(batch, found.logprobs_N, found.entropy_N)

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of a share of the loss; shares of all micro-batches and processes are summed."""
        (loss * self.place.processes).backward()  # sharding averages over processes

    def update(self) -> Update:
        """One step of the optimiser, with the gradients that were added since the last.

        Raises:
            OpenMLEError: The gradient is not finite; nothing was changed.
        """
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self._optimiser_config.max_grad_norm)
        grad_norm = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        if not torch.isfinite(torch.tensor(grad_norm)):
            self.optimiser.zero_grad(set_to_none=True)
            raise OpenMLEError(f"step {self.steps}: the gradient's length is {grad_norm}")
        rate = learning_rate_at(self.steps, self._optimiser_config)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.steps += 1
        return Update(grad_norm, rate)

    def gather(self, value: Gathered) -> list[Gathered]:
        """Every process's value, on every process."""
        if self.place.processes == 1:
            return [value]
        values: list[Gathered | None] = [None] * self.place.processes
        dist.all_gather_object(values, value)
        return [each for each in values if each is not None]

    def save_weights(self, folder: Path) -> None:
        """Writes the model alone, adapters merged, in the precision of the arithmetic; the first process writes."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        found = get_model_state_dict(self.model, options=options)
        if self.place.rank == 0:
            state = {name: value for name, value in found.items() if isinstance(value, Tensor)}
            if self.config.lora.rank:
                state = merged_state(state, self.config.lora)
            write_weights(state, self.model_config, Path(self.config.model), folder, dtype=self._dtype)
        self._checkpoints.barrier()

    def save(self, folder: Path, extra: dict[str, JsonValue] | None = None) -> None:
        """Writes all that `load` needs to go on, bit for bit with as many processes."""
        self._checkpoints.save(folder, steps=self.steps, extra=extra or {}, background=self.config.async_save)

    def load(self, folder: Path) -> dict[str, JsonValue]:
        """Goes on from a checkpoint; returns what was saved beside it."""
        manifest = self._checkpoints.load(folder)
        self.steps = manifest.steps
        return manifest.extra

    def close(self) -> None:
        """Waits for what is being written, and leaves the other processes."""
        self._checkpoints.wait()
        if self._owns_group:
            dist.destroy_process_group()
            self._owns_group = False


def _device(config: TorchEngineConfig, place: Place) -> torch.device:
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("engine.device: cuda, but torch sees no GPU")
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    return device


def _join(device: torch.device, place: Place) -> bool:
    """Makes the process group unless this process has one; says whether it did."""
    if dist.is_initialized():
        if dist.get_world_size() != place.processes:
            raise ConfigError(f"this process is already one of {dist.get_world_size()}, not of {place.processes}")
        return False
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if place.processes == 1:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    else:
        method = f"tcp://{place.address}:{place.port}"
        dist.init_process_group(backend, init_method=method, rank=place.rank, world_size=place.processes)
    return True


def _adamw(model: nn.Module, config: OptimiserConfig) -> torch.optim.AdamW:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(
        [
            {"params": [each for each in trained if each.ndim > 1], "weight_decay": config.weight_decay},
            {"params": [each for each in trained if each.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )
