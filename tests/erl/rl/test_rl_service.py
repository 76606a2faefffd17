"""The loop against a real sandbox service that is killed by SIGKILL in the middle of a group."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import toy
from erl.rl.rl_fakes import Lines, make_run, task
from openmle_erl.engines.processes import free_port
from openmle_erl.engines.protocols import Generation
from openmle_erl.rl.conversation import Prompt
from openmle_erl.rl.groups import GroupConfig, Scoring
from openmle_erl.rl.train import ScheduleConfig
from openmle_gym.chat import Completion
from openmle_gym.client import JobClient
from openmle_gym.prompts import public_task
from sandbox.service import running_service, until

pytest.importorskip("uvicorn")

HELD = toy.READ + (
    "\nopen({folder!r} + '/begun-{value}', 'a').close()\n"
    "while not os.path.exists({folder!r} + '/gate'):\n    time.sleep(0.01)\n"
    "write(lambda x: slope * x + {value} / 10000)\n"
)


class Held(Lines):
    """Programs that say that they have begun, wait for a gate, and are off by the sum of the reply's ids / 10,000."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def completion(self, prompt: Prompt, generation: Generation, *, model: str, seconds: float) -> Completion:
        source = HELD.format(folder=str(self._folder), value=sum(generation.token_ids))
        return Completion(text=toy.reply(source), model=model, seconds=seconds)


def begun(folder: Path) -> list[int]:
    """The values of the programs that have begun, in order."""
    return sorted(int(path.name.removeprefix("begun-")) for path in folder.glob("begun-*"))


@pytest.mark.slow
async def test_a_service_that_is_killed_in_the_middle_of_a_group_costs_no_sample(tmp_path: Path) -> None:
    box = tmp_path / "box"
    package = toy.write_toy_package(box / "tasks" / "toy")
    plain = task("toy")
    learnt = replace(
        plain,
        public=public_task(package),
        job=replace(plain.job, data_dir="toy"),
        scoring=Scoring(task=replace(plain.scoring.task, higher_is_better=False, static_best=0.0, static_worst=10.0)),
    )
    address = f"port={free_port('127.0.0.1')}"
    with running_service(box, address) as first:
        async with JobClient(first.url) as client:
            training = make_run(
                tmp_path / "run",
                sandbox=client,  # type: ignore[arg-type]
                dialogue=Held(tmp_path),
                tasks=("toy",),
                samples=3,
                group=GroupConfig(least=3, tries=1, barrier_seconds=1e9, try_seconds=600.0),
                schedule=ScheduleConfig(steps=1, groups_per_step=1, optimiser_steps=1, checkpoint_interval=1),
            )
            training.pool.tasks = {"toy": learnt}
            running = asyncio.create_task(training.run())
            # Two run, and the third waits in the service's queue.
            await asyncio.to_thread(until, lambda: len(begun(tmp_path)) == 2, 240)
            os.kill(first.process.pid, signal.SIGKILL)
            first.process.wait()
            with running_service(box, address):
                (tmp_path / "gate").touch()
                assert await running == 1
    fates = training.queue.fates()
    assert (fates["trained"], sum(fates.values())) == (3, 3)
    found = [card.validation.value for card in training.experience.cards("toy") if card.validation is not None]
    assert sorted(found) == pytest.approx([value / 10_000 for value in begun(tmp_path)])
