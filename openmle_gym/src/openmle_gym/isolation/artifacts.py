"""Reads files back out of a folder that a hostile program controlled.

A naive `open` of such a file follows a link to the hidden answers, hangs on a FIFO, or fills the memory. Here every
part of the name is opened relative to the part before it and never through a link, and what was opened is examined
before it is read. Call it only when no process of the program is alive. (`openat2` would do the same in one call, but
not on every system, and this way there is one road and no fallback.)
"""

import errno
import os
import stat
from pathlib import Path

from openmle_gym.isolation.runner import Artifact

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LINK_ERRORS = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO)
"""Of a link, a folder that is none, and a socket."""


def read_artifact(root: Path | int, name: str, max_bytes: int) -> Artifact:
    """Reads the file `name` in `root`, or says why not; never raises for what the program did.

    Args:
        root: The folder, or a descriptor of it. Its path is ours: only its last part may have been in the program's hands.
        name: A plain file name, or a relative path with `/` and without `..`.
        max_bytes: A longer file is refused, not cut.
    """
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        return Artifact(refusal="missing")  # no file in a folder can have such a name
    opened: list[int] = []
    try:
        path, folder = (".", root) if isinstance(root, int) else (root, None)
        opened.append(os.open(path, _OPEN | os.O_DIRECTORY, dir_fd=folder))
        for part in parts[:-1]:
            opened.append(os.open(part, _OPEN | os.O_DIRECTORY, dir_fd=opened[-1]))
        opened.append(os.open(parts[-1], _OPEN, dir_fd=opened[-1]))
        return _read_examined(opened[-1], os.fstat(opened[0]).st_dev, max_bytes)
    except (FileNotFoundError, UnicodeEncodeError):
        return Artifact(refusal="missing")
    except OSError as error:
        return Artifact(refusal="not_regular" if error.errno in _LINK_ERRORS else "unreadable")
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _read_examined(descriptor: int, device: int, max_bytes: int) -> Artifact:
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        return Artifact(refusal="not_regular")
    if facts.st_dev != device:
        return Artifact(refusal="unreadable")  # another file system was mounted over it
    if facts.st_nlink != 1:
        return Artifact(refusal="hard_link")
    if facts.st_size > max_bytes:
        return Artifact(refusal="too_large")
    content = bytearray()
    while chunk := os.read(descriptor, min(1 << 20, max_bytes + 1 - len(content))):
        content += chunk
        if len(content) > max_bytes:
            return Artifact(refusal="too_large")
    return Artifact(content=bytes(content))
