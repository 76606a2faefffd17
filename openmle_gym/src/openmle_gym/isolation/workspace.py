"""What every runner prepares on the host before a run, and clears away afterwards."""

import asyncio
import logging
import math
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from openmle_gym.errors import RunnerUnavailable
from openmle_gym.isolation.artifacts import read_artifact
from openmle_gym.isolation.disk import mount_memory, unmount_below
from openmle_gym.isolation.logs import read_record, record_bytes
from openmle_gym.isolation.runner import INPUTS, PYTHON, Artifact, BoundedLog, Runner, RunSpec
from openmle_gym.jobs import Limits
from openmle_gym.signature import PROGRAM_FILE

T = TypeVar("T")
logger = logging.getLogger(__name__)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SUPERVISOR = Path(__file__).with_name("supervisor.py")
_OLD_CPU_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""On CPUs that OpenBLAS does not recognise it crashes, or computes nonsense, without these; so they pass through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The host's side of one run."""

    root: Path
    """Private to us; holds the rest."""
    work: Path
    """The program's working directory; empty once `let_go` has unmounted it."""
    folder: int
    """Descriptor of `work`, which stays good."""
    inputs: Mapping[str, Path]
    """By name; a copy, where the program's user could not read the original or could write to it."""
    record: int
    """Descriptor of the record file, `root / "record"`."""
    watched_bytes: int | None
    """What `work` may hold, where somebody has to look; None where it is a memory file system, which the kernel limits."""


async def finish(work: Awaitable[T]) -> T:
    """Awaits something that must not be left half done: to its end, even when cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    failure = task.exception()
    if cancelled is not None:
        raise cancelled from failure
    return task.result()


def refuse_gpu(spec: RunSpec) -> None:
    """Raises RunnerUnavailable where the run is to have a GPU: for runners that have none to hand out."""
    if spec.gpu is not None:
        raise RunnerUnavailable("only Docker can hand a GPU to a program")


@asynccontextmanager
async def workspace(spec: RunSpec, *, uid: int | None, on_host: bool = False) -> AsyncIterator[Workspace]:
    """Makes a workspace, and removes it whatever the program did to it.

    As root the working directory is a mount, which the runner unmounts here as soon as the program has it (`let_go`):
    then a kill of this very process leaves no memory in use.

    Args:
        uid: The program's user and group on the host; None when that is ours.
        on_host: Whether the program sees the host's file system: then inputs are copied, because nothing else would
            keep it from writing to them, and the working directory is an ordinary folder.

    Raises:
        RunnerUnavailable: The disk is full, an input does not exist, and the like.
    """
    root = Path(tempfile.mkdtemp(prefix="openmle-run-"))
    opened: list[int] = []
    try:
        try:
            place = await finish(asyncio.to_thread(_fill, root, opened, spec, uid, on_host))
        except OSError as error:
            raise RunnerUnavailable(f"cannot prepare a run in {root}: {error}") from error
        if spec.on_log is not None:
            spec.on_log(lambda: _log_so_far(root / "record", spec.limits.log_bytes))
        yield place
    finally:
        for descriptor in opened:
            os.close(descriptor)
        try:
            await finish(asyncio.to_thread(_remove, root))
        except OSError as error:
            logger.warning("cannot remove %s: %s", root, error)  # the run itself ended as it ended


def _log_so_far(path: Path, log_bytes: int) -> BoundedLog:
    """By path, as the descriptor's number belongs to another file when the run is over."""
    record = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return read_record(record, log_bytes).log
    finally:
        os.close(record)


def let_go(place: Workspace) -> None:
    """Unmounts here what the program has in its own namespace now."""
    if place.watched_bytes is None:
        unmount_below(place.root)


def _remove(root: Path) -> None:
    unmount_below(root)
    remove_tree(root)


def _fill(root: Path, opened: list[int], spec: RunSpec, uid: int | None, on_host: bool) -> Workspace:
    """Adds the descriptors of the record and the working directory to `opened`, whose owner closes them."""
    for name in (*spec.files, *spec.inputs):
        if name in ("", ".", "..") or "/" in name:
            raise ValueError(f"{name!r}: not a plain file name")
    record = os.open(root / "record", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    opened.append(record)
    os.pwrite(record, bytes(record_bytes(spec.limits.log_bytes)), 0)  # takes its disk space now, not during the run
    work, mode = root / "work", 0o711  # bubblewrap enters it as root without root's powers
    work.mkdir(mode=mode)
    # What we put there is not of the program's share.
    most_bytes = spec.limits.disk_bytes + sum(len(content) + PAGE_BYTES for content in spec.files.values())
    limited = not on_host and mount_memory(work, most_bytes, user=os.getuid() if uid is None else uid, mode=mode)
    folder = os.open(work, _FOLDER)
    opened.append(folder)
    ours: list[Path] = [root / "record", work]
    for name, content in spec.files.items():
        path = work / name
        path.write_bytes(content)
        ours.append(path)
    if uid is not None:
        for path in ours:
            os.chown(path, uid, uid)
    inputs: dict[str, Path] = {}
    for name, source in spec.inputs.items():
        if on_host or (uid is not None and not _others_can_read(source)):
            copy = root / "inputs" / name
            _copy(source, copy, uid)
            inputs[name] = copy
        else:
            inputs[name] = source.resolve(strict=True)
    return Workspace(
        root=root, work=work, folder=folder, inputs=inputs, record=record, watched_bytes=None if limited else most_bytes
    )


def _others_can_read(path: Path) -> bool:
    needed = stat.S_IROTH | stat.S_IXOTH if path.is_dir() else stat.S_IROTH
    return path.stat().st_mode & needed == needed


def _copy(source: Path, target: Path, uid: int | None) -> None:
    target.parent.mkdir(exist_ok=True)
    if not source.is_dir():
        shutil.copyfile(source, target)
    else:
        shutil.copytree(source, target, copy_function=shutil.copyfile)
    if uid is not None:
        for path in (target, *target.rglob("*")):
            os.chown(path, uid, uid)


def remove_tree(root: Path) -> None:
    """Removes a folder whatever is in it: unreadable folders, or ones nested deeper than recursion or a path can go."""
    here = os.open(root, _FOLDER)
    remaining = [_remove_files(here)]  # the folders to remove, for every level from the root to here
    while True:
        if remaining[-1]:
            name = remaining[-1][-1]
            os.chmod(name, 0o700, dir_fd=here)
            next_folder = os.open(name, _FOLDER, dir_fd=here)
            remaining.append(_remove_files(next_folder))
        else:
            remaining.pop()
            if not remaining:
                break
            next_folder = os.open("..", _FOLDER, dir_fd=here)
            os.rmdir(remaining[-1].pop(), dir_fd=next_folder)
        os.close(here)
        here = next_folder
    os.close(here)
    os.rmdir(root)


def _remove_files(folder: int) -> list[str]:
    """Removes all but the folders, which it returns."""
    with os.scandir(folder) as entries:
        entries = list(entries)
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.name, dir_fd=folder)
    return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def expanded(text: str, *, python: str, inputs: str) -> str:
    """Puts the runner's own places into an argument or an environment value."""
    return text.replace(PYTHON, python).replace(INPUTS, inputs)


def program_environment(spec: RunSpec, *, home: str, tmp: str, inputs: str, python: str) -> dict[str, str]:
    """The program's whole environment."""
    threads = str(math.ceil(spec.limits.cpus))
    environment = {
        "PATH": f"{os.path.dirname(python)}:/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": tmp,
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
    }
    environment |= {name: os.environ[name] for name in _OLD_CPU_VARIABLES if name in os.environ}
    return environment | {
        name: expanded(value, python=python, inputs=inputs) for name, value in spec.environment.items()
    }


def supervisor_arguments(
    argv: tuple[str, ...], limits: Limits, *, record: str, rlimits: Mapping[str, int], settings: tuple[str, ...] = ()
) -> list[str]:
    """What follows the supervisor's path on its command line."""
    limited = {"CORE": 0, "FSIZE": limits.disk_bytes} | dict(rlimits)
    return [
        f"record={record}",
        f"log_bytes={limits.log_bytes}",
        f"output_bytes={limits.output_bytes}",
        *(f"rlimit.{name}={value}" for name, value in limited.items()),
        *settings,
        "--",
        *argv,
    ]


async def read_artifacts(spec: RunSpec, place: Workspace) -> dict[str, Artifact]:
    """Reads back what the spec names; only when the program is dead."""
    return {
        name: await asyncio.to_thread(read_artifact, place.folder, name, max_bytes)
        for name, max_bytes in spec.artifacts.items()
    }


async def prove(runner: Runner) -> None:
    """Runs a trivial program.

    Raises:
        RunnerUnavailable: It did not start, or did not end well.
    """
    limits = Limits(wall_seconds=60.0, memory_bytes=256 * 1024 * 1024)
    result = await runner.run(
        RunSpec(argv=(PYTHON, "-u", PROGRAM_FILE), files={PROGRAM_FILE: b"print('ready')"}, limits=limits)
    )
    if result.exit_code != 0 or result.log.text.strip() != "ready":
        raise RunnerUnavailable(f"{runner.isolation}: a trivial program ended with {result}")
