"""Engines, a sandbox and a trainer in memory, and a run made of them; deterministic in the run's seed."""

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from openmle_erl.engines.protocols import (
    Finish,
    FloatArray,
    GenerateRequest,
    Generation,
    PauseMode,
    Sampling,
    StepReport,
    TrainingSample,
    VersionSpan,
)
from openmle_erl.rewards.presets import ROBUST, RewardSettings, RewardTask
from openmle_erl.rl.breaker import Breaker, BreakerConfig
from openmle_erl.rl.conversation import Prompt, TooLong
from openmle_erl.rl.evaluation import Evaluation, EvaluationConfig
from openmle_erl.rl.experience import Experience
from openmle_erl.rl.groups import GroupConfig, Scoring
from openmle_erl.rl.pool import Pool, QueueConfig
from openmle_erl.rl.queue import GroupQueue
from openmle_erl.rl.rollout import LearnTask, Road
from openmle_erl.rl.train import ScheduleConfig, Training
from openmle_gym.chat import Completion, Message
from openmle_gym.evaluate import JobSettings
from openmle_gym.jobs import JobRequest, JobResult, Limits, Outcome
from openmle_gym.manifest import Columns, Manifest, Metric
from openmle_gym.memory import MemoryConfig
from openmle_gym.operators import Operator
from openmle_gym.prompts import PromptConfig, PublicTask
from openmle_gym.store import CardStore

Hook = Callable[[str], None]
"""Called with the name of each thing that is about to happen; may raise, or kill the process."""


def nothing(event: str) -> None:
    """A hook that lets everything happen."""


class Lines:
    """A dialogue in which a token is an id and a program is `value = <sum of the reply's ids>`."""

    ends: tuple[int, ...] = ()

    def __init__(self, room: int = 64) -> None:
        self._room = room
        self.prompts: list[str] = []

    def encode(self, messages: Sequence[Message]) -> Prompt:
        self.prompts.append(messages[-1].content)
        return Prompt((len(self.prompts),), False)

    def room(self, prompt: Prompt) -> int | TooLong:
        return self._room if self._room else TooLong(9, 5)

    def completion(self, prompt: Prompt, generation: Generation, *, model: str, seconds: float) -> Completion:
        program = f"import csv\nvalue = {sum(generation.token_ids)}"
        return Completion(text=f"```python\n{program}\n```", model=model, seconds=seconds)

    def measure(self, text: str) -> int:
        return len(text) // 4


class Engine:
    """Gives three tokens drawn from the seed, one a second."""

    def __init__(self, hook: Hook = nothing, tokens: Callable[[GenerateRequest], Sequence[int]] | None = None) -> None:
        self.hook = hook
        self.weights: list[int] = [0]
        self.modes: list[PauseMode] = []
        self.open = 0
        self._tokens = tokens or (lambda request: random.Random(request.seed).sample(range(1, 10_000), 3))
        self._going = asyncio.Event()
        self._going.set()

    async def generate(self, request: GenerateRequest) -> Generation:
        self.hook("generate")
        self.open += 1
        try:
            return await self._generate(request)
        finally:
            self.open -= 1

    async def _generate(self, request: GenerateRequest) -> Generation:
        spans: list[VersionSpan] = []
        tokens = tuple(self._tokens(request))[: request.sampling.max_new_tokens]
        finish = Finish.STOP
        for place in range(len(tokens)):
            await self._going.wait()
            spans.append(VersionSpan(self.weights[-1], place, place + 1))
            await asyncio.sleep(1.0)
            if not self._going.is_set() and self.modes[-1] is PauseMode.ABORT:
                tokens, finish = tokens[: place + 1], Finish.ABORT
                break
        return Generation(
            request_id=request.request_id,
            token_ids=tokens,
            logprobs_T=np.full(len(tokens), -0.5, np.float32),
            finish=finish,
            spans=tuple(spans),
        )

    async def pause(self, mode: PauseMode) -> None:
        self.modes.append(mode)
        self._going.clear()
        await asyncio.sleep(1.5)

    async def load_weights(self, folder: Path, version: int) -> None:
        self.hook("load_weights")
        assert json.loads((folder / "model.json").read_text())["version"] == version
        self.weights.append(version)

    async def resume(self) -> None:
        self._going.set()

    async def version(self) -> int:
        return self.weights[-1]


class Sandbox:
    """Scores a program by its value; takes as many seconds as the value's last digit."""

    def __init__(self, hook: Hook = nothing, seconds: Callable[[int], float] = lambda value: value % 10) -> None:
        self.hook = hook
        self.runs: list[str] = []
        self._seconds = seconds

    async def run(self, job: JobRequest) -> JobResult:
        self.hook("execute")
        self.runs.append(job.code)
        value = int(job.code.rpartition("=")[2])
        await asyncio.sleep(self._seconds(value))
        if value % 5 == 0:
            return JobResult(outcome=Outcome.CODE_EXECUTION_ERROR, error_signature="ValueError", message="crashed")
        score = (value % 997) / 1000
        return JobResult(outcome=Outcome.SUCCESS, score=score, validation_score=score, higher_is_better=True)


class Learner:
    """A trainer whose weights are how often it stepped; in the background, a checkpoint is there seven seconds later."""

    def __init__(self, hook: Hook = nothing, *, background: bool = False) -> None:
        self.hook = hook
        self._background = background
        self._writing: asyncio.Task[None] | None = None
        self.steps = 0
        self.seen: list[list[str]] = []
        self.advantages: list[float] = []

    async def logprobs(self, samples: Sequence[TrainingSample]) -> list[FloatArray]:
        self.hook("logprobs")
        return [np.full(len(sample.reply_ids), -0.5, np.float32) for sample in samples]

    async def step(self, samples: Sequence[TrainingSample], old_logprobs: Sequence[FloatArray]) -> StepReport:
        self.hook("step")
        await asyncio.sleep(5.0)
        self.steps += 1
        self.seen.append([sample.sample_id for sample in samples])
        self.advantages += [sample.advantage for sample in samples]
        return StepReport(0.25, {"grad_norm": 1.0})

    async def save_weights(self, folder: Path) -> None:
        self.hook("save_weights")
        _write(folder, "model.json", json.dumps({"version": int(folder.name.rpartition("-")[2])}))

    async def save(self, folder: Path) -> None:
        self.hook("save")
        await self.close()
        self._writing = asyncio.create_task(self._publish(folder, str(self.steps)))
        if not self._background:
            await self.close()

    async def _publish(self, folder: Path, steps: str) -> None:
        await asyncio.sleep(7.0 if self._background else 0.0)
        self.hook("publish")
        _write(folder, "steps", steps)

    async def load(self, folder: Path) -> None:
        self.steps = int((folder / "steps").read_text())

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing


def _write(folder: Path, name: str, text: str) -> None:
    folder.mkdir()
    (folder / name).write_text(text)


class Sink:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.records: list[dict[str, object]] = []

    def log(self, metrics: Mapping[str, object], *, step: int) -> None:
        self.records.append(dict(metrics))


def task(name: str) -> LearnTask:
    """Higher is better, 0 to 1."""
    manifest = Manifest(
        name=name, metric=Metric(name="auc", higher_is_better=True), columns=Columns(id=("id",), target=("y",))
    )
    return LearnTask(
        public=PublicTask(manifest=manifest, description=f"Predict y of {name}.", data="train.csv"),
        job=JobSettings(data_dir=name, timeout_seconds=60.0),
        limits=Limits(),
        scoring=Scoring(task=RewardTask(higher_is_better=True, static_best=1.0, static_worst=0.0)),
    )


def make_run(
    folder: Path,
    *,
    engine: Engine | None = None,
    sandbox: Sandbox | None = None,
    learner: Learner | None = None,
    dialogue: Lines | None = None,
    tasks: Sequence[str] = ("one", "two", "three"),
    evaluated: Sequence[str] = (),
    samples: int = 4,
    asynchronous: bool = True,
    schedule: ScheduleConfig | None = None,
    group: GroupConfig | None = None,
    limits: QueueConfig | None = None,
    breaker: BreakerConfig | None = None,
    rewards: RewardSettings = ROBUST,
    evaluation: EvaluationConfig | None = None,
    hook: Hook = nothing,
) -> Training:
    """A run in a folder, new or to be gone on with; call it where a loop runs."""
    folder.mkdir(exist_ok=True)
    store, queue = CardStore(folder / "experience.sqlite"), GroupQueue(folder / "experience.sqlite")
    experience = Experience(store, "run")
    schedule = schedule or ScheduleConfig(steps=4, groups_per_step=3, optimiser_steps=2, checkpoint_interval=2)
    road = Road(
        run_id="run",
        seed=7,
        dialogue=dialogue or Lines(),
        engine=engine or Engine(hook),
        executor=sandbox or Sandbox(hook),
        experience=experience,
        memory=MemoryConfig(),
        prompt=PromptConfig(),
        sampling=Sampling(max_new_tokens=64),
    )
    pool = Pool(
        road=road,
        tasks={name: task(name) for name in tasks},
        queue=queue,
        experience=experience,
        breaker=Breaker(breaker or BreakerConfig(least=8, window=16), asyncio.get_running_loop().time),
        shares={Operator.DRAFT: 0.5, Operator.IMPROVE: 0.17, Operator.DEBUG: 0.17, Operator.CROSSOVER: 0.16},
        rewards=rewards,
        group=group or GroupConfig(least=2, barrier_seconds=30.0, try_seconds=100.0),
        limits=limits or QueueConfig(in_flight_groups=4, ready_groups=6),
        samples_per_group=samples,
        groups_per_step=schedule.groups_per_step,
        asynchronous=asynchronous,
        seed=7,
    )
    return Training(
        folder=folder,
        trainer=learner or Learner(hook),
        engine=road.engine,
        pool=pool,
        queue=queue,
        experience=experience,
        evaluation=Evaluation(
            road, store, {name: task(name) for name in evaluated}, evaluation or EvaluationConfig(interval=2)
        ),
        schedule=schedule,
        sink=Sink(),
    )
