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
from openmle_gym.isolation.container import container_request
from openmle_gym.isolation.disk import until_over
from openmle_gym.isolation.logs import Record, read_record
from openmle_gym.isolation.runner import GpuUse, Isolation, RunResult, RunSpec
from openmle_gym.isolation.workspace import Workspace, finish, let_go, prove, read_artifacts, workspace
from openmle_gym.jobs import MIB

if TYPE_CHECKING:
    from docker import DockerClient

T = TypeVar("T")

_NOBODY = 65534
_CONFLICT = 409
_VRAM_LOOK_SECONDS = 1.0
"""Between two looks at the GPU memory in use."""
_VRAM_GRACE_BYTES = 1024 * MIB
"""What a run may use beyond its share before it is killed: the driver's own part, which is not the program's doing."""


class State(NamedTuple):
    """What the engine says of a dead container."""

    exit_code: int
    out_of_memory: bool


class Watched(NamedTuple):
    """What we saw of a container, and whether we killed it."""

    timed_out: bool = False
    over_vram: bool = False
    over_disk: bool = False
    peak_vram_bytes: int | None = None


class End(NamedTuple):
    """How the program ended; one of the two is None."""

    exit_code: int | None
    signal: int | None


def program_end(record: Record, state: State, watched: Watched) -> End:
    """How a program ended, from the three who know: its supervisor, the engine, and we.

    The supervisor is the first process of the container, so nothing inside can kill it; when it wrote no end, and
    neither we nor the memory limit killed it, somebody outside did.

    Raises:
        RunnerUnavailable: The container was killed from outside, or the supervisor never started the program.
    """
    if watched.timed_out or watched.over_vram or watched.over_disk:
        return End(None, 9)
    if record.exit_code is not None or record.signal is not None:
        return End(record.exit_code, record.signal)
    if state.out_of_memory:
        return End(None, 9)
    if state.exit_code > 128:
        raise RunnerUnavailable(f"docker: the container was killed from outside (status {state.exit_code})")
    if not record.started:
        raise RunnerUnavailable(f"docker: the supervisor could not start the program (status {state.exit_code})")
    return End(state.exit_code, None)  # the program has overwritten its record; its supervisor ended with its status


class DockerRunner:
    """One fresh container per run, removed afterwards however it ended.

    What is covered: everything that `RunSpec` says, enforced by the kernel: no network, memory without swap, processes,
    CPU time, a read-only root, no capabilities, an allow-list of system calls, an unprivileged user.

    What is not: the program can learn the host's memory size and the paths of its mounts; whoever runs this must be
    allowed to use the engine, which is as good as root.

    The working directory is memory of limited size and number of files, which counts as the program's. Where we are not
    root it is an ordinary folder that is looked at some times a second, so that a program can write more for a moment,
    and hide what it writes (`until_over`).
    """

    isolation = Isolation.DOCKER

    def __init__(
        self,
        *,
        image: str,
        runtime: str | None = None,
        base_url: str | None = None,
        starts: int = 0,
        patience_seconds: float = 60.0,
    ) -> None:
        """Connects on first use.

        Args:
            image: Present on the engine, with Python 3.11 or newer at /opt/venv/bin/python.
            runtime: The engine's name of another container runtime, such as `runsc`; None is its default.
            base_url: The engine's address; None reads the DOCKER_* variables, else the local socket. The engine must
                see this machine's temporary folder under the same path, and if we are root what we mount there.
            starts: Containers that are started at once; 0 is twice this machine's cores. More make each one slower and
                none faster.
            patience_seconds: How long the engine may take to answer, or a killed container to die.
        """
        self._image = image
        self._runtime = runtime
        self._base_url = base_url
        self._client: DockerClient | None = None
        self._cores = 1.0
        self._runtimes: tuple[str, ...] = ()
        self._nvidia_runtime = False
        self._patience_seconds = patience_seconds
        self._starts = asyncio.Semaphore(starts or 2 * (os.cpu_count() or 1))
        # A waiting thread per running container; they must not use up the threads that kill and remove.
        self._waits = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="docker-wait")

    async def check(self) -> None:
        """See `Runner`. Also proves the runtime: its trivial program has to end within a minute."""
        await self._call(self._require_runtime_and_image)
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
                watched = await self._watch(name, spec, place)
                wall_seconds = time.monotonic() - began
                state = await self._call(lambda: self._state(name))
            finally:
                await self._call(lambda: self._remove(name))
            return await self._result(spec, place, state, watched, wall_seconds)

    async def _result(
        self, spec: RunSpec, place: Workspace, state: State, watched: Watched, wall_seconds: float
    ) -> RunResult:
        record = read_record(place.record, spec.limits.log_bytes)
        end = program_end(record, state, watched)
        survived = state.out_of_memory and end.exit_code == 0
        return RunResult(
            exit_code=end.exit_code,
            signal=end.signal,
            timed_out=watched.timed_out,
            out_of_memory=state.out_of_memory,
            too_much_output=record.killed_for_output(spec.limits.output_bytes),
            disk_full=watched.over_disk,
            gpu=None
            if spec.gpu is None
            else GpuUse(
                enforcement=spec.gpu.enforcement, peak_bytes=watched.peak_vram_bytes, over_limit=watched.over_vram
            ),
            wall_seconds=wall_seconds,
            log=record.log,
            artifacts=await read_artifacts(spec, place),
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
            if "Read timed out" in str(error):  # of the SDK's transport, which has several classes for it
                raise RunnerUnavailable(
                    f"docker: the engine took a request and did not answer in {self._patience_seconds:g} seconds;"
                    " when that stays so, restart it"
                ) from error
            raise RunnerUnavailable(f"docker: {error}") from error

    def _engine(self) -> "DockerClient":
        if self._client is None:
            try:
                import docker
            except ImportError as error:
                raise RunnerUnavailable("docker: install openmle-gym[docker]") from error
            options = {"timeout": self._patience_seconds, "max_pool_size": 64}
            if self._base_url is None:
                client = docker.from_env(**options)
            else:
                client = docker.DockerClient(base_url=self._base_url, **options)
            facts = client.info()
            self._cores = float(facts["NCPU"])
            self._runtimes = tuple(facts["Runtimes"])
            self._nvidia_runtime = (self._runtime or facts["DefaultRuntime"]) == "nvidia"
            self._client = client
        return self._client

    def _require_runtime_and_image(self) -> None:
        engine = self._engine()
        import docker.errors

        if self._runtime is not None and self._runtime not in self._runtimes:
            raise RunnerUnavailable(
                f"docker: the engine has no runtime {self._runtime!r}, but {', '.join(self._runtimes)};"
                " add it to the engine's daemon.json, or choose another"
            )
        try:
            engine.images.get(self._image)
        except docker.errors.ImageNotFound as error:
            raise RunnerUnavailable(
                f"docker: no image {self._image}; build it with openmle-sandbox image build"
            ) from error

    def _start(self, name: str, spec: RunSpec, place: Workspace, user: str) -> None:
        engine = self._engine()
        from docker.errors import APIError

        request = container_request(
            spec,
            place,
            image=self._image,
            user=user,
            cores=self._cores,
            runtime=self._runtime,
            nvidia_runtime=self._nvidia_runtime,
        )
        container = engine.containers.create(name=name, **request)
        try:
            container.start()
        except APIError as error:
            if "could not select device driver" in str(error):
                raise RunnerUnavailable(
                    "docker: the engine cannot give a container a GPU; install NVIDIA's driver and its container"
                    f" toolkit on the engine's machine ({error.explanation})"
                ) from error
            raise
        let_go(place)

    async def _watch(self, name: str, spec: RunSpec, place: Workspace) -> Watched:
        """Waits for a container's death, and brings it about when it goes over its time, or its share of GPU or disk."""
        loop = asyncio.get_running_loop()
        engine, wall_seconds = self._engine(), spec.limits.wall_seconds
        waiting = loop.run_in_executor(
            self._waits, lambda: engine.api.wait(name, timeout=math.ceil(wall_seconds + 2 * self._patience_seconds))
        )
        # When this task is cancelled nobody asks for the outcome.
        waiting.add_done_callback(lambda future: None if future.cancelled() else future.exception())
        deadline = loop.time() + wall_seconds
        peak: int | None = None
        over_vram = over_disk = False
        filling: set[asyncio.Task[None]] = set()
        if place.watched_bytes is not None:
            filling.add(asyncio.create_task(until_over(place.work, place.watched_bytes)))
        try:
            while not (waiting.done() or over_vram or over_disk or loop.time() >= deadline):
                left = deadline - loop.time()
                if spec.gpu is None or spec.gpu.used_bytes is None:
                    await asyncio.wait({waiting, *filling}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.wait({waiting}, timeout=min(left, _VRAM_LOOK_SECONDS))
                    peak = max(peak or 0, await asyncio.to_thread(spec.gpu.used_bytes))
                    over_vram = not waiting.done() and peak > spec.gpu.vram_bytes + _VRAM_GRACE_BYTES
                over_disk = any(task.done() for task in filling)
        finally:
            for task in filling:
                task.cancel()
        killed = False
        if not waiting.done():
            killed = await self._call(lambda: self._kill(name))
            await asyncio.wait({waiting}, timeout=self._patience_seconds)
        if not waiting.done():
            raise RunnerUnavailable(f"docker: container {name} does not die")
        try:
            waiting.result()
        except _engine_errors() as error:
            raise RunnerUnavailable(f"docker: lost container {name}: {error}") from error
        return Watched(
            timed_out=killed and not (over_vram or over_disk),
            over_vram=killed and over_vram,
            over_disk=killed and over_disk,
            peak_vram_bytes=peak,
        )

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

    def _state(self, name: str) -> State:
        state = self._engine().api.inspect_container(name)["State"]
        return State(exit_code=state["ExitCode"], out_of_memory=state["OOMKilled"])

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
