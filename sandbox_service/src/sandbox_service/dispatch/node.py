"""One node's share of the work: a local dispatcher behind messages. It knows nothing of the queue, nor of Ray."""

import asyncio
import fcntl
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NamedTuple

from openmle_gym.errors import InfrastructureError
from openmle_gym.isolation.runner import BoundedLog, Isolation
from openmle_gym.isolation.workspace import remove_tree
from openmle_gym.jobs import MIB, JobRequest

from sandbox_service import __version__
from sandbox_service.config import ServeConfig
from sandbox_service.dispatch import Order, Place
from sandbox_service.dispatch.local import LocalDispatcher
from sandbox_service.dispatch.machine import open_gpus, open_runner
from sandbox_service.dispatch.shipping import Content, Shipped, Tree
from sandbox_service.packages import Packages
from sandbox_service.records import ResourceClass
from sandbox_service.recovery import fresh_work_dir, reap_containers
from sandbox_service.slots import Slots

logger = logging.getLogger(__name__)


class NodeFacts(NamedTuple):
    """What a node has to offer."""

    isolation: str
    places: list[Place]


class NodeReply(NamedTuple):
    """A `JobRun` that can cross to the head."""

    result_json: str
    artifacts: Mapping[str, bytes]


class NodeWorker:
    """Runs on a node, one at a time. It dies with its connection to the head, and its programs with it."""

    def __init__(self, config: ServeConfig, *, service_id: str, node_id: str, name: str, cpu_slots: int) -> None:
        """Args:
        node_id: Names the node's folder; the same as long as the node is up.
        name: The node in the ids of its places; another in each life of this worker.
        """
        self._config = config
        self._service_id = service_id
        self._node_id = node_id
        self._name = name
        self._cpu_slots = cpu_slots
        self._runs: dict[tuple[str, int], asyncio.Task[NodeReply]] = {}
        self._killed: set[tuple[str, int]] = set()

    async def open(self, version: str) -> NodeFacts:
        """Clears what earlier lives left, and proves the isolation.

        Raises:
            InfrastructureError: This node has other software than the head, or cannot start programs.
        """
        if version != __version__:
            raise InfrastructureError(f"openmle-sandbox {__version__} is installed here, and {version} on the head")
        base = self._folder()
        own = base / "lives" / self._node_id
        runner = await open_runner(self._config)
        await asyncio.to_thread(self._take_over, own, runner.isolation is Isolation.DOCKER)
        fresh_work_dir(own / "work")
        self._shipped = Shipped(base)
        roots = [self._shipped.packages] if self._config.ray_ship_packages else map(Path, self._config.task_roots)
        self._local = LocalDispatcher(
            runner=runner,
            packages=Packages(list(roots), staging=own / "staging"),
            limits=self._config.limits(),
            grading_limits=self._config.grading_limits(),
            slots=Slots(cpu=self._cpu_slots, gpus=open_gpus(self._config, runner)),
            artifact_bytes=int(self._config.artifact_mib * MIB),
            node=self._name,
            service_id=self._label(own),
        )
        await self._local.__aenter__()
        return NodeFacts(runner.isolation, self._local.places())

    async def check(self) -> None:
        """See `Dispatcher`."""
        await self._local.check()

    async def places(self) -> list[Place]:
        """See `Dispatcher`."""
        return self._local.places()

    async def acquire(self, resource_class: ResourceClass) -> Place:
        """See `Dispatcher`."""
        return await self._local.acquire(resource_class)

    async def still_usable(self, place: Place) -> bool:
        """See `Dispatcher`."""
        return await self._local.still_usable(place)

    async def release(self, place: Place) -> None:
        """See `Dispatcher`."""
        self._local.release(place)

    async def run(self, place: Place, order: Order, package: str | None) -> NodeReply:
        """See `Dispatcher`.

        Args:
            package: The digest of the package that was sent here for it; None when the job names the package.
        """
        start = (order.job_id, order.attempt)
        if start in self._killed:  # messages may overtake each other
            raise asyncio.CancelledError
        self._runs[start] = asyncio.create_task(self._run(place, order, package))
        try:
            return await self._runs[start]
        finally:
            del self._runs[start]
            self._killed.discard(start)

    async def _run(self, place: Place, order: Order, package: str | None) -> NodeReply:
        if package is not None:
            request = JobRequest.model_validate_json(order.request_json).model_copy(update={"data_dir": package})
            order = order.model_copy(update={"request_json": request.model_dump_json()})
        run = await self._local.run(place, order)
        return NodeReply(run.result.model_dump_json(), dict(run.artifacts))

    async def kill(self, job_id: str, attempt: int) -> None:
        """Kills a program; it is dead when this ends."""
        self._killed.add((job_id, attempt))
        if task := self._runs.get((job_id, attempt)):
            task.cancel()
            await asyncio.wait({task})

    async def read_log(self, job_id: str) -> BoundedLog | None:
        """See `Dispatcher`."""
        return await self._local.read_log(job_id)

    async def missing(self, tree: Tree) -> list[Content]:
        """See `Shipped`."""
        return await asyncio.to_thread(self._shipped.missing, tree)

    async def receive(self, sha256: str, offset: int, chunk: bytes) -> None:
        """See `Shipped`."""
        await asyncio.to_thread(self._shipped.receive, sha256, offset, chunk)

    async def keep(self, sha256: str) -> None:
        """See `Shipped`."""
        await asyncio.to_thread(self._shipped.keep, sha256)

    async def assemble(self, tree: Tree) -> None:
        """See `Shipped`."""
        await asyncio.to_thread(self._shipped.assemble, tree)

    async def close(self) -> None:
        """Kills what runs."""
        for task in self._runs.values():
            task.cancel()
        await asyncio.gather(*self._runs.values(), return_exceptions=True)
        await self._local.__aexit__()

    def _folder(self) -> Path:
        named = self._config.ray_node_dir
        return (Path(named) if named else Path.home() / ".openmle" / "node") / self._service_id

    def _label(self, life: Path) -> str:
        return f"{self._service_id}-{life.name}"

    def _take_over(self, own: Path, docker: bool) -> None:
        """Makes the folder `own`, and removes what is left of lives on this machine whose worker is dead."""
        own.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (own.parent / "lock").open("a") as alone:
            fcntl.flock(alone, fcntl.LOCK_EX)
            own.mkdir(mode=0o700, exist_ok=True)
            self._lock = _lock(own)
            if self._lock is None:
                raise InfrastructureError(f"{own}: the worker before this one still runs")
            for life in filter(Path.is_dir, own.parent.iterdir()):
                lock = self._lock if life == own else _lock(life)
                if lock is None:
                    continue
                if docker and (reaped := reap_containers(self._label(life))):
                    logger.warning("removed %d containers that %s left", reaped, life)
                if life != own:
                    fresh_work_dir(life / "work")  # takes down the mounts in it
                    remove_tree(life)
                    lock.close()


def _lock(life: Path) -> IO[str] | None:
    """A file that holds the folder for this process until it is closed; None where another process holds it."""
    lock = (life / "lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock
