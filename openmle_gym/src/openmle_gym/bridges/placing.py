"""Writing a package beside its destination and putting it there all at once, with hard links in place of copies."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from openmle_gym.assemble import replaceable
from openmle_gym.check.subject import file_sha256
from openmle_gym.errors import PackageError
from openmle_gym.manifest import MANIFEST_NAME, Manifest, write_manifest


@contextmanager
def placed(destination: Path) -> Iterator[Path]:
    """A folder to build a package in, which takes the destination's place when the block ends well.

    Raises:
        PackageError: The destination is something other than a package of ours.
    """
    destination = destination.resolve()
    if not replaceable(destination):
        raise PackageError(f"{destination}: is there already, and is no package with a {MANIFEST_NAME}")
    destination.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{destination.name}.building-", dir=destination.parent))
    try:
        building = scratch / destination.name
        building.mkdir()
        yield building
        if destination.exists():
            os.rename(destination, scratch / "replaced")
        os.rename(building, destination)
    finally:
        shutil.rmtree(scratch)


def link_file(source: Path, target: Path) -> None:
    """The same file in another place: a hard link, or a copy on another disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def link_tree(source: Path, target: Path, *, wanted: Callable[[str], bool] = lambda name: True) -> None:
    """All files below a folder whose relative path is wanted; links to elsewhere are left out."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        if path.is_file() and not path.is_symlink() and wanted(name):
            link_file(path, target / name)


def write_file(path: Path, text: str) -> None:
    """Writes a text file anew, so that what it was a link of stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")


def finish(manifest: Manifest, root: Path) -> None:
    """Writes the manifest with the hashes of all files."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    hashes = {path.relative_to(root).as_posix(): file_sha256(path) for path in files}
    write_manifest(manifest.model_copy(update={"files": hashes}), root / MANIFEST_NAME)
