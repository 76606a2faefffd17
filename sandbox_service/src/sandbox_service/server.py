"""One service from start to stop: the lock, the store, the workers, the listening socket, the signals."""

import fcntl
import logging
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from openmle_gym.errors import ConfigError, StoreError
from openmle_gym.isolation.choose import strongest_runner
from openmle_gym.jobs import MIB
from starlette.applications import Starlette

from sandbox_service.app import create_app
from sandbox_service.auth import Keys
from sandbox_service.config import ServeConfig
from sandbox_service.packages import Packages
from sandbox_service.scheduler import Scheduler
from sandbox_service.store import JobStore

DRAIN_SECONDS = 3
"""After a stop, how long answers under way may take."""

logger = logging.getLogger(__name__)


async def serve(config: ServeConfig) -> None:
    """Serves until SIGINT or SIGTERM. Programs that run then are killed, and their jobs run again at the next start.

    Raises:
        ConfigError: A setting cannot work here.
        StoreError: Another service runs on `state_dir`, or its database is not ours.
        RunnerUnavailable: No isolation that the settings allow works here.
    """
    keys = Keys.from_environment()
    keys.check_host(config.host)
    roots = _folders(config.task_roots)
    runner = await strongest_runner(config.runner, docker_image=config.docker_image, allow_process=config.allow_process)
    with _locked(config.state_dir) as state_dir, _listening(config) as (listener, url):
        scheduler = Scheduler(
            store=JobStore(state_dir / "jobs.sqlite"),
            packages=Packages(roots),
            runner=runner,
            limits=config.limits(),
            workers=config.worker_count(),
            max_attempts=config.max_attempts,
            max_queued=config.max_queued,
        )
        app = create_app(scheduler, keys, max_body_bytes=int(config.max_body_mib * MIB))
        async with scheduler:
            chosen = "the strongest that works here" if config.runner == "auto" else "as set"
            logger.info("listening on %s with %d workers", url, config.worker_count())
            logger.info("programs are held by %s (%s)", runner.isolation, chosen)
            logger.info("task packages in %s; jobs in %s", ", ".join(map(str, roots)), state_dir)
            if not keys:
                logger.info("no API keys: this machine only, and no test scores")
            await _Server(app, scheduler, url, config.ready_file).run_on(listener)


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
    except OSError as error:
        raise ConfigError(f"host={config.host} port={config.port}: cannot listen there: {error}") from error
    with listener:
        host = f"[{config.host}]" if ":" in config.host else config.host
        yield listener, f"http://{host}:{listener.getsockname()[1]}"


class _Server(uvicorn.Server):
    """uvicorn, stopping the scheduler before it waits for open answers, since those may be waiting for a job."""

    def __init__(self, app: Starlette, scheduler: Scheduler, url: str, ready_file: str | None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=DRAIN_SECONDS,
            )
        )
        self._scheduler = scheduler
        self._url = url
        self._ready_file = Path(ready_file) if ready_file else None

    async def run_on(self, listener: socket.socket) -> None:
        """Serves until a signal. uvicorn raises the signal again at its end; with our handlers that ends nothing."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: setattr(self, "should_exit", True))
        await self.serve(sockets=[listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._ready_file:
            part = self._ready_file.with_name(self._ready_file.name + ".part")
            part.write_text(self._url, encoding="utf-8")
            part.replace(self._ready_file)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._ready_file:
            self._ready_file.unlink(missing_ok=True)
        await self._scheduler.stop()
        await super().shutdown(sockets)
