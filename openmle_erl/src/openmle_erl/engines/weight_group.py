"""The process group through which a trainer broadcasts weights to rollout servers. Needs torch.

Rank 0 is the trainer; each server takes the following ranks. The group is apart from any that its members have.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

import torch
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import Backend, PrefixStore, _new_process_group_helper, _world
from torch.distributed.rendezvous import rendezvous

GROUP = "weight_update_group"
"""SGLang's name for it."""


class TensorFacts(NamedTuple):
    """What a receiver must know of tensors beforehand; equally long."""

    names: list[str]
    dtypes: list[str]
    """Names in torch: float32, bfloat16, ..."""
    shapes: list[list[int]]


def open_weight_group(
    *, address: str, port: int, rank: int, world_size: int, backend: str, group: str = GROUP, seconds: float = 300.0
) -> ProcessGroup:
    """Joins the group; returns when all have. Rank 0 listens at the address.

    torch has no public call that opens a group beside the default one among processes that share none; this is what SGLang
    does on its side.
    """
    timeout = timedelta(seconds=seconds)
    store, rank, world_size = next(rendezvous(f"tcp://{address}:{port}", rank, world_size, timeout=timeout))
    store.set_timeout(timeout)
    opened, _ = _new_process_group_helper(
        world_size,
        rank,
        [],
        Backend(backend),
        PrefixStore(group, store),
        group_name=group,  # pyright: ignore[reportArgumentType]  (a string under a name of torch's own)
        timeout=timeout,
    )
    assert isinstance(opened, ProcessGroup)
    _world.pg_group_ranks[opened] = {number: number for number in range(world_size)}
    return opened


def describe(tensors: Iterable[tuple[str, torch.Tensor]]) -> TensorFacts:
    """What to tell the receivers."""
    facts = TensorFacts([], [], [])
    for name, tensor in tensors:
        facts.names.append(name)
        facts.dtypes.append(str(tensor.dtype).removeprefix("torch."))
        facts.shapes.append(list(tensor.shape))
    return facts


def send_weights(group: ProcessGroup, tensors: Iterable[torch.Tensor]) -> None:
    """Broadcasts from rank 0, one after the other."""
    for tensor in tensors:
        torch.distributed.broadcast(tensor.contiguous(), src=0, group=group)


def receive_weights(group: ProcessGroup, facts: TensorFacts, device: torch.device) -> dict[str, torch.Tensor]:
    """What rank 0 sends."""
    received = {}
    for name, dtype, shape in zip(facts.names, facts.dtypes, facts.shapes, strict=True):
        received[name] = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        torch.distributed.broadcast(received[name], src=0, group=group)
    return received
