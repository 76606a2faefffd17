"""JSON files of other people."""

import json
from pathlib import Path

from pydantic import JsonValue

from openmle_gym.errors import PackageError


def read_json(path: Path) -> JsonValue:
    """What is in a file.

    Raises:
        PackageError: It cannot be opened, or is not JSON in UTF-8, or is nested too deep.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise PackageError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{path}: not JSON: {error}") from error
