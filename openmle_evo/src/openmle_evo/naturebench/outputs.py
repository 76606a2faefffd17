"""Unpacks what a program wrote: a tar file that a hostile program may have made."""

import io
import shutil
import tarfile
from pathlib import Path, PurePosixPath

MOST_FILES = 20_000


class OutputsRefused(Exception):
    """The outputs cannot be taken; the message says why, fit to show a model."""


def unpack(content: bytes, target: Path, *, most_bytes: int) -> None:
    """Writes the plain files of an uncompressed tar below a folder, which is made anew; links and devices are refused.

    Raises:
        OutputsRefused: There is something else in it, too much, or it cannot be read.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as packed:
            _unpack(packed, target, most_bytes)
    except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError) as error:
        raise OutputsRefused(f"the files in OUTPUT_DIR cannot be read: {error}") from error


def _unpack(packed: tarfile.TarFile, target: Path, most_bytes: int) -> None:
    left = most_bytes
    for count, member in enumerate(packed, start=1):
        if count > MOST_FILES:
            raise OutputsRefused(f"OUTPUT_DIR holds more than {MOST_FILES} files")
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts:
            raise OutputsRefused(f"OUTPUT_DIR holds a path that leads out of it: {member.name[:200]}")
        if member.isdir():
            continue
        if not member.isreg():
            raise OutputsRefused(f"OUTPUT_DIR holds something that is no plain file: {member.name[:200]}")
        left -= member.size  # of a sparse file, as it will be
        if left < 0:
            raise OutputsRefused(f"OUTPUT_DIR holds more than {most_bytes // 2**20} MiB")
        source = packed.extractfile(member)
        assert source is not None
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as file:  # a name twice is refused
            shutil.copyfileobj(source, file)
