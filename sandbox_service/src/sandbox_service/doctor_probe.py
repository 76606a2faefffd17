"""What the doctor looks at: facts of this machine, gathered without judging them."""

import asyncio
import ctypes
import json
import logging
import os
import platform
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import httpx
from openmle_gym.errors import ConfigError, RunnerUnavailable
from openmle_gym.isolation.bubblewrap import BubblewrapRunner
from openmle_gym.isolation.docker import DockerRunner
from openmle_gym.isolation.runner import PYTHON, Runner, RunSpec
from openmle_gym.isolation.seccomp import DENIED, supported
from openmle_gym.jobs import MIB, Limits

from sandbox_service.config import ServeConfig
from sandbox_service.gpu import Gpu, Gpus, open_nvml

TIME_ERROR = 5
"""What adjtimex returns while nothing keeps the clock right."""
SMOKE_LIMITS = Limits(wall_seconds=60.0, memory_bytes=256 * MIB)
SMOKE_CALLS = ("io_uring_setup", "ptrace", "unshare", "userfaultfd", "keyctl", "bpf")
SMOKE_PROGRAM = """
import ctypes, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
open_ = []
for word in sys.argv[1:]:
    name, number = word.split("=")
    if libc.syscall(int(number), 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() not in (1, 38):  # EPERM, ENOSYS
        open_.append(name)
for name in ("AF_VSOCK", "AF_NETLINK", "AF_PACKET"):
    try:
        socket.socket(getattr(socket, name), socket.SOCK_RAW).close()
        open_.append(name)
    except OSError:
        pass
print(json.dumps({"open_calls": open_, "user": os.getuid()}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerFacts:
    """One isolation: whether it works, and what a program in it can do."""

    name: str
    trouble: str | None = None
    """Why it does not work; None when it does."""
    smoke_seconds: float = 0.0
    """What a trivial program takes, from call to result."""
    open_calls: tuple[str, ...] = ()
    """System calls and socket families that should be refused and are not."""
    user: int = 65534


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """The Docker engine."""

    trouble: str | None = None
    """Why it does not answer; None when it does."""
    version: str = ""
    cgroup_version: str = ""
    runtimes: tuple[str, ...] = ()
    rootless: bool = False
    image: str | None = None
    """Id of the image that programs run in; None when it is not there."""
    clock_skew_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """The GPUs, and whether the engine can hand one out."""

    trouble: str | None = None
    """Why there are none; None when the driver answers."""
    driver: str = ""
    gpus: tuple[Gpu, ...] = ()
    engine_trouble: str | None = None
    """Why a container cannot have one; None when it was not tried or works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder that the service writes to, or the nearest above it that exists."""

    path: str
    filesystem: str
    writable: bool
    free_bytes: int
    free_inodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The rest of the machine."""

    kernel: str
    user_namespaces: str | None
    """Why this user cannot make any; None when it can."""
    root: bool
    state_dir: Folder
    work_dir: Folder
    clock_synchronised: bool
    port_trouble: str | None
    """Why the port cannot be listened on; None when it can."""
    memory_bytes: int
    dmem: bool
    """Whether this kernel could hold a program to its share of GPU memory."""
    missing_task_roots: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All of it."""

    engine: EngineFacts
    runners: tuple[RunnerFacts, ...]
    gpu: GpuFacts
    machine: MachineFacts
    service_answers: bool
    """Whether a service of ours answers at the address."""


async def probe(config: ServeConfig) -> Facts:
    """Looks at this machine, for a service with these settings. Starts some trivial programs."""
    with _quiet_gym():
        return await _probe(config)


@contextmanager
def _quiet_gym() -> Iterator[None]:
    """What is found is reported, not logged."""
    gym = logging.getLogger("openmle_gym")
    level = gym.level
    gym.setLevel(logging.ERROR)
    try:
        yield
    finally:
        gym.setLevel(level)


async def _probe(config: ServeConfig) -> Facts:
    engine = await asyncio.to_thread(_engine, config)
    docker = DockerRunner(image=config.docker_image, runtime=config.docker_runtime)
    runners: list[Runner] = [docker, *_local_runners()]
    found = [await run_smoke(runner) for runner in runners]
    return Facts(
        engine=engine,
        runners=tuple(found),
        gpu=await _gpu(config, docker, engine_works=found[0].trouble is None),
        machine=await asyncio.to_thread(_machine, config),
        service_answers=await _service_answers(config),
    )


def _machine(config: ServeConfig) -> MachineFacts:
    state_dir = Path(config.state_dir).resolve()
    return MachineFacts(
        kernel=platform.release(),
        user_namespaces=_user_namespaces(),
        root=os.getuid() == 0,
        state_dir=_folder(state_dir),
        work_dir=_folder(Path(config.work_dir).resolve() if config.work_dir else state_dir / "work"),
        clock_synchronised=ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)) != TIME_ERROR,
        port_trouble=_port_trouble(config),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        dmem=Path("/sys/fs/cgroup/dmem.capacity").exists(),
        missing_task_roots=tuple(root for root in config.task_roots if not Path(root).is_dir()),
    )


def _local_runners() -> list[Runner]:
    from openmle_gym.isolation.zygote import ZygoteRunner

    return [ZygoteRunner(), BubblewrapRunner()]


async def run_smoke(runner: Runner) -> RunnerFacts:
    """Proves an isolation, and tries from inside what it should refuse."""
    try:
        await runner.check()
        began = time.monotonic()
        column = 0 if platform.machine() == "x86_64" else 1
        calls = [f"{name}={DENIED[name][column]}" for name in SMOKE_CALLS] if supported(platform.machine()) else []
        result = await runner.run(RunSpec(argv=(PYTHON, "-c", SMOKE_PROGRAM, *calls), limits=SMOKE_LIMITS))
        seconds = time.monotonic() - began
    except RunnerUnavailable as error:
        return RunnerFacts(name=runner.isolation, trouble=str(error))
    if result.exit_code != 0:
        return RunnerFacts(name=runner.isolation, trouble=f"a trivial program failed: {result.log.text[-500:]}")
    said = json.loads(result.log.text)
    return RunnerFacts(
        name=runner.isolation, smoke_seconds=seconds, open_calls=tuple(said["open_calls"]), user=said["user"]
    )


def _engine(config: ServeConfig) -> EngineFacts:
    try:
        import docker
        from docker.errors import DockerException, ImageNotFound
        from requests.exceptions import RequestException
    except ImportError:
        return EngineFacts(trouble="the package docker is not installed")
    try:
        client = docker.from_env(timeout=10)
        asked = time.time()
        facts = client.info()
        try:
            image = client.images.get(config.docker_image).id
        except ImageNotFound:
            image = None
    except (DockerException, RequestException) as error:
        return EngineFacts(trouble=str(error))
    return EngineFacts(
        version=facts["ServerVersion"],
        cgroup_version=str(facts.get("CgroupVersion", "1")),
        runtimes=tuple(facts["Runtimes"]),
        rootless=any("rootless" in option for option in facts.get("SecurityOptions") or ()),
        image=image,
        clock_skew_seconds=engine_time(facts["SystemTime"]) - asked,
    )


def engine_time(text: str) -> float:
    """Seconds since the epoch, of a time with nanoseconds and zone as the engine writes it."""
    zone = "+00:00" if text.endswith("Z") else text[-6:]
    return datetime.fromisoformat(text[:19] + zone).timestamp()


async def _gpu(config: ServeConfig, docker: DockerRunner, *, engine_works: bool) -> GpuFacts:
    try:
        nvml = await asyncio.to_thread(open_nvml)
        wanted = None if config.gpus in ("none", "all") else [uuid.strip() for uuid in config.gpus.split(",")]
        gpus = await asyncio.to_thread(lambda: Gpus(nvml, vram_bytes=config.vram_mib * MIB, uuids=wanted))
        driver = await asyncio.to_thread(nvml.driver_version)
    except (RunnerUnavailable, ConfigError) as error:
        return GpuFacts(trouble=str(error))
    engine_trouble = None
    if config.gpus != "none" and engine_works and gpus.found and not gpus.trouble(gpus.found[0]):
        spec = RunSpec(argv=(PYTHON, "-c", "pass"), limits=SMOKE_LIMITS, gpu=gpus.grant(gpus.found[0]))
        try:
            await docker.run(spec)
        except RunnerUnavailable as error:
            engine_trouble = str(error)
    return GpuFacts(driver=driver, gpus=gpus.found, engine_trouble=engine_trouble)


def _user_namespaces() -> str | None:
    """Tries to make one, in a process of its own."""
    clone_newuser = 0x10000000
    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child == 0:
        os._exit(0 if libc.unshare(clone_newuser) == 0 else ctypes.get_errno())
    error = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if error == 0 else os.strerror(error)


def _folder(path: Path) -> Folder:
    while not path.exists():
        path = path.parent
    space = os.statvfs(path)
    return Folder(
        path=str(path),
        filesystem=filesystem_of(str(path), Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()),
        writable=os.access(path, os.W_OK),
        free_bytes=shutil.disk_usage(path).free,
        free_inodes=space.f_favail if space.f_files else 2**63,
    )


def filesystem_of(path: str, mountinfo: Sequence[str]) -> str:
    """The type of the file system that a path lies on, such as `ext4`; of mounts on one place the last counts."""
    found, depth = "unknown", -1
    for line in mountinfo:
        fields = line.split()
        mount = fields[4]
        if Path(path).is_relative_to(mount) and len(Path(mount).parts) >= depth:
            found, depth = fields[fields.index("-") + 1], len(Path(mount).parts)
    return found


def _port_trouble(config: ServeConfig) -> str | None:
    try:
        family, _, _, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address, family=family).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


async def _service_answers(config: ServeConfig) -> bool:
    if config.port == 0:
        return False
    scheme = "https" if config.tls_certificate else "http"
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.host, config.host)
    try:
        async with httpx.AsyncClient(timeout=2.0, verify=False) as client:
            return (await client.get(f"{scheme}://{host}:{config.port}/health")).status_code == 200
    except httpx.HTTPError:
        return False
