"""Checkpoints of a trainer by torch.distributed.checkpoint: sharded, whole or not at all, in the background if wanted.

<folder>/*.distcp, .metadata   the model (with adapters: they alone) and the optimiser, by any number of processes
<folder>/random_<rank>.pt      each process's random state
<folder>/trainer.json          steps done, processes, and what the caller keeps beside; written last

Saving in the background has a process group of its own: on the one that training uses, its messages and those of the
next step get into each other's way, and both wait for ever.
"""

import json
import pickle
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from openmle_gym.contracts import Contract, one_line
from openmle_gym.errors import ConfigError, InfrastructureError, OpenMLEError
from pydantic import JsonValue, ValidationError
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from openmle_erl.engines.models import partial_folder, publish

MANIFEST = "trainer.json"
DAMAGED = "a damaged checkpoint; without this folder the run goes on from the one before"
GROUP_TIMEOUT = timedelta(minutes=30)

warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


class CheckpointManifest(Contract):
    """What a checkpoint says of itself."""

    steps: int
    """Optimiser steps that were done."""
    processes: int
    extra: dict[str, JsonValue]
    """The caller's own."""


class Checkpoints:
    """Saves and loads the state of one model and its optimiser."""

    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer, *, adapters: bool) -> None:
        """Args:
        adapters: Only what is trained is kept; the rest comes from the model's folder.
        """
        self._model = model
        self._optimiser = optimiser
        self._options = StateDictOptions(ignore_frozen_params=adapters, strict=not adapters)
        self._distributed = dist.is_initialized()
        self._rank = dist.get_rank() if self._distributed else 0
        self._processes = dist.get_world_size() if self._distributed else 1
        self._group = _new_group() if self._distributed else None
        self._published: Future[None] | None = None

    def save(self, folder: Path, *, steps: int, extra: dict[str, JsonValue], background: bool) -> None:
        """Writes a checkpoint. In the background, the state is as of now, and the folder appears when it is whole."""
        self.wait()
        partial = folder.with_name(f".{folder.name}.partial")
        if self._rank == 0:
            partial = partial_folder(folder)
        self.barrier()
        torch.save(_random_state(), partial / f"random_{self._rank}.pt")
        self.barrier()
        manifest = CheckpointManifest(steps=steps, processes=self._processes, extra=extra)
        if not background:
            with naming(folder, "could not be written", InfrastructureError):
                save(self._state(), checkpoint_id=partial, process_group=self._group, no_dist=not self._distributed)
            self._publish(partial, folder, manifest)
            self.barrier()
            return
        saving = async_save(
            self._state(), checkpoint_id=partial, process_group=self._group, no_dist=not self._distributed
        )
        assert isinstance(saving, Future)
        self._published = Future()
        published = self._published

        def finish(done: "Future[Any]") -> None:
            # The first process's part ends last: it writes the metadata once all others have written theirs.
            if (error := done.exception()) is not None:
                published.set_exception(error)
                return
            try:
                self._publish(partial, folder, manifest)
            except OSError as failed:
                published.set_exception(failed)
            else:
                published.set_result(None)

        saving.add_done_callback(finish)

    def wait(self) -> None:
        """Returns when nothing is being written any more; raises what went wrong."""
        if self._published is not None:
            published, self._published = self._published, None
            with naming(None, "the checkpoint could not be written", InfrastructureError):
                published.result()
        self.barrier()

    def load(self, folder: Path) -> CheckpointManifest:
        """Puts model, optimiser and random state to what they were.

        Raises:
            ConfigError: There is no whole checkpoint.
        """
        self.wait()
        manifest = read_manifest(folder)
        state = self._state()
        random = folder / f"random_{self._rank}.pt"
        with naming(folder, DAMAGED, ConfigError):
            load(state, checkpoint_id=folder, process_group=self._group, no_dist=not self._distributed)
            # The run that wrote it may have had no such rank.
            drawn = torch.load(random, weights_only=True) if random.is_file() else None
        set_state_dict(
            self._model,
            self._optimiser,
            model_state_dict=state["model"],
            optim_state_dict=state["optimiser"],
            options=self._options,
        )
        if manifest.steps == 0:
            self._optimiser.state.clear()
        if drawn is not None:
            _set_random_state(drawn)
        return manifest

    def _state(self) -> dict[str, Any]:
        fresh = not self._optimiser.state
        model, optimiser = get_state_dict(self._model, self._optimiser, options=self._options)
        if fresh:  # torch fills an empty optimiser by a step of nothing, which would count as the first
            self._optimiser.state.clear()
        return {"model": model, "optimiser": optimiser}

    def _publish(self, partial: Path, folder: Path, manifest: CheckpointManifest) -> None:
        if self._rank == 0:
            (partial / MANIFEST).write_text(manifest.model_dump_json(indent=2))
            publish(partial, folder)

    def barrier(self) -> None:
        """Returns when all processes are here."""
        if self._distributed:
            dist.barrier(group=self._group)


def _new_group() -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT)
    assert isinstance(group, dist.ProcessGroup)
    return group


@contextmanager
def naming(folder: Path | None, trouble: str, kind: type[OpenMLEError]) -> Iterator[None]:
    """Turns what readers and writers of checkpoints raise into one error that says where and what.

    Raises:
        OpenMLEError: Of that kind.
    """
    try:
        yield
    except CheckpointException as error:  # no Exception; it has one for each process that failed
        cause = next(iter(error.failures.values()))[0]
    except (OSError, EOFError, RuntimeError, LookupError, ValueError, pickle.UnpicklingError) as error:
        cause = error
    else:
        return
    place = f"{folder}: " if folder is not None else ""
    raise kind(f"{place}{trouble}: {type(cause).__name__}: {cause}") from cause


def read_manifest(folder: Path) -> CheckpointManifest:
    """A checkpoint's manifest.

    Raises:
        ConfigError: There is none, or it is damaged.
    """
    try:
        return CheckpointManifest.model_validate(json.loads((folder / MANIFEST).read_text()))
    except FileNotFoundError as error:
        raise ConfigError(f"{folder}: no {MANIFEST}, so no checkpoint") from error
    except (ValidationError, ValueError) as error:
        raise ConfigError(f"{folder / MANIFEST}: {one_line(error)}") from error


def _random_state() -> dict[str, Any]:
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
