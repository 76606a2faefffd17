"""Replay of a mixture's routing: each token goes through the experts that the rollout engine sent it through.

The two engines' arithmetic differs in the last bits, which is enough to send a token to another expert and to change
its log-probability by a lot. What is recorded of a sample is `experts_NLK`, integers of shape [tokens of prompt and reply,
layers with experts, experts a token], in the order of the layers; -1 where nothing was recorded, and fewer rows than
tokens where the last were not recorded (SGLang's `routed_experts` has none for the last token). The experts' weights are
still the router's own, for the recorded experts, so the router goes on learning.

A router is a module of transformers that returns (logits, weights, experts); Qwen3-MoE's is meant, and those like it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def routers(model: nn.Module) -> list[nn.Module]:
    """The routers of a model, in the order of its layers; none in a dense model."""
    return [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]


@contextmanager
def replayed(model: nn.Module, experts_NLK: Tensor | None) -> Iterator[None]:
    """Within it, forward passes (and their repetition by checkpointing) route by what is recorded; None changes nothing.

    Raises:
        ValueError: What is recorded is not of this model's layers.
    """
    found = [] if experts_NLK is None else routers(model)
    if experts_NLK is not None and len(found) != experts_NLK.shape[1]:
        raise ValueError(f"experts of {experts_NLK.shape[1]} layers are recorded; the model has {len(found)} routers")
    hooks = []
    for layer, router in enumerate(found):
        assert experts_NLK is not None
        hooks.append(router.register_forward_hook(_replay(experts_NLK[:, layer])))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _replay(recorded_NK: Tensor) -> Any:
    def hook(router: Any, _inputs: object, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, weights, chosen_NK = output
        experts_NK = torch.where(recorded_NK >= 0, recorded_NK, chosen_NK)
        taken = logits.softmax(-1, dtype=torch.float32).gather(-1, experts_NK)
        if getattr(router, "norm_topk_prob", True):
            taken = taken / taken.sum(-1, keepdim=True)
        return logits, taken.to(weights.dtype), experts_NK

    return hook


@contextmanager
def recorded(model: nn.Module) -> Iterator[list[Tensor]]:
    """Within it, what each router chooses is appended: [rows * tokens, k] by layer and pass."""
    seen: list[Tensor] = []

    def hook(_router: object, _inputs: object, output: tuple[Tensor, Tensor, Tensor]) -> None:
        seen.append(output[2].detach())

    hooks = [router.register_forward_hook(hook) for router in routers(model)]
    try:
        yield seen
    finally:
        for each in hooks:
            each.remove()
