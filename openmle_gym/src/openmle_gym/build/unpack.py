"""Archives become folders: zip, 7z, tar and its compressed kinds, gz, bz2 and xz, one within another.

An archive's content goes into a folder beside it that bears its name, so that two archives with equal members stay
apart; where the whole content is one file of the archive's name (`train.csv.zip`) or one folder of it, that folder
is left out. The archives themselves are not kept. Nothing is written outside of the target, over a file that is there,
as a link, or beyond the limits.
"""

import bz2
import gzip
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from openmle_gym.errors import PackageError

GIB = 2**30
_PIECE = 1 << 20
_TAR = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_SINGLE = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_SUFFIXES = (*_TAR, ".zip", ".7z", *_SINGLE)
_BROKEN = (
    *(zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, zlib.error),
    *(EOFError, OSError, RuntimeError, ValueError),
)
"""What libraries raise for damaged, encrypted and unknown archives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackLimits:
    """What an unpacked source may hold."""

    bytes: int = 200 * GIB
    files: int = 2_000_000
    ratio: float = 250.0
    """The most bytes out of a byte of an archive, where more than `ratio_from_bytes` come out of it."""
    ratio_from_bytes: int = GIB // 4
    depth: int = 6
    """How deep archives may lie within archives."""


@dataclass(slots=True, kw_only=True)
class Unpacked:
    """What came out."""

    files: int = 0
    bytes: int = 0
    nested: bool = True
    archives: list[str] = field(default_factory=list)
    """Their places, relative to the target; those within archives after those that hold them."""


def unpack(source: Path, target: Path, *, limits: UnpackLimits | None = None, nested: bool = True) -> Unpacked:
    """Copies a file or a folder into an empty folder, archives as their contents.

    A source that is one archive, or a folder with nothing but one, becomes the target itself.

    Args:
        nested: Whether archives in archives are unpacked too.

    Raises:
        PackageError: An archive is damaged or encrypted, or something in it is refused; names the archive and the file.
    """
    done, limits = Unpacked(nested=nested), limits or UnpackLimits()
    files = [source] if source.is_file() else sorted(path for path in source.rglob("*") if not _is_folder(path))
    root = source.parent if source.is_file() else source
    for path in files:
        if path.is_symlink() or not path.is_file():
            raise PackageError(f"{path}: a link or a special file; a source holds files and folders only")
    if len(files) == 1 and archive_suffix(files[0].name):
        _extract(files[0], target, target, files[0].name, done, limits, depth=1)
        return done
    for path in files:
        place = target / path.relative_to(root)
        if archive_suffix(path.name):
            _unpack_beside(path, place, target, done, limits, depth=1)
        else:
            with open(path, "rb") as file:
                _write(file, place, _Budget(done, limits, str(path), path.stat().st_size))
    return done


def archive_suffix(name: str) -> str:
    """The suffix that makes a name an archive's, whatever its case; empty for others."""
    lower = name.casefold()
    return next((suffix for suffix in _SUFFIXES if lower.endswith(suffix) and len(lower) > len(suffix)), "")


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


@dataclass(slots=True)
class _Budget:
    """Counts what comes out of one archive."""

    done: Unpacked
    limits: UnpackLimits
    archive: str
    packed_bytes: int
    out: int = 0

    def spend(self, count: int, name: str) -> None:
        self.out += count
        self.done.bytes += count
        limits = self.limits
        if self.done.bytes > limits.bytes:
            raise PackageError(f"{self.archive}: {name}: more than {limits.bytes} bytes come out; refused")
        if self.out > limits.ratio_from_bytes and self.out > limits.ratio * max(self.packed_bytes, 1):
            raise PackageError(
                f"{self.archive}: {name}: {self.out} bytes come out of {self.packed_bytes}; refused as a bomb"
            )

    def count_file(self, name: str) -> None:
        self.done.files += 1
        if self.done.files > self.limits.files:
            raise PackageError(f"{self.archive}: {name}: more than {self.limits.files} files come out; refused")


def _unpack_beside(
    archive: Path, place: Path, target: Path, done: Unpacked, limits: UnpackLimits, *, depth: int
) -> None:
    """Extracts an archive to where it would lie, by its name without the suffix."""
    folder = place.with_name(place.name[: -len(archive_suffix(place.name))])
    if folder.exists():
        name = folder.relative_to(target).as_posix()
        raise PackageError(f"{place.relative_to(target)}: collides with {name}, which is there already")
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=target.parent) as scratch:
        inside = Path(scratch) / "content"
        name = place.relative_to(target).as_posix()
        _extract(archive, inside, inside, name, done, limits, depth=depth)
        entries = sorted(inside.iterdir())
        alone = len(entries) == 1 and entries[0].name == folder.name
        folder.parent.mkdir(parents=True, exist_ok=True)
        os.rename(entries[0] if alone else inside, folder)


def _extract(
    archive: Path, folder: Path, target: Path, name: str, done: Unpacked, limits: UnpackLimits, *, depth: int
) -> None:
    """Extracts an archive into a folder, then the archives that were in it."""
    if depth > limits.depth:
        raise PackageError(f"{name}: an archive {depth} deep within others; refused")
    done.archives.append(name)
    folder.mkdir(parents=True, exist_ok=True)
    budget = _Budget(done, limits, name, archive.stat().st_size)
    try:
        _members(archive, folder, budget)
    except _BROKEN as error:
        said = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
        raise PackageError(f"{name}: cannot be unpacked: {said}") from error
    for path in sorted(folder.rglob("*")) if done.nested else ():
        if path.is_file() and archive_suffix(path.name) and _looks_packed(path):
            done.files -= 1
            done.bytes -= path.stat().st_size
            _unpack_beside(path, path, target, done, limits, depth=depth + 1)
            path.unlink()


def _looks_packed(path: Path) -> bool:
    with open(path, "rb") as file:
        head = file.read(6)
    return head.startswith((b"PK\x03\x04", b"PK\x05\x06", b"7z\xbc\xaf", b"\x1f\x8b", b"BZh", b"\xfd7zXZ")) or (
        path.name.casefold().endswith(".tar") and tarfile.is_tarfile(path)
    )


def _members(archive: Path, folder: Path, budget: _Budget) -> None:
    suffix = archive_suffix(archive.name)
    if suffix == ".zip":
        for name, file in _zip_members(archive, budget):
            _write(file, _inside(folder, name, budget.archive), budget)
    elif suffix == ".7z":
        try:
            from openmle_gym.build.seven_zip import extract_seven_zip
        except ImportError as error:
            raise PackageError(f"{budget.archive}: a 7z archive; install openmle-gym[build] to unpack it") from error
        extract_seven_zip(archive, lambda name: _inside(folder, name, budget.archive), budget)
    elif suffix in _TAR:
        with tarfile.open(archive) as tar:
            for member in tar:
                place = _inside(folder, member.name, budget.archive)
                if member.isdir():
                    continue
                file = tar.extractfile(member) if member.isfile() else None
                if file is None:
                    raise PackageError(f"{budget.archive}: {member.name}: a link or a special file; refused")
                _write(file, place, budget)
            if suffix == ".tar":  # the compressed kinds notice for themselves, and cannot look back cheaply
                _refuse_without_end(tar, budget.archive)
    else:
        with _SINGLE[suffix](archive) as file:
            _write(file, folder / Path(archive.name[: -len(suffix)]).name, budget)


def _refuse_without_end(tar: tarfile.TarFile, archive: str) -> None:
    """tarfile takes a damaged header, and a file that was cut between two members, for the end."""
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise PackageError(f"{archive}: cut or damaged at byte {tar.offset}: what comes there is no member and no end")


def _zip_members(archive: Path, budget: _Budget) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            mode = member.external_attr >> 16
            if not member.filename:  # which `is_dir` cannot look at
                raise PackageError(f"{budget.archive}: {member.filename!r}: a member without a name; refused")
            if member.is_dir():
                continue
            if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise PackageError(f"{budget.archive}: {member.filename}: a link or a special file; refused")
            with members.open(member) as file:
                yield member.filename, file


def _inside(folder: Path, name: str, archive: str) -> Path:
    """Where a member goes.

    Raises:
        PackageError: Its name leads out of the folder, or cannot be a file's.
    """
    plain = PurePosixPath(name.replace("\\", "/"))
    drive = plain.parts and plain.parts[0].endswith(":")
    if plain.is_absolute() or drive or ".." in plain.parts or "\0" in name or not plain.parts:
        raise PackageError(f"{archive}: {name!r}: leads out of the folder; refused")
    return folder.joinpath(*plain.parts)


def _write(file: IO[bytes], place: Path, budget: _Budget) -> None:
    budget.count_file(place.name)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place, "xb") as out:
            while piece := file.read(_PIECE):
                budget.spend(len(piece), place.name)
                out.write(piece)
    except (FileExistsError, NotADirectoryError) as error:
        raise PackageError(f"{budget.archive}: {place.name}: collides with a file that is there already") from error


def copy_tree(source: Path, target: Path) -> None:
    """The same files elsewhere, as hard links where the disk can."""
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, place)
        except OSError:
            shutil.copyfile(path, place)
