"""Layers of ours that stand where Megatron-core's own need CUDA or Transformer Engine.

They go in through its specs, and where it has none (rotary embedding, token dispatcher) as attributes of the built model;
nothing of torch is replaced. Megatron's own attention and RoPE move buffers to the current CUDA device, its router needs
a kernel of Transformer Engine, its plain norm refuses sequence parallelism, and its all-gather allocates on CUDA.
"""

from typing import Any

import torch
import torch.distributed as dist
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.moe.token_dispatcher import MoEAllGatherTokenDispatcher
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}


class PackedAttention(torch.nn.Module):
    """Causal attention within each sequence of a pack, by torch's scaled dot product."""

    def __init__(self, config: TransformerConfig, layer_number: int, softmax_scale: float | None = None, **_: Any):
        super().__init__()
        self.softmax_scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        packed_seq_params: PackedSeqParams,
        **_: Any,
    ) -> Tensor:
        """[tokens, heads, head size] each, keys and values with fewer heads; gives [tokens, heads x head size]."""
        assert packed_seq_params.cu_seqlens_q is not None
        lengths = packed_seq_params.cu_seqlens_q.diff().tolist()
        done = []
        for q, k, v in zip(query.split(lengths), key.split(lengths), value.split(lengths), strict=True):
            q_heads, k_heads, v_heads = (part.transpose(0, 1).unsqueeze(0) for part in (q, k, v))
            one = functional.scaled_dot_product_attention(
                q_heads,
                k_heads,
                v_heads,
                is_causal=len(q) > 1,
                scale=self.softmax_scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )
            done.append(one.squeeze(0).transpose(0, 1))
        return torch.cat(done).flatten(1)


class HostRotary(RotaryEmbedding):
    """Rotary frequencies that stay on the device where they were made."""

    def get_emb(self, max_seq_len: int, offset: int = 0) -> Tensor:
        freqs = self.get_freqs_non_repeated(max_seq_len, offset)
        return torch.cat((freqs, freqs), dim=-1)[:, None, None, :]


class PlainNorm(torch.nn.RMSNorm):
    """RMSNorm whose weight tells Megatron that sequence parallelism splits its input."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_: Any):
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        # Where Megatron looks for it.
        self.weight.sequence_parallel = config.sequence_parallel  # pyright: ignore[reportAttributeAccessIssue]


class PlainRouter(TopKRouter):
    """A router whose logits are a plain product, on whatever device."""

    def gating(self, input: Tensor) -> Tensor:
        dtype = DTYPES.get(self.config.moe_router_dtype or "", input.dtype)
        return functional.linear(input.to(dtype), self.weight.to(dtype))


class HostDispatcher(MoEAllGatherTokenDispatcher):
    """Gathers all tokens on every expert rank, in memory of the tokens' device."""

    def token_dispatch(self, hidden_states: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
        if self.ep_size > 1:
            # Gloo carries no booleans.
            routing = _Gathered.apply(self.routing_map.to(torch.uint8), self.tp_ep_group)
            self.routing_map = routing.bool()
            probs = _Gathered.apply(probs, self.tp_ep_group)
            hidden_states = _Gathered.apply(hidden_states, self.tp_ep_group)
        return hidden_states, probs

    def token_combine(self, hidden_states: Tensor) -> Tensor:
        return _Scattered.apply(hidden_states, self.tp_ep_group) if self.ep_size > 1 else hidden_states


def gather_rows(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    """All ranks' rows, in the order of the ranks; every rank has as many. No gradient."""
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, rows.contiguous(), group=group)
    return torch.cat(parts)


def _own_sum(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over ranks of the part that is this rank's."""
    total = rows.clone()
    dist.all_reduce(total, group=group)
    return total.chunk(dist.get_world_size(group))[dist.get_rank(group)].contiguous()


class _Gathered(torch.autograd.Function):
    """Forward: all ranks' rows. Backward: the sum over ranks of the gradient of the own rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return gather_rows(rows, group)

    @staticmethod  # torch declares it with any number of gradients
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _own_sum(grad, ctx.group), None


class _Scattered(torch.autograd.Function):
    """Forward: the sum over ranks of the own rows. Backward: all ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _own_sum(rows, group)

    @staticmethod  # torch declares it with any number of gradients
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gather_rows(grad, ctx.group), None


class GatheredCopies(torch.autograd.Function):
    """Forward: all ranks' rows. Backward: the own rows' gradient as it is.

    For ranks that go on to compute the very same loss from what was gathered.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return gather_rows(rows, group)

    @staticmethod  # torch declares it with any number of gradients
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None
