"""Limits what a program writes to a folder: by a memory file system where this process may mount one, else by looking."""

import asyncio
import os
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

from openmle_gym.isolation import namespaces

MOST_INODES = 65536
"""Files and folders in each of a program's own file systems."""
_ESCAPED = re.compile(r"\\(\d{3})")
"""How the kernel writes a blank in a path."""
_LOOK_SECONDS = 0.3
"""Between two looks; a look that takes long is followed by a longer pause."""


def mount_memory(folder: Path, size_bytes: int, *, user: int, mode: int) -> bool:
    """Mounts a memory file system over a folder; False where this process may not mount.

    What is written there is memory of the program's, and counts as such.

    Raises:
        OSError: It may, but the kernel has no room for another mount, or the like.
    """
    if not _may_have_mounted():
        return False
    options = f"size={size_bytes},nr_inodes={MOST_INODES},uid={user},gid={user},mode={mode:o}"
    try:
        namespaces.mount("tmpfs", str(folder), options)
    except PermissionError:
        return False
    return True


def unmount_below(folder: Path) -> None:
    """Unmounts whatever is mounted in a folder, at any depth, also when something is still using it."""
    if _may_have_mounted():
        for mount in mounts_below(folder):
            namespaces.detach(mount)


def mounts_below(folder: Path) -> list[str]:
    """Mount points in a folder, innermost first."""
    start = f"{folder.resolve()}/"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        points = [_ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), line.split()[4]) for line in lines]
    return [point for point in reversed(points) if point.startswith(start)]


def _may_have_mounted() -> bool:
    return sys.platform == "linux" and os.getuid() == 0


async def until_over(folder: Path, most_bytes: int) -> None:
    """Returns when a folder holds more than `most_bytes`, or more than `MOST_INODES` files and folders.

    It does not see what a program hides: files deleted and still open, folders that nobody may read, and those nested
    deeper than a path can be long.
    """
    while True:
        began = time.monotonic()
        if await asyncio.to_thread(is_over, folder, most_bytes, MOST_INODES):
            return
        await asyncio.sleep(max(_LOOK_SECONDS, 10 * (time.monotonic() - began)))


def is_over(folder: Path, most_bytes: int, most_inodes: int) -> bool:
    """Whether a folder holds more; stops looking as soon as that is clear, and follows no link."""
    size_bytes = inodes = 0
    folders = [str(folder)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                inodes += 1
                with suppress(OSError):  # it may be gone
                    size_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                if size_bytes > most_bytes or inodes > most_inodes:
                    return True
    return False
