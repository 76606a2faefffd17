"""One of two ranks: first each alone with a model of its own, then both together, every case in one process.

Arguments: this rank, the working folder, a free port for each case. What was found lies in <folder>/<case>/ as tensors.
Saving a checkpoint starts a process that imports the main module again, so that is not this one.
"""

import asyncio
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from erl.megatron.cases import CASES, make_config, make_old, make_rows, make_samples
from openmle_erl.engines.megatron.model import layer_spec
from openmle_erl.engines.megatron.packs import pack
from openmle_erl.engines.megatron.trainer import MegatronTrainer
from openmle_erl.engines.megatron.weights import save_weights
from openmle_erl.engines.megatron.worker import MegatronWorker, StepPart
from openmle_erl.engines.packing import TokenRow
from openmle_erl.engines.processes import Place
from openmle_gym.errors import ConfigError


def gradients_to(worker: MegatronWorker, folder: Path) -> None:
    """Each of the next two steps first writes its gradients in Hugging Face's layout, one folder a step."""
    update, targets = worker.engine.update, [folder / "gradients_1", folder / "gradients_0"]

    def first_written(rate: float) -> float:
        if targets:
            gradients = {name: value.grad for name, value in worker.model.named_parameters() if value.grad is not None}
            where: dict[str, Any] = {"source": folder, "folder": targets.pop()}
            save_weights(gradients, {}, worker.shape, layer_spec(worker.config), worker.at, **where)
        return update(rate)

    worker.engine.update = first_written


def plain(part: StepPart | None) -> dict[str, Any] | None:
    """To be read without Megatron."""
    return None if part is None else asdict(part)


def logits(worker: MegatronWorker) -> torch.Tensor:
    """Of the longest sample alone, of this rank's vocabulary."""
    row = max(make_rows(make_samples()), key=lambda each: len(each.ids))
    rows = [TokenRow(ids=row.ids[:20], wanted=row.wanted[:20])]
    alone = pack(rows, [0], worker.config.parallel, length=20)
    with torch.no_grad():
        return worker._forward(worker.model, alone)[0]


class BothRanks:
    """The ranks of a case as the trainer sees them: each process hands on what all of them say."""

    def __init__(self, worker: MegatronWorker) -> None:
        self._worker = worker

    async def call(self, method: str, *arguments: object) -> list[Any]:
        results: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(results, getattr(self._worker, method)(*arguments))
        return results


def refusal(worker: MegatronWorker, checkpoint: Path, name: str, damage: str) -> str:
    """What is said of a copy of a checkpoint with one file emptied, cut in half or lost."""
    copy = checkpoint.with_name("damaged") / "checkpoint"
    shutil.copytree(checkpoint, copy)
    file = copy / name
    if damage == "lost":
        file.unlink()
    else:
        os.truncate(file, 0 if damage == "emptied" else file.stat().st_size // 2)
    try:
        worker.load(copy)
    except ConfigError as error:
        return str(error)
    finally:
        shutil.rmtree(copy.parent)
    return "loaded"


def run_case(name: str, place: Place, root: Path) -> None:
    folder = root / name
    folder.mkdir(exist_ok=True)
    found: dict[str, Any] = {}
    samples = make_samples()
    old = make_old(samples)
    worker = MegatronWorker(make_config(name, root), place)
    found["logits"] = logits(worker)
    worker.save_weights(folder / "untouched")
    found["logprobs"] = worker.logprobs(samples)
    if CASES[name][0] == "sparse":
        found["routed_logprobs"] = worker.logprobs(make_samples(routed=True))
    gradients_to(worker, folder)
    found["step"] = plain(worker.step(samples, old))
    worker.save_weights(folder / "stepped")
    found["parameters"] = {key: value.detach().clone() for key, value in worker.model.named_parameters()}
    found["learn"] = plain(worker.learn(make_rows(samples)))
    worker.save(folder / "checkpoint")
    found["third"] = plain(worker.step(samples, old))
    found["went_on"] = {key: value.detach().clone() for key, value in worker.model.named_parameters()}
    trainer = MegatronTrainer(BothRanks(worker))
    asyncio.run(trainer.load(folder / "checkpoint"))
    found["back_steps"] = worker.steps
    found["report"] = asyncio.run(trainer.step(samples, old))._asdict()
    found["trainer_logprobs"] = asyncio.run(trainer.logprobs(samples))
    found["worker_logprobs"] = worker.logprobs(samples)
    found["went_on_again"] = {key: value.detach().clone() for key, value in worker.model.named_parameters()}
    if name == "dense_tensor":
        worker.load(root / "dense" / "checkpoint")
        worker.save_weights(folder / "of_one_rank")
    if name == "dense":
        worker.load(folder / "checkpoint")
        worker.save_weights(folder / "of_one_rank")
        found["loaded"] = {key: value.detach().clone() for key, value in worker.model.named_parameters()}
        worker.step(samples, old)
        found["refused"] = {
            f"{file.name}, {damage}": refusal(worker, folder / "checkpoint", file.name, damage)
            for file in sorted((folder / "checkpoint").iterdir())
            for damage in ("emptied", "cut", "lost")
        }
        worker.load(folder / "checkpoint")
        found["loaded_again"] = {key: value.detach().clone() for key, value in worker.model.named_parameters()}
    worker.close()
    torch.save(found, folder / f"rank{place.rank}.pt")


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    ports = dict(zip(CASES, (int(port) for port in sys.argv[3:]), strict=True))
    torch.set_num_threads(1)
    alone = ["dense", "sparse"][rank]
    run_case(alone, Place(port=ports[alone]), folder)
    for name, (_, sizes, _) in CASES.items():
        if sizes.world == 2:
            run_case(name, Place(rank=rank, processes=2, port=ports[name]), folder)
