"""`openmle-gym`: make, look at and grade tasks."""

import argparse
import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from openmle_gym import __version__
from openmle_gym.anchors import ANCHORS, build_anchor
from openmle_gym.build.command import add_build_command
from openmle_gym.check import check_package
from openmle_gym.check.show import print_report
from openmle_gym.configuration import secret_from_environment
from openmle_gym.console import print_json, run_command
from openmle_gym.errors import ConfigError
from openmle_gym.grading import grade_submission
from openmle_gym.isolation.choose import strongest_runner
from openmle_gym.isolation.runner import Runner
from openmle_gym.metrics import METRICS
from openmle_gym.new_task import new_task
from openmle_gym.policies.recipes import RecipePolicy
from openmle_gym.policies.serve import serve_policy
from openmle_gym.task import load_package
from openmle_gym.task_commands import add_task_commands

RUNNERS = ("auto", "docker", "bubblewrap", "process")
DOCKER_IMAGE = "openmle/sandbox:cpu"
POLICY_KEY_VARIABLE = "OPENMLE_POLICY_KEY"

log = logging.getLogger("openmle_gym")


def main(arguments: Sequence[str] | None = None) -> int:
    """The console command."""
    options = _parser().parse_args(arguments)
    return run_command(lambda: asyncio.run(options.run(options)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="openmle-gym", description=__doc__)
    parser.add_argument("--version", action="version", version=f"openmle-gym {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    grade = _command(commands, "grade", _grade, "grade a submission on the hidden answers")
    grade.description = "Prints one JSON object; exits 0 when the submission was accepted, 1 when it was rejected."
    grade.add_argument("package", type=Path, help="the task package's folder")
    grade.add_argument("submission", type=Path, help="the submission, a CSV file")
    _add_runner(grade)

    show = _command(commands, "show", _show, "print a package's manifest, and whether it was inferred")
    show.add_argument("package", type=Path, help="the task package's folder")

    check = _command(commands, "check", _check, "look for what is wrong with a task package")
    check.description = "Prints the report as one JSON object; exits 1 when there is an error."
    check.add_argument("package", type=Path, help="the task package's folder")
    check.add_argument(
        "--against",
        type=Path,
        action="append",
        default=[],
        help="a benchmark's data, to share nothing with; may be repeated",
    )
    _add_runner(check)

    new = _command(commands, "new", _new, "make a task package from one CSV file, without any model")
    new.add_argument("--train", type=Path, required=True, help="the labelled rows, a CSV file")
    new.add_argument("--target", required=True, action="append", help="a column to predict; may be repeated")
    new.add_argument("--metric", required=True, help=f"how predictions are scored: {', '.join(METRICS)}")
    new.add_argument("--encoding", help="the file's, a codec of Python's; by default it is found")
    new.add_argument("--id", help="the column that names a row; by default one is found or made")
    new.add_argument("--name", help="the task's name; by default the file's")
    new.add_argument("--output", type=Path, help="the package's folder; by default tasks/<name>")
    new.add_argument(
        "--test-fraction", type=float, default=0.2, help="share of rows with hidden answers (default: 0.2)"
    )
    new.add_argument("--seed", type=int, default=0, help="of the split (default: 0)")
    _add_runner(new)

    add_build_command(commands)

    anchors = commands.add_parser("anchors", help="the tasks that ship with OpenMLE")
    anchors = anchors.add_subparsers(required=True, metavar="COMMAND")
    _command(anchors, "list", _anchors_list, "list them")
    build = _command(anchors, "build", _anchors_build, "build some of them, or all")
    build.add_argument(
        "names", nargs="+", choices=[*ANCHORS, "all"], metavar="NAME", help=f"{', '.join(ANCHORS)}; or all"
    )
    build.add_argument("--output", type=Path, default=Path("tasks"), help="the folder of packages (default: tasks)")
    build.add_argument("--force", action="store_true", help="build anew even where the package is there")
    _add_runner(build)

    policy = commands.add_parser("policy", help="the policy that needs no model")
    policy = policy.add_subparsers(required=True, metavar="COMMAND")
    serve = _command(policy, "serve", _policy_serve, "serve it on loopback as an OpenAI-compatible endpoint")
    serve.add_argument("--port", type=int, default=8001, help="default: 8001; 0 picks a free one")
    serve.epilog = f"With {POLICY_KEY_VARIABLE} set, callers need that key."
    add_task_commands(commands, _command, _add_runner, _runner)
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace], Awaitable[int]],
    help: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
    parser.set_defaults(run=run)
    return parser


def _add_runner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runner", choices=RUNNERS, default="auto", help="how untrusted code is held (default: auto)")
    parser.add_argument("--docker-image", default=DOCKER_IMAGE, help=f"default: {DOCKER_IMAGE}")
    parser.add_argument("--allow-process", action="store_true", help="let auto fall back to no isolation at all")


async def _runner(options: argparse.Namespace) -> Runner:
    runner = await strongest_runner(
        options.runner, docker_image=options.docker_image, allow_process=options.allow_process
    )
    log.info("isolation: %s", runner.isolation)
    return runner


async def _grade(options: argparse.Namespace) -> int:
    package = load_package(options.package)
    try:
        content = options.submission.read_bytes()
    except OSError as error:
        raise ConfigError(f"{options.submission}: {error.strerror}") from error
    splits = ("validation", "test", "all")
    grade = await grade_submission(package, content, splits=splits, runner=await _runner(options))
    print_json(grade.model_dump(mode="json"))
    return 0 if grade.accepted else 1


async def _show(options: argparse.Namespace) -> int:
    package = load_package(options.package)
    print_json({"inferred": package.inferred, "manifest": package.manifest.model_dump(mode="json")})
    return 0


async def _check(options: argparse.Namespace) -> int:
    report = await check_package(options.package, runner=await _runner(options), against=options.against)
    print_report(report)
    print_json({**report.model_dump(mode="json"), "passed": report.passed})
    return 0 if report.passed else 1


async def _new(options: argparse.Namespace) -> int:
    name = options.name or options.train.stem
    package = await new_task(
        options.train,
        target=options.target,
        metric=options.metric,
        destination=options.output or Path("tasks") / name,
        id_column=options.id,
        encoding=options.encoding,
        test_fraction=options.test_fraction,
        seed=options.seed,
        name=name,
        runner=await _runner(options),
    )
    print_json({"package": str(package.root), "manifest": package.manifest.model_dump(mode="json")})
    return 0


async def _anchors_list(options: argparse.Namespace) -> int:
    print_json(
        {
            anchor.name: {
                **anchor.model_dump(include={"title", "side", "kind", "modality", "metric", "train_rows", "test_rows"}),
                "synthetic": anchor.synthetic,
                "installed": anchor.installed,
                "source": anchor.origin,
                "licence": anchor.licence,
            }
            for anchor in ANCHORS.values()
        }
    )
    return 0


async def _anchors_build(options: argparse.Namespace) -> int:
    names = list(dict.fromkeys(options.names))
    if "all" in names:
        names = [anchor.name for anchor in ANCHORS.values() if anchor.installed]
        for name in ANCHORS.keys() - set(names):
            log.warning("skipped %s: %s is not installed", name, ANCHORS[name].library)
    runner = await _runner(options)
    built = {
        name: await build_anchor(name, options.output / name, runner=runner, force=options.force) for name in names
    }
    print_json({name: str(package.root) for name, package in built.items()})
    return 0


async def _policy_serve(options: argparse.Namespace) -> int:
    key = secret_from_environment(POLICY_KEY_VARIABLE)
    async with serve_policy(
        RecipePolicy(), port=options.port, api_key=key.get_secret_value() if key else None
    ) as base_url:
        print_json({"base_url": base_url, "model": "recipes"})
        await asyncio.Event().wait()
    return 0
