"""What every console command shares: JSON to stdout, everything else to stderr, and exit codes.

Exit codes: 0 ok, 1 something failed, 2 usage, 3 infrastructure, 130 interrupted.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Mapping

from openmle_gym.errors import OpenMLEError


def print_json(result: Mapping[str, object]) -> None:
    """Prints a command's result, the only thing on stdout."""
    print(json.dumps(result, indent=2, ensure_ascii=False, default=str))


def run_command(command: Callable[[], int]) -> int:
    """Runs a command and turns its exceptions into a line on stderr and an exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        return command()
    except OpenMLEError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, asyncio.CancelledError):  # Ctrl-C, or a command's own handling of it
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        if error.errno is None:
            raise
        place = f"{error.filename}: " if error.filename else ""
        print(f"error: {place}{error.strerror}", file=sys.stderr)  # a folder where a file goes, a full disk
        return 1
