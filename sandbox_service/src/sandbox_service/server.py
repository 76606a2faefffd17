"""One service from start to stop: the lock, what an earlier life left, the queue, the listening socket, the signals."""

import asyncio
import fcntl
import logging
import os
import shutil
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import uvicorn
from openmle_gym.errors import ConfigError, StoreError
from openmle_gym.isolation.runner import Isolation
from openmle_gym.jobs import MIB
from starlette.applications import Starlette

from sandbox_service.app import create_app
from sandbox_service.artifact_store import ArtifactStore
from sandbox_service.auth import Keys
from sandbox_service.config import ServeConfig
from sandbox_service.dispatch import Dispatcher
from sandbox_service.dispatch.local import LocalDispatcher
from sandbox_service.dispatch.machine import open_gpus, open_runner
from sandbox_service.packages import Packages
from sandbox_service.recovery import fresh_work_dir, reap_containers, service_id
from sandbox_service.scheduler import Scheduler
from sandbox_service.slots import Slots
from sandbox_service.store import JobStore

ANSWER_SECONDS = 3
"""After a stop, how long answers under way may take."""

logger = logging.getLogger(__name__)


async def serve(config: ServeConfig) -> None:
    """Serves until SIGINT or SIGTERM. Programs that run then may end within `drain_seconds`; the jobs of those that do
    not run again at the next start.

    Raises:
        ConfigError: A setting cannot work here.
        StoreError: Another service runs on `state_dir`, or its database is not ours.
        RunnerUnavailable: No isolation that the settings allow works here.
    """
    keys = Keys.from_environment(config.keys_file)
    keys.check_host(config.host)
    roots = _folders(config.task_roots)
    with _locked(config.state_dir) as state_dir, _listening(config) as (listener, url):
        service = service_id(state_dir)
        work_dir = fresh_work_dir(config.work_dir or state_dir / "work")
        staging = state_dir / "staging"
        shutil.rmtree(staging, ignore_errors=True)
        packages = Packages(roots, staging=staging)
        dispatcher = await (_on_nodes if config.dispatch == "ray" else _here)(config, packages, service)
        scheduler = Scheduler(
            store=JobStore(state_dir / "jobs.sqlite", config.policy()),
            packages=packages,
            dispatcher=dispatcher,
            artifacts=ArtifactStore(state_dir / "artifacts"),
            gpu_on_cpu=config.gpu_on_cpu,
            keep_days=config.keep_days,
            most_artifact_bytes=int(config.max_artifacts_mib * MIB),
        )
        app = create_app(scheduler, keys, max_body_bytes=int(config.max_body_mib * MIB))
        async with scheduler:
            chosen = "the strongest that works here" if config.runner == "auto" else "as set"
            logger.info("listening on %s with %d workers", url, len(dispatcher.places()))
            logger.info("programs are held by %s (%s)", dispatcher.isolation, chosen)
            logger.info("task packages in %s; jobs in %s", ", ".join(map(str, roots)), state_dir)
            logger.info("service %s; files of running programs in %s", service, work_dir)
            if not keys:
                logger.info("no API keys: this machine only, and no test scores")
            await _Server(app, scheduler, url, config).run_on(listener)


async def _here(config: ServeConfig, packages: Packages, service: str) -> Dispatcher:
    runner = await open_runner(config)
    if runner.isolation is Isolation.DOCKER and (reaped := await asyncio.to_thread(reap_containers, service)):
        logger.warning("removed %d containers that an earlier life of this service left", reaped)
    return LocalDispatcher(
        runner=runner,
        packages=packages,
        limits=config.limits(),
        grading_limits=config.grading_limits(),
        slots=Slots(cpu=config.worker_count(), gpus=open_gpus(config, runner)),
        artifact_bytes=int(config.artifact_mib * MIB),
        service_id=service,
    )


async def _on_nodes(config: ServeConfig, packages: Packages, service: str) -> Dispatcher:
    try:
        from sandbox_service.dispatch.ray import RayDispatcher
    except ModuleNotFoundError as error:
        raise ConfigError(f"dispatch=ray: install openmle-sandbox[ray] ({error})") from error
    roots = [str(root) for root in _folders(config.task_roots)]
    dispatcher = RayDispatcher(replace(config, task_roots=roots), service_id=service, packages=packages)
    await dispatcher.connect()
    return dispatcher


def _folders(task_roots: Sequence[str]) -> list[Path]:
    roots = [Path(root).resolve() for root in task_roots]
    for root in roots:
        if not root.is_dir():
            raise ConfigError(f"task_roots: {root} is not a folder")
    return roots


@contextmanager
def _locked(folder: str) -> Iterator[Path]:
    """Makes the folder and holds it for this process; the kernel lets go when it dies, however it dies."""
    state_dir = Path(folder).resolve()
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (state_dir / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise StoreError(f"state_dir={state_dir}: a service runs on it already (process {lock.read()})") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield state_dir


@contextmanager
def _listening(config: ServeConfig) -> Iterator[tuple[socket.socket, str]]:
    """A listening socket and the base URL that leads to it."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(address, family=family, backlog=2048)
        # asyncio leaves Nagle's algorithm on for sockets that were made without naming TCP; it costs 40 ms an answer.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise ConfigError(f"host={config.host} port={config.port}: cannot listen there: {error}") from error
    with listener:
        host = f"[{config.host}]" if ":" in config.host else config.host
        scheme = "https" if config.tls_certificate else "http"
        yield listener, f"{scheme}://{host}:{listener.getsockname()[1]}"


class _Server(uvicorn.Server):
    """uvicorn, draining and stopping the scheduler before it waits for open answers, since those may be waiting for a
    job. While the scheduler drains, requests are answered."""

    def __init__(self, app: Starlette, scheduler: Scheduler, url: str, config: ServeConfig) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=ANSWER_SECONDS,
                ssl_certfile=config.tls_certificate,
                ssl_keyfile=config.tls_key,
            )
        )
        self._scheduler = scheduler
        self._url = url
        self._drain_seconds = config.drain_seconds
        self._ready_file = Path(config.ready_file) if config.ready_file else None
        self._hurry = asyncio.Event()

    async def run_on(self, listener: socket.socket) -> None:
        """Serves until a signal."""
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle_exit)  # in force again when uvicorn has taken its own handlers away
        await self.serve(sockets=[listener])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stops at the first signal, without more patience at the second. uvicorn's own would have the signal raised
        again at the end."""
        if self.should_exit:
            self._loop.call_soon_threadsafe(self._hurry.set)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._ready_file:
            part = self._ready_file.with_name(self._ready_file.name + ".part")
            part.write_text(self._url, encoding="utf-8")
            part.replace(self._ready_file)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._ready_file:
            self._ready_file.unlink(missing_ok=True)
        draining = asyncio.create_task(self._scheduler.drain(self._drain_seconds))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({draining, hurry}, return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, hurry):
            task.cancel()
        await self._scheduler.stop()
        await super().shutdown(sockets)
