"""`openmle-evo`: search, resume, report, show."""

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import os
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from omegaconf import OmegaConf
from openmle_gym.chat import ChatModel, OpenAIChat
from openmle_gym.client import JobClient
from openmle_gym.configuration import describe_config, load_config, secret_from_environment
from openmle_gym.console import print_json, run_command
from openmle_gym.errors import ConfigError, InfrastructureError
from openmle_gym.evaluate import JobSettings
from openmle_gym.execute import LocalExecutor
from openmle_gym.experience import ExperienceCard
from openmle_gym.features import best_card
from openmle_gym.isolation.choose import strongest_runner
from openmle_gym.jobs import MIB, Executor, Limits
from openmle_gym.policies.recipes import RecipePolicy
from openmle_gym.prompts import public_task
from openmle_gym.task import TaskPackage, load_package
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from openmle_evo import __version__
from openmle_evo.config import CONFIGS, PolicyConfig, SearchConfig
from openmle_evo.final import grade_finally
from openmle_evo.report import print_summary, write_report
from openmle_evo.run import RunDirectory, RunManifest, read_final
from openmle_evo.search import Search

SUBMIT_KEY_VARIABLE = "OPENMLE_SANDBOX_KEY"
GRADE_KEY_VARIABLE = "OPENMLE_SANDBOX_GRADE_KEY"

log = logging.getLogger("openmle_evo")


def main(arguments: Sequence[str] | None = None) -> int:
    """The console command."""
    options = _parser().parse_args(arguments)
    return run_command(lambda: options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="openmle-evo", description=__doc__)
    parser.add_argument("--version", action="version", version=f"openmle-evo {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    search = commands.add_parser(
        "search",
        help="start a search: openmle-evo search task=PACKAGE [key=value ...]",
        description="Starts a search, grades its best program once on the test split, and writes a report.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_settings_help(),
    )
    search.add_argument("overrides", nargs="*", metavar="key=value", help="settings; see below")
    search.set_defaults(run=_search)
    resume = commands.add_parser("resume", help="go on with a run that was stopped or killed")
    resume.add_argument("run_dir", type=Path, metavar="RUN")
    resume.set_defaults(run=_resume)
    report = commands.add_parser("report", help="write a run's report.html")
    report.add_argument("run_dir", type=Path, metavar="RUN")
    report.add_argument("--output", type=Path, help="where to write it; by default RUN/report.html")
    report.set_defaults(run=_report)
    show = commands.add_parser("show", help="print a run's summary")
    show.add_argument("run_dir", type=Path, metavar="RUN")
    show.set_defaults(run=_show)
    return parser


def _settings_help() -> str:
    profiles = ", ".join(sorted(path.stem for path in (CONFIGS / "policy").glob("*.yaml")))
    return "\n".join(
        [
            "settings (key=value):",
            describe_config(SearchConfig),
            "",
            f"policy=PROFILE, one of: {profiles}; its settings (policy.key=value):",
            describe_config(PolicyConfig),
            "",
            "secrets come from the environment only:",
            f"  {SUBMIT_KEY_VARIABLE}        the sandbox service's key for search",
            f"  {GRADE_KEY_VARIABLE}  the key that may grade on the test split; without it a run ends ungraded",
        ]
    )


def _search(options: argparse.Namespace) -> int:
    config = load_config(SearchConfig, "search", configs=CONFIGS, overrides=options.overrides)
    return asyncio.run(_start(config))


async def _start(config: SearchConfig) -> int:
    package = load_package(config.task)
    now = datetime.now(UTC)
    run_dir = Path(config.run_dir or f"runs/{package.name}-{now:%Y%m%d-%H%M%S}")
    async with _executors(config, package) as place:
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
            settings=dataclasses.asdict(config),
        )
        return await _run_to_report(RunDirectory.create(run_dir, manifest), config, package, place)


def _resume(options: argparse.Namespace) -> int:
    return asyncio.run(_go_on(RunDirectory.resume(options.run_dir)))


async def _go_on(run: RunDirectory) -> int:
    stored = OmegaConf.merge(OmegaConf.structured(SearchConfig), run.manifest.settings)
    config = OmegaConf.to_object(stored)
    assert isinstance(config, SearchConfig)
    package = load_package(run.manifest.package)
    async with _executors(config, package) as place:
        return await _run_to_report(run, config, package, place)


class _Place(NamedTuple):
    """Where programs run, and who may grade them on which split."""

    searcher: Executor
    grader: Executor | None
    """None when no key for the test split was given."""
    isolation: str


@contextlib.asynccontextmanager
async def _executors(config: SearchConfig, package: TaskPackage) -> AsyncIterator[_Place]:
    if config.service is None:
        runner = await strongest_runner(
            config.runner, docker_image=config.docker_image, allow_process=config.allow_process
        )
        log.info("programs run on this machine, isolation: %s", runner.isolation)
        local = LocalExecutor(
            task_root=package.root.parent, runner=runner, limits=_limits(config), parallel=config.workers
        )
        yield _Place(local, local, runner.isolation)
        return
    grade_key = secret_from_environment(GRADE_KEY_VARIABLE)
    async with contextlib.AsyncExitStack() as stack:
        submit_key = secret_from_environment(SUBMIT_KEY_VARIABLE)
        searcher = await stack.enter_async_context(JobClient(config.service, api_key=submit_key))
        grader = await stack.enter_async_context(JobClient(config.service, api_key=grade_key)) if grade_key else None
        yield _Place(searcher, grader, await searcher.isolation())


async def _run_to_report(run: RunDirectory, config: SearchConfig, package: TaskPackage, place: _Place) -> int:
    """Search, final grading, report: the whole of a run."""
    job = JobSettings(
        data_dir=config.data_dir or str(package.root),
        timeout_seconds=config.timeout_seconds,
        resource_type=package.manifest.compute,
    )
    try:
        async with _policy(config.policy) as policy:
            with _progress(config.steps, run.cards()) as on_card:
                search = Search(
                    run=run,
                    task=public_task(package),
                    policy=policy,
                    executor=place.searcher,
                    config=config,
                    limits=_limits(config),
                    job=job,
                    on_card=on_card,
                )
                best = await search.run_to_end()
        if best is not None and place.grader is not None and read_final(run.path) is None:
            run.write_final(await grade_finally(best, package, grader=place.grader, settings=job))
    except (asyncio.CancelledError, InfrastructureError):
        log.warning("stopped; nothing is lost: go on with `openmle-evo resume %s`", run.path)
        raise
    finally:
        run.close()
        report = write_report(run.path)
    print_summary(run.path, Console(stderr=True))
    print_json({"run_dir": str(run.path), "report": str(report), "best_attempt": best.attempt if best else None})
    return 0 if best is not None else 1


def _limits(config: SearchConfig) -> Limits:
    return Limits(wall_seconds=config.timeout_seconds, memory_bytes=config.memory_mib * MIB)


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
    ) as endpoint:
        yield endpoint


@contextlib.contextmanager
def _progress(steps: int, done: Sequence[ExperienceCard]) -> Iterator[Callable[[ExperienceCard], None]]:
    """A bar on a terminal, else a log line for each new best."""
    cards = list(done)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("searching", total=steps, completed=len(cards))

        def on_card(card: ExperienceCard) -> None:
            cards.append(card)
            best = best_card(cards)
            score = f"best {best.validation.value:.6g}" if best and best.validation else "nothing valid yet"
            progress.update(bar, completed=len(cards), description=score)
            if best is card and not console.is_terminal:
                log.info("%d of %d: %s by %s", len(cards), steps, score, card.operator)

        yield on_card


def _report(options: argparse.Namespace) -> int:
    print_json({"report": str(write_report(options.run_dir, options.output))})
    return 0


def _show(options: argparse.Namespace) -> int:
    print_summary(options.run_dir, Console(file=sys.stdout))
    return 0
