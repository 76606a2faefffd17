"""The task packages that jobs name, loaded once; and their public data, where every job on a task shares one copy."""

import hashlib
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from openmle_gym.errors import PackageError
from openmle_gym.execute import resolve_package
from openmle_gym.manifest import MANIFEST_NAME
from openmle_gym.task import TaskPackage, load_package

LOADED_AT_ONCE = 64
"""A loaded package holds its hidden answers in memory."""
CHECKED_SECONDS = 1.0
"""For how long a package that was found usable is believed to be."""
BELIEVED_AT_ONCE = 1000
_READ_CHUNK_BYTES = 1 << 20


class _Version(NamedTuple):
    """What files looked like: modification time in ns and size of each, or None."""

    manifest: tuple[int, int] | None
    answers: tuple[int, int] | None


class Packages:
    """Task packages by a job's `data_dir`; a changed manifest or answer file is loaded again. Safe in threads."""

    def __init__(self, roots: Sequence[Path], *, staging: Path | None = None) -> None:
        """Args:
        staging: Where public data is copied to that programs could not read in place, each content once. None: never.
        """
        self._roots = [root.resolve() for root in roots]
        self._staging = staging
        self._staging_now = threading.Lock()
        self._load = lru_cache(LOADED_AT_ONCE)(lambda root, version: load_package(root))
        self._shared = lru_cache(LOADED_AT_ONCE)(self._share)
        self._checked: dict[str, float] = {}  # by data_dir, on the monotonic clock

    def believed(self, data_dir: str) -> bool:
        """Whether `load` found this package usable a moment ago; does not look at the disk."""
        return time.monotonic() < self._checked.get(data_dir, 0.0) + CHECKED_SECONDS

    def load(self, data_dir: str) -> TaskPackage:
        """The package that `data_dir` names.

        Raises:
            ConfigError: It lies in none of the roots.
            PackageError: It is not a usable package.
        """
        root = resolve_package(data_dir, self._roots)
        version = _Version(_stamp(root / MANIFEST_NAME), _stamp(root / "data" / "private" / "test_answer.csv"))
        package = self._load(root, version)
        if len(self._checked) >= BELIEVED_AT_ONCE:
            self._checked.clear()
        self._checked[data_dir] = time.monotonic()
        return package

    def shared_data(self, package: TaskPackage) -> Path:
        """The folder of public data to mount: the package's own where any user can read all of it, else a copy that
        anybody can read, made once for all jobs. A change is seen in the times of `data/public` and what lies in it.

        Raises:
            PackageError: A link in the public data leads out of it, or a file cannot be read.
        """
        public = package.public_dir
        try:
            entries = tuple(sorted((entry.name, _stamp(entry)) for entry in public.iterdir()))
        except OSError as error:
            raise PackageError(f"{public}: {error}") from error
        with self._staging_now:  # jobs that come together wait for the one copy
            return self._shared(public, (_stamp(public), entries))

    def _share(self, public: Path, version: object) -> Path:
        try:
            files = sorted(_files(public, public))
            if self._staging is None or all(_anybody_can_read(path) for path in (public, *public.rglob("*"))):
                return public
            return _staged(files, public, self._staging)
        except OSError as error:
            raise PackageError(f"{public}: cannot be shared: {error}") from error


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


def _files(folder: Path, public: Path) -> Iterator[Path]:
    """All files below a folder. A link may lead to another place in the public data, and nowhere else."""
    for path in folder.iterdir():
        if path.is_symlink() and not path.resolve().is_relative_to(public.resolve()):
            raise PackageError(f"{path}: a link that leads out of the public data")
        if path.is_dir() and not path.is_symlink():
            yield from _files(path, public)
        elif path.is_file():
            yield path


def _anybody_can_read(path: Path) -> bool:
    status = path.stat()
    needed = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(status.st_mode) else stat.S_IROTH
    return status.st_mode & needed == needed


def _staged(files: Sequence[Path], public: Path, staging: Path) -> Path:
    """`staging/<digest of names and contents>`, made whole or not at all."""
    digest = hashlib.sha256()
    for path in files:
        name = str(path.relative_to(public)).encode(errors="surrogateescape")
        digest.update(f"{len(name)} {path.stat().st_size} ".encode() + name)
        with path.open("rb") as file:
            while chunk := file.read(_READ_CHUNK_BYTES):
                digest.update(chunk)
    target = staging / digest.hexdigest()
    if not target.is_dir():
        staging.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix="part-", dir=staging))
        for path in files:
            copy = part / path.relative_to(public)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        for folder, _, names in os.walk(part):
            os.chmod(folder, 0o755)
            for name in names:
                os.chmod(os.path.join(folder, name), 0o444)
        os.rename(part, target)
    return target
