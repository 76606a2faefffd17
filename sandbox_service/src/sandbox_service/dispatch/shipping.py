"""Task packages for nodes that do not share a folder with the head: each content crosses once per node."""

import hashlib
import os
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from openmle_gym.contracts import Contract
from openmle_gym.errors import PackageError, StoreError

CHUNK_BYTES = 8 << 20
"""What crosses at once, so that neither end holds a data set in memory."""


class Content(Contract):
    """One file of a package."""

    path: str
    """In the package."""
    sha256: str


class Tree(Contract):
    """All files of a package."""

    contents: tuple[Content, ...]

    @property
    def digest(self) -> str:
        """Names the package by what is in it."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class _File(NamedTuple):
    path: str
    modified_ns: int
    size_bytes: int


def describe(root: Path) -> Tree:
    """The package as it lies there. Blocks; a file is read again when its time or size has changed.

    Raises:
        PackageError: A link leads out of the package, or a file cannot be read.
    """
    files: list[_File] = []
    try:
        for path in sorted(root.rglob("*")):
            if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
                raise PackageError(f"{path}: a link that leads out of the package")
            if path.is_file():
                status = path.stat()
                files.append(_File(str(path.relative_to(root)), status.st_mtime_ns, status.st_size))
        return _tree(root, tuple(files))
    except OSError as error:
        raise PackageError(f"{root}: cannot be sent to a node: {error}") from error


@lru_cache(64)
def _tree(root: Path, files: tuple[_File, ...]) -> Tree:
    return Tree(contents=tuple(Content(path=file.path, sha256=_sha256(root / file.path)) for file in files))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Shipped:
    """The packages that a node has received: `contents/<SHA-256>`, and `packages/<digest>` made of links to them."""

    def __init__(self, folder: Path) -> None:
        self.packages = folder / "packages"
        self._contents = folder / "contents"
        for path in (self.packages, self._contents):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def missing(self, tree: Tree) -> list[Content]:
        """What is needed to assemble a package, each content once."""
        wanted = {content.sha256: content for content in tree.contents}
        return [content for sha256, content in wanted.items() if not (self._contents / sha256).is_file()]

    def receive(self, sha256: str, offset: int, chunk: bytes) -> None:
        """The next part of a content; one sender at a time."""
        with self._part(sha256).open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(chunk)

    def keep(self, sha256: str) -> None:
        """The content is complete.

        Raises:
            StoreError: It is not what it should be.
        """
        part = self._part(sha256)
        if (found := _sha256(part)) != sha256:
            raise StoreError(f"{part}: received {found[:12]} for {sha256[:12]}; the package changed on the way")
        part.chmod(0o444)
        part.replace(self._contents / sha256)

    def assemble(self, tree: Tree) -> None:
        """Makes `packages/<digest>`, whole or not at all."""
        target = self.packages / tree.digest
        if target.is_dir():
            return
        part = Path(tempfile.mkdtemp(prefix="part-", dir=self.packages))
        try:
            for content in tree.contents:
                path = part / content.path
                path.parent.mkdir(parents=True, exist_ok=True)
                os.link(self._contents / content.sha256, path)
            part.chmod(0o755)
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _part(self, sha256: str) -> Path:
        return self._contents / f"{sha256}.{os.getpid()}.part"
