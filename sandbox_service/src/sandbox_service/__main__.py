"""`openmle-sandbox`: the command of the sandbox service."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from openmle_gym.configuration import describe_config, load_config
from openmle_gym.console import print_json, run_command

from sandbox_service import __version__
from sandbox_service.config import ServeConfig
from sandbox_service.conformance.cli import conformance
from sandbox_service.conformance.config import ConformanceConfig
from sandbox_service.image.build import ImageConfig
from sandbox_service.image.build import run as build

CONFIGS = Path(__file__).parent.absolute() / "configs"


def main(arguments: Sequence[str] | None = None) -> int:
    """The console command."""
    options = _parser().parse_args(arguments)
    return run_command(lambda: options.run(options.overrides))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="openmle-sandbox", description="Runs and grades untrusted ML programs.")
    parser.add_argument("--version", action="version", version=f"openmle-sandbox {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add(
        commands,
        "serve",
        _serve,
        ServeConfig,
        summary="answer the HTTP API until interrupted",
        description="Answers the HTTP API until interrupted. API keys come from OPENMLE_SANDBOX_KEYS:\n"
        '"submit:KEY,grade:KEY2", or from the file that OPENMLE_SANDBOX_KEYS_FILE or keys_file names, one a line;\n'
        "without keys it serves this machine only, and no test scores.",
    )
    _add(
        commands,
        "doctor",
        _doctor,
        ServeConfig,
        summary="look at this machine, and say what to do before serving",
        description="Examines what `serve` with the same settings would need. Exit code 1 when something is missing.",
    )
    _add(
        commands,
        "conformance",
        lambda overrides: conformance(overrides, configs=CONFIGS),
        ConformanceConfig,
        summary="check the behaviour of a running service",
        description="Drives a running service with well-behaved and hostile programs, over HTTP alone.",
    )
    image = commands.add_parser("image", help="the image that programs run in")
    images = image.add_subparsers(required=True, metavar="COMMAND")
    _add(
        images,
        "build",
        _build_image,
        ImageConfig,
        summary="build it: openmle-sandbox image build variant=cpu",
        description="Builds the image with a docker command.",
    )
    return parser


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[Sequence[str]], int],
    schema: type,
    *,
    summary: str,
    description: str,
) -> None:
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=f"settings:\n{describe_config(schema)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings, see below")
    parser.set_defaults(run=run)


def _serve(overrides: Sequence[str]) -> int:
    config = load_config(ServeConfig, "serve", configs=CONFIGS, overrides=overrides)
    import uvloop

    from sandbox_service.server import serve

    uvloop.run(serve(config))
    return 0


def _doctor(overrides: Sequence[str]) -> int:
    config = load_config(ServeConfig, "serve", configs=CONFIGS, overrides=overrides)
    from sandbox_service.doctor import run_doctor

    return asyncio.run(run_doctor(config))


def _build_image(overrides: Sequence[str]) -> int:
    config = load_config(ImageConfig, "image", configs=CONFIGS, overrides=overrides)
    print_json({"command" if config.dry_run else "image": build(config)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
