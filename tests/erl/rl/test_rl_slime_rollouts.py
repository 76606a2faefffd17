"""Our operators and rollouts in slime's hooks, with objects that have the documented fields of its samples."""

import asyncio
import math
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from erl.rl.rl_fakes import Engine, Lines, Sandbox, task
from openmle_erl.adapters.slime_rollouts import SlimeRollouts
from openmle_erl.engines.protocols import GenerateRequest, Generation, Sampling
from openmle_erl.rewards import ROBUST, AdaptiveRewards
from openmle_erl.rl.experience import Experience
from openmle_erl.rl.rollout import Road
from openmle_erl.rl.simulation import VirtualLoop
from openmle_gym.errors import ConfigError, ExecutorUnavailable, ModelUnavailable
from openmle_gym.jobs import JobRequest, JobResult
from openmle_gym.memory import MemoryConfig
from openmle_gym.operators import Operator
from openmle_gym.prompts import PromptConfig
from openmle_gym.store import CardStore

ARGS = SimpleNamespace(reward_key=None)
PARAMETERS = {"max_new_tokens": 64, "temperature": 1.0, "top_p": 1.0, "top_k": -1}


class Status(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"


@dataclass
class Sample:
    """The fields of slime's own that its hooks may read or write."""

    group_index: int
    index: int
    metadata: dict[str, Any] = field(default_factory=lambda: {"task": "one"})
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    rollout_log_probs: list[float] | None = None
    loss_mask: list[int] | None = None
    reward: Any = None
    status: Status = Status.PENDING
    remove_sample: bool = False
    rollout_id: int | None = None


def rollouts(folder: Path, engine: Engine, sandbox: Sandbox, shares: dict[Operator, float]) -> SlimeRollouts:
    road = Road(
        run_id="slime",
        seed=7,
        dialogue=Lines(),
        engine=engine,
        executor=sandbox,
        experience=Experience(CardStore(folder / "experience.sqlite"), "slime"),
        memory=MemoryConfig(),
        prompt=PromptConfig(),
        sampling=Sampling(),
    )
    tasks = {"one": task("one")}
    return SlimeRollouts(road, tasks, shares, AdaptiveRewards({"one": tasks["one"].scoring.task}, ROBUST))


def step(ours: SlimeRollouts, samples: list[Sample]) -> list[float]:
    async def generate() -> None:
        await asyncio.gather(*(ours.generate(ARGS, sample, PARAMETERS) for sample in samples))
        for sample in samples:
            sample.reward = await ours.reward(ARGS, sample)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(generate())
    return ours.post_process(ARGS, samples).processed


async def make(folder: Path, engine: type[Engine] = Engine, sandbox: type[Sandbox] = Sandbox) -> SlimeRollouts:
    return rollouts(folder, engine(), sandbox(), {Operator.DRAFT: 0.3, Operator.IMPROVE: 0.7})


def test_a_group_has_one_prompt_and_its_programs_become_parents(tmp_path: Path) -> None:
    ours = asyncio.run(make(tmp_path))
    operators: set[str] = set()
    for number in range(6):
        samples = [Sample(number, 8 * number + place) for place in range(8)]
        advantages = step(ours, samples)
        assert len({sample.tokens[0] for sample in samples}) == 1
        assert len({sample.metadata["operator"] for sample in samples}) == 1
        assert any(advantages)
        for sample in samples:
            assert sample.status is Status.COMPLETED
            assert len(sample.tokens) == 1 + sample.response_length
            assert sample.loss_mask == [1] * sample.response_length
            assert sample.rollout_log_probs == [-0.5] * sample.response_length
        operators.add(samples[0].metadata["operator"])
    assert operators == {"draft", "improve"}


def test_what_the_sandbox_lost_is_in_no_statistics_and_what_no_engine_gave_is_asked_anew(tmp_path: Path) -> None:
    class Flaky(Sandbox):
        async def run(self, job: JobRequest) -> JobResult:
            if job.labels["attempt"] == "1":
                raise ExecutorUnavailable("503")
            return await super().run(job)

    class Dead(Engine):
        async def generate(self, request: GenerateRequest) -> Generation:
            if request.request_id == "slime-train-2-0":
                raise ModelUnavailable("gone")
            return await super().generate(request)

    ours = asyncio.run(make(tmp_path, Dead, Flaky))
    samples = [Sample(0, index) for index in range(6)]
    advantages = step(ours, samples)
    assert samples[1].remove_sample
    assert samples[2].status is Status.ABORTED
    assert advantages[1] == advantages[2] == 0.0
    assert math.isclose(min(advantages), min(advantages[0], *advantages[3:]))


def test_a_sample_of_an_unknown_task_is_named(tmp_path: Path) -> None:
    ours = asyncio.run(make(tmp_path))
    with pytest.raises(ConfigError, match="unknown task 'two'"):
        step(ours, [Sample(0, 0, metadata={"task": "two"})])
