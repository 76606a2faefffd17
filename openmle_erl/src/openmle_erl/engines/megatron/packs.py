"""Sequences one behind the other, as a forward pass of Megatron reads them, and where each of its ranks looks.

Megatron splits a pack twice: context parallelism cuts every sequence into twice as many chunks as there are ranks and
gives each rank one from the front and one from the back, so that all have equal work under a causal mask; sequence
parallelism cuts what a rank has among its tensor ranks. Padding makes both come out even.

Shape suffixes: _N tokens of the pack, _M wanted tokens one sequence after the other, _BT a sequence's wanted tokens,
padded; _NLK with layers and experts of each token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from openmle_erl.engines.memory import ParallelSizes
from openmle_erl.engines.packing import TokenRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """One micro-batch of one data-parallel rank."""

    items: tuple[int, ...]
    """The sequences' places in the list they came from; empty for a pass that only keeps step with other ranks."""
    counts: tuple[int, ...]
    """Wanted tokens of each."""
    starts: tuple[int, ...]
    """Where each sequence begins, and the end; padding at the end is a sequence too."""
    tokens_N: Tensor
    targets_N: Tensor
    """The token after each."""
    wanted_M: Tensor
    """Where the targets are wanted."""
    experts_NLK: Tensor | None

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(end - start for start, end in pairwise(self.starts))

    def padded(self, values_M: Tensor) -> Tensor:
        """[B, T] values of wanted tokens by sequence, 0 behind each."""
        return pad_sequence(list(values_M.split(list(self.counts))), batch_first=True)

    def to(self, device: torch.device) -> "Pack":
        """The same on another device."""
        return replace(
            self,
            tokens_N=self.tokens_N.to(device),
            targets_N=self.targets_N.to(device),
            wanted_M=self.wanted_M.to(device),
            experts_NLK=None if self.experts_NLK is None else self.experts_NLK.to(device),
        )


def padded_length(length: int, sizes: ParallelSizes) -> int:
    """Of a sequence, so that context parallelism can cut it."""
    chunks = 2 * sizes.context if sizes.context > 1 else 1
    return ceil(length / chunks) * chunks


def pack_length(lengths: Sequence[int], sizes: ParallelSizes) -> int:
    """Tokens of a pack of such sequences, padding included."""
    step = sizes.tensor * (2 * sizes.context if sizes.context > 1 else 1)
    return max(1, ceil(sum(padded_length(length, sizes) for length in lengths) / step)) * step


def pack(rows: Sequence[TokenRow], places: Sequence[int], sizes: ParallelSizes, *, length: int) -> Pack:
    """The pack of some sequences.

    Args:
        length: Of the whole pack, at least `pack_length` of them.
    """
    tokens = np.zeros(length, dtype=np.int64)
    targets = np.zeros(length, dtype=np.int64)
    starts, wanted = [0], [np.zeros(0, dtype=np.int64)]
    recorded = next((rows[place].experts_NLK for place in places if rows[place].experts_NLK is not None), None)
    experts = None if recorded is None else np.full((length, *recorded.shape[1:]), -1, dtype=np.int64)
    for place in places:
        row, start = rows[place], starts[-1]
        tokens[start : start + len(row.ids)] = row.ids
        targets[start : start + len(row.ids) - 1] = row.ids[1:]
        wanted.append(start + np.flatnonzero(row.wanted) - 1)
        if experts is not None and row.experts_NLK is not None:
            experts[start : start + len(row.experts_NLK)] = row.experts_NLK
        starts.append(start + padded_length(len(row.ids), sizes))
    if starts[-1] < length:
        starts.append(length)
    return Pack(
        items=tuple(places),
        counts=tuple(int(rows[place].wanted.sum()) for place in places),
        starts=tuple(starts),
        tokens_N=torch.from_numpy(tokens),
        targets_N=torch.from_numpy(targets),
        wanted_M=torch.from_numpy(np.concatenate(wanted)),
        experts_NLK=None if experts is None else torch.from_numpy(experts),
    )


def context_rows(starts: Sequence[int], *, rank: int, ranks: int) -> Tensor:
    """Which tokens of a pack a context-parallel rank has, in the order in which it has them."""
    if ranks == 1:
        return torch.arange(starts[-1])
    rows = []
    for start, end in pairwise(starts):
        chunks = torch.arange(start, end).chunk(2 * ranks)
        rows += [chunks[rank], chunks[2 * ranks - 1 - rank]]
    return torch.cat(rows)


def joined_order(starts: Sequence[int], ranks: int) -> Tensor:
    """Where in the ranks' tokens, one rank after the other, each token of the pack is."""
    return torch.cat([context_rows(starts, rank=rank, ranks=ranks) for rank in range(ranks)]).argsort()
