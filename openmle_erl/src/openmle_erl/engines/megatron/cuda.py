"""Passes and optimiser with CUDA, all Megatron's own: schedules (pipelines too), distributed optimizer, its offload.

Losses come divided by the whole step's replies or tokens, so gradients are plain sums over micro-batches and ranks.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from openmle_gym.errors import OpenMLEError

from openmle_erl.engines.megatron.config import MegatronConfig
from openmle_erl.engines.megatron.host import ForwardStep
from openmle_erl.engines.megatron.packs import Pack


class CudaEngine:
    """Trains one rank's model on its GPU."""

    def __init__(self, model: GPTModel, config: MegatronConfig) -> None:
        self.model = DistributedDataParallel(
            model.config,
            DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True),
            model,
        )
        adam, offload = config.optimiser, config.optimiser_offload
        self.optimiser = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=adam.learning_rate,
                min_lr=adam.min_learning_rate,
                weight_decay=adam.weight_decay,
                adam_beta1=adam.beta1,
                adam_beta2=adam.beta2,
                adam_eps=adam.epsilon,
                clip_grad=adam.max_grad_norm,
                bf16=config.precision == "bfloat16",
                params_dtype=model.config.params_dtype,
                use_distributed_optimizer=True,
                optimizer_cpu_offload=offload,
                optimizer_offload_fraction=1.0 if offload else 0.0,
                overlap_cpu_optimizer_d2h_h2d=offload,
                use_precision_aware_optimizer=offload,
            ),
            [self.model],
        )
        model.config.grad_scale_func = self.optimiser.scale_loss
        model.config.finalize_model_grads_func = _finalize
        self._forward_backward = get_forward_backward_func()

    def run(self, packs: Sequence[Pack], forward_step: ForwardStep, *, model: Any, train: bool) -> list[Any]:
        """Passes over all micro-batches, with gradients where `train`; results are had on the last pipeline stage."""
        return self._forward_backward(
            forward_step_func=forward_step,
            data_iterator=iter(packs),
            model=[model],
            num_microbatches=len(packs),
            seq_length=max(len(pack.tokens_N) for pack in packs),
            micro_batch_size=1,
            forward_only=not train,
        )

    def update(self, learning_rate: float) -> float:
        """One step of the optimiser; the norm of the whole model's gradient before it was clipped.

        Raises:
            OpenMLEError: It is not finite. Megatron finds that out in its step, so the weights are spoilt: go on from
                the last checkpoint.
        """
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        norm = self.optimiser.step()[1]  # pyright: ignore[reportOptionalSubscript]  (its base class returns nothing)
        self.zero_gradients()
        if not math.isfinite(norm):
            raise OpenMLEError(f"the gradient's length is {norm}")
        return float(norm)

    def zero_gradients(self) -> None:
        """Forgets all gradients."""
        self.model.zero_grad_buffer()
        self.optimiser.zero_grad()

    def sharded_state(self, model_state: dict[str, Any], *, loading: bool) -> dict[str, Any]:
        """The optimiser's state for dist_checkpointing, in the form that fits other parallel sizes too."""
        return self.optimiser.sharded_state_dict(
            model_state, is_loading=loading, metadata={"distrib_optim_sharding_type": "fully_reshardable"}
        )

    def load_state(self, state: dict[str, Any]) -> None:
        """What was made of `sharded_state` by loading."""
        self.optimiser.load_state_dict(state)
        torch.cuda.synchronize()


def _finalize(model: list[torch.nn.Module], num_tokens: torch.Tensor | None = None, **named: Any) -> None:
    """Megatron's, without the division by tokens: losses were divided before."""
    del num_tokens
    finalize_model_grads(model, None, **named)
