"""The policy loss: GSPO, and GRPO with clip-higher, with a correction for the rollout engine. Pure torch.

With `new`, `old` and `rollout` the log-probabilities of a reply's tokens, n its learnt tokens, A its advantage, G the
replies of the whole optimiser step:

    ratio    gspo: exp(sum over tokens of (new - old) / n), one for the reply; grpo: exp(new - old), one for each token
    policy   max(-A * ratio, -A * clip(ratio, 1 - clip_low, 1 + clip_high)) * min(exp(old - rollout), tis_cap)
    kl       exp(reference - new) - (reference - new) - 1
    loss     sum over replies of mean over tokens of (policy + kl_coefficient * kl - entropy_coefficient * entropy), / G

`old` are log-probabilities that the trainer computed itself before the first optimiser step of a rollout. The weight
that corrects for the rollout engine carries no gradient. Micro-batches of one step add up to the loss of the step,
however replies are dealt to them, since all divide by the same G.

Sources: GSPO, arXiv:2507.18071; clip-higher, arXiv:2503.14476; the estimate of the divergence (k3),
http://joschu.net/blog/kl-approx.html.

Shape suffixes: _B a reply, _BT a reply's token, padded; what padding holds is of no matter.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from openmle_erl.rl.objective import ObjectiveConfig

LARGEST_LOG_WEIGHT = 20.0
"""Diagnostics cut log weights here, so that one absurd token does not make them infinite."""


class PolicyLoss(NamedTuple):
    """What `policy_loss` returns."""

    loss: Tensor
    """Scalar, with gradient."""
    sums: dict[str, Tensor]
    """What diagnostics are made of: detached scalars, to be added over micro-batches and processes; those whose names
    begin with `largest_` are to be maximised. `policy_metrics` finishes them."""


def policy_loss(
    new_logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    rollout_logprobs_BT: Tensor,
    mask_BT: Tensor,
    advantages_B: Tensor,
    settings: ObjectiveConfig,
    *,
    global_batch: int,
    ref_logprobs_BT: Tensor | None = None,
    entropy_BT: Tensor | None = None,
) -> PolicyLoss:
    """The share of a step's loss that some of its replies have.

    Args:
        new_logprobs_BT: Under the policy that is being trained, in nats; carries the gradient.
        old_logprobs_BT: Of the policy that the ratio is taken against, by the trainer.
        rollout_logprobs_BT: As the engine that generated the tokens reported them.
        mask_BT: bool, True on tokens that are learnt.
        global_batch: Replies of the whole step, over all micro-batches and processes.
        ref_logprobs_BT: Of the reference model; needed where its coefficient is above 0.
        entropy_BT: Of the policy's distribution at each token; needed where its coefficient is above 0, reported otherwise.

    Raises:
        ValueError: A reply has no token under the mask, or something that a coefficient needs is missing.
    """
    tokens_B = mask_BT.sum(-1)
    if not bool((tokens_B > 0).all()):
        raise ValueError(f"replies {(tokens_B == 0).nonzero().flatten().tolist()} have no token under the mask")
    if settings.kl_coefficient > 0.0 and ref_logprobs_BT is None:
        raise ValueError(f"kl_coefficient is {settings.kl_coefficient}, but there are no reference log-probabilities")
    if settings.entropy_coefficient > 0.0 and entropy_BT is None:
        raise ValueError(f"entropy_coefficient is {settings.entropy_coefficient}, but there is no entropy")

    def mean(values_BT: Tensor) -> Tensor:
        return torch.where(mask_BT, values_BT, 0.0).sum(-1) / tokens_B

    # Padding may hold anything: it is replaced before any arithmetic, so that not even a NaN reaches the gradient.
    new_BT = torch.where(mask_BT, new_logprobs_BT, 0.0)
    old_BT = torch.where(mask_BT, old_logprobs_BT, 0.0).detach()
    rollout_BT = torch.where(mask_BT, rollout_logprobs_BT, 0.0).detach()
    log_ratio_BT = new_BT - old_BT
    if settings.kind == "gspo":
        log_ratio_BT = mean(log_ratio_BT)[:, None].expand_as(log_ratio_BT)
    ratio_BT = log_ratio_BT.exp()
    plain_BT = -advantages_B[:, None] * ratio_BT
    clipped_BT = -advantages_B[:, None] * ratio_BT.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    weight_BT = (old_BT - rollout_BT).exp()
    per_token_BT = torch.maximum(plain_BT, clipped_BT)
    if settings.tis_cap is not None:
        per_token_BT = per_token_BT * weight_BT.clamp(max=settings.tis_cap)
    divergence_BT = None
    if settings.kl_coefficient > 0.0 and ref_logprobs_BT is not None:
        gap_BT = torch.where(mask_BT, ref_logprobs_BT, 0.0).detach() - new_BT
        divergence_BT = gap_BT.exp() - gap_BT - 1.0
        per_token_BT = per_token_BT + settings.kl_coefficient * divergence_BT
    if settings.entropy_coefficient > 0.0 and entropy_BT is not None:
        per_token_BT = per_token_BT - settings.entropy_coefficient * torch.where(mask_BT, entropy_BT, 0.0)
    loss = mean(per_token_BT).sum() / global_batch

    with torch.no_grad():
        per_token_log_ratio_BT = new_BT - old_BT
        total_BT = (new_BT - rollout_BT).clamp(-LARGEST_LOG_WEIGHT, LARGEST_LOG_WEIGHT).exp()
        sums = {
            "replies": tokens_B.new_tensor(len(tokens_B)),
            "tokens": tokens_B.sum(),
            "clipped": mean((clipped_BT > plain_BT).to(new_BT.dtype)).sum(),
            "ratio": mean(ratio_BT).sum(),
            "ratio_square": mean(ratio_BT.square()).sum(),
            "largest_log_ratio": torch.where(mask_BT, log_ratio_BT.abs(), 0.0).max(),
            "kl_old": mean(per_token_log_ratio_BT.exp() - 1.0 - per_token_log_ratio_BT).sum(),
            "rollout_gap": mean((old_BT - rollout_BT).abs()).sum(),
            "weight_token": torch.where(mask_BT, total_BT, 0.0).sum(),
            "weight_square_token": torch.where(mask_BT, total_BT.square(), 0.0).sum(),
            "advantage": advantages_B.sum(),
        }
        if settings.tis_cap is not None:
            sums["tis_capped"] = mean((weight_BT > settings.tis_cap).to(new_BT.dtype)).sum()
            sums["tis_weight"] = mean(weight_BT.clamp(max=settings.tis_cap)).sum()
        if entropy_BT is not None:
            sums["entropy"] = mean(entropy_BT).sum()
        if divergence_BT is not None:
            sums["kl_reference"] = mean(divergence_BT).sum()
    return PolicyLoss(loss, {name: value.detach().double() for name, value in sums.items()})


def add_sums(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The sums of several micro-batches as those of one."""
    added: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            if name not in added:
                added[name] = value
            else:
                added[name] = torch.maximum(added[name], value) if name.startswith("largest_") else added[name] + value
    return added


def policy_metrics(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Diagnostics of a step from the sums of all its micro-batches.

    Means are over replies of means over tokens, as the loss is. `clip_fraction` is the share at which the clip holds
    the gradient back (of replies for gspo, of tokens for grpo). `effective_sample_size` is the share of tokens that are
    worth as much as all of them: (sum w)^2 / (n sum w^2) with w = exp(new - rollout) of each token, not capped. `kl` is
    the divergence of the new policy from the old one.
    """
    replies, tokens = float(sums["replies"]), float(sums["tokens"])
    ratio = float(sums["ratio"]) / replies
    spread = max(0.0, float(sums["ratio_square"]) / replies - ratio**2)
    metrics = {
        "replies": replies,
        "tokens": tokens,
        "clip_fraction": float(sums["clipped"]) / replies,
        "ratio_mean": ratio,
        "ratio_std": spread**0.5,
        "log_ratio_max": float(sums["largest_log_ratio"]),
        "kl": float(sums["kl_old"]) / replies,
        "rollout_logprob_gap": float(sums["rollout_gap"]) / replies,
        "effective_sample_size": float(sums["weight_token"]) ** 2 / (tokens * float(sums["weight_square_token"])),
        "advantage_mean": float(sums["advantage"]) / replies,
    }
    named = {
        "tis_capped": "tis_clip_fraction",
        "tis_weight": "tis_mean",
        "entropy": "entropy",
        "kl_reference": "kl_reference",
    }
    return metrics | {metric: float(sums[name]) / replies for name, metric in named.items() if name in sums}
