"""The processes that `ZygoteRunner` forks jobs from, as the service sees them."""

import asyncio
import json
import logging
import os
import secrets
import socket
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path

from openmle_gym.errors import RunnerUnavailable
from openmle_gym.isolation import namespaces
from openmle_gym.isolation.local import Supervised, resident_bytes
from openmle_gym.isolation.logs import has_started
from openmle_gym.isolation.runner import RunSpec
from openmle_gym.isolation.view import INPUTS_FOLDER, TMP, WORK, Shown, python_inside, system_links, system_mounts
from openmle_gym.isolation.workspace import Workspace, finish, program_environment
from openmle_gym.jobs import MIB

logger = logging.getLogger(__name__)

_PARENT_SECONDS = 120.0
_JOB_SECONDS = 30.0
_INSIDE = "/openmle"
_PARENT = Path(__file__).with_name("zygote_parent.py")
_MODULES = ("__init__.py", "isolation/__init__.py", "isolation/namespaces.py", "isolation/supervisor.py")
"""That the parent imports of ours."""
_ADVICE = "it needs root, or user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1, \
kernel.apparmor_restrict_unprivileged_userns=0), and Linux 5.12; else use Docker"


class ParentGone(RunnerUnavailable):
    """The parent died before it started the job, so that another may."""


class Pool:
    """The parents of one script name."""

    def __init__(self, script: str, preload: tuple[str, ...], parents: int, jobs_per_parent: int) -> None:
        """Args: see `ZygoteRunner`."""
        self._script = script
        self._preload = preload
        self._wanted = parents
        self._jobs_per_parent = jobs_per_parent
        self._parents: list[Parent] = []
        """In the order of their last jobs."""
        self._latest: deque[Parent | None] = deque(maxlen=min(2, parents - 1))
        """Those of the latest jobs; None for one that started cold, whose hash seed is its own."""
        self._starting: asyncio.Task[Parent] | None = None
        self._used = False

    async def parent(self) -> "tuple[Parent, bool]":
        """The one that can take a job and has had none for longest; sees to it that there are enough of them.

        The first job has one parent made; the others come when there is a second job, or by `fill`.

        Returns:
            The parent, and whether a job that it forks has another hash seed than the two jobs before.

        Raises:
            RunnerUnavailable: None can be had.
        """
        parent = await self._longest_idle()
        fresh = parent not in self._latest
        self._latest.append(parent if fresh else None)
        return parent, fresh

    async def _longest_idle(self) -> "Parent":
        self._start_missing()
        self._used = True
        able = [parent for parent in self._parents if parent.able]
        if not able:
            assert self._starting is not None
            return await asyncio.shield(self._starting)
        self._parents.remove(able[0])
        self._parents.append(able[0])
        return able[0]

    def fill(self) -> None:
        """Has the parents that are missing started, one after the other."""
        self._used = True
        self._start_missing()

    def _start_missing(self) -> None:
        for parent in self._parents:
            parent.close_if_done()
        self._parents = [parent for parent in self._parents if not parent.closed]
        if self._starting is not None and self._starting.done():
            self._starting = None
        lasting = sum(parent.able and parent.jobs < 0.9 * parent.most_jobs for parent in self._parents)
        if lasting < (self._wanted if self._used else min(1, self._wanted)) and self._starting is None:
            self._starting = asyncio.create_task(self._add())
            self._starting.add_done_callback(self._started)

    def _started(self, starting: "asyncio.Task[Parent]") -> None:
        """After a failure the next job tries again, so that we do not try for ever."""
        if starting.cancelled():
            return
        if error := starting.exception():
            logger.warning("%s", error)
        else:
            self._start_missing()

    def close(self) -> None:
        """Kills all parents and their jobs."""
        self._wanted = 0
        for parent in self._parents:
            parent.close()

    async def _add(self) -> "Parent":
        """Starts a parent and waits until it is ready."""
        parent, words = _spawn(self._script, self._preload, self._most_jobs())
        try:
            await parent.until_ready()
        except (EOFError, TimeoutError, OSError) as error:
            parent.close()
            said = _last_words(words) or repr(error)
            raise RunnerUnavailable(f"zygote: no parent process: {said}; {_ADVICE}") from error
        except asyncio.CancelledError:
            parent.close()
            raise
        finally:
            os.close(words)
        self._parents.append(parent)
        return parent

    def _most_jobs(self) -> int:
        """Differs between parents, so that they are not all replaced at once."""
        return self._jobs_per_parent - secrets.randbelow(self._jobs_per_parent // 4 + 1)


class Parent:
    """A process to fork jobs from, as the service sees it."""

    def __init__(self, process: "subprocess.Popen[bytes]", control: socket.socket, most_jobs: int) -> None:
        self.most_jobs = most_jobs
        self._process = process
        self._control = control
        self._running = 0
        self._resident_bytes = 0
        self.pid = 0
        """On the host, once it is ready."""
        self.jobs = 0
        """That it has started."""
        self.doubtful = False
        """Something was wrong with it, so that it shall take no more."""
        self.closed = False

    @property
    def able(self) -> bool:
        """Whether it can take a job, as far as we know."""
        return not self.doubtful and self.jobs < self.most_jobs and self._process.poll() is None

    async def until_ready(self) -> None:
        """Waits for the preloading to end.

        Raises:
            EOFError: It ended itself.
            TimeoutError: It did not answer.
        """
        await _readable(self._control, _PARENT_SECONDS)
        _, descriptors, _, _ = socket.recv_fds(self._control, 16, 1)
        if not descriptors:
            raise EOFError
        self.pid = _pid_of(descriptors[0])
        os.close(descriptors[0])
        self._resident_bytes = resident_bytes(self.pid)

    async def start_job(self, request: bytes, place: Workspace) -> Supervised:
        """Has it fork a job's supervisor.

        Raises:
            ParentGone: It is dead, and nothing was started.
            RunnerUnavailable: It did not start the job, for what reason ever.
        """
        # A mount is not seen by its path in the parent's namespace, which is older.
        work = [namespaces.copy_mount(str(place.work))] if place.watched_bytes is None else []
        self.jobs += 1
        self._running += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        errors = os.open(place.root / "stderr", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        message = os.memfd_create("job")
        given = [message, place.record, errors, theirs.fileno(), *work]
        try:
            os.write(message, request)
            os.lseek(message, 0, os.SEEK_SET)
            socket.send_fds(self._control, [b"j"], given)
        except OSError as error:
            ours.close()
            self.doubtful = True
            self.end_job()
            raise ParentGone(f"zygote: a parent is gone: {error}") from error
        finally:
            theirs.close()
            for descriptor in (errors, message, *work):
                os.close(descriptor)
        try:
            return await _supervisor(ours, place)
        except BaseException as error:
            self.doubtful |= not isinstance(error, asyncio.CancelledError)
            ours.close()
            self.end_job()
            raise

    def end_job(self) -> None:
        """Notes that a job is over. A parent that has grown meanwhile takes no more."""
        self._running -= 1
        try:
            self.doubtful |= resident_bytes(self.pid) > 1.5 * self._resident_bytes + 64 * MIB
        except (FileNotFoundError, ProcessLookupError):
            self.doubtful = True
        self.close_if_done()

    def close_if_done(self) -> None:
        """Closes it when its last job is over and it takes no more."""
        if self._running == 0 and not self.able and not self.closed:
            self.close()

    def close(self) -> None:
        """Kills it, and its jobs, if it has any."""
        self.closed = True
        self._control.close()
        self._process.kill()
        self._process.wait()


async def _supervisor(control: socket.socket, place: Workspace) -> Supervised:
    """The supervisor of a job, once the parent has told of it."""
    try:
        await _readable(control, _JOB_SECONDS)
    except asyncio.CancelledError:
        # It may have started all the same. It goes when it finds its control closed, and the other end closes then.
        control.shutdown(socket.SHUT_WR)
        await finish(_until_closed(control))
        raise
    except TimeoutError:
        raise RunnerUnavailable(f"zygote: a parent has not answered for {_JOB_SECONDS:g} seconds") from None
    _, descriptors, _, _ = socket.recv_fds(control, 16, 1)
    if not descriptors:
        said = (place.root / "stderr").read_text(errors="replace").strip()
        if not said and not has_started(place.record):
            raise ParentGone("zygote: a parent died before it could start a job")
        raise RunnerUnavailable(f"zygote: a parent could not start a job: {said or 'it died'}")
    return Supervised(_pid_of(descriptors[0]), descriptors[0], control.detach())


async def _until_closed(control: socket.socket) -> None:
    while True:
        try:
            await _readable(control, _JOB_SECONDS)
        except TimeoutError:
            return
        message, descriptors, _, _ = socket.recv_fds(control, 16, 1)
        for descriptor in descriptors:
            os.close(descriptor)
        if not message:
            return


async def _readable(source: socket.socket, seconds: float) -> None:
    """Waits until there is something to read, or the other end is closed."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(source, lambda: ready.done() or ready.set_result(None))
    try:
        async with asyncio.timeout(seconds):  # wait_for would lose a cancellation that comes with the answer
            await ready
    finally:
        loop.remove_reader(source)


def _pid_of(pidfd: int) -> int:
    """The process's number in our namespace; -1 when it has ended."""
    fields = dict(line.split(":\t", 1) for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines())
    return int(fields["Pid"])


def _last_words(source: int) -> str:
    try:
        return os.read(source, 65536).decode(errors="replace").strip()[-2000:]
    except BlockingIOError:
        return ""


def _spawn(script: str, preload: tuple[str, ...], most_jobs: int) -> tuple[Parent, int]:
    """Starts a parent, by this very thread, as it dies with the thread that made it; where to read what it says."""
    python = python_inside()
    package = _PARENT.parents[1]
    ours = [Shown(str(package / name), f"{_INSIDE}/{package.name}/{name}") for name in _MODULES]
    shown = (*system_mounts(), *ours, Shown(str(_PARENT), f"{_INSIDE}/sitecustomize.py"))
    # As every library's threads, pyarrow's allocator's would not outlive the fork.
    one_thread = program_environment(RunSpec(argv=()), home=WORK, tmp=TMP, inputs=INPUTS_FOLDER, python=python)
    view = {
        "links": list(system_links()),
        "shown": [(os.path.realpath(source), target) for source, target in shown],
        "command": [python, script],
        "environment": one_thread | {"PYTHONPATH": _INSIDE, "JE_ARROW_MALLOC_CONF": "background_thread:false"},
    }
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.setblocking(False)
    words, said = os.pipe()
    os.set_blocking(words, False)
    # Its output is a pipe, as it is a program's: Python looks at that once, and a program finds what was found then.
    process = subprocess.Popen(
        [sys.executable, "-s", "-S", str(_PARENT), str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        cwd="/",
        env={"PYTHONPATH": str(package.parent)},
        pass_fds=(theirs.fileno(),),
        start_new_session=True,
    )
    theirs.close()
    os.close(said)
    with suppress(BrokenPipeError, ConnectionResetError):  # it is dead already, which `until_ready` will find
        control.send(json.dumps(view).encode())
        control.send(json.dumps(preload).encode())
    return Parent(process, control, most_jobs), words
