"""One run, from its settings to its final report: where programs run, who answers, the search, the one grading on test.

What the console commands and the evaluation suite share. Secrets are read here, from the environment, and go no further
than into the clients that need them.
"""

import asyncio
import contextlib
import dataclasses
import logging
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from openmle_gym.client import JobClient
from openmle_gym.configuration import secret_from_environment
from openmle_gym.errors import ConfigError, InfrastructureError
from openmle_gym.evaluate import JobSettings
from openmle_gym.execute import LocalExecutor
from openmle_gym.experience import ExperienceCard
from openmle_gym.features import best_card
from openmle_gym.installed import installed_packages
from openmle_gym.jobs import MIB, Executor, Limits
from openmle_gym.manifest import Manifest
from openmle_gym.memory import Measure
from openmle_gym.place import open_place
from openmle_gym.prompts import PublicTask, public_task
from openmle_gym.submissions import SubmissionSource
from openmle_gym.task import TaskPackage, load_package

from openmle_evo import __version__
from openmle_evo.candidates import FinalJobs
from openmle_evo.config import SearchConfig
from openmle_evo.final import grade_finally
from openmle_evo.final_choice import choose_final
from openmle_evo.policy import log_estimate, open_policies
from openmle_evo.protocols import FinalPackage, all_seen, final_package
from openmle_evo.run import RunDirectory, RunManifest, read_final
from openmle_evo.search import Search
from openmle_evo.skills import SkillsRecord, give_skills
from openmle_evo.tracking import check_tracking, open_tracking

GRADE_KEY_VARIABLE = "OPENMLE_SANDBOX_GRADE_KEY"

log = logging.getLogger("openmle_evo")


class Place(NamedTuple):
    """Where programs run, and who may grade them on which split."""

    searcher: SubmissionSource
    grader: Executor | None
    """None when no key for the test split was given."""
    isolation: str


class Ended(NamedTuple):
    """How a run ended."""

    best: ExperienceCard | None
    """None when no program was valid."""
    interrupted: bool
    """By Ctrl-C or SIGTERM, with attempts left to make."""


async def check_settings(config: SearchConfig) -> None:
    """Refuses what cannot work on this machine, before anything is started or written.

    Raises:
        ConfigError: Names the setting.
    """
    _measure(config.tokenizer)
    check_tracking(config.track)
    async with open_policies(config):
        pass


async def create_run(config: SearchConfig, package: TaskPackage, place: Place) -> RunDirectory:
    """Makes a run's directory, after a look at what is installed where programs run.

    Raises:
        ConfigError: The directory already holds a run, or `final_task` cannot be the end of a search on this package.
        InfrastructureError: The executor is out of reach.
    """
    packages = await installed_packages(place.searcher, job_settings(config, package))
    manifest = new_manifest(config, package.manifest, package.root, isolation=place.isolation, packages=packages)
    more = {
        "final_package": None if config.final_task is None else _final_package(config.final_task, package),
        "skills": _skills(config, package),
    }
    path = config.run_dir or f"runs/{package.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    return RunDirectory.create(Path(path), manifest.model_copy(update=more))


def new_manifest(
    config: SearchConfig, task: Manifest, root: Path, *, isolation: str, packages: tuple[str, ...]
) -> RunManifest:
    """What a run is that begins now.

    Args:
        root: The task package's folder.
        packages: Installed where programs run.
    """
    return RunManifest(
        run_id=f"{task.name}-{uuid.uuid4().hex[:8]}",
        created_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        openmle_version=__version__,
        task=task.name,
        title=task.title or task.name,
        metric=task.metric,
        package=str(root),
        policy=config.policy.model or config.policy.kind,
        executor=config.service or "local",
        isolation=isolation,
        packages=packages,
        settings=dataclasses.asdict(config),
        protocol=config.protocol,
    )


@contextlib.asynccontextmanager
async def executors(config: SearchConfig, package: TaskPackage) -> AsyncIterator[Place]:
    """The service, or this machine.

    Raises:
        InfrastructureError: Neither can run programs.
    """
    async with contextlib.AsyncExitStack() as stack:
        place = await stack.enter_async_context(
            open_place(
                [package],
                service=config.service,
                runner=config.runner,
                docker_image=config.docker_image,
                allow_process=config.allow_process,
                limits=limits_of(config),
                parallel=config.workers,
            )
        )
        grader: Executor | None = place.executor
        if config.service is not None:
            grade_key = secret_from_environment(GRADE_KEY_VARIABLE)
            client = JobClient(config.service, api_key=grade_key) if grade_key else None
            grader = await stack.enter_async_context(client) if client else None
        elif config.final_task is not None and place.runner is not None:
            final = load_package(config.final_task)
            grader = LocalExecutor(task_root=final.root.parent, runner=place.runner, limits=limits_of(config))
        yield Place(place.executor, grader, place.isolation)


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
    job = job_settings(config, package)
    task = public_task(package, config.prompt)
    try:
        ended = await search_to_end(run, config, task, place.searcher, job, on_card)
    except Exception:  # a fault of ours too: what was found is graded whatever went wrong
        await _submit(run, config, package, place, job)
        raise
    await _submit(run, config, package, place, job)
    return ended


async def search_to_end(
    run: RunDirectory,
    config: SearchConfig,
    task: PublicTask,
    executor: Executor,
    job: JobSettings,
    on_card: Callable[[ExperienceCard], None] = lambda card: None,
) -> Ended:
    """Searches, and grades nothing beyond what the search sees.

    Raises:
        InfrastructureError: The policy or the executor is out of reach. The run can be resumed.
    """
    log_estimate(config)
    tracking = open_tracking(config.track, run)

    def committed(card: ExperienceCard) -> None:
        tracking.attempt(card, search.best, search.ledger)
        on_card(card)

    try:
        async with open_policies(config) as policies:
            search = Search(
                run=run,
                task=task,
                policy=policies.default,
                mixture=policies.mixture,
                executor=executor,
                config=config,
                limits=limits_of(config),
                job=job,
                measure=_measure(config.tokenizer),
                on_card=committed,
            )
            with _interruptible(search):
                best = await search.run_to_end()
        if search.draining:
            log.warning("stopped as asked; go on with `openmle-evo resume %s`", run.path)
        return Ended(best, search.draining)
    except (asyncio.CancelledError, InfrastructureError):
        log.warning("stopped; nothing is lost: go on with `openmle-evo resume %s`", run.path)
        raise
    finally:
        tracking.close()


async def _submit(
    run: RunDirectory, config: SearchConfig, package: TaskPackage, place: Place, job: JobSettings
) -> None:
    """Chooses what to submit and grades it on the test split; not twice the same program."""
    cards = run.cards()
    best = best_card(all_seen(cards, config.protocol))
    earlier = read_final(run.path)
    if best is None or place.grader is None or (earlier is not None and earlier.cards == len(cards)):
        return
    try:
        best = next(card for card in cards if card.attempt == best.attempt)  # with the score that was measured
        graded, final_job = _graded_on(run.manifest.final_package, config, package)
        jobs = FinalJobs(executor=place.searcher, settings=job, run=run)
        choice = await choose_final(cards, best, config.final, jobs=jobs, package=package)
        if earlier is None or earlier.program_id != choice.card.program_id:
            final = await grade_finally(choice.card, graded, cards=len(cards), grader=place.grader, settings=final_job)
            run.charge_final(final.sandbox_seconds)
            run.write_final(final.model_copy(update=choice.record() | {"sandbox_seconds": run.final_seconds()}))
    except InfrastructureError as error:
        log.warning("attempt %d is not graded on the test split yet: %s", best.attempt, error)


def _final_package(final_task: str, package: TaskPackage) -> FinalPackage:
    return final_package(package, load_package(final_task))


def _graded_on(
    final: FinalPackage | None, config: SearchConfig, package: TaskPackage
) -> tuple[TaskPackage, JobSettings]:
    """The package that the final submit is graded on, and its jobs' settings."""
    if final is None:
        return package, job_settings(config, package)
    other = load_package(final.package)
    if final_package(package, other) != final:
        raise ConfigError(f"{other.root}: is not what it was when the run was started")
    return other, dataclasses.replace(job_settings(config, other), data_dir=config.final_data_dir or str(other.root))


def job_settings(config: SearchConfig, package: TaskPackage) -> JobSettings:
    """What all jobs of a run on a package have in common."""
    return JobSettings(
        data_dir=config.data_dir or str(package.root),
        timeout_seconds=config.timeout_seconds,
        resource_type=package.manifest.compute,
    )


def limits_of(config: SearchConfig) -> Limits:
    """What a program gets, and is told that it gets."""
    return Limits(wall_seconds=config.timeout_seconds, memory_bytes=config.memory_mib * MIB)


def _skills(config: SearchConfig, package: TaskPackage) -> SkillsRecord:
    """Experience from other tasks; says what was refused, and why."""
    if config.skills is None:
        return SkillsRecord()
    measure = _measure(config.tokenizer)
    record = give_skills(Path(config.skills), package, budget=config.prompt.skills, measure=measure)
    for refused in record.refused:
        log.warning("skills: %s is refused: %s", Path(config.skills) / refused.file, refused.reason)
    log.info("skills: prompts show %s", ", ".join(each.file for each in record.given) or "none")
    return record


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
