"""Sequences of tokens as micro-batches of a forward pass: which go together, and how they lie in it.

Packed, sequences lie one behind the other in a single row; each begins at position 0, which is what keeps their
attention apart. Padded, each has a row of its own with nothing but padding behind it, which a causal model never looks
at. In both layouts every token sees exactly what it would see alone.

Shape suffixes: _RL rows and their tokens, _N the wanted tokens of a micro-batch one sequence after the other, _K the
columns whose logits are needed, _BT a sequence's wanted tokens, padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


class TokenRow(NamedTuple):
    """A sequence, and the tokens whose log-probabilities are wanted."""

    ids: NDArray[np.int64]
    wanted: NDArray[np.bool_]
    """As long as `ids`; False at 0, which nothing precedes."""
    experts_NLK: NDArray[np.int16] | None = None
    """The experts of each token, for `routing`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What one forward pass reads, and where the wanted logits are."""

    items: tuple[int, ...]
    """The sequences' places in the list they came from; empty for a pass that only keeps step with other processes."""
    counts: tuple[int, ...]
    """Wanted tokens of each."""
    input_ids_RL: Tensor
    position_ids_RL: Tensor
    columns_K: Tensor
    """The columns whose logits are needed."""
    row_N: Tensor
    column_N: Tensor
    """Into `columns_K`."""
    target_N: Tensor
    experts_NLK: Tensor | None
    """[rows * tokens, layers, k]; -1 where the router is to choose."""

    def padded(self, values_N: Tensor) -> Tensor:
        """[B, T] values of wanted tokens by sequence, 0 behind each."""
        return pad_sequence(list(values_N.split(list(self.counts))), batch_first=True)

    def to(self, device: torch.device) -> "MicroBatch":
        """The same on another device."""
        return MicroBatch(
            items=self.items,
            counts=self.counts,
            input_ids_RL=self.input_ids_RL.to(device),
            position_ids_RL=self.position_ids_RL.to(device),
            columns_K=self.columns_K.to(device),
            row_N=self.row_N.to(device),
            column_N=self.column_N.to(device),
            target_N=self.target_N.to(device),
            experts_NLK=None if self.experts_NLK is None else self.experts_NLK.to(device),
        )


def plan(lengths: Sequence[int], *, budget: int, packing: bool, processes: int = 1) -> list[list[list[int]]]:
    """Deals sequences to processes and to micro-batches.

    Args:
        budget: Tokens of a micro-batch, padding included; a longer sequence has a micro-batch of its own.

    Returns:
        For each process as many micro-batches as for every other, each a list of places in `lengths`; some are empty
        where there are fewer sequences than processes. Those of one index cost about the same.
    """
    bins = _packed_bins(lengths, budget, processes) if packing else _padded_bins(lengths, budget)
    while len(bins) % processes:
        largest = max(range(len(bins)), key=lambda place: len(bins[place]))
        half = len(bins[largest]) // 2
        bins[largest], rest = bins[largest][half:], bins[largest][:half]
        bins.append(rest)
    bins.sort(key=lambda places: -sum(lengths[place] for place in places))
    return [[bins[start + process] for start in range(0, len(bins), processes)] for process in range(processes)]


def _packed_bins(lengths: Sequence[int], budget: int, processes: int) -> list[list[int]]:
    """The longest first, each into the lightest bin; as few bins as the budget lets."""
    order = sorted(range(len(lengths)), key=lambda place: (-lengths[place], place))
    number = max(1, -(-sum(lengths) // budget))
    while True:
        bins: list[list[int]] = [[] for _ in range(number)]
        weights = [0] * number
        for place in order:
            lightest = weights.index(min(weights))
            bins[lightest].append(place)
            weights[lightest] += lengths[place]
        if number >= len(lengths) or all(
            weight <= budget or len(places) == 1 for weight, places in zip(weights, bins, strict=True)
        ):
            return [places for places in bins if places] or [[]]
        number += 1


def _padded_bins(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Those of like length together."""
    bins: list[list[int]] = [[]]
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        longest = lengths[bins[-1][0]] if bins[-1] else 0
        if bins[-1] and longest * (len(bins[-1]) + 1) > budget:
            bins.append([])
        bins[-1].append(place)
    return bins


def collate(rows: Sequence[TokenRow], places: Sequence[int], *, packing: bool) -> MicroBatch:
    """The micro-batch of some sequences; with none, of one token that nobody asks about."""
    chosen = [rows[place] for place in places] or [
        TokenRow(ids=rows[0].ids[:1], wanted=np.zeros(1, dtype=np.bool_), experts_NLK=_first(rows[0].experts_NLK))
    ]
    lengths = [len(row.ids) for row in chosen]
    if packing:
        ids_RL = np.concatenate([row.ids for row in chosen])[None]
        positions_RL = np.concatenate([np.arange(length) for length in lengths])[None]
        starts = [(0, start) for start in np.cumsum([0, *lengths[:-1]]).tolist()]
    else:
        width = max(lengths)
        ids_RL = np.stack([np.pad(row.ids, (0, width - len(row.ids))) for row in chosen])
        positions_RL = np.broadcast_to(np.arange(width), ids_RL.shape).copy()
        starts = [(number, 0) for number in range(len(chosen))]
    row_N, column_N, target_N = [], [], []
    for row, (number, start) in zip(chosen, starts, strict=True):
        targets = np.flatnonzero(row.wanted)
        row_N.append(np.full(len(targets), number))
        column_N.append(start + targets - 1)  # the token before predicts it
        target_N.append(row.ids[targets])
    columns = np.concatenate(column_N)
    columns_K = np.unique(columns) if len(columns) else np.zeros(1, dtype=np.int64)
    return MicroBatch(
        items=tuple(places),
        counts=tuple(int(rows[place].wanted.sum()) for place in places),
        input_ids_RL=torch.from_numpy(ids_RL.astype(np.int64)),
        position_ids_RL=torch.from_numpy(positions_RL.astype(np.int64)),
        columns_K=torch.from_numpy(columns_K.astype(np.int64)),
        row_N=torch.from_numpy(np.concatenate(row_N).astype(np.int64)),
        column_N=torch.from_numpy(np.searchsorted(columns_K, columns).astype(np.int64)),
        target_N=torch.from_numpy(np.concatenate(target_N).astype(np.int64)),
        experts_NLK=_experts(chosen, starts, ids_RL.shape),
    )


def _first(experts_NLK: NDArray[np.int16] | None) -> NDArray[np.int16] | None:
    return None if experts_NLK is None else experts_NLK[:1]


def _experts(chosen: Sequence[TokenRow], starts: Sequence[tuple[int, int]], shape: tuple[int, ...]) -> Tensor | None:
    known = next((row.experts_NLK for row in chosen if row.experts_NLK is not None), None)
    if known is None:
        return None
    placed = np.full((*shape, *known.shape[1:]), -1, dtype=np.int64)
    for row, (number, start) in zip(chosen, starts, strict=True):
        if row.experts_NLK is not None:
            placed[number, start : start + len(row.experts_NLK)] = row.experts_NLK
    return torch.from_numpy(placed.reshape(-1, *known.shape[1:]))
