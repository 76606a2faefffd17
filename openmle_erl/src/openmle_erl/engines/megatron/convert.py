"""Hugging Face's weights to Megatron's and back: pure functions of tensors, sharded over tensor, pipeline and expert ranks.

`fuse` and `unfuse` join what Megatron keeps in one matrix; `split` and `gather` divide that among tensor ranks; `holds`
says which rank holds an entry, and under which name. `to_megatron` puts them together for one rank, `to_hugging_face`
for what was gathered. All of it only moves numbers, so a round trip gives the same bits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil

import torch
from torch import Tensor

from openmle_erl.engines.megatron.names import EMBEDDING, Entry, Fusion, Spec, Split, entries
from openmle_erl.engines.memory import ModelShape, ParallelSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """One rank's place on the axes along which weights are divided."""

    sizes: ParallelSizes = field(default_factory=ParallelSizes)
    tensor: int = 0
    pipeline: int = 0
    expert: int = 0
    expert_tensor: int = 0


def padded_vocabulary(vocabulary: int, tensor: int, multiple: int) -> int:
    """Rows of the embedding table, so that each of `tensor` ranks has the same multiple of `multiple`."""
    return ceil(vocabulary / (tensor * multiple)) * tensor * multiple


def fuse(entry: Entry, sources: Sequence[Tensor], shape: ModelShape, *, rows: int) -> Tensor:
    """Megatron's whole parameter.

    Args:
        rows: Of the padded vocabulary.
    """
    match entry.fusion:
        case Fusion.NONE:
            return sources[0]
        case Fusion.GATE_UP:
            return torch.cat(list(sources))
        case Fusion.QKV:
            grouped = [source.view(shape.key_value_heads, -1, source.shape[1]) for source in sources]
            return torch.cat(grouped, dim=1).flatten(0, 1)
        case Fusion.VOCABULARY:
            table = sources[0]
            return torch.cat([table, table.new_zeros(rows - table.shape[0], table.shape[1])])


def unfuse(entry: Entry, whole: Tensor, shape: ModelShape) -> list[Tensor]:
    """What `fuse` was given."""
    match entry.fusion:
        case Fusion.NONE:
            return [whole]
        case Fusion.GATE_UP:
            return list(whole.chunk(2))
        case Fusion.QKV:
            queries = shape.heads // shape.key_value_heads * shape.head_size
            grouped = whole.view(shape.key_value_heads, -1, whole.shape[1])
            parts = grouped.split([queries, shape.head_size, shape.head_size], dim=1)
            return [part.flatten(0, 1) for part in parts]
        case Fusion.VOCABULARY:
            return [whole[: shape.vocabulary]]


def split(entry: Entry, whole: Tensor, parts: int) -> list[Tensor]:
    """The shards of `parts` tensor ranks, in their order."""
    if parts == 1 or entry.split is Split.WHOLE:
        return [whole] * parts
    if entry.split is Split.COLUMNS:
        return list(whole.chunk(parts, dim=1))
    if entry.fusion is Fusion.GATE_UP:
        gate, up = (half.chunk(parts) for half in whole.chunk(2))
        return [torch.cat(pair) for pair in zip(gate, up, strict=True)]
    return list(whole.chunk(parts))


def gather(entry: Entry, shards: Sequence[Tensor]) -> Tensor:
    """What `split` was given."""
    if len(shards) == 1 or entry.split is Split.WHOLE:
        return shards[0]
    if entry.split is Split.COLUMNS:
        return torch.cat(list(shards), dim=1)
    if entry.fusion is Fusion.GATE_UP:
        gates, ups = zip(*(shard.chunk(2) for shard in shards), strict=True)
        return torch.cat([*gates, *ups])
    return torch.cat(list(shards))


def stage(entry: Entry, shape: ModelShape, pipeline: int) -> int:
    """The pipeline stage that holds an entry; layers are spread evenly."""
    if entry.layer is not None:
        return entry.layer // (shape.layers // pipeline)
    return 0 if entry.name == EMBEDDING else pipeline - 1


def local_name(entry: Entry, shape: ModelShape, sizes: ParallelSizes) -> str:
    """Megatron's name on the ranks that hold the entry: layers and experts are numbered anew on each."""
    layer = entry.layer % (shape.layers // sizes.pipeline) if entry.layer is not None else 0
    expert = entry.expert % (shape.experts // sizes.expert) if entry.expert is not None else 0
    return entry.name.replace("{layer}", str(layer)).replace("{expert}", str(expert))


def holds(entry: Entry, shape: ModelShape, at: Coordinates) -> bool:
    """Whether a rank has a shard of the entry."""
    if stage(entry, shape, at.sizes.pipeline) != at.pipeline:
        return False
    return entry.expert is None or entry.expert // (shape.experts // at.sizes.expert) == at.expert


def to_megatron(
    read: Callable[[str], Tensor], shape: ModelShape, spec: Spec, at: Coordinates, *, multiple: int
) -> Iterator[tuple[str, Tensor]]:
    """One rank's parameters by its own names, one after the other.

    Args:
        read: Gives a Hugging Face tensor by its name; asked only for what the rank needs.
        multiple: The vocabulary's rows per rank are a multiple of this.
    """
    rows = padded_vocabulary(shape.vocabulary, at.sizes.tensor, multiple)
    for entry in entries(shape, spec, pipeline=at.sizes.pipeline):
        if not holds(entry, shape, at):
            continue
        whole = fuse(entry, [read(name) for name in entry.sources], shape, rows=rows)
        if entry.expert is None:
            shard = split(entry, whole, at.sizes.tensor)[at.tensor]
        else:
            shard = split(entry, whole, at.sizes.expert_tensor)[at.expert_tensor]
        yield local_name(entry, shape, at.sizes), shard


def to_hugging_face(entry: Entry, shards: Sequence[Tensor], shape: ModelShape) -> list[tuple[str, Tensor]]:
    """Hugging Face's tensors of one entry, from the shards of all its tensor ranks; nothing for a copy."""
    if entry.copy:
        return []
    tensors = unfuse(entry, gather(entry, shards), shape)
    return [(name, tensor.contiguous()) for name, tensor in zip(entry.sources, tensors, strict=True)]
