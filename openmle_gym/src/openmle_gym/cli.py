"""`openmle-gym`: make, look at and grade tasks."""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from openmle_gym import __version__
from openmle_gym.console import print_json, run_command
from openmle_gym.errors import ConfigError

RUNNERS = ("auto", "docker", "bubblewrap", "process")
DOCKER_IMAGE = "openmle/sandbox:cpu"


def main(arguments: Sequence[str] | None = None) -> int:
    """The console command."""
    options = _parser().parse_args(arguments)
    return run_command(lambda: options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="openmle-gym", description=__doc__)
    parser.add_argument("--version", action="version", version=f"openmle-gym {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_grade(commands)
    _add_new(commands)
    _add_anchors(commands)
    _add_show(commands)
    _add_policy(commands)
    return parser


def _add_runner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runner", choices=RUNNERS, default="auto", help="how untrusted code is held (default: auto)")
    parser.add_argument("--docker-image", default=DOCKER_IMAGE, help=f"default: {DOCKER_IMAGE}")
    parser.add_argument("--allow-process", action="store_true", help="let auto fall back to no isolation at all")


def _add_grade(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "grade",
        help="grade a submission on the hidden answers",
        description="Prints one JSON object; exits 0 when the submission was accepted, 1 when it was rejected.",
    )
    parser.add_argument("package", type=Path, help="the task package's folder")
    parser.add_argument("submission", type=Path, help="the submission, a CSV file")
    _add_runner(parser)
    parser.set_defaults(run=_grade)


def _grade(options: argparse.Namespace) -> int:
    from openmle_gym.grading import grade_submission
    from openmle_gym.isolation.choose import strongest_runner
    from openmle_gym.task import load_package

    async def grade() -> int:
        package = load_package(options.package)
        try:
            content = options.submission.read_bytes()
        except OSError as error:
            raise ConfigError(f"{options.submission}: {error.strerror}") from error
        runner = await strongest_runner(
            options.runner, docker_image=options.docker_image, allow_process=options.allow_process
        )
        grade = await grade_submission(package, content, splits=("validation", "test", "all"), runner=runner)
        print_json(grade.model_dump(mode="json"))
        return 0 if grade.accepted else 1

    return asyncio.run(grade())


def _add_new(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("new", help="make a task package from one CSV file, without any model")
    parser.add_argument("--train", type=Path, required=True, help="the labelled rows, a CSV file")
    parser.add_argument("--target", required=True, action="append", help="a column to predict; may be repeated")
    parser.add_argument("--metric", required=True, help="how predictions are scored, for instance rmse, auc or accuracy")
    parser.add_argument("--id", help="the column that names a row; by default one is made")
    parser.add_argument("--name", help="the task's name; by default the file's")
    parser.add_argument("--output", type=Path, help="the package's folder; by default tasks/<name>")
    parser.add_argument("--test-fraction", type=float, default=0.2, help="share of rows whose answers are hidden")
    parser.add_argument("--seed", type=int, default=0)
    _add_runner(parser)
    parser.set_defaults(run=_new)


def _new(options: argparse.Namespace) -> int:
    raise SystemExit("pending")


def _add_anchors(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    anchors = commands.add_parser("anchors", help="the tasks that ship with OpenMLE").add_subparsers(
        required=True, metavar="COMMAND"
    )
    build = anchors.add_parser("build", help="build one anchor, or all of them")
    build.add_argument("name", help="an anchor's name, or all")
    build.add_argument("--output", type=Path, default=Path("tasks"), help="the folder of packages (default: tasks)")
    build.add_argument("--force", action="store_true", help="build anew even where the package is there")
    _add_runner(build)
    build.set_defaults(run=_anchors_build)
    listing = anchors.add_parser("list", help="list the anchors")
    listing.set_defaults(run=_anchors_list)


def _add_show(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("show", help="print a package's manifest, and whether it was inferred")
    parser.add_argument("package", type=Path)
    parser.set_defaults(run=_show)


def _show(options: argparse.Namespace) -> int:
    from openmle_gym.task import load_package

    package = load_package(options.package)
    print_json({"inferred": package.inferred, "manifest": package.manifest.model_dump(mode="json")})
    return 0
