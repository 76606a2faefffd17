"""`openmle-evo`: search, resume, report, show, watch, serve, export, audit, smoke, evaluate, drafts, compare, distill."""

import argparse
import asyncio
import contextlib
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from openmle_gym.anchors import build_anchor
from openmle_gym.configuration import describe_config, load_config
from openmle_gym.console import print_json, run_command
from openmle_gym.errors import ConfigError
from openmle_gym.experience import ExperienceCard
from openmle_gym.features import best_card
from openmle_gym.isolation.choose import strongest_runner
from openmle_gym.memory import MemoryConfig
from openmle_gym.place import SUBMIT_KEY_VARIABLE
from openmle_gym.policies.settings import PolicyConfig
from openmle_gym.prompts import PromptConfig
from openmle_gym.review import ReviewConfig
from openmle_gym.task import TaskPackage, load_package
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from openmle_evo import __version__, priors_cli
from openmle_evo.audit import audit, write_bundle
from openmle_evo.config import (
    CONFIGS,
    BudgetConfig,
    FinalConfig,
    IslandsConfig,
    MixtureConfig,
    ScheduleConfig,
    SearchConfig,
    SelectionConfig,
)
from openmle_evo.evaluation import cli as evaluation_cli
from openmle_evo.export import export_run
from openmle_evo.launch import (
    GRADE_KEY_VARIABLE,
    Place,
    check_settings,
    create_run,
    executors,
    run_to_end,
)
from openmle_evo.protocols import all_seen
from openmle_evo.reading import read_run
from openmle_evo.report import print_summary, write_report
from openmle_evo.run import RunDirectory, settings_of
from openmle_evo.smoke import check_run
from openmle_evo.watch import watch
from openmle_evo.web import serve

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells use it."""

SMOKE_TASK = "breast-cancer"
SMOKE = ("budget.attempts=8", "workers=2", "schedule.initial_drafts=3", "schedule.crossover_from_attempt=5")

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
    look = commands.add_parser("watch", help="show a run in the terminal as it goes")
    look.add_argument("run_dir", type=Path, metavar="RUN")
    look.set_defaults(run=_watch)
    page = commands.add_parser("serve", help="show a run, or all runs in a folder, in the browser as they go")
    page.add_argument("root", type=Path, metavar="RUN_OR_FOLDER")
    page.add_argument("--host", default="127.0.0.1", help="where to listen; by default on this machine alone")
    page.add_argument("--port", type=int, default=8770, help="0 for any that is free")
    page.set_defaults(run=_serve)
    export = commands.add_parser("export", help="write a run's tree, cards or curves for other tools")
    export.add_argument("run_dir", type=Path, metavar="RUN")
    export.add_argument(
        "--format", required=True, help="graphml or json (the tree), parquet (the cards), csv (the curves)"
    )
    export.add_argument("--output", type=Path, help="where to write it; by default RUN/run.FORMAT")
    export.set_defaults(run=_export)
    check = commands.add_parser("audit", help="check that a run selected on validation scores alone")
    check.add_argument("run_dir", type=Path, metavar="RUN", help="a run's directory, or a bundle of one")
    check.add_argument("--bundle", type=Path, metavar="TAR", help="write all that the audit rests on into one file")
    check.set_defaults(run=_audit)
    smoke = commands.add_parser(
        "smoke",
        help="make one small search and check that everything about it is right",
        description="Builds a shipped task, searches on it with the built-in policy, and checks six criteria.",
    )
    smoke.add_argument("overrides", nargs="*", metavar="key=value", help="settings of `openmle-evo search`")
    smoke.set_defaults(run=_smoke)
    evaluation_cli.add_commands(commands)
    priors_cli.add_commands(commands)
    return parser


_GROUPS = {
    "budget": BudgetConfig,
    "schedule": ScheduleConfig,
    "selection": SelectionConfig,
    "islands": IslandsConfig,
    "memory": MemoryConfig,
    "prompt": PromptConfig,
    "review": ReviewConfig,
    "policy": PolicyConfig,
    "mixture": MixtureConfig,
    "final": FinalConfig,
}


def _settings_help() -> str:
    def profiles(group: str) -> str:
        return ", ".join(sorted(path.stem for path in (CONFIGS / group).glob("*.yaml")))

    return "\n".join(
        [
            "settings (key=value):",
            describe_config(SearchConfig),
            "",
            f"search=PROFILE, a whole way to search, one of: {profiles('search')}",
            f"policy=PROFILE, one of: {profiles('policy')}",
            *(f"\n{name}.key=value:\n{describe_config(schema)}" for name, schema in _GROUPS.items()),
            "",
            "secrets come from the environment only:",
            f"  {SUBMIT_KEY_VARIABLE}        the sandbox service's key for search",
            f"  {GRADE_KEY_VARIABLE}  the key that may grade on the test split; without it a run ends ungraded",
        ]
    )


def _search(options: argparse.Namespace) -> int:
    config = load_config(SearchConfig, "search", configs=CONFIGS, overrides=options.overrides)
    return asyncio.run(_start(config))


async def _start(config: SearchConfig, *, quietly: bool = False) -> int:
    if config.protocol == "evaluator":
        raise ConfigError("protocol: evaluator goes with `openmle-evo evaluate benchmark=naturebench` alone")
    package = load_package(config.task)
    await check_settings(config)
    async with executors(config, package) as place:
        run = await create_run(config, package, place)
        return await _run_to_report(run, config, package, place, quietly=quietly)


def _resume(options: argparse.Namespace) -> int:
    return asyncio.run(_go_on(RunDirectory.resume(options.run_dir)))


async def _go_on(run: RunDirectory) -> int:
    config = settings_of(run.manifest, run.path)
    if config.protocol == "evaluator":
        raise ConfigError(f"{run.path}: belongs to a suite; give its `openmle-evo evaluate` again to go on")
    package = load_package(run.manifest.package)
    await check_settings(config)
    async with executors(config, package) as place:
        return await _run_to_report(run, config, package, place)


async def _run_to_report(
    run: RunDirectory, config: SearchConfig, package: TaskPackage, place: Place, *, quietly: bool = False
) -> int:
    """Search, final grading, report: the whole of a run; `quietly` prints neither summary nor result."""
    try:
        with run.closing(), _progress(config.budget.attempts, all_seen(run.cards(), config.protocol)) as on_card:
            ended = await run_to_end(run, config, package, place, on_card)
    except BaseException:  # the report of what there is, unless the disk is full
        with contextlib.suppress(OSError):
            write_report(run.path)
        raise
    report = write_report(run.path)
    if not quietly:
        print_summary(run.path, Console(stderr=True))
        best = ended.best.attempt if ended.best else None
        print_json({"run_dir": str(run.path), "report": str(report), "best_attempt": best})
    if ended.interrupted:
        return INTERRUPTED
    return 0 if ended.best is not None else 1


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


def _watch(options: argparse.Namespace) -> int:
    watch(options.run_dir, Console(file=sys.stdout))
    return 0


def _serve(options: argparse.Namespace) -> int:
    serve(options.root, host=options.host, port=options.port)
    return 0


def _export(options: argparse.Namespace) -> int:
    destination = options.output or options.run_dir / f"run.{options.format}"
    export_run(read_run(options.run_dir), options.format, destination)
    print_json({"exported": str(destination)})
    return 0


def _audit(options: argparse.Namespace) -> int:
    findings = audit(options.run_dir)
    console = Console(stderr=True)
    for finding in findings:
        console.print(
            f"{'passed' if finding.passed else 'FAILED'}  {finding.check}: {finding.message}",
            markup=False,
            soft_wrap=True,
        )
    result: dict[str, object] = {"findings": [finding.model_dump() for finding in findings]}
    if options.bundle is not None:
        result |= {"bundle": str(options.bundle), "sha256": write_bundle(options.run_dir, options.bundle)}
    print_json(result)
    return 0 if all(finding.passed for finding in findings) else 1


def _smoke(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="openmle-smoke-") as folder:
        place, run = Path(folder) / "tasks" / SMOKE_TASK, Path(folder) / "run"
        own = [f"task={place}", f"run_dir={run}", *SMOKE, *options.overrides]
        config = load_config(SearchConfig, "search", configs=CONFIGS, overrides=own)
        exit_code = asyncio.run(_small_search(config, place))
        facts = read_run(run)
    criteria = check_run(facts, workers=config.workers, search=config.schedule.kind, exit_code=exit_code)
    console = Console(stderr=True)
    for each in criteria:
        console.print(
            f"{'passed' if each.passed else 'FAILED'}  {each.number}. {each.asks}: {each.seen}",
            markup=False,
            soft_wrap=True,
        )
    print_json({"criteria": [each.model_dump() for each in criteria]})
    return 0 if all(each.passed for each in criteria) else 1


async def _small_search(config: SearchConfig, place: Path) -> int:
    """Builds the shipped task, unless another one was named, and searches on it."""
    if config.task == str(place):
        runner = await strongest_runner(
            config.runner, docker_image=config.docker_image, allow_process=config.allow_process
        )
        await build_anchor(SMOKE_TASK, place, runner=runner)
    return await _start(config, quietly=True)
