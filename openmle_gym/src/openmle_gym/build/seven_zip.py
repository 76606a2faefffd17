"""7z archives, by py7zr (extra `build`), each member to a place of our choice and counted on its way."""

from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

import py7zr
from py7zr.exceptions import ArchiveError
from py7zr.io import Py7zIO, WriterFactory

from openmle_gym.errors import PackageError


class Budget(Protocol):
    """What counts the bytes that come out."""

    archive: str

    def spend(self, count: int, name: str) -> None: ...

    def count_file(self, name: str) -> None: ...


class _Member(Py7zIO):
    """One file on its way to the disk."""

    def __init__(self, place: Path, budget: Budget) -> None:
        self._place, self._budget, self._size = place, budget, 0
        budget.count_file(place.name)
        place.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = open(place, "x+b")  # noqa: SIM115, py7zr closes it

    def write(self, s: bytes | bytearray) -> int:
        self._budget.spend(len(s), self._place.name)
        self._size += len(s)
        return self._file.write(s)

    def read(self, size: int | None = None) -> bytes:
        return self._file.read(-1 if size is None else size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        self._file.close()


class _Members(WriterFactory):
    def __init__(self, place: Callable[[str], Path], budget: Budget) -> None:
        self._place, self._budget = place, budget
        self.made: list[_Member] = []

    def create(self, filename: str) -> Py7zIO:
        try:
            self.made.append(_Member(self._place(filename), self._budget))
        except (FileExistsError, NotADirectoryError) as error:
            raise PackageError(f"{self._budget.archive}: {filename}: collides with a file that is there") from error
        return self.made[-1]


def extract_seven_zip(archive: Path, place: Callable[[str], Path], budget: Budget) -> None:
    """Extracts every member to `place(name)`.

    Raises:
        PackageError: The archive is damaged or needs a password, a member is a link, or its place is refused.
    """
    try:
        with py7zr.SevenZipFile(archive) as members:
            if members.needs_password():
                raise PackageError(f"{budget.archive}: needs a password")
            _refuse_links(members, place, budget)
            writers = _Members(place, budget)
            try:
                members.extractall(factory=writers)
            finally:
                for member in writers.made:
                    member.close()
    except ArchiveError as error:
        raise PackageError(f"{budget.archive}: cannot be unpacked: {error}") from error


def _refuse_links(members: py7zr.SevenZipFile, place: Callable[[str], Path], budget: Budget) -> None:
    names: set[str] = set()
    for member in members.list():
        place(member.filename)
        if member.is_symlink or not (member.is_file or member.is_directory):
            raise PackageError(f"{budget.archive}: {member.filename}: a link or a special file; refused")
        if member.is_file and member.filename in names:
            raise PackageError(f"{budget.archive}: {member.filename}: collides with a file that is there already")
        names.add(member.filename)
