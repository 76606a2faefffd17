"""Runs a command in a fresh container of a Docker engine: the strongest runner."""

import asyncio
import math
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from openmle_gym.errors import RunnerUnavailable
from openmle_gym.isolation.logs import read_record
from openmle_gym.isolation.runner import Isolation, RunResult, RunSpec
from openmle_gym.isolation.seccomp import docker_profile
from openmle_gym.isolation.workspace import (
    SUPERVISOR,
    Workspace,
    expanded,
    finish,
    program_environment,
    prove,
    read_artifacts,
    supervisor_arguments,
    workspace,
)

if TYPE_CHECKING:
    from docker import DockerClient

T = TypeVar("T")

MANAGED_LABEL = "openmle.managed"
"""On every container of ours, with the value 1."""
_NOBODY = 65534
_PYTHON, _WORK, _INPUTS, _TMP = "/opt/venv/bin/python", "/work", "/inputs", "/tmp"
_SUPERVISOR, _RECORD = "/openmle/supervisor.py", "/openmle/record"
_MOST_INODES = 65536
_CONFLICT = 409
_GRACE_SECONDS = 60.0
"""How long the engine may take to answer, or a killed container to die."""


class _State(NamedTuple):
    """What the engine says of a dead container."""

    exit_code: int
    out_of_memory: bool


class DockerRunner:
    """One fresh container per run, removed afterwards however it ended.

    What is covered: everything that `RunSpec` says, enforced by the kernel: no network, memory without swap, processes,
    CPU time, a read-only root, no capabilities, an allow-list of system calls, an unprivileged user.

    What is not: the working directory has no quota, only each file a largest size; the program can learn the host's
    memory size and the paths of its mounts; whoever runs this must be allowed to use the engine, which is as good as root.
    """

    isolation = Isolation.DOCKER

    def __init__(self, *, image: str, runtime: str | None = None, base_url: str | None = None) -> None:
        """Connects on first use.

        Args:
            image: Present on the engine, with Python 3.11 or newer at /opt/venv/bin/python.
            runtime: The engine's name of another container runtime, such as `runsc`; None is its default.
            base_url: The engine's address; None reads the DOCKER_* variables, else the local socket. The engine must
                see this machine's temporary folder under the same path.
        """
        self._image = image
        self._runtime = runtime
        self._base_url = base_url
        self._client: DockerClient | None = None
        self._cores = 1.0
        # More starts at once make each one slower and none faster.
        self._starts = asyncio.Semaphore(2 * (os.cpu_count() or 1))
        # A waiting thread per running container; they must not use up the threads that kill and remove.
        self._waits = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="docker-wait")

    async def check(self) -> None:
        """See `Runner`."""
        await self._call(self._require_image)
        await prove(self)

    async def run(self, spec: RunSpec) -> RunResult:
        """See `Runner`."""
        # Without root, what another user leaves in the working directory could not be cleared away; so it is ours then.
        uid, gid = (_NOBODY, _NOBODY) if os.getuid() == 0 else (os.getuid(), os.getgid())
        async with workspace(spec, uid=uid if os.getuid() == 0 else None) as place:
            name = f"openmle-{secrets.token_hex(8)}"
            try:
                async with self._starts:
                    await self._call(lambda: self._start(name, spec, place, f"{uid}:{gid}"))
                began = time.monotonic()
                timed_out = await self._wait(name, spec.limits.wall_seconds)
                wall_seconds = time.monotonic() - began
                state = await self._call(lambda: self._state(name))
            finally:
                await self._call(lambda: self._remove(name))
            return await self._result(spec, place, state, timed_out=timed_out, wall_seconds=wall_seconds)

    async def _result(
        self, spec: RunSpec, place: Workspace, state: _State, *, timed_out: bool, wall_seconds: float
    ) -> RunResult:
        record = read_record(place.record, spec.limits.log_bytes)
        exit_code, signal = record.exit_code, record.signal
        if exit_code is None and signal is None:  # the supervisor was killed, or could not write
            exit_code, signal = (None, state.exit_code - 128) if state.exit_code > 128 else (state.exit_code, None)
        if timed_out:
            exit_code, signal = None, 9
        survived = state.out_of_memory and exit_code == 0
        return RunResult(
            exit_code=exit_code,
            signal=signal,
            timed_out=timed_out,
            out_of_memory=state.out_of_memory,
            wall_seconds=wall_seconds,
            log=record.log,
            artifacts=await read_artifacts(spec, place.work),
            isolation=self.isolation,
            warnings=("a process was killed at the memory limit, and the program went on",) if survived else (),
        )

    async def _call(self, call: Callable[[], T]) -> T:
        """Makes blocking calls to the engine in a thread, to their end even when cancelled.

        Raises:
            RunnerUnavailable: The engine cannot be reached, or refuses.
        """
        try:
            return await finish(asyncio.to_thread(call))
        except _engine_errors() as error:
            raise RunnerUnavailable(f"docker: {error}") from error

    def _engine(self) -> "DockerClient":
        if self._client is None:
            try:
                import docker
            except ImportError as error:
                raise RunnerUnavailable("docker: install openmle-gym[docker]") from error
            options = {"timeout": _GRACE_SECONDS, "max_pool_size": 64}
            if self._base_url is None:
                client = docker.from_env(**options)
            else:
                client = docker.DockerClient(base_url=self._base_url, **options)
            self._cores = float(client.info()["NCPU"])
            self._client = client
        return self._client

    def _require_image(self) -> None:
        engine = self._engine()
        import docker.errors

        try:
            engine.images.get(self._image)
        except docker.errors.ImageNotFound as error:
            raise RunnerUnavailable(f"docker: no image {self._image}; build it with scripts/build_image.sh") from error

    def _start(self, name: str, spec: RunSpec, place: Workspace, user: str) -> None:
        engine = self._engine()
        from docker.types import LogConfig, Mount

        limits = spec.limits
        arguments = supervisor_arguments(
            tuple(expanded(word, python=_PYTHON, inputs=_INPUTS) for word in spec.argv),
            limits,
            record=_RECORD,
            rlimits={},
            settings=("hide_root=1",),
        )
        read_only = {f"{_INPUTS}/{name}": source for name, source in place.inputs.items()} | {_SUPERVISOR: SUPERVISOR}
        writable = {_WORK: place.work, _RECORD: place.root / "record"}
        container = engine.containers.create(
            self._image,
            name=name,
            entrypoint=[_PYTHON, "-I", "-S", _SUPERVISOR],
            command=arguments,
            environment=program_environment(spec, home=_WORK, tmp=_TMP, inputs=_INPUTS, python=_PYTHON),
            working_dir=_WORK,
            user=user,
            labels={MANAGED_LABEL: "1"} | dict(spec.labels),
            mounts=[
                *(Mount(target, str(source), type="bind", read_only=True) for target, source in read_only.items()),
                *(Mount(target, str(source), type="bind") for target, source in writable.items()),
            ],
            read_only=True,
            tmpfs={_TMP: f"exec,nosuid,nodev,mode=1777,size={limits.disk_bytes},nr_inodes={_MOST_INODES}"},
            shm_size=max(1, limits.memory_bytes // 2),
            mem_limit=limits.memory_bytes,
            memswap_limit=limits.memory_bytes,
            nano_cpus=int(min(limits.cpus, self._cores) * 1e9),
            pids_limit=limits.processes + 1,  # the supervisor is not the program's
            network_mode="none",
            ipc_mode="private",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges:true", f"seccomp={docker_profile()}"],
            init=False,  # the supervisor does an init's work, and as the first process it cannot be killed from inside
            runtime=self._runtime,
            log_config=LogConfig(type="none"),
        )
        container.start()

    async def _wait(self, name: str, wall_seconds: float) -> bool:
        """Waits for a container's death, and brings it about when it does not come in time; whether it had to."""
        loop = asyncio.get_running_loop()
        engine = self._engine()
        waiting = loop.run_in_executor(
            self._waits, lambda: engine.api.wait(name, timeout=math.ceil(wall_seconds + 2 * _GRACE_SECONDS))
        )
        # When this task is cancelled nobody asks for the outcome.
        waiting.add_done_callback(lambda future: None if future.cancelled() else future.exception())
        done, _ = await asyncio.wait({waiting}, timeout=wall_seconds)
        timed_out = False
        if not done:
            timed_out = await self._call(lambda: self._kill(name))
            done, _ = await asyncio.wait({waiting}, timeout=_GRACE_SECONDS)
        if not done:
            raise RunnerUnavailable(f"docker: container {name} does not die")
        try:
            waiting.result()
        except _engine_errors() as error:
            raise RunnerUnavailable(f"docker: lost container {name}: {error}") from error
        return timed_out

    def _kill(self, name: str) -> bool:
        """False when it was dead already."""
        from docker.errors import APIError

        try:
            self._engine().api.kill(name)
        except APIError as error:
            if error.status_code != _CONFLICT:
                raise
            return False
        return True

    def _state(self, name: str) -> _State:
        state = self._engine().api.inspect_container(name)["State"]
        return _State(exit_code=state["ExitCode"], out_of_memory=state["OOMKilled"])

    def _remove(self, name: str) -> None:
        engine = self._engine()
        from docker.errors import NotFound

        with suppress(NotFound):  # it was never made
            engine.api.remove_container(name, force=True, v=True)


def _engine_errors() -> tuple[type[Exception], ...]:
    """What the SDK raises, its transport included; nothing when it is not installed."""
    try:
        from docker.errors import DockerException
        from requests.exceptions import RequestException
    except ImportError:
        return ()
    return (DockerException, RequestException)
