"""GPUs for containers, as far as a machine without one can prove it: what is asked of the engine, what the engine
answers, the watch over the memory in use (on figures that the test gives), and PyTorch's share (on a stand-in for it).
"""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openmle_gym.isolation
import pytest
from openmle_gym.errors import RunnerUnavailable
from openmle_gym.isolation.bubblewrap import BubblewrapRunner
from openmle_gym.isolation.container import container_request
from openmle_gym.isolation.docker import DockerRunner
from openmle_gym.isolation.logs import read_record
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.isolation.runner import PYTHON, GpuGrant, GpuUse, Runner, RunSpec
from openmle_gym.isolation.workspace import Workspace, workspace
from openmle_gym.isolation.zygote import ZygoteRunner
from openmle_gym.jobs import MIB, Limits

GIB = 1024 * MIB
HOOK = Path(openmle_gym.isolation.__file__ or "").with_name("vram_hook.py")
GRANT = GpuGrant(uuids=("GPU-8f1c",), vram_bytes=12 * GIB, enforcement="watchdog")
TORCH = """
class properties:
    total_memory = 24 * 2**30

class cuda:
    waiting = []
    fractions = {}

    @staticmethod
    def _lazy_call(call):
        cuda.waiting.append(call)

    @staticmethod
    def device_count():
        return 2

    @staticmethod
    def get_device_properties(device):
        return properties

    @staticmethod
    def set_per_process_memory_fraction(fraction, device):
        cuda.fractions[device] = fraction
"""
"""What the hook uses of PyTorch; CUDA is initialised when the calls in `waiting` are made."""
USES_TORCH = """
import json, torch
from torch import cuda
before = dict(cuda.fractions)
for call in cuda.waiting:
    call()
print(json.dumps([before, cuda.fractions, len(cuda.waiting)]))
"""


def request_for(spec: RunSpec, place: Workspace, *, nvidia_runtime: bool = False) -> dict[str, Any]:
    return container_request(
        spec,
        place,
        image="openmle/sandbox:cpu",
        user="65534:65534",
        cores=2.0,
        runtime=None,
        nvidia_runtime=nvidia_runtime,
    )


async def environment_of(spec: RunSpec, *, nvidia_runtime: bool = False) -> dict[str, str]:
    async with workspace(spec, uid=None) as place:
        return request_for(spec, place, nvidia_runtime=nvidia_runtime)["environment"]


@pytest.mark.docker
async def test_a_job_gets_exactly_its_gpus_by_uuid(docker_image: str) -> None:
    import docker

    engine = docker.from_env()
    spec = RunSpec(argv=(PYTHON, "-c", "pass"), gpu=GRANT)
    async with workspace(spec, uid=None) as place:
        container = engine.containers.create(**request_for(spec, place))
        try:
            container.reload()
            facts = container.attrs
        finally:
            container.remove()
    (device,) = facts["HostConfig"]["DeviceRequests"]
    assert (device["DeviceIDs"], device["Capabilities"], device["Count"]) == (["GPU-8f1c"], [["gpu"]], 0)
    assert {
        "NVIDIA_VISIBLE_DEVICES=GPU-8f1c",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        f"OPENMLE_VRAM_BYTES={12 * GIB}",
        "PYTHONPATH=/openmle/gpu",
    } <= set(facts["Config"]["Env"])
    (hook,) = (mount for mount in facts["HostConfig"]["Mounts"] if "gpu" in mount["Target"])
    assert (hook["Target"], hook["ReadOnly"]) == ("/openmle/gpu/sitecustomize.py", True)
    # CUDA reserves addresses far beyond what it uses.
    assert not any(word.startswith("rlimit.AS") for word in facts["Config"]["Cmd"])


@pytest.mark.docker
async def test_a_job_without_a_gpu_asks_for_none(docker_image: str) -> None:
    spec = RunSpec(argv=("true",))
    async with workspace(spec, uid=None) as place:
        request = request_for(spec, place)
    assert request["device_requests"] is None
    assert not [name for name in request["environment"] if "NVIDIA" in name or name == "PYTHONPATH"]


@pytest.mark.docker
async def test_where_an_image_could_ask_for_gpus_a_job_without_one_is_shown_none(docker_image: str) -> None:
    shown = await environment_of(RunSpec(argv=("true",)), nvidia_runtime=True)
    assert shown["NVIDIA_VISIBLE_DEVICES"] == "void"
    shown = await environment_of(RunSpec(argv=("true",), gpu=GRANT), nvidia_runtime=True)
    assert shown["NVIDIA_VISIBLE_DEVICES"] == "GPU-8f1c"


@pytest.mark.docker
async def test_a_jobs_own_module_path_stays(docker_image: str) -> None:
    shown = await environment_of(RunSpec(argv=("true",), gpu=GRANT, environment={"PYTHONPATH": "/work/lib"}))
    assert shown["PYTHONPATH"] == "/openmle/gpu:/work/lib"


@pytest.mark.docker
async def test_an_engine_without_a_gpu_says_what_is_missing(docker_image: str) -> None:
    import docker

    if "nvidia" in docker.from_env().info()["Runtimes"]:
        pytest.skip("this engine can give containers a GPU")
    with pytest.raises(RunnerUnavailable, match="install NVIDIA's driver and its container toolkit"):
        await DockerRunner(image=docker_image).run(RunSpec(argv=("true",), gpu=GRANT))


class WithoutDevice(DockerRunner):
    """Starts its containers without the GPU, which is not there, and watches over it all the same."""

    def _start(self, name: str, spec: RunSpec, place: Workspace, user: str) -> None:
        super()._start(name, dataclasses.replace(spec, gpu=None), place, user)


def watched(used_bytes: Callable[[], int], *, seconds: float, wall_seconds: float = 60.0) -> RunSpec:
    return RunSpec(
        argv=("sleep", str(seconds)),
        gpu=dataclasses.replace(GRANT, used_bytes=used_bytes),
        limits=Limits(wall_seconds=wall_seconds),
    )


@pytest.mark.docker
async def test_a_job_that_uses_more_than_its_share_and_the_drivers_part_is_killed(docker_image: str) -> None:
    looks = iter([2 * GIB, 13 * GIB, 13 * GIB + 1])
    result = await WithoutDevice(image=docker_image).run(watched(lambda: next(looks), seconds=600))
    assert result.gpu == GpuUse(enforcement="watchdog", peak_bytes=13 * GIB + 1, over_limit=True)
    assert (result.exit_code, result.signal, result.timed_out, result.out_of_memory) == (None, 9, False, False)


@pytest.mark.docker
async def test_a_job_within_its_share_ends_as_it_will_and_its_peak_is_told(docker_image: str) -> None:
    looks = iter([3 * GIB] + [2 * GIB] * 1000)
    result = await WithoutDevice(image=docker_image).run(watched(lambda: next(looks), seconds=1.5))
    assert result.gpu == GpuUse(enforcement="watchdog", peak_bytes=3 * GIB)
    assert result.exit_code == 0


@pytest.mark.docker
async def test_the_wall_clock_holds_for_a_watched_job_too(docker_image: str) -> None:
    result = await WithoutDevice(image=docker_image).run(watched(lambda: 0, seconds=600, wall_seconds=1.5))
    assert result.timed_out
    assert result.gpu == GpuUse(enforcement="watchdog", peak_bytes=0)


@pytest.mark.docker
async def test_a_driver_that_fails_meanwhile_is_not_the_programs_end(docker_image: str) -> None:
    import docker

    def lost() -> int:
        raise RunnerUnavailable("NVML: GPU is lost")

    spec = dataclasses.replace(watched(lost, seconds=600), labels={"openmle.test": "lost-gpu"})
    with pytest.raises(RunnerUnavailable, match="GPU is lost"):
        await WithoutDevice(image=docker_image).run(spec)
    assert docker.from_env().containers.list(all=True, filters={"label": "openmle.test=lost-gpu"}) == []


@pytest.mark.docker
async def test_pytorch_in_the_image_is_told_its_share(docker_image: str) -> None:
    import docker

    spec = RunSpec(
        argv=(PYTHON, "main.py"), files={"torch.py": TORCH.encode(), "main.py": USES_TORCH.encode()}, gpu=GRANT
    )
    uid = 65534 if os.getuid() == 0 else None
    async with workspace(spec, uid=uid) as place:
        request = request_for(spec, place)
        request["user"] = "65534:65534" if uid else f"{os.getuid()}:{os.getgid()}"
        request["device_requests"] = None
        container = docker.from_env().containers.create(**request)
        try:
            container.start()
            container.wait(timeout=60)
        finally:
            container.remove(force=True)
        said = read_record(place.record, spec.limits.log_bytes)
    assert json.loads(said.log.text) == [{}, {"0": 0.5, "1": 0.5}, 1]


def in_python(folder: Path, torch: str, program: str) -> str:
    """What a program prints beside a module `torch`, with the hook, in a Python without packages."""
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").symlink_to(HOOK)
    (folder / "torch.py").write_text(torch)
    (folder / "main.py").write_text(program)
    environment = {"PYTHONPATH": str(folder / "hook"), "OPENMLE_VRAM_BYTES": str(12 * GIB)}
    return subprocess.run(
        [Path(sys.base_exec_prefix, "bin", "python3"), folder / "main.py"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_pytorch_is_told_when_it_initialises_and_not_before(tmp_path: Path) -> None:
    assert json.loads(in_python(tmp_path, TORCH, USES_TORCH)) == [{}, {"0": 0.5, "1": 0.5}, 1]


def test_a_share_of_more_than_the_gpu_has_is_all_of_it(tmp_path: Path) -> None:
    small = TORCH.replace("24 * 2**30", "8 * 2**30")
    assert json.loads(in_python(tmp_path, small, USES_TORCH))[1] == {"0": 1.0, "1": 1.0}


def test_a_torch_that_cannot_be_told_works_all_the_same(tmp_path: Path) -> None:
    assert in_python(tmp_path, "version = 1", "import torch\nprint(torch.version)") == "1\n"


def test_a_program_without_pytorch_never_loads_it(tmp_path: Path) -> None:
    assert in_python(tmp_path, "print('loaded')", "import json, sys\nprint('torch' in sys.modules)") == "False\n"


def test_a_missing_torch_is_missed_as_ever(tmp_path: Path) -> None:
    program = """
import os
os.remove(os.path.join(os.path.dirname(__file__), "torch.py"))
try:
    import torch
except ModuleNotFoundError as error:
    print(error)
"""
    assert in_python(tmp_path, "", program) == "No module named 'torch'\n"


@pytest.mark.parametrize("runner", [BubblewrapRunner(), ZygoteRunner(), ProcessRunner(allow_no_isolation=True)])
async def test_a_runner_that_cannot_hand_out_a_gpu_does_not_run_without_it(runner: Runner) -> None:
    with pytest.raises(RunnerUnavailable, match="only Docker can hand a GPU"):
        await runner.run(RunSpec(argv=(PYTHON, "-c", "pass"), gpu=GRANT))
