"""The model as a folder in Hugging Face's layout, written by all ranks that hold a part of it at the same time.

Tensor ranks are gathered one parameter at a time; then one rank for each pipeline stage writes the stage's dense
parameters, and one for each stage and expert rank writes its experts. The folder is one that all ranks see.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors.torch import save_file
from torch import Tensor

from openmle_erl.engines.megatron.convert import Coordinates, holds, local_name, to_hugging_face
from openmle_erl.engines.megatron.names import Spec, Split, entries
from openmle_erl.engines.memory import ModelShape
from openmle_erl.engines.models import TOKENIZER_FILES, partial_folder, publish

FILE_BYTES = 4 << 30
"""A file is closed once it holds this much."""


class _Writer:
    """Writes tensors to files of a bounded size."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix
        self._held: dict[str, Tensor] = {}
        self._held_bytes = 0
        self._files = 0
        self.written: dict[str, str] = {}
        """File names by tensor."""
        self.total_bytes = 0

    def add(self, name: str, tensor: Tensor) -> None:
        self._held[name] = tensor.cpu().clone()
        self._held_bytes += tensor.nbytes
        if self._held_bytes >= FILE_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._held:
            return
        name = f"{self._prefix}-{self._files:05d}.safetensors"
        save_file(self._held, self._folder / name, metadata={"format": "pt"})
        self.written |= dict.fromkeys(self._held, name)
        self.total_bytes += self._held_bytes
        self._held, self._held_bytes, self._files = {}, 0, self._files + 1


@torch.no_grad()
def save_weights(
    parameters: Mapping[str, Tensor],
    config: Mapping[str, Any],
    shape: ModelShape,
    spec: Spec,
    at: Coordinates,
    *,
    source: Path,
    folder: Path,
) -> None:
    """Every rank calls it; the folder appears whole or not at all, and one that is there is replaced.

    Args:
        parameters: This rank's, by Megatron's names.
        config: Hugging Face's, as it is to be written.
        source: The folder that the tokenizer is taken from.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    if dist.get_rank() == 0:
        partial_folder(folder)
    dist.barrier()
    writer = _Writer(partial, f"model-{at.pipeline:02d}-{at.expert:03d}")
    first = parallel_state.get_data_parallel_rank(with_context_parallel=True) == 0 and at.tensor == 0
    first_expert = parallel_state.get_expert_data_parallel_rank() == 0 and at.expert_tensor == 0
    # The two kinds of writers may be different ranks of one stage.
    experts = _Writer(partial, f"model-{at.pipeline:02d}-experts-{at.expert:03d}")
    for entry in entries(shape, spec, pipeline=at.sizes.pipeline):
        if not holds(entry, shape, at):
            continue
        tensor = parameters[local_name(entry, shape, at.sizes)].detach()
        dense = entry.expert is None
        group: Any = (
            parallel_state.get_tensor_model_parallel_group()
            if dense
            else parallel_state.get_expert_tensor_parallel_group()
        )
        shards = [tensor] if entry.split is Split.WHOLE else _gathered(tensor, group)
        if first if dense else first_expert:
            for name, value in to_hugging_face(entry, shards, shape):
                (writer if dense else experts).add(name, value)
    files, total = {}, 0
    for each in (writer, experts):
        each.flush()
        files |= each.written
        total += each.total_bytes
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, (files, total))
    if dist.get_rank() == 0:
        index = {
            "metadata": {"total_size": sum(part[1] for part in parts)},
            "weight_map": {name: file for part in parts for name, file in part[0].items()},
        }
        (partial / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True))
        (partial / "config.json").write_text(json.dumps(config, indent=2))
        for name in TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, partial / name)
        publish(partial, folder)
    dist.barrier()


def _gathered(tensor: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    """All ranks' shards, in their order."""
    shards = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(shards, tensor.contiguous(), group=group)
    return shards
