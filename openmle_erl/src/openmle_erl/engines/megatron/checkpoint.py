"""Checkpoints of a Megatron trainer by dist_checkpointing, whole or not at all; they fit other parallel sizes too.

<folder>/*.distcp, common.pt   model and optimiser, sharded
<folder>/trainer.json          steps done; written last

Saving starts processes, so a script that saves has its work under `if __name__ == "__main__"`.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from openmle_gym.errors import ConfigError

from openmle_erl.engines.checkpoint import DAMAGED, MANIFEST, CheckpointManifest, naming, read_manifest
from openmle_erl.engines.models import partial_folder, publish

State = Callable[[bool], dict[str, Any]]
"""The sharded state; the argument says whether it is to be loaded."""


def save(folder: Path, state: State, *, steps: int) -> None:
    """Writes what all ranks hold; every rank calls it."""
    partial = folder.with_name(f".{folder.name}.partial")
    if dist.get_rank() == 0:
        partial_folder(folder)
    dist.barrier()
    with _host_devices(), _children_allowed():
        dist_checkpointing.save(state(False), str(partial))
    dist.barrier()
    if dist.get_rank() == 0:
        manifest = CheckpointManifest(steps=steps, processes=dist.get_world_size(), extra={})
        (partial / MANIFEST).write_text(manifest.model_dump_json(indent=2))
        publish(partial, folder)
    dist.barrier()


def load(folder: Path, state: State) -> tuple[dict[str, Any], int]:
    """What was saved, in this run's shards, and the steps done.

    Raises:
        ConfigError: There is no whole checkpoint.
    """
    manifest = read_manifest(folder)
    with naming(folder, DAMAGED, ConfigError):
        try:
            # It says that it takes text, with which it stumbles where a file is lost.
            loaded = dist_checkpointing.load(state(True), folder)  # pyright: ignore[reportArgumentType]
        except CheckpointingException as error:
            raise ValueError(str(error)) from error
    assert isinstance(loaded, dict)
    return loaded, manifest.steps


@contextmanager
def _children_allowed() -> Iterator[None]:
    """Lets a daemon, which multiprocessing would keep from it, start the processes that write."""
    process = multiprocessing.current_process()
    if not process.daemon:
        yield
        return
    process.daemon = False
    try:
        yield
    finally:
        process.daemon = True


@contextmanager
def _host_devices() -> Iterator[None]:
    """Lets `dist_checkpointing.save` ask for the current device where there is no CUDA: the only two names it needs."""
    if torch.cuda.is_available():
        yield
        return
    kept = torch.cuda.current_device, torch.cuda.synchronize
    torch.cuda.current_device = lambda: torch.device("cpu")  # pyright: ignore[reportAttributeAccessIssue]
    torch.cuda.synchronize = lambda device=None: None
    try:
        yield
    finally:
        torch.cuda.current_device, torch.cuda.synchronize = kept
