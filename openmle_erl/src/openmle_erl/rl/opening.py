"""From settings to a run: tasks, sandbox, judge, engines, trainer, files."""

import asyncio
import contextlib
import dataclasses
import fcntl
import json
import logging
import os
import secrets
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from openmle_gym.chat import ChatModel, Completion, Message
from openmle_gym.configuration import secret_from_environment
from openmle_gym.contracts import Contract, read_record
from openmle_gym.errors import ConfigError, ModelUnavailable, StoreError
from openmle_gym.evaluate import JobSettings
from openmle_gym.jobs import Executor
from openmle_gym.place import open_place
from openmle_gym.policies.settings import open_policy
from openmle_gym.prompts import public_task
from openmle_gym.review import Reviewer
from openmle_gym.store import CardStore
from openmle_gym.task import TaskPackage
from pydantic import JsonValue, SecretStr

from openmle_erl import __version__
from openmle_erl.engines.protocols import RolloutEngine, Trainer
from openmle_erl.engines.router import Router
from openmle_erl.engines.routing_wire import routing_shape
from openmle_erl.engines.serve import ADMIN_KEY, API_KEY
from openmle_erl.engines.sglang import SGLangEngine
from openmle_erl.rewards.bounds import static_limits
from openmle_erl.rewards.presets import RewardTask
from openmle_erl.rl.breaker import Breaker
from openmle_erl.rl.config import CONFIGS, RLConfig, SandboxConfig
from openmle_erl.rl.conversation import Budget
from openmle_erl.rl.evaluation import Evaluation
from openmle_erl.rl.experience import Experience
from openmle_erl.rl.groups import Scoring
from openmle_erl.rl.pool import Pool
from openmle_erl.rl.queue import GroupQueue
from openmle_erl.rl.rollout import LearnTask, Road, TokenizerDialogue
from openmle_erl.rl.train import MetricSink, Training
from openmle_erl.sft.files import find_packages, write_whole
from openmle_erl.sft.tokens import ChatTokenizer, load_tokenizer

LOCAL_SERVER_SECONDS = 300.0
EXPERIENCE = "experience.sqlite"
_SERVE = """
import ctypes, signal, sys
getattr(ctypes.CDLL(None), "prctl", lambda *_: None)(1, signal.SIGTERM)  # ends with its parent, however that ends
from openmle_erl.cli import main
sys.exit(main())
"""

log = logging.getLogger(__name__)


class RunRecord(Contract):
    """A run's `run.json`."""

    schema_version: int = 1
    run_id: str
    created_at: str
    """ISO 8601 with Z."""
    openmle_version: str
    settings: dict[str, JsonValue]


def check_inputs(config: RLConfig) -> None:
    """Looks at what a run reads, before a server or a trainer is started.

    Raises:
        ConfigError: There is no task or no model, or the model's context is too short.
        PackageError: A task's package cannot be used.
    """
    if not config.tasks:
        raise ConfigError("tasks: must name at least one place")
    find_packages(config.tasks, setting="tasks")
    find_packages(config.evaluation.tasks, setting="evaluation.tasks")
    path = Path(config.model) / "config.json"
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        positions = int(facts.get("text_config", facts)["max_position_embeddings"])
    except OSError as error:
        raise ConfigError(f"model: {path}: {error.strerror}") from error
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ConfigError(f"model: {path}: {type(error).__name__}: {error}") from error
    if config.context_tokens > positions:
        raise ConfigError(f"context_tokens: {config.context_tokens} is beyond the {positions} positions of {path}")


@contextlib.asynccontextmanager
async def open_training(
    config: RLConfig,
    *,
    trainer: Trainer,
    engine: RolloutEngine,
    sink: MetricSink,
    executor: Executor | None = None,
    tokenizer: ChatTokenizer | None = None,
) -> AsyncIterator[Training]:
    """A run, new or to be gone on with; its files are closed in the end, and the caller closes the engines.

    Args:
        trainer: With the model that the run starts from.
        engine: Likewise; a `Router` where there are several.
        executor: Instead of the one that `config.sandbox` names.
        tokenizer: Instead of the model's own.

    Raises:
        ConfigError: A setting does not fit the tasks, or another process has the run.
    """
    packages = find_packages(config.tasks, setting="tasks")
    held_out = find_packages(config.evaluation.tasks, setting="evaluation.tasks")
    folder = Path(config.run_dir)
    tokenizer = tokenizer or load_tokenizer(Path(config.model))
    async with contextlib.AsyncExitStack() as stack:
        record = stack.enter_context(_run_folder(folder, config))
        executor = executor or await stack.enter_async_context(open_sandbox(config.sandbox, [*packages, *held_out]))
        judge = (
            await stack.enter_async_context(open_policy(config.judge, CONFIGS / "policy"))
            if config.review.judge
            else None
        )
        store = stack.enter_context(contextlib.closing(CardStore(folder / EXPERIENCE)))
        queue = stack.enter_context(contextlib.closing(GroupQueue(folder / EXPERIENCE)))
        experience = Experience(store, record.run_id, published=config.rewards.published_parents)
        road = Road(
            run_id=record.run_id,
            seed=config.seed,
            dialogue=TokenizerDialogue(
                tokenizer, Budget(context_tokens=config.context_tokens, reply_tokens=config.context_tokens)
            ),
            engine=engine,
            executor=executor,
            experience=experience,
            memory=config.memory,
            prompt=config.prompt,
            sampling=config.sampling.sampling(),
            routing=routing_shape(Path(config.model)) if config.trainer.replay_routing else None,
        )
        pool = Pool(
            road=road,
            tasks=_tasks(packages, config, store, judge),
            queue=queue,
            experience=experience,
            breaker=Breaker(config.breaker, asyncio.get_running_loop().time),
            shares=config.operators.shares(),
            rewards=config.rewards.settings(),
            group=config.group,
            limits=config.queue,
            samples_per_group=config.samples_per_group,
            groups_per_step=config.schedule.groups_per_step,
            asynchronous=config.asynchronous,
            seed=config.seed,
        )
        yield Training(
            folder=folder,
            trainer=trainer,
            engine=engine,
            pool=pool,
            queue=queue,
            experience=experience,
            evaluation=Evaluation(road, store, _tasks(held_out, config, store, judge), config.evaluation),
            schedule=config.schedule,
            sink=sink,
        )


def learn_task(package: TaskPackage, config: RLConfig, reviewer: Reviewer | None = None) -> LearnTask:
    """A package as the loop uses it. The bounds are the theoretical limits and the ends of the leaderboard."""
    metric, board = package.manifest.metric, package.leaderboard
    limits = static_limits(
        higher_is_better=metric.higher_is_better,
        theoretical_min=metric.theoretical_min,
        theoretical_max=metric.theoretical_max,
        leaderboard_min=min(board.scores) if board else None,
        leaderboard_max=max(board.scores) if board else None,
    )
    return LearnTask(
        public=public_task(package, config.prompt),
        job=JobSettings(
            data_dir=str(package.root),
            timeout_seconds=config.sandbox.timeout_seconds,
            resource_type=package.manifest.compute,
        ),
        limits=config.sandbox.limits(),
        scoring=Scoring(
            task=RewardTask(
                higher_is_better=metric.higher_is_better,
                static_best=limits.best,
                static_worst=limits.worst,
                progress_best=board.scores[0] if board else None,
                progress_worst=board.scores[-1] if board else None,
                leaderboard=board.scores if board else (),
                bronze=board.medal_thresholds().bronze if board else None,
            ),
            leaderboard=board,
        ),
        reviewer=reviewer,
    )


def _tasks(
    packages: Sequence[TaskPackage], config: RLConfig, store: CardStore, judge: ChatModel | None
) -> Mapping[str, LearnTask]:
    tasks: dict[str, LearnTask] = {}
    for package in packages:
        task = learn_task(package, config)
        if config.review.judge or config.review.fail != "unknown":
            reviewer = Reviewer(config.review, task.public, _asking(judge), cards=store.cards(task=package.name))
            task = dataclasses.replace(task, reviewer=reviewer)
        tasks[package.name] = task
    return tasks


def _asking(judge: ChatModel | None):
    async def ask(attempt: int, messages: Sequence[Message]) -> Completion:
        assert judge is not None
        return await judge.complete(messages, seed=attempt)

    return ask if judge is not None else None


@contextlib.asynccontextmanager
async def open_sandbox(config: SandboxConfig, packages: Sequence[TaskPackage]) -> AsyncIterator[Executor]:
    """The service, or this machine.

    Raises:
        InfrastructureError: The service cannot be reached, or no isolation can be had.
    """
    async with open_place(
        packages,
        service=config.service,
        runner=config.runner,
        docker_image=config.docker_image,
        allow_process=config.allow_process,
        limits=config.limits(),
        parallel=config.workers,
    ) as place:
        yield place.executor


@contextlib.asynccontextmanager
async def open_engine(config: RLConfig) -> AsyncIterator[RolloutEngine]:
    """The engines that are named, behind a router; or a local server.

    Raises:
        ConfigError: Engines are named, and their keys are not in the environment.
    """
    async with contextlib.AsyncExitStack() as stack:
        addresses = config.rollout.engines
        api_key, admin_key = secret_from_environment(API_KEY), secret_from_environment(ADMIN_KEY)
        if not addresses:
            api_key, admin_key = SecretStr(secrets.token_urlsafe(32)), SecretStr(secrets.token_urlsafe(32))
            addresses = [await stack.enter_async_context(_local_server(config, api_key, admin_key))]
        if api_key is None or admin_key is None:
            raise ConfigError(f"rollout.engines: set {API_KEY} and {ADMIN_KEY}")
        engines = [
            (address, await stack.enter_async_context(SGLangEngine(address, api_key=api_key, admin_key=admin_key)))
            for address in addresses
        ]
        yield await stack.enter_async_context(Router(engines, patience_seconds=config.rollout.patience_seconds))


@contextlib.asynccontextmanager
async def _local_server(config: RLConfig, api_key: SecretStr, admin_key: SecretStr) -> AsyncIterator[str]:
    """Starts `openmle-erl serve` on a free port; its address. It ends with the run."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready"
        server = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _SERVE,
            "serve",
            config.model,
            "port=0",
            f"ready_file={ready}",
            f"max_running={config.rollout.max_running}",
            env={**os.environ, API_KEY: api_key.get_secret_value(), ADMIN_KEY: admin_key.get_secret_value()},
            start_new_session=True,  # Ctrl-C is for the run, which ends its server itself
        )
        try:
            try:
                async with asyncio.timeout(LOCAL_SERVER_SECONDS):
                    while not ready.exists():
                        if server.returncode is not None:
                            raise ModelUnavailable(f"the local server ended with {server.returncode}; see above")
                        await asyncio.sleep(0.1)
            except TimeoutError as error:
                raise ModelUnavailable(f"the local server was not ready within {LOCAL_SERVER_SECONDS:g} s") from error
            async with asyncio.TaskGroup() as watch:
                watching = watch.create_task(_watch(server))
                yield ready.read_text(encoding="utf-8").strip()
                watching.cancel()
        except BaseExceptionGroup as failed:  # of the server's end, or of whoever used it
            raise failed.exceptions[0] from failed
        finally:
            if server.returncode is None:
                server.terminate()
                await server.wait()


async def _watch(server: asyncio.subprocess.Process) -> None:
    """Ends the run when its server ends, which nobody would start again."""
    raise ModelUnavailable(f"the local server ended with {await server.wait()}; the same command goes on")


@contextlib.contextmanager
def _run_folder(folder: Path, config: RLConfig) -> Iterator[RunRecord]:
    """Makes or opens the run's folder, for one process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"run_dir: {folder}: another process is running this run") from error
        settings = json.loads(json.dumps(dataclasses.asdict(config), default=str))
        if (folder / "run.json").exists():
            before = read_run(folder)
            changed = sorted(name for name in settings if before.settings.get(name) != settings[name])
            if changed:
                log.warning("goes on with other settings than before: %s", ", ".join(changed))
            record = before.model_copy(update={"settings": settings})
        else:
            record = RunRecord(
                run_id=uuid.uuid4().hex[:8],
                created_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
                openmle_version=__version__,
                settings=settings,
            )
        write_whole(folder / "run.json", record.model_dump_json(indent=2))
        yield record


def read_run(folder: Path) -> RunRecord:
    """Reads a run's `run.json`.

    Raises:
        StoreError: There is none, or it is damaged.
    """
    try:
        return read_record(folder / "run.json", RunRecord)
    except FileNotFoundError as error:
        raise StoreError(f"{folder}: holds no run (no run.json)") from error
