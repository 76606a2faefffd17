"""GPUs: which there are, what is in use on them, and what a job is granted.

NVML is NVIDIA's management library; what is needed of it is the protocol `Nvml`, so that everything else here can be
proven where no GPU is. Memory is reckoned by the whole GPU: a job has it alone, so what is in use beyond the idle level
is the job's.

How a job is held to its share of the memory (`VramEnforcement`), here:

    watchdog   the runner looks once a second and kills a job that uses more; for less than a second it can overshoot
    mig        the job's GPU is a partition that is no larger than the share, so the hardware holds it

Beside either, PyTorch inside the job is told its share and raises its ordinary out-of-memory error there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from openmle_gym.errors import ConfigError, RunnerUnavailable
from openmle_gym.isolation.runner import GpuGrant
from openmle_gym.jobs import MIB

IDLE_TOLERANCE_BYTES = 256 * MIB
"""How far an idle GPU's memory in use may stray: the driver's own share moves a little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or one partition of a GPU in MIG mode."""

    uuid: str
    """`GPU-...`, or `MIG-...` for a partition."""
    name: str
    total_bytes: int

    @property
    def partition(self) -> bool:
        """Whether the hardware keeps it apart from the rest of its GPU."""
        return self.uuid.startswith("MIG-")


class Nvml(Protocol):
    """What we ask of the driver. Calls block, and raise RunnerUnavailable when it fails."""

    def driver_version(self) -> str:
        """The kernel driver's version."""
        ...

    def gpus(self) -> list[Gpu]:
        """All GPUs; of one in MIG mode its partitions."""
        ...

    def used_bytes(self, uuid: str) -> int:
        """Memory in use on a GPU, whoever uses it."""
        ...

    def processes(self, uuid: str) -> list[int]:
        """PIDs of the host that compute on a GPU."""
        ...


class DriverNvml:
    """The real one, on the package `nvidia-ml-py`."""

    def __init__(self, pynvml: ModuleType) -> None:
        """Takes the module `pynvml`, initialised; `open_nvml` does both."""
        self._pynvml = pynvml

    def driver_version(self) -> str:
        """See `Nvml`."""
        return self._ask("nvmlSystemGetDriverVersion")

    def gpus(self) -> list[Gpu]:
        """See `Nvml`."""
        whole = [self._ask("nvmlDeviceGetHandleByIndex", index) for index in range(self._ask("nvmlDeviceGetCount"))]
        return [self._gpu(handle) for device in whole for handle in self._partitions(device) or [device]]

    def used_bytes(self, uuid: str) -> int:
        """See `Nvml`."""
        return self._ask("nvmlDeviceGetMemoryInfo", self._ask("nvmlDeviceGetHandleByUUID", uuid)).used

    def processes(self, uuid: str) -> list[int]:
        """See `Nvml`."""
        handle = self._ask("nvmlDeviceGetHandleByUUID", uuid)
        return [process.pid for process in self._ask("nvmlDeviceGetComputeRunningProcesses", handle)]

    def _gpu(self, handle: object) -> Gpu:
        return Gpu(
            uuid=self._ask("nvmlDeviceGetUUID", handle),
            name=self._ask("nvmlDeviceGetName", handle),
            total_bytes=self._ask("nvmlDeviceGetMemoryInfo", handle).total,
        )

    def _partitions(self, device: object) -> list[object]:
        try:
            current, _ = self._pynvml.nvmlDeviceGetMigMode(device)
        except self._pynvml.NVMLError_NotSupported:
            return []
        if current != self._pynvml.NVML_DEVICE_MIG_ENABLE:
            return []
        found: list[object] = []
        for index in range(self._ask("nvmlDeviceGetMaxMigDeviceCount", device)):
            try:
                found.append(self._pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index))
            except self._pynvml.NVMLError_NotFound:  # a place without a partition
                continue
        return found

    def _ask(self, function: str, *arguments: object) -> Any:
        try:
            return getattr(self._pynvml, function)(*arguments)
        except self._pynvml.NVMLError as error:
            raise RunnerUnavailable(f"NVML: {function}: {error}") from error


def open_nvml() -> Nvml:
    """The driver of this machine.

    Raises:
        RunnerUnavailable: There is none, or the package `nvidia-ml-py` is not installed.
    """
    try:
        import pynvml
    except ImportError as error:
        raise RunnerUnavailable("GPUs: install openmle-sandbox[gpu]") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise RunnerUnavailable(f"GPUs: no NVIDIA driver answers: {error}") from error
    return DriverNvml(pynvml)


class Gpus:
    """The GPUs that a service hands out, one job on each at a time."""

    def __init__(self, nvml: Nvml, *, vram_bytes: int, uuids: Sequence[str] | None = None) -> None:
        """Asks the driver.

        Args:
            vram_bytes: What a job may use; on a smaller GPU, all that it has.
            uuids: The GPUs to hand out; None is all.

        Raises:
            ConfigError: One of `uuids` is not there.
            RunnerUnavailable: The driver fails.
        """
        self._nvml = nvml
        self._vram_bytes = vram_bytes
        there = {gpu.uuid: gpu for gpu in nvml.gpus()}
        if missing := set(uuids or ()) - set(there):
            raise ConfigError(f"gpus: no {', '.join(sorted(missing))} here, but {', '.join(there) or 'none'}")
        self.found = tuple(there[uuid] for uuid in (there if uuids is None else uuids))
        self._idle_bytes: dict[str, int] = {}

    def trouble(self, gpu: Gpu) -> str | None:
        """Why no job may have the GPU now; None when it is idle. Blocks.

        The idle level is taken when no process is first seen on the GPU.
        """
        try:
            if processes := self._nvml.processes(gpu.uuid):
                return f"processes {', '.join(map(str, sorted(processes)))} use it"
            used = self._nvml.used_bytes(gpu.uuid)
        except RunnerUnavailable as error:
            return str(error)
        idle = self._idle_bytes.setdefault(gpu.uuid, used)
        if used > idle + IDLE_TOLERANCE_BYTES:
            return f"{used // MIB} MiB are in use, and {idle // MIB} MiB were when it was idle"
        return None

    def grant(self, gpu: Gpu) -> GpuGrant:
        """What a job gets that has this GPU, which `trouble` has found idle."""
        idle = self._idle_bytes[gpu.uuid]
        return GpuGrant(
            uuids=(gpu.uuid,),
            vram_bytes=min(self._vram_bytes, gpu.total_bytes),
            enforcement="mig" if gpu.partition and gpu.total_bytes <= self._vram_bytes else "watchdog",
            used_bytes=lambda: max(0, self._nvml.used_bytes(gpu.uuid) - idle),
        )
