"""Rollout servers as processes that Ray actors own, behind one router: a server that dies is replaced, given the current
weights, and taken back."""

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ray
from openmle_gym.errors import InfrastructureError, ModelUnavailable
from pydantic import SecretStr
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from openmle_erl.cluster.config import RolloutShare
from openmle_erl.cluster.placement import Process
from openmle_erl.engines.router import Router
from openmle_erl.engines.serve import ADMIN_KEY, API_KEY
from openmle_erl.engines.sglang import SGLangEngine

OURS = ("-c", "import sys; from openmle_erl.cli import main; sys.exit(main())")
LOG_TAIL_BYTES = 2000
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)  # loaded here, since nothing may be loaded between fork and exec

logger = logging.getLogger(__name__)


class EngineActor:
    """Owns one server's process, which dies with it."""

    def __init__(self, log: str) -> None:
        """Args:
        log: The file that gets what the server prints.
        """
        self._log = Path(log)
        self._server: subprocess.Popen[bytes] | None = None

    def pid(self) -> int:
        """Of the server; 0 while there is none."""
        return self._server.pid if self._server else 0

    def start(self, command: Sequence[str], secrets: Mapping[str, str], *, local_only: bool) -> str:
        """Starts the server, anew where one runs; returns its address, at which it may not answer yet.

        Args:
            secrets: Values for `$NAME` in the command, and for the server's environment.
            local_only: Whether the server is asked from this machine alone.
        """
        self.stop()
        host = "127.0.0.1" if local_only else ray.util.get_node_ip_address()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        ready = self._log.with_suffix(".ready")
        ready.unlink(missing_ok=True)
        if ours := command[0] == "openmle-erl":
            command = [sys.executable, *OURS, *command[1:], f"host={host}", f"ready_file={ready}"]
        values = {f"${name}": value for name, value in secrets.items()} | {"$NODE_ADDRESS": host}
        with os.fdopen(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            self._server = subprocess.Popen(
                [values.get(word, word) for word in command],
                env={**os.environ, **secrets},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,
            )
        if not ours:
            return f"http://{host}:{command[command.index('--port') + 1]}"
        while not ready.exists():
            self.check()
            time.sleep(0.05)
        return ready.read_text(encoding="utf-8").strip()

    def check(self) -> None:
        """Sees whether the server's process runs.

        Raises:
            ModelUnavailable: It ended; quotes its last words.
        """
        if self._server is None or self._server.poll() is not None:
            code = self._server.returncode if self._server else None
            tail = self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace") if self._log.exists() else ""
            raise ModelUnavailable(f"the rollout server ended with {code}; {self._log} ends with:\n{tail}")

    def stop(self) -> None:
        """Ends the server."""
        if self._server is not None and self._server.poll() is None:
            self._server.terminate()
            try:
                self._server.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()


class RolloutGroup:
    """All rollout servers. Use as an async context manager; `router` is the engine to ask."""

    def __init__(
        self,
        config: RolloutShare,
        *,
        processes: Sequence[Process],
        group: PlacementGroup,
        api_key: SecretStr,
        admin_key: SecretStr,
        logs: Path,
        local_only: bool,
    ) -> None:
        """Args:
        processes: The engines' part of a placement.
        logs: A folder for what the servers print.
        local_only: Whether everything runs on this machine.
        """
        self._config = config
        self._processes = {process.name: process for process in processes}
        self._group = group
        self._api_key, self._admin_key = api_key, admin_key
        self._logs = logs
        self._local_only = local_only
        self._actors: dict[str, Any] = {}
        self._engines: dict[str, SGLangEngine] = {}
        self._left = dict.fromkeys(self._processes, config.restarts)
        self._replacing: dict[str, asyncio.Task[None]] = {}
        self.router = Router(look_seconds=config.look_seconds, on_lost=self._replace_soon)
        self.replaced: list[str] = []
        """Engines that were replaced, in order."""

    async def __aenter__(self) -> Self:
        try:
            started = await asyncio.gather(*(self._start(name) for name in self._processes))
            for name, engine in zip(self._processes, started, strict=True):
                await self.router.add(name, engine)
            await self.router.__aenter__()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.router.__aexit__(kind, error, trace)
        await self._end()

    async def release_memory(self) -> None:
        """Has all engines give their GPUs' memory to the trainer."""
        await asyncio.gather(*(engine.release_memory() for engine in self._engines.values()))

    async def reclaim_memory(self) -> None:
        """Has all engines take their GPUs' memory again; they need weights then."""
        await asyncio.gather(*(engine.reclaim_memory() for engine in self._engines.values()))

    async def server_pid(self, name: str) -> int:
        """The process that serves as this engine, on its node."""
        return await self._actors[name].pid.remote()

    async def _end(self) -> None:
        for task in self._replacing.values():
            task.cancel()
        await asyncio.gather(*self._replacing.values(), return_exceptions=True)
        for engine in self._engines.values():
            await engine.aclose()
        stops = [asyncio.ensure_future(actor.stop.remote()) for actor in self._actors.values()]
        if stops:
            await asyncio.wait(stops, timeout=15.0)
        for actor in self._actors.values():
            ray.kill(actor)
        await asyncio.gather(*stops, return_exceptions=True)

    async def _start(self, name: str) -> SGLangEngine:
        """A server that is healthy, with the weights that it starts with.

        Raises:
            InfrastructureError: It ended, or is not healthy in time.
        """
        process = self._processes[name]
        secrets = {API_KEY: self._api_key.get_secret_value(), ADMIN_KEY: self._admin_key.get_secret_value()}
        try:
            async with asyncio.timeout(self._config.start_seconds):
                actor = self._actor(process)
                url = await actor.start.remote(list(process.command), secrets, local_only=self._local_only)
                engine = SGLangEngine(url, api_key=self._api_key, admin_key=self._admin_key, patience_seconds=3.0)
                await self._until_healthy(engine, actor)
        except TimeoutError:
            raise ModelUnavailable(f"{name}: not healthy after {self._config.start_seconds:g} s") from None
        except RayTaskError as error:
            if isinstance(error.cause, InfrastructureError):
                raise error.cause from None
            raise ModelUnavailable(f"{name}: {error}") from error
        except RayError as error:
            self._actors.pop(name, None)
            raise ModelUnavailable(f"{name}: {str(error).splitlines()[0]}") from error
        before = self._engines.pop(name, None)
        if before:
            await before.aclose()
        self._engines[name] = engine
        return engine

    async def _until_healthy(self, engine: SGLangEngine, actor: Any) -> None:
        while True:
            with suppress(ModelUnavailable):
                return await engine.check_health()
            await actor.check.remote()
            await asyncio.sleep(0.5)

    def _actor(self, process: Process) -> Any:
        """The engine's actor; a new one where it died."""
        if process.name not in self._actors:
            words = {name: value for name, value in process.environment.items() if not value.startswith("$")}
            self._actors[process.name] = (
                ray.remote(EngineActor)
                .options(
                    num_cpus=0,
                    num_gpus=0,
                    max_restarts=0,  # its server would not come back with it
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        placement_group=self._group, placement_group_bundle_index=process.node
                    ),
                    runtime_env={"env_vars": words},
                )
                .remote(str(self._logs / f"{process.name}.log"))
            )
        return self._actors[process.name]

    def _replace_soon(self, name: str) -> None:
        if name not in self._replacing:
            task = self._replacing[name] = asyncio.create_task(self._replace(name))
            task.add_done_callback(lambda _: self._replacing.pop(name, None))

    async def _replace(self, name: str) -> None:
        """Starts a lost engine anew, unless its server runs and is healthy: the router takes that one back itself."""
        if await self._works(name):
            return
        while self._left[name]:
            self._left[name] -= 1
            try:
                await self.router.add(name, await self._start(name))
            except InfrastructureError as error:
                logger.warning("engine %s is not replaced, %d tries left: %s", name, self._left[name], error)
            else:
                self.replaced.append(name)
                return
        logger.error("engine %s stays out: it was replaced %d times", name, self._config.restarts)

    async def _works(self, name: str) -> bool:
        try:
            await self._actors[name].check.remote()
            await self._engines[name].check_health()
        except RayActorError:
            self._actors.pop(name, None)
            return False
        except (RayTaskError, InfrastructureError):
            return False
        return True


def _die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
