"""The script inside the isolated process that runs a prepare.py. Nothing of ours but the standard library.

    python prepare_child.py RAW

calls `prepare(RAW, public, private)` in the working directory and leaves there `made.tar`, the two folders, and
`report.json`: which files it wrote or changed that are not its own. Those are found for the author's sake, to tell what
is wrong; what keeps a program from doing harm is the isolation around it.
"""

import hashlib
import json
import os
import sys
import tarfile
from pathlib import Path

FOLDERS = ("public", "private")


def main() -> None:
    """Runs, and writes what came of it."""
    raw, here = Path(sys.argv[1]), Path.cwd()
    own = set(os.listdir(here))
    before = hashes(raw)
    folders = [here / name for name in FOLDERS]
    for folder in folders:
        folder.mkdir()
    opened = watch_writes([*map(str, folders), os.environ.get("TMPDIR", "/tmp"), "/dev/", "/proc/", f"{here}/."])
    sys.path.insert(0, str(here))
    try:
        from prepare import prepare  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        if "'prepare'" not in str(error):
            raise
        raise SystemExit("prepare.py defines no function prepare(raw, public, private)") from error
    sys.path.pop(0)
    if not callable(prepare):
        raise SystemExit("prepare.py defines no function prepare(raw, public, private)")
    prepare(raw, *folders)
    after = hashes(raw)
    report = {
        "raw_changed": sorted(name for name in {*before, *after} if before.get(name) != after.get(name)),
        "outside": sorted(opened | strays(here, own)),
        "links": sorted(
            path.relative_to(here).as_posix() for folder in folders for path in folder.rglob("*") if path.is_symlink()
        ),
    }
    with open("report.json", "w", encoding="utf-8") as file:
        json.dump(report, file)
    pack(here)


def strays(here: Path, own: set) -> set:
    """What lies in the working directory and was put there by the program; hidden files are caches of libraries."""
    names = set(os.listdir(here)) - own - {*FOLDERS, "__pycache__"}
    return {f"./{name}" for name in names if not name.startswith(".")}


def hashes(root: Path) -> dict:
    """SHA-256 of every file below a folder."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            with open(path, "rb") as file:
                found[path.relative_to(root).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def watch_writes(allowed: list) -> set:
    """Notes every file that is opened for writing elsewhere; filled as the program runs."""
    found: set = set()
    flags = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def note(event: str, arguments: tuple) -> None:
        if event != "open" or not isinstance(arguments[0], (str, bytes)):
            return
        path, mode, flag = arguments
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool((flag or 0) & flags)
        if writes:
            place = os.path.realpath(os.fsdecode(path))
            if "__pycache__" not in place and not any(place.startswith(each) for each in allowed):
                found.add(place)

    sys.addaudithook(note)
    return found


def pack(here: Path) -> None:
    """Both folders, equal for equal contents."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open("made.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for name in FOLDERS:
            for path in sorted((here / name).rglob("*")):
                tar.add(path, arcname=path.relative_to(here).as_posix(), recursive=False, filter=plain)


if __name__ == "__main__":
    main()
