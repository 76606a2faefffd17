"""Replay of a mixture's routing in Megatron: each token goes through the experts that the rollout engine recorded.

`openmle_erl.engines.routing` says what is recorded and why. Here it goes in where Megatron's routers ask for their best
experts (`router.router_replay`). A layer that is computed again for its backward pass must be sent the same way as at
first, after other micro-batches may have passed: such passes are told apart by their gradient, and served in order.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class LayerReplay:
    """Of one layer's router."""

    def __init__(self, *, recompute: bool) -> None:
        self._recompute = recompute
        self._now: Tensor | None = None
        self._again: deque[Tensor | None] = deque()

    def expect(self, experts_NK: Tensor | None, *, train: bool) -> None:
        """Announces a forward pass.

        Args:
            experts_NK: [tokens of this rank, experts a token], -1 where the router is to choose; None: everywhere.
        """
        self._now = experts_NK
        if train and self._recompute:
            self._again.append(experts_NK)

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Callable[..., tuple[Tensor, Tensor]] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Scores and numbers of each token's experts. Megatron's name and order of arguments."""
        assert default_compute_topk is not None
        values, chosen_NK = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
        # Without recomputation the only pass has a gradient; with it, the first has none and the second has.
        second = self._recompute and torch.is_grad_enabled()
        recorded_NK = self._again.popleft() if second else self._now
        if recorded_NK is None:
            return values, chosen_NK
        experts_NK = torch.where(recorded_NK >= 0, recorded_NK, chosen_NK)
        return scores.gather(1, experts_NK), experts_NK


def attach(layers: Any, *, recompute: bool) -> list[LayerReplay]:
    """A replay for each layer of a pipeline stage, in their order."""
    replays = []
    for layer in layers:
        replays.append(LayerReplay(recompute=recompute))
        layer.mlp.router.router_replay = replays[-1]
    return replays
