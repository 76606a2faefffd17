"""Log-probabilities and entropy where each tensor rank has a part of the vocabulary.

Shape suffixes: _M tokens, _MV with this rank's part of the vocabulary.
"""

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region, vocab_parallel_cross_entropy
from torch import Tensor

PADDED = -1e30
"""The logit of a row that only fills the table: its probability is 0 in every precision."""
ENTROPY_CHUNK = 1024
"""Tokens whose distributions are in memory at once."""


def own_logits(logits_MV: Tensor, vocabulary: int, *, temperature: float) -> Tensor:
    """float32 logits over the temperature, those of padding rows at `PADDED`. Never the memory of what was given."""
    first = parallel_state.get_tensor_model_parallel_rank() * logits_MV.shape[-1]
    rows = torch.arange(first, first + logits_MV.shape[-1], device=logits_MV.device)
    wide_MV = logits_MV.float() if temperature == 1.0 else logits_MV.float() / temperature
    return wide_MV.masked_fill(rows >= vocabulary, PADDED)


def token_logprobs(logits_MV: Tensor, targets_M: Tensor) -> Tensor:
    """Of the targets, in nats, by Megatron's cross-entropy, which overwrites the logits."""
    return -vocab_parallel_cross_entropy(logits_MV[:, None], targets_M[:, None])[:, 0]


def token_entropy(logits_MV: Tensor) -> Tensor:
    """Of each token's distribution over the whole vocabulary: log Z minus the mean logit."""
    return torch.cat([_entropy(chunk) for chunk in logits_MV.split(ENTROPY_CHUNK)])


def _entropy(logits_MV: Tensor) -> Tensor:
    with torch.no_grad():
        peak_M = logits_MV.max(dim=-1).values
        dist.all_reduce(peak_M, op=dist.ReduceOp.MAX, group=parallel_state.get_tensor_model_parallel_group())
    shifted_MV = logits_MV - peak_M[:, None]
    weights_MV = shifted_MV.exp()
    total_M = reduce_from_tensor_model_parallel_region(weights_MV.sum(dim=-1))
    mean_M = reduce_from_tensor_model_parallel_region((weights_MV * shifted_MV).sum(dim=-1))
    return total_M.log() - mean_M / total_M
