"""Places to run a job: so many on the CPU, and one on each GPU.

A GPU's memory is cleared by the driver some time after its job is dead, or, when something went wrong, never. So its
slot settles first, and is quarantined when that takes too long; it is looked at again from time to time, and comes back
by itself.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from openmle_gym.contracts import Contract
from openmle_gym.isolation.runner import GpuGrant

from sandbox_service.gpu import Gpu, Gpus

logger = logging.getLogger(__name__)

ResourceType = Literal["cpu", "gpu"]
SlotState = Literal["free", "leased", "settling", "quarantined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A place, leased for one job."""

    slot_id: str
    """`cpu-1`, or `gpu-` and the GPU's UUID."""
    resource_type: ResourceType
    gpu: GpuGrant | None = None
    """For `RunSpec.gpu`; None on the CPU."""


class SlotView(Contract):
    """A slot, as status pages show it."""

    slot_id: str
    resource_type: ResourceType
    state: SlotState
    reason: str = ""
    """What a slot that is settling or quarantined waits for."""


class Slots:
    """Hands out slots. Use as an async context manager: between entry and exit it looks after its GPUs."""

    def __init__(
        self,
        *,
        cpu: int,
        gpus: Gpus | None = None,
        look_seconds: float = 0.25,
        settle_seconds: float = 30.0,
        quarantine_look_seconds: float = 30.0,
    ) -> None:
        """Args:
        cpu: Jobs that run at once on the CPU.
        gpus: None on a machine that offers no GPU.
        look_seconds: Between two looks at a GPU that settles.
        settle_seconds: How long it may take; after that it is quarantined.
        quarantine_look_seconds: Between two looks at a GPU in quarantine.
        """
        self._gpus = gpus
        self._look_seconds = look_seconds
        self._settle_seconds = settle_seconds
        self._quarantine_look_seconds = quarantine_look_seconds
        self._gpu_of = {f"gpu-{gpu.uuid}": gpu for gpu in (gpus.found if gpus else ())}
        self._free: dict[ResourceType, asyncio.Queue[str]] = {"cpu": asyncio.Queue(), "gpu": asyncio.Queue()}
        self._views: dict[str, SlotView] = {}
        for number in range(1, cpu + 1):
            self._views[f"cpu-{number}"] = SlotView(slot_id=f"cpu-{number}", resource_type="cpu", state="free")
            self._free["cpu"].put_nowait(f"cpu-{number}")
        for slot_id in self._gpu_of:  # free when the first look at it has found it idle
            self._views[slot_id] = SlotView(slot_id=slot_id, resource_type="gpu", state="settling")
        self._settling: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Slots":
        for slot_id in self._gpu_of:
            self._settle(slot_id)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._settling:
            task.cancel()
        await asyncio.gather(*self._settling, return_exceptions=True)

    def offers(self, resource_type: ResourceType) -> bool:
        """Whether there is any slot of this class, free or not."""
        return any(view.resource_type == resource_type for view in self._views.values())

    def free(self, resource_type: ResourceType) -> int:
        """How many could be leased now."""
        return self._free[resource_type].qsize()

    def views(self) -> list[SlotView]:
        """All slots."""
        return list(self._views.values())

    async def acquire(self, resource_type: ResourceType) -> Slot:
        """The next free slot, for whoever asked first; a GPU is looked at once more before it is handed out."""
        while True:
            slot_id = await self._free[resource_type].get()
            gpu = self._gpu_of.get(slot_id)
            if gpu is None or self._gpus is None:
                self._show(slot_id, "leased")
                return Slot(slot_id=slot_id, resource_type=resource_type)
            try:
                trouble = await asyncio.to_thread(self._gpus.trouble, gpu)
            except asyncio.CancelledError:
                self._settle(slot_id)
                raise
            if trouble is None:
                self._show(slot_id, "leased")
                return Slot(slot_id=slot_id, resource_type=resource_type, gpu=self._gpus.grant(gpu))
            self._settle(slot_id)

    async def still_usable(self, slot: Slot) -> bool:
        """Whether a slot that was handed out, and on which nothing has run since, is as it was then."""
        gpu = self._gpu_of.get(slot.slot_id)
        return gpu is None or self._gpus is None or await asyncio.to_thread(self._gpus.trouble, gpu) is None

    def release(self, slot: Slot) -> None:
        """Gives a slot back, when no process of its job is alive. At once for a CPU; a GPU has to settle first."""
        if slot.gpu is not None:
            self._settle(slot.slot_id)
        else:
            self._set_free(slot.slot_id)

    @asynccontextmanager
    async def lease(self, resource_type: ResourceType) -> AsyncIterator[Slot]:
        """A slot for as long as the block lasts."""
        slot = await self.acquire(resource_type)
        try:
            yield slot
        finally:
            self.release(slot)

    def _show(self, slot_id: str, state: SlotState, reason: str = "") -> None:
        self._views[slot_id] = self._views[slot_id].model_copy(update={"state": state, "reason": reason})

    def _set_free(self, slot_id: str) -> None:
        self._show(slot_id, "free")
        self._free[self._views[slot_id].resource_type].put_nowait(slot_id)

    def _settle(self, slot_id: str) -> None:
        self._show(slot_id, "settling")
        task = asyncio.create_task(self._until_idle(slot_id, self._gpu_of[slot_id]))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _until_idle(self, slot_id: str, gpu: Gpu) -> None:
        assert self._gpus is not None
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._settle_seconds
        quarantined = False
        while trouble := await asyncio.to_thread(self._gpus.trouble, gpu):
            if not quarantined and clock() >= deadline:
                quarantined = True
                logger.warning("%s is quarantined: %s", slot_id, trouble)
            self._show(slot_id, "quarantined" if quarantined else "settling", trouble)
            await asyncio.sleep(self._quarantine_look_seconds if quarantined else self._look_seconds)
        if quarantined:
            logger.info("%s is back from quarantine", slot_id)
        self._set_free(slot_id)
