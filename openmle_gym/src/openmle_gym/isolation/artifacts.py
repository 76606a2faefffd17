"""Reads files back out of a folder that a hostile program controlled.

A naive `open` of such a file follows a link to the hidden answers, hangs on a FIFO, or fills the memory. Here the name
is opened below the folder and never through a link, and what was opened is examined before it is read. Call it only
when no process of the program is alive.

The kernel resolves the whole name in one call, `openat2`. Where it has none (before Linux 5.6, other systems, an old
engine's system call filter around ourselves) every part of the name is opened relative to the part before it.
"""

import ctypes
import errno
import os
import stat
import struct
import sys
from pathlib import Path

from openmle_gym.isolation.runner import Artifact

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LINK_ERRORS = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO)
"""Of a link, a folder that is none, and a socket."""
_OPENAT2 = 437
"""The system call, on every architecture but Alpha."""
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 1, 2, 4, 8
_HOW = struct.pack("=3Q", _OPEN, 0, _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH)
"""struct open_how: flags, mode, and what may not happen while the name is resolved."""
_NO_SUCH_CALL = (errno.ENOSYS, errno.EPERM)
"""Of a kernel that lacks the call, and of a filter; the kernel itself never answers EPERM to `_OPEN`."""


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
        path, above = (".", root) if isinstance(root, int) else (root, None)
        opened.append(os.open(path, _OPEN | os.O_DIRECTORY, dir_fd=above))
        opened.append(_open_below(opened[0], name))
        return _read_examined(opened[1], os.fstat(opened[0]).st_dev, max_bytes)
    except (FileNotFoundError, UnicodeEncodeError):
        return Artifact(refusal="missing")
    except OSError as error:
        return Artifact(refusal="not_regular" if error.errno in _LINK_ERRORS else "unreadable")
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _open_below(folder: int, name: str) -> int:
    try:
        return _open_at_once(folder, name)
    except OSError as error:
        if error.errno not in _NO_SUCH_CALL:
            raise
    return _open_by_parts(folder, name)


def _open_at_once(folder: int, name: str) -> int:
    """Raises ENOSYS or EPERM where there is no such call."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "openat2 is Linux's")
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.syscall(_OPENAT2, folder, os.fsencode(name), _HOW, ctypes.c_size_t(len(_HOW)))
    if descriptor == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return descriptor


def _open_by_parts(folder: int, name: str) -> int:
    *above, last = name.split("/")
    here = os.dup(folder)
    try:
        for part in above:
            below = os.open(part, _OPEN | os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        return os.open(last, _OPEN, dir_fd=here)
    finally:
        os.close(here)


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
