"""Jobs on the nodes of a Ray cluster: one worker on each, and the queue's record on the head alone.

Ray says which nodes there are, which of them died, and carries messages; which place takes which job is decided here.
A worker is never restarted by Ray: whatever it ran is lost with it, and the next one begins by clearing that away.
"""

import asyncio
import logging
import os
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from openmle_gym.errors import InfrastructureError, JobLost, OpenMLEError, RunnerUnavailable
from openmle_gym.execute import JobRun
from openmle_gym.isolation.runner import BoundedLog
from openmle_gym.jobs import JobRequest, JobResult
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sandbox_service import __version__
from sandbox_service.config import ServeConfig
from sandbox_service.dispatch import Order, Place
from sandbox_service.dispatch.node import NodeFacts, NodeReply, NodeWorker
from sandbox_service.dispatch.shipping import CHUNK_BYTES, describe
from sandbox_service.packages import Packages
from sandbox_service.records import ResourceClass

LOOK_SECONDS = 2.0
"""Between two looks at the cluster. A worker that dies while it runs jobs is noticed at once."""
OPEN_AGAIN_SECONDS = 30.0
"""Before a node is tried again where no worker could be started."""
ANSWER_SECONDS = 30.0
"""How long a worker may take to kill a program, or to say what its places are, before the node counts as lost."""
MESSAGES_AT_ONCE = 10_000
KEEPERS_STAY = {"RAY_kill_child_processes_on_worker_exit": "false"}
"""A worker that ends would kill its children, those that watch over programs, and leave their programs running. They end
by themselves when their worker does, and their programs with them."""
LOST_SHOWN = 16
"""Lost nodes that status pages still show."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class _Node:
    """One life of a worker on a node."""

    node_id: str
    name: str
    actor: Any
    isolation: str
    places: list[Place]
    free: list[Place] = field(default_factory=list)
    in_doubt: bool = False
    """Its isolation failed; it gets no jobs until a check passes."""
    shipping: asyncio.Lock = field(default_factory=asyncio.Lock)
    shipped: set[str] = field(default_factory=set)

    def open_places(self, resource_class: ResourceClass) -> list[Place]:
        """Where a job of this class could start now."""
        return [] if self.in_doubt else [place for place in self.free if place.resource_class == resource_class]


class RayDispatcher:
    """A `Dispatcher` on many machines."""

    isolation: str

    def __init__(self, config: ServeConfig, *, service_id: str, packages: Packages) -> None:
        """Args:
        packages: What is sent to the nodes, where the settings say so.
        """
        # Nodes need no key: what the service's own port needs stays here.
        self._config = replace(config, tls_certificate=None, tls_key=None, keys_file=None)
        self._service_id = service_id
        self._packages = packages
        self._nodes: dict[str, _Node] = {}
        self._lost: dict[str, _Node] = {}
        self._held: dict[str, _Node] = {}  # by worker_id
        self._running: dict[str, _Node] = {}  # by job_id
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._lives: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._refusals: dict[str, str] = {}

    async def connect(self) -> None:
        """Joins the cluster, and waits for the first worker; the others come as they are ready.

        Raises:
            RunnerUnavailable: There is no cluster, or no node of it can run programs; says of each why.
        """
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        try:
            await asyncio.to_thread(
                ray.init,
                address=self._config.ray_address,
                namespace=f"openmle-{self._service_id}",
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            raise RunnerUnavailable(f"ray_address={self._config.ray_address}: {error}") from error
        try:
            await self._look()
            while not self._nodes:
                if not self._opening or len(self._refusals) == len(self._opening):
                    reasons = "; ".join(self._refusals.values()) or "no node offers room for programs"
                    raise RunnerUnavailable(f"ray_address={self._config.ray_address}: {reasons}")
                await self._changed.wait()
        except BaseException:
            await self._disconnect()
            raise
        self.isolation = ", ".join(sorted({node.isolation for node in self._nodes.values()}))

    async def __aenter__(self) -> "RayDispatcher":
        self._background(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._disconnect()

    async def _disconnect(self) -> None:
        tasks = [*self._tasks, *self._opening.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        closing = [asyncio.create_task(self._ask(node, "close")) for node in self._nodes.values()]
        if closing:
            await asyncio.wait(closing, timeout=ANSWER_SECONDS)
        await asyncio.to_thread(ray.shutdown)
        await asyncio.gather(*closing, return_exceptions=True)

    async def check(self) -> None:
        """See `Dispatcher`."""
        if not self._nodes:
            raise RunnerUnavailable("no node is left: " + "; ".join(self._refusals.values()))
        await asyncio.gather(*(self._check(node) for node in list(self._nodes.values()) if node.in_doubt))
        if all(node.in_doubt for node in self._nodes.values()):
            raise RunnerUnavailable("; ".join(self._refusals.values()) or "no node is left")

    def places(self) -> list[Place]:
        """See `Dispatcher`."""
        lost = [place.model_copy(update={"state": "lost"}) for node in self._lost.values() for place in node.places]
        doubtful = [
            place.model_copy(update={"state": "lost"}) if node.in_doubt else place
            for node in self._nodes.values()
            for place in node.places
        ]
        return [*doubtful, *lost]

    async def acquire(self, resource_class: ResourceClass) -> Place:
        """See `Dispatcher`. The node with the most free places comes first."""
        while True:
            changed = self._changed
            node = max(self._nodes.values(), key=lambda node: len(node.open_places(resource_class)), default=None)
            if node is not None and (places := node.open_places(resource_class)):
                node.free.remove(places[0])
                self._held[places[0].worker_id] = node
                return places[0]
            await changed.wait()

    async def still_usable(self, place: Place) -> bool:
        """See `Dispatcher`. Asks the node, so that none that is lost, noticed or not, costs the next job an attempt."""
        node = self._held[place.worker_id]
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return not node.in_doubt and await self._ask(node, "still_usable", place)
        except (TimeoutError, JobLost):
            return False

    def release(self, place: Place) -> None:
        """See `Dispatcher`."""
        node = self._held.pop(place.worker_id)
        if self._alive(node):
            self._background(self._return(node, place))

    async def run(self, place: Place, order: Order) -> JobRun:
        """See `Dispatcher`."""
        node = self._held[place.worker_id]
        self._running[order.job_id] = node
        try:
            package = await self._ship(node, order) if self._config.ray_ship_packages else None
            reply: NodeReply = await self._ask(node, "run", place, order, package)
        except asyncio.CancelledError:
            await self._kill(node, order)
            raise
        except RunnerUnavailable as error:
            self._doubt(node, error)
            if not all(node.in_doubt for node in self._nodes.values()):
                raise InfrastructureError(str(error)) from error  # the other nodes are beyond doubt
            raise
        finally:
            del self._running[order.job_id]
        return JobRun(JobResult.model_validate_json(reply.result_json), reply.artifacts)

    async def read_log(self, job_id: str) -> BoundedLog | None:
        """See `Dispatcher`."""
        node = self._running.get(job_id)
        try:
            return await self._ask(node, "read_log", job_id) if node else None
        except JobLost:
            return None

    async def _kill(self, node: _Node, order: Order) -> None:
        """A program that its worker cannot kill dies with the worker."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._ask(node, "kill", order.job_id, order.attempt)
        except (TimeoutError, InfrastructureError) as error:
            self._lose(node, f"cannot kill job {order.job_id}: {error}")

    async def _ship(self, node: _Node, order: Order) -> str:
        """Sends a job's package to a node, as far as it is not there yet; returns its digest."""
        data_dir = JobRequest.model_validate_json(order.request_json).data_dir
        package = await asyncio.to_thread(self._packages.load, data_dir)
        tree = await asyncio.to_thread(describe, package.root)
        async with node.shipping:
            if tree.digest not in node.shipped:
                for content in await self._ask(node, "missing", tree):
                    await self._send(node, package.root / content.path, content.sha256)
                await self._ask(node, "assemble", tree)
                node.shipped.add(tree.digest)
        return tree.digest

    async def _send(self, node: _Node, path: Path, sha256: str) -> None:
        with path.open("rb") as file:
            offset = 0
            while (chunk := await asyncio.to_thread(file.read, CHUNK_BYTES)) or not offset:
                await self._ask(node, "receive", sha256, offset, chunk)
                offset += len(chunk)
                if len(chunk) < CHUNK_BYTES:
                    break
        await self._ask(node, "keep", sha256)

    async def _ask(self, node: _Node, method: str, *arguments: object) -> Any:
        """A worker's answer, or what it raised.

        Raises:
            JobLost: The worker died, or cannot be reached; its node is lost.
        """
        try:
            return await getattr(node.actor, method).remote(*arguments)
        except RayTaskError as error:
            if isinstance(error.cause, OpenMLEError):
                raise error.cause from None
            raise
        except RayActorError as error:
            self._lose(node, str(error).splitlines()[0])
            raise JobLost(f"node {node.name} was lost with all that ran there") from error

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._look()
                await asyncio.gather(*(self._refresh(node) for node in list(self._nodes.values())))
            except (RayError, RuntimeError, ConnectionError):
                logger.exception("cannot look at the cluster; trying again in %g s", LOOK_SECONDS)

    async def _look(self) -> None:
        """Starts workers on nodes that have none, and gives up nodes that are dead."""
        facts = {fact["NodeID"]: fact for fact in await asyncio.to_thread(ray.nodes) if fact["Alive"]}
        for node in list(self._nodes.values()):
            if node.node_id not in facts:
                self._lose(node, "the node is dead")
        for node_id, fact in facts.items():
            slots = self._cpu_slots(fact["Resources"])
            if slots and node_id not in self._nodes and node_id not in self._opening:
                self._opening[node_id] = task = asyncio.create_task(self._open(fact, slots))
                task.add_done_callback(lambda _, node_id=node_id: self._opening.pop(node_id, None))
        for node_id in set(self._opening) - set(facts):
            self._opening[node_id].cancel()

    def _cpu_slots(self, resources: dict[str, float]) -> int:
        """How many programs a node runs at once on the CPU; 0 where it is not for us."""
        if self._config.ray_resource is not None:
            return int(resources.get(self._config.ray_resource, 0))
        cores = resources.get("CPU", 0)
        return int(cores and (self._config.workers or max(1, cores // self._config.cpus)))

    async def _open(self, fact: dict[str, Any], slots: int) -> None:
        """Starts a worker on a node."""
        node_id, resources = fact["NodeID"], fact["Resources"]
        life = self._lives[node_id] = self._lives.get(node_id, 0) + 1
        name = f"{fact['NodeManagerHostname']}-{node_id[:8]}" + (f".{life}" if life > 1 else "")
        gpus = resources.get("GPU", 0) if self._config.gpus == "all" else 0
        config = self._config if gpus else replace(self._config, gpus="none")
        custom = self._config.ray_resource
        # The worker holds what its programs will use, so that nobody else is given it, a second life included.
        actor: Any = (
            ray.remote(NodeWorker)
            .options(
                num_cpus=min(resources.get("CPU", 0), slots * self._config.cpus),
                num_gpus=gpus,
                resources={custom: float(slots)} if custom else None,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
                max_restarts=0,
                runtime_env={"env_vars": KEEPERS_STAY},
                max_concurrency=MESSAGES_AT_ONCE,
            )
            .remote(config, service_id=self._service_id, node_id=node_id[:16], name=name, cpu_slots=slots)
        )
        node = _Node(node_id=node_id, name=name, actor=actor, isolation="", places=[])
        try:
            facts: NodeFacts = await self._ask(node, "open", __version__)
        except (OpenMLEError, RayError) as error:
            ray.kill(actor)
            self._refusals[node_id] = f"node {name}: {error}"
            logger.warning("node %s runs no programs: %s; trying again in %g s", name, error, OPEN_AGAIN_SECONDS)
            self._stir()
            await asyncio.sleep(OPEN_AGAIN_SECONDS)
            return
        node.isolation, node.places = facts.isolation, facts.places
        self._nodes[node_id] = node
        for known in (self._lost, self._refusals):
            known.pop(node_id, None)
        logger.info("node %s: %d places, held by %s", name, len(node.places), node.isolation)
        for place in node.places:
            self._background(self._offer(node, place.resource_class))
        self._stir()

    async def _offer(self, node: _Node, resource_class: ResourceClass) -> None:
        """Waits until a place on a node is free: a GPU settles there first."""
        with suppress(JobLost):
            node.free.append(await self._ask(node, "acquire", resource_class))
            self._stir()

    async def _return(self, node: _Node, place: Place) -> None:
        with suppress(JobLost):
            await self._ask(node, "release", place)
            await self._offer(node, place.resource_class)

    async def _refresh(self, node: _Node) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                node.places = await self._ask(node, "places")
                if node.in_doubt:
                    await self._check(node)
        except TimeoutError:
            self._lose(node, f"its worker has not answered for {ANSWER_SECONDS:g} s")
        except JobLost:
            return

    async def _check(self, node: _Node) -> None:
        try:
            await self._ask(node, "check")
        except InfrastructureError as error:
            self._doubt(node, error)
        else:
            node.in_doubt = False
            self._refusals.pop(node.node_id, None)
            self._stir()

    def _doubt(self, node: _Node, error: InfrastructureError) -> None:
        node.in_doubt = True
        self._refusals[node.node_id] = f"node {node.name}: {error}"

    def _lose(self, node: _Node, reason: str) -> None:
        """Gives a worker up, and makes sure that it is dead. Ray then ends all calls on it."""
        ray.kill(node.actor)
        if not self._alive(node):
            return
        del self._nodes[node.node_id]
        self._lost[node.node_id] = node
        while len(self._lost) > LOST_SHOWN:
            del self._lost[next(iter(self._lost))]
        logger.warning("node %s is lost: %s", node.name, reason)
        self._stir()

    def _alive(self, node: _Node) -> bool:
        return self._nodes.get(node.node_id) is node

    def _stir(self) -> None:
        """Wakes all who wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
