"""Passes and optimiser without CUDA: Megatron's own gradient synchronisation, schedules and optimisers refuse the CPU.

A gradient is a sum over all ranks that saw other tokens: dense parameters over the data-parallel ranks, experts over
their own replicas (expert parallelism sends them the others' tokens), norms of queries and keys over the tensor ranks,
which have other heads each.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.optimizer import (
    get_param_id_to_sharded_param_map,
    optim_state_to_sharding_state,
)
from megatron.core.models.gpt import GPTModel
from openmle_gym.errors import OpenMLEError
from torch import Tensor

from openmle_erl.engines.megatron.config import MegatronConfig
from openmle_erl.engines.megatron.packs import Pack

ForwardStep = Callable[[Iterator[Pack], Any], tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, Any]]]]
"""Megatron's: from micro-batches and the model to the model's output, and what makes of it a loss, a number of tokens
and a result."""


class HostEngine:
    """Trains one rank's model on the CPU."""

    def __init__(self, model: GPTModel, config: MegatronConfig) -> None:
        self.model = model
        self._clip = config.optimiser.max_grad_norm
        trained = list(model.parameters())
        self.optimiser = torch.optim.AdamW(
            [
                {"params": [each for each in trained if each.ndim > 1], "weight_decay": config.optimiser.weight_decay},
                {"params": [each for each in trained if each.ndim <= 1], "weight_decay": 0.0},
            ],
            lr=config.optimiser.learning_rate,
            betas=(config.optimiser.beta1, config.optimiser.beta2),
            eps=config.optimiser.epsilon,
        )
        for parameter in trained:  # as the optimiser's first step would; a checkpoint is read into them
            zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            self.optimiser.state[parameter] = {"step": torch.tensor(0.0), **zeros}

    def run(self, packs: Sequence[Pack], forward_step: ForwardStep, *, model: Any, train: bool) -> list[Any]:
        """Passes over all micro-batches, with gradients where `train`; the results of the loss functions."""
        results = []
        with torch.set_grad_enabled(train):
            for pack in packs:
                output, finish = forward_step(iter([pack]), model)
                loss, _, result = finish(output)
                if train:
                    loss.backward()
                results.append(result)
        if train:
            self.synchronise()
        return results

    def synchronise(self) -> None:
        """Makes each gradient the sum over all ranks that hold the parameter."""
        for name, parameter in self.model.named_parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if _is_expert(parameter):
                dist.all_reduce(parameter.grad, group=parallel_state.get_expert_data_parallel_group())
                continue
            dist.all_reduce(parameter.grad, group=parallel_state.get_data_parallel_group())
            if ".q_layernorm." in name or ".k_layernorm." in name:
                dist.all_reduce(parameter.grad, group=parallel_state.get_tensor_model_parallel_group())

    def update(self, learning_rate: float) -> float:
        """One step of the optimiser; the norm of the whole model's gradient before it was clipped.

        Raises:
            OpenMLEError: It is not finite; nothing was changed.
        """
        norm = self.gradient_norm()
        if not math.isfinite(norm):
            self.zero_gradients()
            raise OpenMLEError(f"the gradient's length is {norm}")
        scale = min(1.0, self._clip / (norm + 1e-6))
        for parameter in self.model.parameters():
            if scale < 1.0 and parameter.grad is not None:
                parameter.grad.mul_(scale)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        self.optimiser.step()
        self.zero_gradients()
        return norm

    def zero_gradients(self) -> None:
        """Forgets all gradients."""
        self.optimiser.zero_grad(set_to_none=True)

    def gradient_norm(self) -> float:
        """Of the whole model: each number counts once, however many ranks hold it."""
        parameters = list(self.model.parameters())
        split = [each for each in parameters if not _is_expert(each) and _is_split(each)]
        experts = [each for each in parameters if _is_expert(each)]
        whole = [each for each in parameters if not _is_expert(each) and not _is_split(each)]
        split_square, expert_square = _square(split), _square(experts)
        dist.all_reduce(split_square, group=parallel_state.get_tensor_model_parallel_group())
        dist.all_reduce(expert_square, group=parallel_state.get_expert_model_parallel_group())
        return float((_square(whole) + split_square + expert_square).sqrt())

    def sharded_state(self, model_state: dict[str, Any], *, loading: bool) -> dict[str, Any]:
        """The optimiser's state for dist_checkpointing; `loading` matters to others."""
        del loading
        parameters = [each for group in self.optimiser.param_groups for each in group["params"]]
        state = self.optimiser.state_dict()
        steps = {float(each["step"]) for each in state["state"].values()}
        sharded: Any = get_param_id_to_sharded_param_map(model_state, parameters)
        optim_state_to_sharding_state(state, sharded, exclude_keys=("step",))
        return {**state, "steps": steps.pop()}

    def load_state(self, state: dict[str, Any]) -> None:
        """What was made of `sharded_state` by loading."""
        steps = state.pop("steps")
        for each in state["state"].values():
            each["step"] = torch.tensor(steps)
        self.optimiser.load_state_dict(state)


def _is_expert(parameter: Tensor) -> bool:
    """Megatron's mark of parameters that other ranks' tokens reach."""
    return not getattr(parameter, "allreduce", True)


def _is_split(parameter: Tensor) -> bool:
    return bool(getattr(parameter, "tensor_model_parallel", False))


def _square(parameters: Iterable[Tensor]) -> Tensor:
    squares = [each.grad.double().square().sum() for each in parameters if each.grad is not None]
    return torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)
