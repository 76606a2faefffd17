"""A trainer's processes as Ray actors, one for each rank, and the protocol `Trainer` over them."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import ray
from openmle_gym.errors import InfrastructureError, OpenMLEError
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from openmle_erl.cluster.placement import Process
from openmle_erl.engines.processes import Place, free_port
from openmle_erl.engines.protocols import FloatArray, StepReport, TrainingSample

Factory = Callable[..., Any]


class Meeting(NamedTuple):
    """Where the ranks find each other: on the machine of the first."""

    address: str
    port: int


class TrainerActor:
    """One rank: an object that `factory(*arguments, place)` makes, and whose methods are called from afar."""

    def __init__(self, factory: Factory, arguments: Sequence[object]) -> None:
        self._factory = factory
        self._arguments = arguments
        self._held: Any = None

    def meeting(self) -> Meeting:
        """A free port on this machine."""
        address = ray.util.get_node_ip_address()
        return Meeting(address, free_port(address))

    def start(self, place: Place) -> None:
        """Makes the object; returns when all ranks have."""
        self._held = self._factory(*self._arguments, place)

    def call(self, method: str, arguments: Sequence[object], wanted: bool) -> Any:
        """What a method of the object returns, where it is wanted."""
        result = getattr(self._held, method)(*arguments)
        return result if wanted else None


class RayRanks:
    """All ranks of one trainer. When one dies the others, which may wait for it, are ended."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = actors

    @classmethod
    async def start(
        cls, factory: Factory, arguments: Sequence[object], *, processes: Sequence[Process], group: PlacementGroup
    ) -> Self:
        """Starts an actor for each process in its node's bundle.

        Args:
            factory: Makes a rank's object from the arguments and its `Place`; importable on all nodes.

        Raises:
            InfrastructureError: One died.
        """
        actors: list[Any] = [
            ray.remote(TrainerActor)
            .options(
                num_cpus=1,
                num_gpus=0,  # the bundle holds them; which one is its own, the environment says
                max_restarts=0,  # a rank alone cannot go on: the run starts all again from its checkpoint
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=process.node
                ),
                runtime_env={"env_vars": dict(process.environment)},
            )
            .remote(factory, arguments)
            for process in processes
        ]
        ranks = cls(actors)
        meeting: Meeting = (await ranks._gather([actors[0].meeting.remote()]))[0]
        places = [
            Place(rank=rank, processes=len(actors), address=meeting.address, port=meeting.port, local_rank=0)
            for rank in range(len(actors))
        ]
        await ranks._gather([actor.start.remote(each) for actor, each in zip(actors, places, strict=True)])
        return ranks

    async def call(self, method: str, *arguments: object) -> list[Any]:
        """Calls a method of all ranks at once; their results, by rank.

        Raises:
            OpenMLEError, ValueError: What a method raised; all ranks are ended.
            InfrastructureError: A rank died; all are ended.
        """
        shared = await asyncio.to_thread(ray.put, arguments)
        return await self._gather([actor.call.remote(method, shared, True) for actor in self._actors])

    async def first(self, method: str, *arguments: object) -> Any:
        """Likewise, where all ranks return the same."""
        shared = await asyncio.to_thread(ray.put, arguments)
        calls = [actor.call.remote(method, shared, rank == 0) for rank, actor in enumerate(self._actors)]
        return (await self._gather(calls))[0]

    def kill(self) -> None:
        """Ends all ranks now."""
        for actor in self._actors:
            ray.kill(actor)

    async def _gather(self, calls: Sequence[Any]) -> list[Any]:
        try:
            return list(await asyncio.gather(*calls))
        except RayTaskError as error:
            self.kill()
            if isinstance(error.cause, OpenMLEError | ValueError):
                raise error.cause from None
            raise InfrastructureError(f"a rank of the trainer failed: {error}") from error
        except RayActorError as error:
            self.kill()
            raise InfrastructureError(f"a rank of the trainer died: {str(error).splitlines()[0]}") from error
        except RayError as error:
            self.kill()
            raise InfrastructureError(f"the trainer's ranks cannot be reached: {error}") from error


class TrainerGroup:
    """The protocol `Trainer` over ranks that all return the same, as those of the torch engine do."""

    def __init__(self, ranks: RayRanks) -> None:
        self._ranks = ranks

    async def logprobs(self, samples: Sequence[TrainingSample]) -> list[FloatArray]:
        """See `Trainer.logprobs`."""
        return await self._ranks.first("logprobs", list(samples)) if samples else []

    async def step(self, samples: Sequence[TrainingSample], old_logprobs: Sequence[FloatArray]) -> StepReport:
        """See `Trainer.step`."""
        return await self._ranks.first("step", list(samples), list(old_logprobs))

    async def save_weights(self, folder: Path) -> None:
        """See `Trainer.save_weights`; all nodes see the folder."""
        await self._ranks.first("save_weights", folder)

    async def save(self, folder: Path) -> None:
        """See `Trainer.save`; all nodes see the folder."""
        await self._ranks.first("save", folder)

    async def load(self, folder: Path) -> None:
        """See `Trainer.load`."""
        await self._ranks.first("load", folder)

    async def close(self) -> None:
        """See `Trainer.close`."""
        try:
            await self._ranks.first("close")
        finally:
            self._ranks.kill()
