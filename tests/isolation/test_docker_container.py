"""The container that Docker's runner makes, read back from the engine while it runs, and what holds inside it."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openmle_gym.errors import RunnerUnavailable
from openmle_gym.isolation.docker import DockerRunner
from openmle_gym.isolation.runner import PYTHON, RunResult, RunSpec
from openmle_gym.isolation.seccomp import docker_profile
from openmle_gym.jobs import MIB, Limits

pytestmark = pytest.mark.docker
LIMITS = Limits(wall_seconds=60.0, memory_bytes=300 * MIB, cpus=1.5, processes=50, disk_bytes=20 * MIB, log_bytes=8192)


class Running:
    """A run under way, and its container."""

    def __init__(self, run: asyncio.Task[RunResult], container: Any) -> None:
        self.run = run
        self.container = container


@asynccontextmanager
async def sleeping(runner: DockerRunner, *, inputs: dict[str, Path] | None = None) -> AsyncIterator[Running]:
    """A program that sleeps in a container, which is gone afterwards."""
    import docker

    label = secrets.token_hex(8)
    spec = RunSpec(
        argv=("sleep", "600"),
        labels={"openmle.service": label, "openmle.managed": "no", "run": "r1"},
        limits=LIMITS,
        inputs=inputs or {},
    )
    run = asyncio.create_task(runner.run(spec))
    try:
        deadline = time.monotonic() + 60
        while not (found := docker.from_env().containers.list(filters={"label": f"openmle.service={label}"})):
            assert time.monotonic() < deadline
            assert not run.done(), run.result()
            await asyncio.sleep(0.02)
        yield Running(run, found[0])
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
    assert docker.from_env().containers.list(all=True, filters={"label": f"openmle.service={label}"}) == []


async def test_the_container_is_what_the_spec_says_and_nothing_more(docker_image: str, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("x\n")
    async with sleeping(DockerRunner(image=docker_image), inputs={"train.csv": tmp_path / "train.csv"}) as running:
        facts = running.container.attrs
    host, config = facts["HostConfig"], facts["Config"]

    assert host["NetworkMode"] == "none"
    assert list(facts["NetworkSettings"]["Networks"]) == ["none"]
    assert host["ReadonlyRootfs"] is True
    assert host["Tmpfs"] == {"/tmp": f"exec,nosuid,nodev,mode=1777,size={20 * MIB},nr_inodes=65536"}
    assert (host["Memory"], host["MemorySwap"]) == (300 * MIB, 300 * MIB)
    assert not host["OomKillDisable"]
    assert host["NanoCpus"] == 1_500_000_000
    threads = ("OMP_NUM_THREADS=2", "OPENBLAS_NUM_THREADS=2", "MKL_NUM_THREADS=2")
    assert set(threads) <= set(config["Env"])
    assert host["PidsLimit"] == 51
    assert host["ShmSize"] == 150 * MIB
    ulimits = {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in host["Ulimits"]}
    assert ulimits == {"fsize": (20 * MIB, 20 * MIB), "core": (0, 0)}
    assert host["Init"] is False  # our supervisor is the first process, and reaps
    assert config["Entrypoint"] == ["/opt/venv/bin/python", "-I", "-S", "/openmle/supervisor.py"]
    assert (host["CapDrop"], host["CapAdd"]) == (["ALL"], None)
    assert host["Privileged"] is False
    assert (host["PidMode"], host["IpcMode"], host["UTSMode"], host["UsernsMode"]) == ("", "private", "", "")
    assert (host["Devices"] or [], host["DeviceRequests"]) == ([], None)
    assert config["User"].split(":")[0] not in ("", "0", "root")
    assert config["Labels"]["openmle.managed"] == "1"
    assert config["Labels"]["run"] == "r1"
    assert host["LogConfig"]["Type"] == "none"
    assert host["AutoRemove"] is False
    assert host["RestartPolicy"]["Name"] in ("", "no")
    assert not host["Binds"]

    options = dict(option.partition("=")[::2] for option in host["SecurityOpt"] if option.startswith("seccomp"))
    assert json.loads(options["seccomp"]) == json.loads(docker_profile())
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert len(host["SecurityOpt"]) == 2

    mounts = {mount["Target"]: mount.get("ReadOnly", False) for mount in host["Mounts"]}
    assert mounts == {
        "/inputs/train.csv": True,
        "/openmle/supervisor.py": True,
        "/work": False,
        "/openmle/record": False,
    }


async def test_a_log_larger_than_the_largest_file_still_fits_its_record(docker_image: str) -> None:
    limits = Limits(disk_bytes=1024, log_bytes=64 * 1024)
    result = await DockerRunner(image=docker_image).run(
        RunSpec(argv=(PYTHON, "-c", "print('x' * 50_000)"), limits=limits)
    )
    assert (result.exit_code, result.log.text) == (0, "x" * 50_000 + "\n")


async def test_inside_the_limits_of_the_spec_are_in_force(docker_image: str) -> None:
    source = """
import os, resource, socket
print(resource.getrlimit(resource.RLIMIT_FSIZE), resource.getrlimit(resource.RLIMIT_CORE))
print(os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize, os.statvfs("/tmp").f_files)
facts = dict(line.split(":\\t", 1) for line in open("/proc/1/status").read().splitlines() if ":\\t" in line)
print(facts["CapEff"], facts["CapBnd"], facts["NoNewPrivs"], facts["Seccomp"], facts["Uid"].split()[0] != "0")
print(open("/proc/1/cmdline").read().split("\\0")[3])
print(sorted(os.listdir("/sys/class/net")))
made = 0
try:
    while True:
        open(f"/tmp/{made}", "w").close()
        made += 1
except OSError as error:
    print(error.strerror, made)
"""
    result = await DockerRunner(image=docker_image).run(RunSpec(argv=(PYTHON, "-c", source), limits=LIMITS))
    none = "0" * 16
    lines = result.log.text.splitlines()
    assert lines[:-1] == [
        f"({20 * MIB}, {20 * MIB}) (0, 0)",
        f"{150 * MIB} 65536",
        f"{none} {none} 1 2 True",
        "/openmle/supervisor.py",
        "['lo']",
    ]
    assert lines[-1].startswith("No space left on device 655")


async def test_calls_that_reach_past_the_namespaces_are_refused_inside(docker_image: str) -> None:
    source = """
import ctypes, errno, socket
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"io_uring_setup": 425, "ptrace": 101 if ctypes.sizeof(ctypes.c_void_p) == 8 else 26, "unshare": 272}
for name, number in numbers.items():
    print(name, libc.syscall(number, 0, 0, 0, 0) == -1 and errno.errorcode[ctypes.get_errno()])
for name in ("AF_VSOCK", "AF_NETLINK", "AF_PACKET", "AF_ALG", "AF_INET"):
    try:
        socket.socket(getattr(socket, name), socket.SOCK_RAW if name == "AF_NETLINK" else socket.SOCK_STREAM).close()
        print(name, "made")
    except OSError as error:
        print(name, "refused")
"""
    result = await DockerRunner(image=docker_image).run(RunSpec(argv=(PYTHON, "-c", source)))
    assert result.log.text.splitlines() == [
        "io_uring_setup EPERM",
        "ptrace EPERM",
        "unshare EPERM",
        "AF_VSOCK refused",
        "AF_NETLINK refused",
        "AF_PACKET refused",
        "AF_ALG refused",
        "AF_INET made",
    ]


async def test_zombies_of_a_program_are_reaped(docker_image: str) -> None:
    source = """
import os
for _ in range(150):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
print("made")
"""
    result = await DockerRunner(image=docker_image).run(
        RunSpec(argv=(PYTHON, "-c", source), limits=Limits(processes=40))
    )
    assert (result.exit_code, result.log.text) == (0, "made\n")


async def test_a_kill_from_outside_is_not_the_programs_end(docker_image: str) -> None:
    async with sleeping(DockerRunner(image=docker_image)) as running:
        running.container.kill()
        with pytest.raises(RunnerUnavailable, match="killed from outside"):
            await running.run


async def test_a_removal_from_outside_is_not_the_programs_end(docker_image: str) -> None:
    async with sleeping(DockerRunner(image=docker_image)) as running:
        running.container.remove(force=True)
        with pytest.raises(RunnerUnavailable, match="docker"):
            await running.run


async def test_a_stop_from_outside_is_not_the_programs_end(docker_image: str) -> None:
    async with sleeping(DockerRunner(image=docker_image)) as running:
        await asyncio.to_thread(running.container.stop, timeout=0)
        with pytest.raises(RunnerUnavailable, match="killed from outside"):
            await running.run


async def test_a_program_that_kills_itself_is_the_programs_end(docker_image: str) -> None:
    source = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    result = await DockerRunner(image=docker_image).run(RunSpec(argv=(PYTHON, "-c", source)))
    assert (result.exit_code, result.signal, result.timed_out, result.out_of_memory) == (None, 9, False, False)


async def test_an_image_without_our_interpreter_is_not_the_programs_end(docker_image: str) -> None:
    with pytest.raises(RunnerUnavailable, match="docker"):
        await DockerRunner(image="openmle/base:local").run(RunSpec(argv=(PYTHON, "-c", "pass")))


async def test_a_runtime_that_the_engine_does_not_have_is_named_with_those_it_has(docker_image: str) -> None:
    with pytest.raises(RunnerUnavailable, match=r"no runtime 'kata-runtime', but .*runc.*daemon\.json"):
        await DockerRunner(image=docker_image, runtime="kata-runtime").check()


async def test_a_runtime_that_the_engine_has_is_the_containers(docker_image: str) -> None:
    runner = DockerRunner(image=docker_image, runtime="runc")
    await runner.check()
    async with sleeping(runner) as running:
        assert running.container.attrs["HostConfig"]["Runtime"] == "runc"
