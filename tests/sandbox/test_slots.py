"""Slots, and the GPUs behind them, on a driver that does what the test says: no GPU is needed, and none was used."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from openmle_gym.errors import ConfigError, RunnerUnavailable
from openmle_gym.jobs import MIB
from sandbox_service.gpu import DriverNvml, Gpu, Gpus, open_nvml
from sandbox_service.slots import Slot, Slots, SlotState, SlotView

GIB = 1024 * MIB
LARGE = Gpu(uuid="GPU-a", name="large", total_bytes=24 * GIB)
SMALL = Gpu(uuid="GPU-b", name="small", total_bytes=8 * GIB)
PARTITION = Gpu(uuid="MIG-c", name="a tenth", total_bytes=10 * GIB)


class FakeNvml:
    """A driver of these GPUs: what is in use on each is what the test sets."""

    def __init__(self, *gpus: Gpu) -> None:
        self._gpus = gpus
        self.used = dict.fromkeys((gpu.uuid for gpu in gpus), 500 * MIB)
        self.computing: dict[str, list[int]] = {gpu.uuid: [] for gpu in gpus}
        self.broken = False
        self.answers = threading.Event()
        """While it is not set, no question is answered."""
        self.answers.set()

    def driver_version(self) -> str:
        return "615.71"

    def gpus(self) -> list[Gpu]:
        return list(self._gpus)

    def used_bytes(self, uuid: str) -> int:
        if self.broken:
            raise RunnerUnavailable("NVML: nvmlDeviceGetMemoryInfo: GPU is lost")
        return self.used[uuid]

    def processes(self, uuid: str) -> list[int]:
        self.answers.wait()
        return self.computing[uuid]


@asynccontextmanager
async def slots_of(
    nvml: FakeNvml | None = None, *, cpu: int = 0, settle_seconds: float = 3600.0
) -> AsyncIterator[Slots]:
    gpus = Gpus(nvml, vram_bytes=12 * GIB) if nvml else None
    async with Slots(
        cpu=cpu, gpus=gpus, look_seconds=0.001, settle_seconds=settle_seconds, quarantine_look_seconds=0.001
    ) as slots:
        yield slots


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def until_shown(slots: Slots, slot_id: str, state: SlotState) -> SlotView:
    def view() -> SlotView:
        return next(view for view in slots.views() if view.slot_id == slot_id)

    await until(lambda: view().state == state)
    return view()


async def test_a_cpu_slot_is_leased_to_one_at_a_time_and_in_order() -> None:
    async with slots_of(cpu=2) as slots:
        first, second = await slots.acquire("cpu"), await slots.acquire("cpu")
        assert (first, second) == (
            Slot(slot_id="cpu-1", resource_type="cpu"),
            Slot(slot_id="cpu-2", resource_type="cpu"),
        )
        assert slots.free("cpu") == 0
        waiting = [asyncio.create_task(slots.acquire("cpu")) for _ in range(2)]
        await asyncio.sleep(0)
        slots.release(second)
        assert await waiting[0] == second
        assert not waiting[1].done()
        slots.release(first)
        assert await waiting[1] == first


async def test_a_class_that_the_machine_does_not_have_is_not_offered() -> None:
    async with slots_of(cpu=1) as slots:
        assert slots.offers("cpu")
        assert not slots.offers("gpu")


async def test_a_lease_ends_with_its_block_however_that_ends() -> None:
    async with slots_of(cpu=1) as slots:

        async def fail() -> None:
            async with slots.lease("cpu"):
                assert [view.state for view in slots.views()] == ["leased"]
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert [view.state for view in slots.views()] == ["free"]


async def test_somebody_who_stops_waiting_takes_no_slot_away() -> None:
    async with slots_of(FakeNvml(LARGE), cpu=1) as slots:
        for resource_type in ("cpu", "gpu"):
            slot = await slots.acquire(resource_type)
            waiting = asyncio.create_task(slots.acquire(resource_type))
            await asyncio.sleep(0)
            waiting.cancel()
            slots.release(slot)
            await until(lambda wanted=resource_type: slots.free(wanted) == 1)


async def test_somebody_cancelled_while_the_gpu_is_looked_at_takes_no_slot_away() -> None:
    nvml = FakeNvml(LARGE)
    async with slots_of(nvml) as slots:
        await until(lambda: slots.free("gpu") == 1)
        nvml.answers.clear()
        asking = asyncio.create_task(slots.acquire("gpu"))
        await until(lambda: slots.free("gpu") == 0)
        asking.cancel()
        nvml.answers.set()
        await until(lambda: slots.free("gpu") == 1)


async def test_a_job_has_one_gpu_alone_by_its_uuid() -> None:
    async with slots_of(FakeNvml(LARGE, SMALL)) as slots:
        one, other = await slots.acquire("gpu"), await slots.acquire("gpu")
        assert one.gpu
        assert other.gpu
        assert {one.gpu.uuids, other.gpu.uuids} == {("GPU-a",), ("GPU-b",)}
        assert slots.free("gpu") == 0


async def test_a_job_is_granted_its_share_or_all_that_a_smaller_gpu_has() -> None:
    async with slots_of(FakeNvml(LARGE, SMALL)) as slots:
        granted = [(await slots.acquire("gpu")).gpu for _ in range(2)]
        assert {grant.uuids[0]: grant.vram_bytes for grant in granted if grant} == {"GPU-a": 12 * GIB, "GPU-b": 8 * GIB}


async def test_a_partition_holds_its_job_by_itself_and_a_gpu_is_watched() -> None:
    whole_partition = Gpu(uuid="MIG-d", name="most of it", total_bytes=40 * GIB)
    async with slots_of(FakeNvml(LARGE, PARTITION, whole_partition)) as slots:
        granted = [(await slots.acquire("gpu")).gpu for _ in range(3)]
        enforcement = {grant.uuids[0]: grant.enforcement for grant in granted if grant}
        assert enforcement == {"GPU-a": "watchdog", "MIG-c": "mig", "MIG-d": "watchdog"}


async def test_what_a_job_uses_is_what_is_in_use_beyond_the_idle_level() -> None:
    nvml = FakeNvml(LARGE)
    async with slots_of(nvml) as slots:
        grant = (await slots.acquire("gpu")).gpu
        assert grant
        assert grant.used_bytes
        assert grant.used_bytes() == 0
        nvml.used["GPU-a"] = 3500 * MIB
        assert grant.used_bytes() == 3000 * MIB
        nvml.used["GPU-a"] = 400 * MIB
        assert grant.used_bytes() == 0


async def test_a_gpu_is_not_leased_again_before_its_memory_is_back() -> None:
    nvml = FakeNvml(LARGE)
    async with slots_of(nvml) as slots:
        slot = await slots.acquire("gpu")
        nvml.used["GPU-a"] = 9000 * MIB
        slots.release(slot)
        await until(lambda: slots.views()[0].reason)
        assert slots.views() == [
            SlotView(
                slot_id="gpu-GPU-a",
                resource_type="gpu",
                state="settling",
                reason="9000 MiB are in use, and 500 MiB were when it was idle",
            )
        ]
        assert slots.free("gpu") == 0
        nvml.used["GPU-a"] = (500 + 256) * MIB
        await slots.acquire("gpu")


async def test_a_gpu_that_keeps_its_memory_is_quarantined_with_the_reason_and_comes_back_when_it_lets_go() -> None:
    nvml = FakeNvml(LARGE)
    async with slots_of(nvml, settle_seconds=0.0) as slots:
        slot = await slots.acquire("gpu")
        nvml.used["GPU-a"] = (500 + 257) * MIB
        slots.release(slot)
        view = await until_shown(slots, "gpu-GPU-a", "quarantined")
        assert view.reason == "757 MiB are in use, and 500 MiB were when it was idle"
        nvml.used["GPU-a"] = 500 * MIB
        assert (await slots.acquire("gpu")).slot_id == "gpu-GPU-a"


async def test_a_gpu_that_somebody_else_took_meanwhile_is_not_handed_out() -> None:
    nvml = FakeNvml(LARGE)
    async with slots_of(nvml, settle_seconds=0.0) as slots:
        await until(lambda: slots.free("gpu") == 1)
        nvml.computing["GPU-a"] = [42, 7]
        asking = asyncio.create_task(slots.acquire("gpu"))
        view = await until_shown(slots, "gpu-GPU-a", "quarantined")
        assert view.reason == "processes 7, 42 use it"
        assert not asking.done()
        nvml.computing["GPU-a"] = []
        assert (await asking).gpu


async def test_the_idle_level_is_not_taken_while_somebody_computes() -> None:
    nvml = FakeNvml(LARGE)
    nvml.computing["GPU-a"], nvml.used["GPU-a"] = [42], 9000 * MIB
    async with slots_of(nvml, settle_seconds=0.0) as slots:
        await until_shown(slots, "gpu-GPU-a", "quarantined")
        nvml.computing["GPU-a"], nvml.used["GPU-a"] = [], 500 * MIB
        grant = (await slots.acquire("gpu")).gpu
        nvml.used["GPU-a"] = 600 * MIB
        assert grant
        assert grant.used_bytes
        assert grant.used_bytes() == 100 * MIB


async def test_a_driver_that_fails_quarantines_the_gpu_and_nothing_else() -> None:
    nvml = FakeNvml(LARGE)
    async with slots_of(nvml, cpu=1, settle_seconds=0.0) as slots:
        slot = await slots.acquire("gpu")
        nvml.broken = True
        slots.release(slot)
        assert "GPU is lost" in (await until_shown(slots, "gpu-GPU-a", "quarantined")).reason
        await slots.acquire("cpu")


def test_only_the_named_gpus_are_handed_out_and_one_that_is_not_there_is_named() -> None:
    nvml = FakeNvml(LARGE, SMALL)
    assert Gpus(nvml, vram_bytes=1, uuids=("GPU-b",)).found == (SMALL,)
    assert Gpus(nvml, vram_bytes=1, uuids=()).found == ()
    with pytest.raises(ConfigError, match=r"no GPU-z here, but GPU-a, GPU-b"):
        Gpus(nvml, vram_bytes=1, uuids=("GPU-z", "GPU-a"))


def test_without_a_driver_there_is_a_clear_refusal() -> None:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(RunnerUnavailable, match="no NVIDIA driver answers"):
            open_nvml()
    else:
        pytest.skip("this machine has a driver")


def test_what_we_ask_of_the_driver_exists_and_its_errors_are_told() -> None:
    """Every call is made on the real package: without a driver each of them fails, by NVML's own error."""
    driver = DriverNvml(pytest.importorskip("pynvml"))
    for call in (driver.driver_version, driver.gpus, lambda: driver.used_bytes("GPU-x"), lambda: driver.processes("x")):
        with pytest.raises(RunnerUnavailable, match=r"NVML: nvml\w+: \w+"):
            call()
