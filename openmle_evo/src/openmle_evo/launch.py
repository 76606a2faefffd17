"""One run, from its settings to its final report: where programs run, who answers, the search, the one grading on test.

What the console commands and the evaluation suite share. Secrets are read here, from the environment, and go no further
than into the clients that need them.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from omegaconf import OmegaConf
from openmle_gym.chat import ChatModel, OpenAIChat, Prices
from openmle_gym.client import JobClient
from openmle_gym.configuration import secret_from_environment
from openmle_gym.errors import ConfigError, InfrastructureError
from openmle_gym.evaluate import JobSettings
from openmle_gym.execute import LocalExecutor
from openmle_gym.experience import ExperienceCard
from openmle_gym.features import best_card
from openmle_gym.installed import installed_packages
from openmle_gym.isolation.choose import strongest_runner
from openmle_gym.jobs import MIB, Executor, Limits
from openmle_gym.memory import Measure
from openmle_gym.policies.recipes import RecipePolicy
from openmle_gym.prompts import public_task
from openmle_gym.task import TaskPackage

from openmle_evo import __version__
from openmle_evo.budget import most_dollars
from openmle_evo.config import PolicyConfig, SearchConfig
from openmle_evo.final import grade_finally
from openmle_evo.run import RunDirectory, RunManifest, read_final
from openmle_evo.search import Search

SUBMIT_KEY_VARIABLE = "OPENMLE_SANDBOX_KEY"
GRADE_KEY_VARIABLE = "OPENMLE_SANDBOX_GRADE_KEY"

log = logging.getLogger("openmle_evo")


class Place(NamedTuple):
    """Where programs run, and who may grade them on which split."""

    searcher: Executor
    grader: Executor | None
    """None when no key for the test split was given."""
    isolation: str


class Ended(NamedTuple):
    """How a run ended."""

    best: ExperienceCard | None
    """None when no program was valid."""
    interrupted: bool
    """By Ctrl-C or SIGTERM, with attempts left to make."""


async def create_run(config: SearchConfig, package: TaskPackage, place: Place) -> RunDirectory:
    """Makes a run's directory, after a look at what is installed where programs run.

    Raises:
        ConfigError: The directory already holds a run.
        InfrastructureError: The executor is out of reach.
    """
    now = datetime.now(UTC)
    packages = await installed_packages(place.searcher, _job(config, package))
    manifest = RunManifest(
        run_id=f"{package.name}-{uuid.uuid4().hex[:8]}",
        created_at=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        openmle_version=__version__,
        task=package.name,
        title=package.manifest.title or package.name,
        metric=package.manifest.metric,
        package=str(package.root),
        policy=config.policy.model or config.policy.kind,
        executor=config.service or "local",
        isolation=place.isolation,
        packages=packages,
        settings=dataclasses.asdict(config),
    )
    return RunDirectory.create(Path(config.run_dir or f"runs/{package.name}-{now:%Y%m%d-%H%M%S}"), manifest)


def stored_config(run: RunDirectory) -> SearchConfig:
    """The settings that a run was started with."""
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(SearchConfig), run.manifest.settings))
    assert isinstance(config, SearchConfig)
    return config


@contextlib.asynccontextmanager
async def executors(config: SearchConfig, package: TaskPackage) -> AsyncIterator[Place]:
    """The service, or this machine.

    Raises:
        InfrastructureError: Neither can run programs.
    """
    if config.service is None:
        runner = await strongest_runner(
            config.runner, docker_image=config.docker_image, allow_process=config.allow_process
        )
        log.info("programs run on this machine, isolation: %s", runner.isolation)
        local = LocalExecutor(
            task_root=package.root.parent, runner=runner, limits=_limits(config), parallel=config.workers
        )
        yield Place(local, local, runner.isolation)
        return
    grade_key = secret_from_environment(GRADE_KEY_VARIABLE)
    async with contextlib.AsyncExitStack() as stack:
        submit_key = secret_from_environment(SUBMIT_KEY_VARIABLE)
        searcher = await stack.enter_async_context(JobClient(config.service, api_key=submit_key))
        grader = await stack.enter_async_context(JobClient(config.service, api_key=grade_key)) if grade_key else None
        yield Place(searcher, grader, await searcher.isolation())


async def run_to_end(
    run: RunDirectory,
    config: SearchConfig,
    package: TaskPackage,
    place: Place,
    on_card: Callable[[ExperienceCard], None] = lambda card: None,
) -> Ended:
    """Searches, then grades the best program once on the test split, whatever stopped the search.

    Raises:
        InfrastructureError: The policy or the executor is out of reach. The run can be resumed.
    """
    job = _job(config, package)
    _log_estimate(config)
    try:
        async with _policy(config.policy) as policy:
            search = Search(
                run=run,
                task=public_task(package),
                policy=policy,
                executor=place.searcher,
                config=config,
                limits=_limits(config),
                job=job,
                measure=_measure(config.tokenizer),
                on_card=on_card,
            )
            with _interruptible(search):
                best = await search.run_to_end()
        if search.draining:
            log.warning("stopped as asked; go on with `openmle-evo resume %s`", run.path)
    except asyncio.CancelledError:
        log.warning("stopped; nothing is lost: go on with `openmle-evo resume %s`", run.path)
        raise
    except InfrastructureError:
        log.warning("stopped; nothing is lost: go on with `openmle-evo resume %s`", run.path)
        await _submit(run, package, place.grader, job)
        raise
    await _submit(run, package, place.grader, job)
    return Ended(best, search.draining)


async def _submit(run: RunDirectory, package: TaskPackage, grader: Executor | None, job: JobSettings) -> None:
    """Grades the best program on the test split; not twice the same program."""
    cards = run.cards()
    best = best_card(cards)
    earlier = read_final(run.path)
    if best is None or grader is None or (earlier is not None and earlier.program_id == best.program_id):
        return
    try:
        run.write_final(await grade_finally(best, package, cards=len(cards), grader=grader, settings=job))
    except InfrastructureError as error:
        log.warning("attempt %d is not graded on the test split yet: %s", best.attempt, error)


def _job(config: SearchConfig, package: TaskPackage) -> JobSettings:
    return JobSettings(
        data_dir=config.data_dir or str(package.root),
        timeout_seconds=config.timeout_seconds,
        resource_type=package.manifest.compute,
    )


def _limits(config: SearchConfig) -> Limits:
    return Limits(wall_seconds=config.timeout_seconds, memory_bytes=config.memory_mib * MIB)


def _measure(tokenizer: str) -> Measure:
    if not tokenizer:
        return len
    try:
        from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError("tokenizer: install openmle-evo[tokens]") from error
    if not Path(tokenizer).is_file():
        raise ConfigError(f"tokenizer={tokenizer}: no such file")
    loaded = Tokenizer.from_file(tokenizer)
    return lambda text: len(loaded.encode(text).ids)


def _log_estimate(config: SearchConfig) -> None:
    """Says before the first call what the run can cost at most, where prices are known."""
    prices = _prices(config.policy)
    if prices is None:
        return
    prompt_tokens = config.prompt.length if config.tokenizer else config.prompt.length // 3
    most = most_dollars(
        config.budget, prompt_tokens=prompt_tokens, reply_tokens=config.policy.max_tokens, prices=prices
    )
    cap = f"; it stops at ${config.budget.dollars:g}" if config.budget.dollars else ""
    log.info(
        "this run costs at most about $%.2f (prices of %s)%s", most, config.policy.prices_of or "unknown date", cap
    )


def _prices(config: PolicyConfig) -> Prices | None:
    if config.prompt_price is None or config.completion_price is None:
        return None
    return Prices(config.prompt_price, config.completion_price)


@contextlib.asynccontextmanager
async def _policy(config: PolicyConfig) -> AsyncIterator[ChatModel]:
    if config.kind == "recipes":
        yield RecipePolicy()
        return
    base_url = config.base_url or os.environ.get("OPENAI_BASE_URL", "")
    model = config.model or os.environ.get("OPENMLE_MODEL", "")
    if not base_url or not model:
        raise ConfigError("policy: set policy.base_url and policy.model, or OPENAI_BASE_URL and OPENMLE_MODEL")
    async with OpenAIChat(
        base_url,
        model=model,
        api_key=secret_from_environment(config.api_key_variable),
        temperature=config.temperature,
        top_p=config.top_p,
        max_tokens=config.max_tokens,
        timeout_seconds=config.timeout_seconds,
        stream=config.stream,
        prices=_prices(config),
    ) as endpoint:
        yield endpoint


@contextlib.contextmanager
def _interruptible(search: Search) -> Iterator[None]:
    """The first Ctrl-C, or a SIGTERM, lets attempts under way come to their end; the second stops at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def stop() -> None:
        if search.draining:
            task.cancel()
        else:
            log.warning("finishing the attempts under way; once more to stop now")
            search.drain()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
