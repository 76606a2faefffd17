"""`openmle-evo evaluate` and `openmle-evo compare`."""

import argparse
import asyncio
import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from omegaconf import MISSING
from openmle_gym.configuration import describe_config, load_config
from openmle_gym.console import print_json
from openmle_gym.errors import ConfigError
from openmle_gym.experience import ExperienceCard
from openmle_gym.task import load_package
from rich.console import Console
from rich.table import Table

from openmle_evo.config import CONFIGS, SearchConfig
from openmle_evo.evaluation.compare import Comparison, compare, match
from openmle_evo.evaluation.drafts import STORE, draft_outcomes, run_drafts
from openmle_evo.evaluation.results import Rate, RunOutcome, SuiteResult, summarise
from openmle_evo.evaluation.suite import open_suite, outcomes, run_suite
from openmle_evo.launch import check_settings
from openmle_evo.naturebench.run import check_settings as check_nature_settings
from openmle_evo.naturebench.settings import NatureConfig

HALVES = ("search", "official")

log = logging.getLogger(__name__)


@dataclass
class EvaluateConfig(SearchConfig):
    """`openmle-evo evaluate`: a search's settings, and these."""

    task: str = ""
    """Set for each run by the suite."""
    tasks: list[str] = field(default_factory=list)
    """Folders of task packages."""
    names: list[str] = field(default_factory=list)
    """Tasks with two packages each, instead of `tasks`: searched on in `packages`/search/NAME, graded in the end on
    `packages`/official/NAME."""
    packages: str | None = None
    """The folder of those packages."""
    runs: int = 3
    """Runs on each task, with seeds of their own."""
    benchmark: str = "packages"
    """What `tasks` or `names` are: `packages`, task packages; `naturebench`, tasks of NatureBench."""
    nature: NatureConfig = field(default_factory=NatureConfig)
    """With benchmark=naturebench: who scores outputs. Its tasks are folders `packages`/NAME."""
    suite_dir: str = MISSING
    """Where the suite is kept; a suite that is there already is gone on with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.runs < 1:
            raise ConfigError(f"runs: must be at least 1, got {self.runs}")
        if bool(self.tasks) == bool(self.names):
            raise ConfigError("tasks: give folders of task packages, or names with packages=FOLDER, and not both")
        if bool(self.names) != (self.packages is not None):
            raise ConfigError("packages: goes with names: the folder that holds search/NAME and official/NAME")
        if self.final_task:
            raise ConfigError("final_task: give names and packages instead")
        if self.benchmark not in ("packages", "naturebench"):
            raise ConfigError(f"benchmark: must be one of packages, naturebench, got {self.benchmark!r}")
        if self.benchmark == "naturebench":
            check_nature_settings(self, self.nature)
        if self.task or self.run_dir:
            raise ConfigError("task and run_dir: give tasks and suite_dir instead")


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds both commands."""
    evaluate = commands.add_parser(
        "evaluate",
        help="run a suite: openmle-evo evaluate tasks=[A,B] suite_dir=DIR [key=value ...]",
        description="Runs the same search on many tasks, several times each, and sums up. Give it again to go on.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="settings: tasks=[...], or suite=mle_bench_lite packages=FOLDER, or suite=naturebench_lite packages=FOLDER\n"
        "nature.service=URL; suite_dir, runs=3, and those of `openmle-evo search --help`\n\nnature.key=value:\n"
        + describe_config(NatureConfig),
    )
    evaluate.add_argument("overrides", nargs="*", metavar="key=value")
    evaluate.set_defaults(run=_evaluate)
    drafts = commands.add_parser(
        "drafts",
        help="measure single Drafts: openmle-evo drafts tasks=[A,B] suite_dir=DIR runs=48 [key=value ...]",
        description="Samples independent Drafts of each task and grades each once on the test split: how good a policy is "
        "without search. Nothing selects among them. Give it again to go on.",
        epilog="settings: tasks=[...], suite_dir, runs: how many Drafts of each task, and those of `openmle-evo search "
        "--help` that concern policy, prompt and sandbox",
    )
    drafts.add_argument("overrides", nargs="*", metavar="key=value")
    drafts.set_defaults(run=_drafts)
    against = commands.add_parser("compare", help="compare suites: openmle-evo compare SUITE SUITE ...")
    against.add_argument("suites", nargs="+", type=Path, metavar="SUITE", help="the first against each of the others")
    against.set_defaults(run=_compare)


def _evaluate(options: argparse.Namespace) -> int:
    config = load_config(EvaluateConfig, "evaluate", configs=CONFIGS, overrides=options.overrides)
    settings = {each.name: getattr(config, each.name) for each in dataclasses.fields(SearchConfig)}
    search = SearchConfig(**settings)
    path = Path(config.suite_dir)
    tasks, finals = suite_packages(config)
    nature = config.nature if config.benchmark == "naturebench" else None
    _check_usable(search, () if nature else (*tasks, *finals))
    manifest = open_suite(path, tasks, config.runs, search, finals=finals, nature=nature)

    def on_run(task: str, number: int) -> None:
        log.info("%s, run %d of %d", task, number + 1, config.runs)

    complete = asyncio.run(run_suite(path, search, manifest, on_run, nature=nature))
    finished = outcomes(path)
    if finished:
        _print_suite(path, summarise(finished))
    result = summarise(finished).model_dump(mode="json") if finished else None
    print_json({"suite": str(path), "complete": complete, "finished_runs": len(finished), "result": result})
    return 0 if complete else 130


def _drafts(options: argparse.Namespace) -> int:
    config = load_config(EvaluateConfig, "evaluate", configs=CONFIGS, overrides=options.overrides)
    if config.names:
        raise ConfigError("names: drafts are graded on one package each; give tasks")
    settings = {each.name: getattr(config, each.name) for each in dataclasses.fields(SearchConfig)}
    search, path = SearchConfig(**settings), Path(config.suite_dir)
    _check_usable(search, config.tasks)
    manifest = open_suite(path, config.tasks, config.runs, search)

    def on_card(card: ExperienceCard) -> None:
        score = f"test {card.test.value:.6g}" if card.test else str(card.outcome)
        log.info("%s, draft %d: %s", card.task, card.attempt, score)

    asyncio.run(run_drafts(path, search, manifest, on_card))
    result = summarise(draft_outcomes(path))
    _print_suite(path, result)
    print_json({"suite": str(path), "result": result.model_dump(mode="json")})
    return 0


def _check_usable(search: SearchConfig, packages: Sequence[str]) -> None:
    """Refuses what cannot run before a suite is written, which keeps its tasks and settings for good."""
    asyncio.run(check_settings(search))
    for package in packages:
        load_package(package)


def _outcomes(path: Path) -> list[RunOutcome]:
    return draft_outcomes(path) if (path / STORE).exists() else outcomes(path)


class SuitePackages(NamedTuple):
    """Folders of task packages."""

    tasks: list[str]
    """Searched on."""
    finals: list[str]
    """Graded on in the end, in the same order; empty where those are the same."""


def suite_packages(config: EvaluateConfig) -> SuitePackages:
    """The packages that settings name.

    Raises:
        ConfigError: Some are not there; names them.
    """
    if config.packages is None:
        return SuitePackages(config.tasks, [])
    if config.benchmark == "naturebench":
        folders = [Path(config.packages) / name for name in config.names]
        _all_there(folders)
        return SuitePackages(list(map(str, folders)), [])
    searched, official = ([Path(config.packages) / half / name for name in config.names] for half in HALVES)
    _all_there([*searched, *official])
    return SuitePackages(list(map(str, searched)), list(map(str, official)))


def _all_there(folders: Sequence[Path]) -> None:
    missing = [str(path) for path in folders if not path.is_dir()]
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise ConfigError(f"packages: no {', '.join(missing[:4])}{more}; pick those that are prepared by names=[...]")


def _compare(options: argparse.Namespace) -> int:
    if len(options.suites) < 2:
        raise ConfigError("compare: name two suites or more")
    first, *others = options.suites
    mine = _outcomes(first)
    results = []
    for other in others:
        theirs = _outcomes(other)
        try:
            compared = compare(mine, theirs)
        except ValueError as error:
            raise ConfigError(f"{first} and {other}: {error}") from error
        alone = match(mine, theirs).alone
        _print_comparison(first, other, compared, alone)
        measures = [each.model_dump(mode="json") for each in compared]
        results.append({"first": str(first), "second": str(other), "measures": measures, "unmatched": list(alone)})
    print_json({"comparisons": results})
    return 0


def _print_suite(path: Path, result: SuiteResult) -> None:
    table = Table(title=f"{path}: {result.tasks} tasks, {result.runs} runs", title_justify="left")
    for title in ("measure", "mean", "deviation of runs", "95 % interval", "outcomes"):
        table.add_column(title)
    rates = {"Valid Rate": result.valid_rate}
    if result.mean_gap is not None:
        rates |= {"Match SOTA": result.match_rate, "Surpass SOTA": result.surpass_rate, "gap": result.mean_gap}
    if result.mean_gap is None or result.human_rank is not None:
        rates |= {"Medal Average": result.medal_average, "Human Rank": result.human_rank}
    for name, rate in rates.items():
        table.add_row(name, *_rate_cells(rate))
    console = Console(stderr=True)
    console.print(table)
    if result.medal_average is not None:
        console.print("medals: " + ", ".join(f"{count} {medal}" for medal, count in result.medals.items()))
    if result.without_leaderboard:
        console.print(f"leaderboard missing, so Valid Rate alone: {', '.join(result.without_leaderboard)}")


def _rate_cells(rate: Rate | None) -> Sequence[str]:
    if rate is None:
        return ("leaderboard missing", "", "", "")
    deviation = "" if rate.run_deviation is None else f"{rate.run_deviation:.2%}"
    interval = "" if rate.interval is None else f"{rate.interval.low:.2%} to {rate.interval.high:.2%}"
    return (f"{rate.mean:.2%}", deviation, interval, str(rate.outcomes))


def _print_comparison(first: Path, second: Path, compared: Sequence[Comparison], alone: Sequence[str]) -> None:
    table = Table(title=f"{first} against {second}, {compared[0].pairs} pairs", title_justify="left")
    for title in ("measure", "first", "second", "difference", "95 % interval", "outcomes apart", "verdict"):
        table.add_column(title)
    for each in compared:
        interval = "" if each.interval is None else f"{each.interval.low:+.2%} to {each.interval.high:+.2%}"
        table.add_row(
            each.measure,
            f"{each.first:.2%}",
            f"{each.second:.2%}",
            f"{each.difference:+.2%}" + ("" if each.standard_error is None else f" +/- {each.standard_error:.2%}"),
            interval,
            f"{each.outcomes_apart:+.1f}",
            each.verdict,
        )
    console = Console(stderr=True)
    console.print(table)
    if alone:
        console.print(f"in one suite alone, so not compared: {', '.join(alone)}")
