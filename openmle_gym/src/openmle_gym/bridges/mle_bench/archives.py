"""Unpacks the zip files that some prepared competitions keep in their public folder."""

import shutil
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from openmle_gym.errors import PackageError


def unpack_archives(folder: Path) -> tuple[str, ...]:
    """Replaces each zip file in a folder by what it holds: `train.zip` by `train/`, `train.csv.zip` by `train.csv`.

    Returns:
        The names of the archives that were unpacked.

    Raises:
        PackageError: An archive is damaged, encrypted or compressed in a way that Python cannot read, or a member would lie outside of the folder.
    """
    archives = sorted(folder.glob("*.zip"))
    for archive in archives:
        try:
            with zipfile.ZipFile(archive) as content:
                _unpack(content, archive)
        except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:
            raise PackageError(f"{archive}: {error}") from error
        archive.unlink()
    return tuple(archive.name for archive in archives)


def _unpack(content: zipfile.ZipFile, archive: Path) -> None:
    names = [name for name in content.namelist() if not name.endswith("/")]
    for name in names:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
            raise PackageError(f"{archive}: member {name!r} would lie outside of its folder")
    stem = archive.name.removesuffix(".zip")
    whole = {name.partition("/")[0] for name in names} == {stem} or names == [stem]
    target = archive.parent if whole else archive.parent / stem
    for name in names:
        path = target / name
        if path.exists():
            continue  # the prepared data hold it both ways
        path.parent.mkdir(parents=True, exist_ok=True)
        with content.open(name) as source, open(path, "wb") as file:
            shutil.copyfileobj(source, file)
