"""What Docker's runner asks of the engine for one run: the container's whole configuration, as values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openmle_gym.isolation.disk import MOST_INODES
from openmle_gym.isolation.logs import record_bytes
from openmle_gym.isolation.runner import GpuGrant, RunSpec
from openmle_gym.isolation.seccomp import docker_profile
from openmle_gym.isolation.workspace import SUPERVISOR, Workspace, expanded, program_environment, supervisor_arguments

MANAGED_LABEL = "openmle.managed"
"""On every container of ours, with the value 1."""
_PYTHON, _WORK, _INPUTS, _TMP = "/opt/venv/bin/python", "/work", "/inputs", "/tmp"
_SUPERVISOR, _RECORD = "/openmle/supervisor.py", "/openmle/record"
_VRAM_HOOK, _VRAM_HOOK_FOLDER = Path(__file__).with_name("vram_hook.py"), "/openmle/gpu"


def container_request(
    spec: RunSpec, place: Workspace, *, image: str, user: str, cores: float, runtime: str | None, nvidia_runtime: bool
) -> dict[str, Any]:
    """The arguments of the SDK's `containers.create`.

    Args:
        user: `uid:gid`. One user for all runs will do: they share no file, no process and no counter.
        cores: What the engine's machine has; it refuses a larger share.
        nvidia_runtime: Whether the container runtime shows a container the GPUs that its environment names, so that an
            image could ask for all of them.
    """
    from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

    limits, gpu = spec.limits, spec.gpu
    arguments = supervisor_arguments(
        tuple(expanded(word, python=_PYTHON, inputs=_INPUTS) for word in spec.argv),
        limits,
        record=_RECORD,
        rlimits={},
        settings=("hide_root=1",),
    )
    read_only = {f"{_INPUTS}/{name}": source for name, source in place.inputs.items()} | {_SUPERVISOR: SUPERVISOR}
    if gpu is not None:
        read_only[f"{_VRAM_HOOK_FOLDER}/sitecustomize.py"] = _VRAM_HOOK
    writable = {_WORK: place.work, _RECORD: place.root / "record"}
    # The supervisor lowers it for the program; it writes the record itself.
    largest_file = max(limits.disk_bytes, record_bytes(limits.log_bytes))
    return {
        "image": image,
        "entrypoint": [_PYTHON, "-I", "-S", _SUPERVISOR],
        "command": arguments,
        "environment": _environment(spec, nvidia_runtime=nvidia_runtime),
        "working_dir": _WORK,
        "user": user,
        "labels": {**spec.labels, MANAGED_LABEL: "1"},
        "mounts": [
            *(Mount(target, str(source), type="bind", read_only=True) for target, source in read_only.items()),
            *(Mount(target, str(source), type="bind") for target, source in writable.items()),
        ],
        "read_only": True,
        "tmpfs": {_TMP: f"exec,nosuid,nodev,mode=1777,size={limits.disk_bytes},nr_inodes={MOST_INODES}"},
        "shm_size": max(1, limits.memory_bytes // 2),
        "mem_limit": limits.memory_bytes,
        "memswap_limit": limits.memory_bytes,
        "nano_cpus": int(min(limits.cpus, cores) * 1e9),
        "pids_limit": limits.processes + 1,  # the supervisor is not the program's
        "ulimits": [
            Ulimit(name="fsize", soft=largest_file, hard=largest_file),
            Ulimit(name="core", soft=0, hard=0),
        ],
        "network_mode": "none",
        "ipc_mode": "private",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true", f"seccomp={docker_profile()}"],
        # The supervisor does an init's work, and as the first process it cannot be killed from inside.
        "init": False,
        "runtime": runtime,
        "log_config": LogConfig(type="none"),
        "device_requests": [DeviceRequest(device_ids=list(gpu.uuids), capabilities=[["gpu"]])] if gpu else None,
    }


def _environment(spec: RunSpec, *, nvidia_runtime: bool) -> dict[str, str]:
    environment = program_environment(spec, home=_WORK, tmp=_TMP, inputs=_INPUTS, python=_PYTHON)
    if spec.gpu is not None:
        return environment | _gpu_environment(spec.gpu, environment)
    return environment | ({"NVIDIA_VISIBLE_DEVICES": "void"} if nvidia_runtime else {})


def _gpu_environment(gpu: GpuGrant, environment: Mapping[str, str]) -> dict[str, str]:
    path = environment.get("PYTHONPATH")
    return {
        "NVIDIA_VISIBLE_DEVICES": ",".join(gpu.uuids),
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "OPENMLE_VRAM_BYTES": str(gpu.vram_bytes),
        "PYTHONPATH": f"{_VRAM_HOOK_FOLDER}:{path}" if path else _VRAM_HOOK_FOLDER,
    }
