"""`openmle-sandbox`: the command of the sandbox service."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from openmle_gym.configuration import describe_config, load_config
from openmle_gym.console import run_command

from sandbox_service import __version__
from sandbox_service.config import ServeConfig

CONFIGS = Path(__file__).parent.absolute() / "configs"


def main(arguments: Sequence[str] | None = None) -> int:
    """The console command."""
    options = _parser().parse_args(arguments)
    return run_command(lambda: _serve(options.overrides))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="openmle-sandbox", description="Runs and grades untrusted ML programs.")
    parser.add_argument("--version", action="version", version=f"openmle-sandbox {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="answer the HTTP API until interrupted",
        description="Answers the HTTP API until interrupted. API keys come from OPENMLE_SANDBOX_KEYS:\n"
        '"submit:KEY,grade:KEY2"; without keys it serves this machine only, and no test scores.',
        epilog=f"settings:\n{describe_config(ServeConfig)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.add_argument("overrides", nargs="*", metavar="key=value", help="settings, see below")
    return parser


def _serve(overrides: Sequence[str]) -> int:
    config = load_config(ServeConfig, "serve", configs=CONFIGS, overrides=overrides)
    from sandbox_service.server import serve

    asyncio.run(serve(config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
