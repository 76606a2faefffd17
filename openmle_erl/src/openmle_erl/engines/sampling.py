"""Drawing tokens for a batch whose rows have their own temperature, nucleus, top-k and random numbers. Needs torch.

Shape suffixes: _B rows, _V the vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from openmle_erl.engines.protocols import Sampling


class Choice(NamedTuple):
    """How one row is drawn."""

    sampling: Sampling
    uniform: float
    """In [0, 1): where in the cumulative distribution the token lies."""


class Chosen(NamedTuple):
    """One of each for every row."""

    ids: list[int]
    logprobs: list[float]


def choose_tokens(logits_BV: torch.Tensor, choices: Sequence[Choice]) -> Chosen:
    """Draws one token a row by inverting the cumulative distribution.

    Log-probabilities are those of the distribution at the row's temperature, before nucleus and top-k, as SGLang reports
    them; at temperature 0 the largest logit is taken, and they are those at temperature 1.
    """
    device = logits_BV.device
    temperature_B = torch.tensor([each.sampling.temperature or 1.0 for each in choices], device=device)
    logprobs_BV = torch.log_softmax(logits_BV / temperature_B[:, None], dim=-1)
    probabilities_BV = logprobs_BV.double().exp()
    narrowed = [row for row, each in enumerate(choices) if each.sampling.top_p < 1.0 or each.sampling.top_k > 0]
    if narrowed:
        kept = _narrow(probabilities_BV[narrowed], [choices[row].sampling for row in narrowed])
        probabilities_BV[narrowed] = kept
    cumulative_BV = probabilities_BV.cumsum(dim=-1)
    uniform_B = torch.tensor([each.uniform for each in choices], dtype=torch.float64, device=device)
    # The first token whose cumulative probability exceeds the number has a probability above 0.
    ids_B = torch.searchsorted(cumulative_BV, uniform_B[:, None] * cumulative_BV[:, -1:], right=True)[:, 0]
    greedy_B = torch.tensor([each.sampling.temperature == 0.0 for each in choices], device=device)
    ids_B = torch.where(greedy_B, logits_BV.argmax(dim=-1), ids_B.clamp_max(logits_BV.shape[-1] - 1))
    return Chosen(ids_B.tolist(), logprobs_BV.gather(-1, ids_B[:, None])[:, 0].tolist())


def _narrow(probabilities_BV: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Zeroes what lies outside top-k and nucleus; the nucleus holds the fewest tokens that reach `top_p` together."""
    device, size = probabilities_BV.device, probabilities_BV.shape[-1]
    top_p_B = torch.tensor([each.top_p for each in samplings], dtype=torch.float64, device=device)
    top_k_B = torch.tensor([each.top_k if each.top_k > 0 else size for each in samplings], device=device)
    ordered_BV, order_BV = probabilities_BV.sort(dim=-1, descending=True, stable=True)
    before_BV = ordered_BV.cumsum(dim=-1) - ordered_BV
    rank_V = torch.arange(size, device=device)
    kept_BV = (rank_V < top_k_B[:, None]) & ((before_BV < top_p_B[:, None]) | (rank_V == 0))
    kept_BV |= (top_p_B[:, None] >= 1.0) & (rank_V < top_k_B[:, None])
    return torch.zeros_like(probabilities_BV).scatter(-1, order_BV, ordered_BV * kept_BV)
