"""What a program sees of the machine's file system where a namespace shows it: the same for every such runner."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from openmle_gym.isolation.workspace import Workspace

NOBODY = 65534
WORK, INPUTS_FOLDER, TMP, SHARED_MEMORY = "/work", "/inputs", "/tmp", "/dev/shm"
_SYSTEM_FOLDERS = ("/bin", "/lib", "/lib32", "/lib64", "/sbin")
_SYSTEM_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/etc/nsswitch.conf")
_VENV = "/opt/venv"


class Shown(NamedTuple):
    """Something of the host's, at a place inside; read-only."""

    source: str
    target: str


def system_links() -> Iterator[Shown]:
    """Symbolic links in /, such as /lib: what they contain, and where they are."""
    return (Shown(os.readlink(folder), folder) for folder in _SYSTEM_FOLDERS if os.path.islink(folder))


def system_mounts() -> Iterator[Shown]:
    """The system's programs and libraries, and the Python installation; never where sources lie.

    An editable install leaves a path to its sources in the environment; inside, that path does not exist.
    """
    yield Shown("/usr", "/usr")
    for folder in _SYSTEM_FOLDERS:
        if os.path.isdir(folder) and not os.path.islink(folder):
            yield Shown(folder, folder)
    for file in _SYSTEM_FILES:
        if os.path.exists(file):
            yield Shown(file, file)
    if _in_virtual_environment():
        yield Shown(sys.prefix, _VENV)
    for prefix in dict.fromkeys((sys.base_prefix, os.path.realpath(sys.base_prefix))):
        if not Path(prefix).is_relative_to("/usr"):
            yield Shown(prefix, prefix)


def python_inside() -> str:
    """A virtual environment appears at one fixed place, wherever it is: its own path may tell much, or collide."""
    return f"{_VENV}/bin/python" if _in_virtual_environment() else sys.executable


def write_user_files(place: Workspace, uid: int | None) -> Iterator[Shown]:
    """Makes /etc/passwd and /etc/group for the program's only user."""
    user = NOBODY if uid is None else uid
    passwd, group = place.root / "passwd", place.root / "group"
    passwd.write_text(f"nobody:x:{user}:{user}:nobody:{WORK}:/usr/sbin/nologin\n")
    group.write_text(f"nogroup:x:{user}:\n")
    for file in (passwd, group):
        file.chmod(0o644)
        yield Shown(str(file), f"/etc/{file.name}")


def memory_mounts(place: Workspace) -> tuple[str, ...]:
    """Where the program sees memory file systems of its own."""
    return (TMP, SHARED_MEMORY) if place.watched_bytes is not None else (TMP, SHARED_MEMORY, WORK)


def _in_virtual_environment() -> bool:
    return sys.prefix != sys.base_prefix
