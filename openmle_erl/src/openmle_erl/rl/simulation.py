"""The learning loop on a virtual clock: engines, sandbox and trainer that only take time.

Everything else is the loop itself: pool, groups, queue, rewards, advantages, versions, weight updates. An hour of
sandbox time passes as soon as nothing else is left to do.
"""

import asyncio
import random
import selectors
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from openmle_gym.chat import Completion, Message, Usage
from openmle_gym.evaluate import JobSettings
from openmle_gym.jobs import JobRequest, JobResult, Limits, Outcome
from openmle_gym.manifest import Columns, Manifest, Metric
from openmle_gym.memory import MemoryConfig
from openmle_gym.operators import Operator
from openmle_gym.program import program_id
from openmle_gym.prompts import PromptConfig, PublicTask
from openmle_gym.store import CardStore

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
from openmle_erl.plan import PlanConfig
from openmle_erl.rewards.presets import ROBUST, RewardTask
from openmle_erl.rl.breaker import Breaker, BreakerConfig
from openmle_erl.rl.conversation import Prompt, TooLong
from openmle_erl.rl.evaluation import Evaluation, EvaluationConfig
from openmle_erl.rl.experience import Experience
from openmle_erl.rl.groups import GroupConfig, Scoring
from openmle_erl.rl.pool import Pool, QueueConfig
from openmle_erl.rl.queue import GroupQueue
from openmle_erl.rl.rollout import LearnTask, Road, seeded
from openmle_erl.rl.train import ScheduleConfig, Training


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list:
        if timeout is None:
            raise RuntimeError("the simulation waits for something that will never happen")
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to whatever is due next."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._virtual.now


class Meter:
    """How busy some slots are."""

    def __init__(self, slots: int) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._count = slots
        self.busy_seconds = 0.0

    async def spend(self, seconds: float) -> None:
        """Waits for a slot, and keeps it for so long."""
        async with self._slots:
            await asyncio.sleep(seconds)
            self.busy_seconds += seconds

    def share(self, seconds: float) -> float:
        """Of the slots' time, what was used."""
        return self.busy_seconds / (self._count * seconds) if seconds else 0.0


class SimulatedEngine:
    """All rollout engines as one: each running request gets the same tokens a second; slots bound how many run."""

    def __init__(self, config: PlanConfig, meter: Meter) -> None:
        self._config = config
        self._meter = meter
        self._version = 0
        self._running = asyncio.Event()
        self._running.set()

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `RolloutEngine`; a reply is two ids, but takes the time of its drawn length."""
        rng = random.Random(request.seed)
        tokens = rng.lognormvariate(0.0, self._config.reply_sigma) * self._config.reply_tokens
        tokens = min(tokens, self._config.reply_tokens_limit)
        begun = self._version
        await self._running.wait()
        await self._meter.spend(tokens / self._config.tokens_per_second)
        await self._running.wait()
        return Generation(
            request_id=request.request_id,
            token_ids=(rng.getrandbits(30), int(tokens)),
            logprobs_T=np.zeros(2, np.float32),
            finish=Finish.STOP,
            spans=(VersionSpan(begun, 0, 1), VersionSpan(self._version, 1, 2)),
        )

    async def pause(self, mode: PauseMode) -> None:
        """See `RolloutEngine`; what is under way goes on when the pause is over."""
        self._running.clear()

    async def load_weights(self, folder: Path, version: int) -> None:
        """See `RolloutEngine`."""
        await asyncio.sleep(self._config.synchronise_seconds)
        self._version = version

    async def resume(self) -> None:
        """See `RolloutEngine`."""
        self._running.set()

    async def version(self) -> int:
        """See `RolloutEngine`."""
        return self._version


class SimulatedExecutor:
    """An `Executor`: a job's time follows from its task and its program, and so do outcome and score."""

    def __init__(self, config: PlanConfig, meter: Meter) -> None:
        self._config = config
        self._meter = meter

    async def run(self, job: JobRequest) -> JobResult:
        """See `openmle_gym.jobs.Executor`."""
        config = self._config
        rng = random.Random(seeded(config.seed, job.name, program_id(job.code)))
        drawn = task_median_seconds(job.name, config) * rng.lognormvariate(0.0, config.runtime_sigma)
        ran = min(drawn, config.timeout_seconds)
        clock = asyncio.get_running_loop().time
        asked = clock()
        await self._meter.spend(ran)
        waited = max(clock() - asked - ran, 0.0)
        if drawn > ran:
            outcome, score = Outcome.TIMEOUT, None
        elif rng.random() > config.valid_share:
            outcome, score = Outcome.CODE_EXECUTION_ERROR, None
        else:
            outcome, score = Outcome.SUCCESS, rng.betavariate(4.0, 2.0)
        return JobResult(
            outcome=outcome,
            score=score,
            validation_score=score,
            higher_is_better=True,
            program_seconds=ran,
            queue_seconds=waited,
        )


class SimulatedTrainer:
    """A `Trainer`: takes the time that its tokens take."""

    def __init__(self, config: PlanConfig) -> None:
        self._config = config
        self.busy_seconds = 0.0

    async def _learn(self, samples: Sequence[TrainingSample], share: float) -> None:
        tokens = sum(sample.reply_ids[1] + self._config.prompt_tokens for sample in samples)
        seconds = share * tokens / self._config.trainer_tokens_per_second
        self.busy_seconds += seconds
        await asyncio.sleep(seconds)

    async def logprobs(self, samples: Sequence[TrainingSample]) -> list[FloatArray]:
        """See `Trainer`; a forward pass is a third of a step."""
        await self._learn(samples, 1 / 3)
        return [np.zeros(len(sample.reply_ids), np.float32) for sample in samples]

    async def step(self, samples: Sequence[TrainingSample], old_logprobs: Sequence[FloatArray]) -> StepReport:
        """See `Trainer`."""
        await self._learn(samples, 1.0)
        return StepReport(0.0, {})

    async def save_weights(self, folder: Path) -> None:
        """See `Trainer`."""
        _make(folder)

    async def save(self, folder: Path) -> None:
        """See `Trainer`."""
        _make(folder)

    async def load(self, folder: Path) -> None:
        """See `Trainer`."""

    async def close(self) -> None:
        """See `Trainer`."""


class SimulatedDialogue:
    """A `Dialogue` that reads a program from a reply's first id."""

    ends: tuple[int, ...] = ()

    def encode(self, messages: Sequence[Message]) -> Prompt:
        """See `Dialogue`."""
        return Prompt((0,), False)

    def room(self, prompt: Prompt) -> int | TooLong:
        """See `Dialogue`."""
        return 1_000_000

    def completion(self, prompt: Prompt, generation: Generation, *, model: str, seconds: float) -> Completion:
        """See `Dialogue`."""
        text = f"```python\nimport csv\nvalue = {generation.token_ids[0]}\n```\n"
        return Completion(text=text, model=model, usage=Usage(completion_tokens=generation.token_ids[1]))

    def measure(self, text: str) -> int:
        """See `Dialogue`."""
        return len(text) // 4


class _NoSink:
    def log(self, metrics: Mapping[str, object], *, step: int) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What a simulation measured."""

    steps: int
    seconds: float
    """Of the virtual clock, all steps together."""
    trainer_share: float
    """Of the time, what the trainer was at work."""
    engine_share: float
    sandbox_share: float
    exposure: dict[str, int]
    """Groups of each task that were trained on."""
    fates: dict[str, int]
    in_flight: int
    """Groups that were begun and not settled in the end."""
    ready: int
    """Groups that were settled and wait for a trainer in the end."""
    staleness: float
    """Weight updates, on the mean, between a group's oldest tokens and its step."""

    @property
    def step_seconds(self) -> float:
        """Of one step, on the mean."""
        return self.seconds / self.steps


def task_median_seconds(task: str, config: PlanConfig) -> float:
    """A task's median run time: tasks differ by a log-normal factor."""
    rng = random.Random(seeded(config.seed, "task", task))
    return config.runtime_seconds * rng.lognormvariate(0.0, config.task_sigma)


def simulate(config: PlanConfig, *, asynchronous: bool) -> Simulated:
    """Runs the loop for `config.steps` steps on a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, tempfile.TemporaryDirectory() as folder:
        return runner.run(_simulate(config, Path(folder), asynchronous=asynchronous))


async def _simulate(config: PlanConfig, folder: Path, *, asynchronous: bool) -> Simulated:
    engines, sandbox = Meter(config.engines * config.engine_slots), Meter(config.sandbox_workers)
    trainer = SimulatedTrainer(config)
    store, queue = CardStore(":memory:"), GroupQueue(":memory:")
    experience = Experience(store, "plan")
    road = Road(
        run_id="plan",
        seed=config.seed,
        dialogue=SimulatedDialogue(),
        engine=SimulatedEngine(config, engines),
        executor=SimulatedExecutor(config, sandbox),
        experience=experience,
        memory=MemoryConfig(kind="none"),
        prompt=PromptConfig(),
        sampling=Sampling(max_new_tokens=config.reply_tokens_limit),
    )
    clock = asyncio.get_running_loop().time
    pool = Pool(
        road=road,
        tasks={name: _task(name) for name in (f"task-{number:03d}" for number in range(config.tasks))},
        queue=queue,
        experience=experience,
        breaker=Breaker(BreakerConfig(), clock),
        shares={Operator.DRAFT: 0.5, Operator.IMPROVE: 0.17, Operator.DEBUG: 0.17, Operator.CROSSOVER: 0.16},
        rewards=ROBUST,
        group=GroupConfig(
            least=max(1, config.samples_per_group // 2),
            barrier_seconds=config.barrier_seconds,
            try_seconds=1e9,
            refills=config.refills,
        ),
        limits=QueueConfig(
            in_flight_groups=config.in_flight_groups or 2 * config.groups_per_step,
            ready_groups=2 * config.groups_per_step,
            max_staleness=None,
        ),
        samples_per_group=config.samples_per_group,
        groups_per_step=config.groups_per_step,
        asynchronous=asynchronous,
        seed=config.seed,
    )
    training = Training(
        folder=folder,
        trainer=trainer,
        engine=road.engine,
        pool=pool,
        queue=queue,
        experience=experience,
        evaluation=Evaluation(road, store, {}, EvaluationConfig()),
        schedule=ScheduleConfig(
            steps=config.steps, groups_per_step=config.groups_per_step, checkpoint_interval=config.steps + 1
        ),
        sink=_NoSink(),
    )
    started = clock()
    await training.run()
    seconds = clock() - started
    steps = queue.steps()
    return Simulated(
        steps=config.steps,
        seconds=seconds,
        trainer_share=trainer.busy_seconds / seconds,
        engine_share=engines.share(seconds),
        sandbox_share=sandbox.share(seconds),
        exposure={name: queue.exposure().get(name, 0) for name in pool.tasks},
        fates=queue.fates(),
        in_flight=pool.in_flight,
        ready=pool.ready,
        staleness=float(np.mean([step["staleness/mean"] for step in steps])),
    )


def _make(folder: Path) -> None:
    folder.mkdir()


def _task(name: str) -> LearnTask:
    manifest = Manifest(
        name=name, metric=Metric(name="auc", higher_is_better=True), columns=Columns(id=("id",), target=("y",))
    )
    return LearnTask(
        public=PublicTask(manifest=manifest, description="", data=""),
        job=JobSettings(data_dir=name, timeout_seconds=3600.0),
        limits=Limits(),
        scoring=Scoring(task=RewardTask(higher_is_better=True, static_best=1.0, static_worst=0.0)),
    )
