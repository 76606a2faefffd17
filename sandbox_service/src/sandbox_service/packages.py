"""The task packages that jobs name, loaded once."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from openmle_gym.execute import resolve_package
from openmle_gym.manifest import MANIFEST_NAME
from openmle_gym.task import TaskPackage, load_package

LOADED_AT_ONCE = 64
"""A loaded package holds its hidden answers in memory."""


class _Version(NamedTuple):
    """What a package's files looked like when it was loaded: modification time in ns and size of each, or None."""

    manifest: tuple[int, int] | None
    answers: tuple[int, int] | None


class Packages:
    """Task packages by a job's `data_dir`; a changed manifest or answer file is loaded again. Safe in threads."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [root.resolve() for root in roots]
        self._load = lru_cache(LOADED_AT_ONCE)(lambda root, version: load_package(root))

    def load(self, data_dir: str) -> TaskPackage:
        """The package that `data_dir` names.

        Raises:
            ConfigError: It lies in none of the roots.
            PackageError: It is not a usable package.
        """
        root = resolve_package(data_dir, self._roots)
        version = _Version(_stamp(root / MANIFEST_NAME), _stamp(root / "data" / "private" / "test_answer.csv"))
        return self._load(root, version)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size
