"""A batch of rewards, sorted by group and sifted, so that all groups are worked on at once.

Shape suffixes: _N members as given, _M members of the groups with signal, group by group; _G all groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openmle_erl.rewards.mapping import FloatArray, Tensor, as_floats

IntArray: TypeAlias = NDArray[np.intp]
Ids: TypeAlias = NDArray[Any] | Tensor | Sequence[Any]

EQUAL_RELATIVE = 1e-5
EQUAL_ABSOLUTE = 1e-8


@dataclass(frozen=True)
class Segments:
    """Consecutive runs of an array's elements, none of them empty."""

    sizes: IntArray

    @cached_property
    def starts(self) -> IntArray:
        return np.cumsum(self.sizes) - self.sizes

    def spread(self, per_segment: NDArray[Any]) -> NDArray[Any]:
        """One value per segment, repeated for each of its elements."""
        return np.repeat(per_segment, self.sizes)

    def sum(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.add.reduceat(values, self.starts)

    def mean(self, values: NDArray[Any]) -> FloatArray:
        return self.sum(values) / self.sizes

    def max(self, values: FloatArray) -> FloatArray:
        return np.maximum.reduceat(values, self.starts)

    def min(self, values: FloatArray) -> FloatArray:
        return np.minimum.reduceat(values, self.starts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch's members sorted by group; the members of groups with signal, ready to be worked on."""

    labels: Sequence[Any]
    """[G] group ids: an integer array's ascending, others by first appearance."""
    sizes_G: IntArray
    """Members with a reward."""
    masked_G: IntArray
    """Members without one."""
    signal_G: NDArray[np.bool_]
    rewards_M: FloatArray
    places_M: IntArray
    """Where each member stands in the input."""
    segments: Segments
    """The groups with signal, over the M members."""
    length: int

    @classmethod
    def of(cls, rewards: Any, group_ids: Ids) -> "Batch":
        """Sorts and sifts.

        Raises:
            ValueError: The rewards are not one-dimensional, or there are not as many ids.
        """
        values = as_floats(rewards)
        if values.ndim != 1:
            raise ValueError(f"rewards must be one-dimensional, got shape {values.shape}")
        keys, labels = _keys(group_ids)
        if len(keys) != len(values):
            raise ValueError(f"{len(values)} rewards for {len(keys)} group ids")
        order = np.argsort(keys, kind="stable")
        keys, values = keys[order], values[order]
        first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)])
        present = ~np.isnan(values)
        members = np.diff(first, append=len(keys))
        sizes = np.add.reduceat(present.astype(np.intp), first) if len(first) else members

        values, order = values[present], order[present]
        signal = np.zeros(len(first), dtype=bool)
        some = Segments(sizes[sizes > 0])
        if len(values):
            high, low = some.max(values), some.min(values)
            tolerance = EQUAL_ABSOLUTE + EQUAL_RELATIVE * np.abs(high)
            signal[sizes > 0] = high - low > tolerance
        chosen = np.repeat(signal, sizes)
        return cls(
            labels=keys[first].tolist() if labels is None else labels,
            sizes_G=sizes,
            masked_G=members - sizes,
            signal_G=signal,
            rewards_M=values[chosen],
            places_M=order[chosen],
            segments=Segments(sizes[signal]),
            length=len(keys),
        )

    def restore(self, advantages_M: FloatArray, rewards: Any) -> Any:
        """[N] the advantages in the input's order and of the input's kind; 0.0 for everybody else."""
        advantages = np.zeros(self.length)
        advantages[self.places_M] = advantages_M
        if not isinstance(rewards, Tensor):
            return advantages
        like = rewards if rewards.is_floating_point() else rewards.detach().float()
        return like.new_tensor(advantages).nan_to_num()  # the published 1e12 is infinite in half precision


def _keys(group_ids: Ids) -> tuple[NDArray[Any], list[Any] | None]:
    """Numbers that sort by group, and the ids they stand for; None where they are the ids themselves."""
    ids: Any = group_ids
    if isinstance(ids, Tensor):
        ids = (ids.detach().double() if ids.is_floating_point() else ids.detach()).cpu().numpy()
    if isinstance(ids, np.ndarray) and ids.ndim != 1:
        raise ValueError(f"group ids must be one-dimensional, got shape {ids.shape}")
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iub":
        return ids, None
    if len(ids) and isinstance(ids[0], Tensor):  # tensors hash by identity: each would be a group of its own
        ids = [member.item() for member in ids]
    codes: dict[Any, int] = {}
    keys = np.fromiter((codes.setdefault(member, len(codes)) for member in ids), dtype=np.intp, count=len(ids))
    for place, label in enumerate(codes):
        if label != label:
            raise ValueError(f"group id {int(np.argmax(keys == place))} is {label!r}, which is equal to nothing")
    return keys, list(codes)
