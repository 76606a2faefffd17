"""Files that programs left behind, each content once: `<folder>/<first two hex digits>/<SHA-256>`.

A content is on disk before a job refers to it, and goes only when none does; what a crash leaves in between is swept
away at the next start.
"""

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from openmle_gym.errors import StoreError

from sandbox_service.records import ArtifactInfo


class ArtifactStore:
    """The files below one folder. Safe in threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pinned: Counter[str] = Counter()
        self._changing = threading.Lock()

    def put(self, contents: Mapping[str, bytes]) -> list[ArtifactInfo]:
        """Writes files, by name. They cannot be removed before `unpin`, by which time a job refers to them.

        Raises:
            StoreError: The disk is full, and the like; nothing stays pinned.
        """
        infos = [
            ArtifactInfo(name=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
            for name, content in contents.items()
        ]
        with self._changing:
            self._pinned.update(info.sha256 for info in infos)
        try:
            for info in infos:
                self._write(info.sha256, contents[info.name])
        except OSError as error:
            self.unpin(infos)
            raise StoreError(f"{self._folder}: cannot keep artifacts: {error}") from error
        return infos

    def unpin(self, infos: Sequence[ArtifactInfo]) -> None:
        """Ends the protection that `put` gave."""
        with self._changing:
            self._pinned.subtract(info.sha256 for info in infos)
            self._pinned += Counter()  # drops the zeros

    def path(self, sha256: str) -> Path | None:
        """Where a content lies; None when it is gone."""
        path = self._path(sha256)
        return path if path.is_file() else None

    def remove_all_but(self, wanted: Iterable[str]) -> int:
        """Removes the contents that are neither wanted nor pinned; returns how many."""
        wanted = set(wanted)
        removed = 0
        for path in self._folder.glob("??/*"):
            with self._changing:
                if path.name not in wanted and path.name not in self._pinned:
                    path.unlink()
                    removed += 1
        return removed

    def remove_parts(self) -> None:
        """Removes what a crash left half written."""
        for part in self._folder.glob("*.part"):
            part.unlink()

    def _write(self, sha256: str, content: bytes) -> None:
        path = self._path(sha256)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self._folder / f"{sha256}.{threading.get_ident()}.part"
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)

    def _path(self, sha256: str) -> Path:
        return self._folder / sha256[:2] / sha256
