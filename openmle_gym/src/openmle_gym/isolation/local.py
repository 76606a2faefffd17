"""Runs a supervised command on this machine and watches over it: wall clock, memory, number of processes.

The kernel counts memory for a cgroup; without one, a watchdog adds up what the processes of the tree use, some times
a second. A program can overshoot its limit for as long as one look takes to come.
"""

import asyncio
import os
import platform
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import NamedTuple

from openmle_gym.errors import RunnerUnavailable
from openmle_gym.isolation.disk import until_over
from openmle_gym.isolation.logs import has_started, read_record
from openmle_gym.isolation.runner import Isolation, RunResult, RunSpec
from openmle_gym.isolation.workspace import PAGE_BYTES, Workspace, finish, let_go, read_artifacts
from openmle_gym.jobs import MIB, Limits

LOOK_SECONDS = 0.05
"""Between two looks of the watchdog."""
STUBBORN_SECONDS = 5.0
"""After this the supervisor itself is killed too."""
_UNUSED_USERS = range(0x7000_0000, 0x7FFF_FFFE)
"""Host users that nothing hands out (systemd's list of UID ranges)."""


class Usage(NamedTuple):
    """What a process tree uses now."""

    tasks: int
    """Processes and threads."""
    memory_bytes: int


class _Kill(Enum):
    """Why we end a run."""

    WALL_CLOCK = auto()
    MEMORY = auto()
    TASKS = auto()
    DISK = auto()


def require_linux() -> None:
    """Raises RunnerUnavailable where the watchdog cannot do its work."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        os.stat("/proc/self/statm")
    except (AttributeError, OSError) as error:
        raise RunnerUnavailable("this isolation needs Linux 5.3 or newer with /proc; use Docker") from error


def descendants(root: int) -> list[int]:
    """PIDs below a process, nearest first; without it."""
    found: list[int] = []
    frontier = [root]
    while frontier:
        below = [child for pid in frontier for child in _children(pid)]
        found += below
        frontier = below
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):  # it may end while we look
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as listing:
                children += map(int, listing.read().split())
    return children


def usage(pids: Sequence[int], tmpfs: Sequence[str], limit_bytes: int, *, shared_with: int | None = None) -> Usage:
    """Adds up what processes use.

    Resident pages count first, which is quick but counts shared pages once per process; only when that sum passes
    `limit_bytes` does the exact reckoning follow: private pages, each process's share of shared ones, and the files
    in its memory file systems.

    Args:
        tmpfs: Mount points of memory file systems, as the processes see them.
        shared_with: A process that all of them were forked from. What they still share with it is not theirs.
    """
    tasks = resident = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            tasks += len(os.listdir(f"/proc/{pid}/task"))
            resident += resident_bytes(pid)
    files = _tmpfs_bytes(pids, tmpfs)
    if resident + files <= limit_bytes:
        return Usage(tasks, resident + files)
    inherited = 0 if shared_with is None else _proportional_share(shared_with).anonymous
    private = shared = 0
    for pid in pids:
        share = _proportional_share(pid)
        # The ancestor's share is a little larger than the process's share of the same pages, some of which it has
        # changed since; but what is private is the process's own in any case.
        private += max(share.anonymous - inherited, share.private)
        shared += share.files
    # Files in a memory file system are also shared pages of whoever maps them.
    return Usage(tasks, private + max(shared, files))


def _tmpfs_bytes(pids: Sequence[int], mounts: Sequence[str]) -> int:
    for pid in reversed(pids):
        try:
            facts = [os.statvfs(f"/proc/{pid}/root{mount}") for mount in mounts]
        except OSError:
            continue  # ended, or not ours to look into
        return sum((fact.f_blocks - fact.f_bfree) * fact.f_frsize for fact in facts)
    return 0


class _Share(NamedTuple):
    """A process's part of memory, in bytes; a page that three processes map counts a third for each."""

    anonymous: int
    files: int
    """In memory file systems, and memory that processes share on purpose."""
    private: int
    """Anonymous memory that no other process maps."""


def _proportional_share(pid: int) -> _Share:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            lines = (line.partition(":") for line in rollup)
            sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in lines if rest.endswith("kB\n")}
    except PermissionError:
        return _Share(resident_bytes(pid), 0, 0)  # it made itself unreadable, so all that is resident counts
    except (FileNotFoundError, ProcessLookupError):
        return _Share(0, 0, 0)
    dirty = sizes.get("Private_Dirty", 0) - sizes.get("Pss_Shmem", 0)
    private = max(0, min(dirty, sizes.get("Anonymous", 0)))
    return _Share(sizes.get("Pss_Anon", 0), sizes.get("Pss_Shmem", 0), private)


def resident_bytes(pid: int) -> int:
    """Pages of a process that are in memory, shared ones too; FileNotFoundError or ProcessLookupError when it is gone."""
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * PAGE_BYTES


def local_rlimits(limits: Limits, *, tasks: int) -> dict[str, int]:
    """The program's own limits: `tasks` at once, and a generous bound on addresses behind the watchdog."""
    return {"NPROC": tasks, "AS": max(8 * limits.memory_bytes, limits.memory_bytes + 8192 * MIB)}


def tasks_of_user() -> int:
    """Processes and threads that this user has already, which RLIMIT_NPROC counts too."""
    user, tasks = os.getuid(), 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                tasks += len(os.listdir(f"{entry.path}/task")) if entry.stat().st_uid == user else 0
    return tasks


def tasks_counted_already() -> int:
    """What RLIMIT_NPROC counts beside a sandbox: nothing where it counts by user namespace, or for a fresh user."""
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    return 0 if os.getuid() == 0 or release >= (5, 14) else tasks_of_user()


def unused_user() -> int | None:
    """The user on the host for one sandboxed program; None is our own.

    Root must not be the program's user: the kernel does not limit root's processes, and root owns every file.
    A user per run keeps the runs from counting against, or signalling, each other.
    """
    return secrets.choice(_UNUSED_USERS) if os.getuid() == 0 else None


class Supervised(NamedTuple):
    """A supervisor at work on this machine."""

    pid: int
    """Of the process below which the program and all that it starts are found."""
    descriptor: int
    """A pidfd of that process."""
    control: int
    """What a byte is written to so that the supervisor kills all and goes."""


async def run_local(
    command: Sequence[str],
    spec: RunSpec,
    place: Workspace,
    *,
    isolation: Isolation,
    environment: Mapping[str, str],
    descriptors: Sequence[int] = (),
    tmpfs: Sequence[str] = (),
    warnings: tuple[str, ...] = (),
) -> RunResult:
    """Runs a command that starts a supervisor with `control=1` and `record=<place.record>`, and tells its end.

    Args:
        descriptors: What the command inherits beside the record.
        tmpfs: Mount points of the program's memory file systems, as it sees them.

    Raises:
        RunnerUnavailable: The program was not even started.
    """
    process, control = _spawn(command, place, environment, descriptors)
    supervised = Supervised(process.pid, os.pidfd_open(process.pid), control)
    try:
        return await see_through(
            supervised,
            spec,
            place,
            isolation=isolation,
            tmpfs=tmpfs,
            when_lost="the program killed its supervisor; processes of it may live on",
            warnings=warnings,
        )
    finally:
        process.wait()


async def see_through(
    supervised: Supervised,
    spec: RunSpec,
    place: Workspace,
    *,
    isolation: Isolation,
    tmpfs: Sequence[str] = (),
    shared_with: int | None = None,
    when_lost: str | None = None,
    warnings: tuple[str, ...] = (),
) -> RunResult:
    """Watches over a supervised program to its end, and closes what `supervised` holds.

    Args:
        tmpfs: Mount points of the program's memory file systems, as it sees them.
        shared_with: A process whose memory the program's processes began with; that is not the program's.
        when_lost: The warning on the result when the supervisor ended without a word; None where the program has no
            power over it, so that its loss is the machine's fault.

    Raises:
        RunnerUnavailable: The program was not even started, or is lost and `when_lost` is None.
    """
    began = time.monotonic()
    exited = _exit_future(supervised.descriptor)
    try:
        kill = await _watch(supervised.pid, exited, spec.limits, place, began, tmpfs, shared_with)
    finally:
        await finish(_stop(supervised, exited))
    wall_seconds = time.monotonic() - began

    record = read_record(place.record, spec.limits.log_bytes)
    if not record.started and kill is None:
        said = (place.root / "stderr").read_bytes()[-2000:].decode(errors="replace").strip()
        raise RunnerUnavailable(f"{isolation}: nothing was started: {said}")
    lost = kill is None and record.exit_code is None and record.signal is None
    if kill is _Kill.TASKS:
        warnings += (f"killed: more than {spec.limits.processes} processes and threads",)
    if lost:
        if when_lost is None:
            raise RunnerUnavailable(f"{isolation}: the program's supervisor vanished")
        warnings += (when_lost,)
    return RunResult(
        exit_code=None if kill else record.exit_code,
        signal=int(signal.SIGKILL) if kill or lost else record.signal,
        timed_out=kill is _Kill.WALL_CLOCK,
        out_of_memory=kill is _Kill.MEMORY,
        too_many_processes=kill is _Kill.TASKS,
        too_much_output=record.killed_for_output(spec.limits.output_bytes),
        disk_full=kill is _Kill.DISK,
        wall_seconds=wall_seconds,
        log=record.log,
        artifacts=await read_artifacts(spec, place),
        isolation=isolation,
        warnings=warnings,
    )


class _Spawned(NamedTuple):
    process: subprocess.Popen[bytes]
    control: int
    """The end of the supervisor's standard input that is ours."""


def _spawn(
    command: Sequence[str], place: Workspace, environment: Mapping[str, str], descriptors: Sequence[int]
) -> _Spawned:
    control_read, control = os.pipe()
    try:
        with open(place.root / "stderr", "wb") as stderr:
            process = subprocess.Popen(
                command,
                stdin=control_read,
                stdout=stderr,
                stderr=stderr,
                cwd=place.work,
                env=environment,
                pass_fds=(place.record, *descriptors),
                start_new_session=True,
            )
    except OSError as error:
        os.close(control)
        raise RunnerUnavailable(f"{command[0]}: {error.strerror}") from error
    finally:
        os.close(control_read)
    return _Spawned(process, control)


def _exit_future(descriptor: int) -> asyncio.Future[None]:
    """Done when the process of a pidfd, which it then closes, has ended; it still has to be waited for."""
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[None] = loop.create_future()

    def ended() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        exited.set_result(None)

    loop.add_reader(descriptor, ended)
    return exited


async def _watch(
    pid: int,
    exited: asyncio.Future[None],
    limits: Limits,
    place: Workspace,
    began: float,
    tmpfs: Sequence[str],
    shared_with: int | None,
) -> _Kill | None:
    """Returns when the run has ended by itself, with None, or has to be ended."""
    deadline = began + limits.wall_seconds
    started = False
    over = None if place.watched_bytes is None else asyncio.create_task(until_over(place.work, place.watched_bytes))
    try:
        while True:
            await asyncio.wait({exited}, timeout=max(0.0, min(LOOK_SECONDS, deadline - time.monotonic())))
            if exited.done():
                return None
            if time.monotonic() >= deadline:
                return _Kill.WALL_CLOCK
            if over is not None and over.done():
                return _Kill.DISK
            # Until the program starts, the tree below is still on the host's own file systems.
            if not started:
                if not has_started(place.record):
                    continue
                started = True
                await finish(asyncio.to_thread(let_go, place))
            used = usage(descendants(pid), tmpfs, limits.memory_bytes, shared_with=shared_with)
            if used.memory_bytes > limits.memory_bytes:
                return _Kill.MEMORY
            if used.tasks > limits.processes + 1:  # a supervisor may be among them
                return _Kill.TASKS
    finally:
        if over is not None:
            over.cancel()


async def _stop(supervised: Supervised, exited: asyncio.Future[None]) -> None:
    """Has the supervisor kill everything, if it has not ended; if it does not obey, does so itself."""
    with suppress(BrokenPipeError, ConnectionResetError):
        os.write(supervised.control, b"x")  # closing is not enough where another process of ours was forked meanwhile
    os.close(supervised.control)
    deadline = time.monotonic() + STUBBORN_SECONDS
    while not exited.done():
        await asyncio.wait({exited}, timeout=0.2)
        if exited.done():
            break
        stubborn = descendants(supervised.pid)
        if time.monotonic() >= deadline:
            stubborn.append(supervised.pid)
        for pid in stubborn:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
