"""The commands of `openmle-gym` that look at many tasks, judge them, and bring them in from elsewhere or out again."""

import argparse
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from openmle_gym.bridges.mle_bench.facts import competitions, lite_ids
from openmle_gym.bridges.mle_bench.importing import import_competition, verify_official
from openmle_gym.bridges.naturebench import measure_gap, read_task
from openmle_gym.bridges.prepare_input import write_input
from openmle_gym.build import parse_source
from openmle_gym.catalogue.boards import KAGGLE, attach_board, download_board, kaggle_key, standing
from openmle_gym.catalogue.funnel import FEWEST_TEAMS, funnel, read_catalogue
from openmle_gym.catalogue.index import build_index, query_index
from openmle_gym.catalogue.overview import find_packages, overview, overview_csv
from openmle_gym.catalogue.released import read_inventory, read_released
from openmle_gym.chat import OpenAIChat
from openmle_gym.configuration import secret_from_environment
from openmle_gym.console import print_json
from openmle_gym.errors import ConfigError, InfrastructureError, PackageError
from openmle_gym.isolation.runner import Runner
from openmle_gym.leaderboard import Leaderboard, read_scores
from openmle_gym.quality import assess_package
from openmle_gym.quality.rules import FLOOR
from openmle_gym.task import LEADERBOARD_NAMES, load_package

JUDGE_KEY_VARIABLE = "OPENMLE_JUDGE_KEY"

Command = Callable[[Any, str, Callable[[argparse.Namespace], Awaitable[int]], str], argparse.ArgumentParser]
MakeRunner = Callable[[argparse.Namespace], Awaitable[Runner]]


def add_task_commands(
    commands: Any, command: Command, add_runner: Callable[[argparse.ArgumentParser], None], make_runner: MakeRunner
) -> None:
    """Adds the commands.

    Args:
        command: Makes one.
        add_runner: Adds the options that `make_runner` reads.
    """

    def with_runner(run: Callable[[argparse.Namespace, Runner], Awaitable[int]]) -> Callable[[Any], Awaitable[int]]:
        async def running(options: argparse.Namespace) -> int:
            return await run(options, await make_runner(options))

        return running

    quality = command(commands, "quality", with_runner(_quality), "check a package, and have models judge it")
    quality.epilog = f"The endpoint's key is read from {JUDGE_KEY_VARIABLE}."
    quality.add_argument("package", type=Path, help="the task package's folder")
    _add_endpoint(quality, required=True)
    quality.add_argument("--judges", type=int, default=3, help="how many are asked (default: 3)")
    quality.add_argument(
        "--floor", type=float, default=FLOOR, help=f"least score of each dimension (default: {FLOOR:g})"
    )
    add_runner(quality)

    look = command(commands, "overview", with_runner(_overview), "write a table of the packages in a folder")
    look.add_argument("root", type=Path, help="the folder of packages")
    look.add_argument("--output", type=Path, required=True, help="the CSV file to write")
    _add_endpoint(look, required=False)
    add_runner(look)

    follow = command(commands, "funnel", _funnel, "follow a catalogue's candidates to admitted tasks")
    follow.add_argument("catalogue", type=Path, help="a CSV file with a row for each candidate")
    follow.add_argument("--fewest-teams", type=int, default=FEWEST_TEAMS, help=f"default: {FEWEST_TEAMS}")
    follow.add_argument("--items", action="store_true", help="list what became of each candidate")

    boards = commands.add_parser("leaderboard", help="download, attach and read leaderboards")
    boards = boards.add_subparsers(required=True, metavar="COMMAND")
    get = command(boards, "download", _download, "download the public leaderboards of competitions")
    get.add_argument("slug", nargs="+", help="a competition, or its address")
    get.add_argument("--output", type=Path, default=Path("leaderboards"), help="the folder (default: leaderboards)")
    get.add_argument("--server", default=KAGGLE, help=f"default: {KAGGLE}")
    attach = command(boards, "attach", _attach, "put a leaderboard into a package")
    attach.add_argument("package", type=Path, help="the task package's folder")
    attach.add_argument("board", type=Path, help="a CSV file with a column `score`")
    attach.add_argument("--source", required=True, help="whose it is, for the manifest")
    stand = command(boards, "standing", _standing, "say where a score stands on a package's leaderboard")
    stand.add_argument("package", type=Path, help="the task package's folder")
    stand.add_argument("score", type=float, help="a score on all hidden rows; nan is a missing one")

    index = commands.add_parser("index", help="a table of tasks that one can ask")
    index = index.add_subparsers(required=True, metavar="COMMAND")
    make = command(index, "build", _index_build, "make it from folders of packages")
    make.add_argument("root", type=Path, nargs="+", help="a folder of packages")
    make.add_argument("--output", type=Path, required=True, help="the SQLite file to write")
    ask = command(index, "query", _index_query, "list the tasks that meet all conditions")
    ask.add_argument("index", type=Path, help="the SQLite file")
    for name in ("modality", "task-type", "compute"):
        ask.add_argument(f"--{name}")
    for name in ("min-bytes", "max-bytes", "max-rows"):
        ask.add_argument(f"--{name}", type=int)

    release = command(commands, "released", _released, "list the tasks of a released OpenMLE-Tasks folder")
    release.add_argument("root", type=Path, help="the folder of tasks")
    release.add_argument("--inventory", type=Path, help="the release's inventory: CSV, JSON lines or Parquet")

    table = command(commands, "prepare-input", _prepare_input, "write the table that the published runtime reads")
    table.add_argument("package", type=Path, nargs="+", help="a package, or a folder of packages")
    table.add_argument("--output", type=Path, required=True, help="the Parquet file to write")
    table.add_argument("--sandbox-root", help="the folder of packages as the sandbox sees it")
    table.add_argument("--task-uuid", help="of the only task; by default it follows from the name")

    bench = commands.add_parser("mle-bench", help="competitions of MLE-Bench as packages")
    bench = bench.add_subparsers(required=True, metavar="COMMAND")
    listing = command(bench, "list", _bench_list, "list its 75 competitions")
    listing.add_argument("--lite", action="store_true", help="only the 22 of Lite")
    bring = command(bench, "import", with_runner(_bench_import), "make packages of prepared competitions")
    bring.add_argument("competition", nargs="+", help="an id, or lite for all 22")
    bring.add_argument("--data", type=Path, required=True, help="mle-bench's data folder")
    bring.add_argument("--checkout", type=Path, required=True, help="a clone of mle-bench with its large files")
    bring.add_argument("--output", type=Path, default=Path("tasks"), help="gets official/ and search/ (default: tasks)")
    add_runner(bring)

    nature = command(commands, "naturebench", _nature, "read a package of NatureBench, and measure a gap")
    nature.add_argument("task", type=Path, help="the package's folder")
    nature.add_argument("--score", action="append", default=[], metavar="INSTANCE=SCORE", help="may be repeated")


def _add_endpoint(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--base-url", required=required, help="an OpenAI-compatible endpoint, up to /v1")
    parser.add_argument("--model", required=required, help="the model there")


def _chat(options: argparse.Namespace) -> OpenAIChat:
    key = secret_from_environment(JUDGE_KEY_VARIABLE)
    return OpenAIChat(options.base_url, model=options.model, api_key=key, max_tokens=4_000, patience_seconds=120.0)


async def _quality(options: argparse.Namespace, runner: Runner) -> int:
    async with _chat(options) as chat:
        assessed = await assess_package(
            options.package,
            runner=runner,
            chat=chat,
            provider=options.base_url,
            judges=options.judges,
            floor=options.floor,
        )
    print_json(assessed.model_dump(mode="json"))
    if assessed.status == "unjudged":
        return InfrastructureError.exit_code
    return 0 if assessed.strict.recommendation == "recommended" else 1


async def _overview(options: argparse.Namespace, runner: Runner) -> int:
    if (options.base_url is None) != (options.model is None):
        raise ConfigError("--base-url and --model go together")
    if options.base_url is None:
        rows = await overview(options.root, runner=runner)
    else:
        async with _chat(options) as chat:
            rows = await overview(options.root, runner=runner, chat=chat)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_bytes(overview_csv(rows))
    failed = [row.name for row in rows if row.failed]
    print_json(
        {
            "status": "partial_success" if failed else "ok",
            "output_csv": str(options.output),
            "tasks": len(rows),
            "failed": failed,
        }
    )
    return 1 if failed else 0


async def _funnel(options: argparse.Namespace) -> int:
    found = funnel(read_catalogue(options.catalogue), fewest_teams=options.fewest_teams)
    shown = found.model_dump(mode="json", exclude=set() if options.items else {"verdicts"})
    print_json({**shown, "shares": found.shares()})
    return 0


async def _download(options: argparse.Namespace) -> int:
    sources = [parse_source(slug if "://" in slug else f"competition:{slug}") for slug in options.slug]
    if other := next((source for source in sources if source.kind != "competition"), None):
        raise ConfigError(f"source {other.name!r}: only competitions have leaderboards")
    key = kaggle_key()
    options.output.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, str]] = {}
    for slug in (source.name for source in sources):
        target = options.output / f"{slug}.csv"
        try:
            text = await download_board(slug, key=key, base_url=options.server)
        except (InfrastructureError, PackageError) as error:
            results[slug] = {"status": "failed", "error": str(error)}
            continue
        fresh = target.with_name(f".{target.name}.new")
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, target)
        results[slug] = {"status": "ok", "target": str(target)}
    print_json(results)
    return 0 if all(result["status"] == "ok" for result in results.values()) else 1


async def _attach(options: argparse.Namespace) -> int:
    package = load_package(options.package)
    board = attach_board(package, options.board, source=options.source).leaderboard
    assert board is not None
    print_json({"package": str(package.root), "teams": len(board.scores), "best": board.scores[0]})
    return 0


async def _standing(options: argparse.Namespace) -> int:
    package = load_package(options.package)
    path = next((package.root / name for name in LEADERBOARD_NAMES if (package.root / name).is_file()), None)
    if path is None:
        raise PackageError(f"{package.root}: has no leaderboard")
    scores, unscored = read_scores(path)
    board = Leaderboard(scores=scores, higher_is_better=package.manifest.metric.higher_is_better)
    print_json(standing(board, options.score, unscored=unscored).model_dump(mode="json"))
    return 0


async def _index_build(options: argparse.Namespace) -> int:
    made = build_index(options.root, options.output)
    print_json({**made.model_dump(), "index": str(options.output)})
    return 1 if made.refused else 0


async def _index_query(options: argparse.Namespace) -> int:
    found = query_index(
        options.index,
        modality=options.modality,
        task_type=options.task_type,
        compute=options.compute,
        min_bytes=options.min_bytes,
        max_bytes=options.max_bytes,
        max_rows=options.max_rows,
    )
    print_json({"tasks": [task.model_dump(mode="json") for task in found]})
    return 0


async def _released(options: argparse.Namespace) -> int:
    found = [
        {
            "name": task.root.name,
            "kind": task.kind,
            "metadata": task.metadata.model_dump(mode="json") if task.metadata else None,
        }
        for task in read_released(options.root)
    ]
    records = read_inventory(options.inventory) if options.inventory else []
    kinds = {kind: sum(record.release_type == kind for record in records) for kind in ("built_task", "recipe")}
    print_json({"tasks": found, "inventory": {"records": len(records), **kinds} if options.inventory else None})
    return 0


async def _prepare_input(options: argparse.Namespace) -> int:
    packages = [load_package(path) for root in options.package for path in find_packages(root)]
    write_input(packages, options.output, sandbox_root=options.sandbox_root, task_uuid=options.task_uuid)
    print_json({"output": str(options.output), "tasks": [package.name for package in packages]})
    return 0


async def _bench_list(options: argparse.Namespace) -> int:
    names = lite_ids() if options.lite else tuple(competitions())
    print_json({name: competitions()[name].model_dump(mode="json", exclude={"id", "details"}) for name in names})
    return 0


async def _bench_import(options: argparse.Namespace, runner: Runner) -> int:
    names = [name for each in options.competition for name in (lite_ids() if each == "lite" else [each])]
    results: dict[str, object] = {}
    agreed = True
    for name in names:
        try:
            made = import_competition(name, data=options.data, checkout=options.checkout, output=options.output)
            details = competitions()[name].details
            verified = await verify_official(
                made.official, expected=details.sample_score if details else None, runner=runner
            )
        except PackageError as error:
            results[name], agreed = {"error": str(error)}, False
            continue
        agreed = agreed and verified.agrees
        results[name] = {
            "official": str(made.official.root),
            "search": str(made.search.root) if made.search else None,
            "known_issues": made.official.manifest.known_issues,
            "verification": {**verified.model_dump(mode="json"), "agrees": verified.agrees},
        }
    print_json(results)
    return 0 if agreed else 1


async def _nature(options: argparse.Namespace) -> int:
    task = read_task(options.task)
    instances = [entry.dataset_name for entry in task.metadata.performance_entries]
    scores: dict[str, float | None] = {}
    for said in options.score:
        instance, equals, value = said.rpartition("=")
        if not equals or instance not in instances or instance in scores:
            how = "is there twice" if instance in scores else f"is not INSTANCE=SCORE, of one of {', '.join(instances)}"
            raise ConfigError(f"--score {said!r}: {how}")
        try:
            scores[instance] = float(value)
        except ValueError as error:
            raise ConfigError(f"--score {said!r}: {value!r} is no number") from error
    shown: dict[str, object] = {"metadata": task.metadata.model_dump(mode="json")}
    if scores:
        gap = measure_gap(task.metadata, scores)
        shown["gap"] = {**gap._asdict(), "matches_sota": gap.matches, "surpasses_sota": gap.surpasses}
    print_json(shown)
    return 0
