"""The settings of `openmle-sandbox serve`."""

import math
import os
from dataclasses import dataclass, field

from openmle_gym.errors import ConfigError
from openmle_gym.jobs import MIB, Limits

RUNNERS = ("auto", "docker", "bubblewrap", "process")


@dataclass
class ServeConfig:
    """What one service does. API keys are not among the settings: see `sandbox_service.auth`."""

    host: str = "127.0.0.1"
    """Address to listen on. Anything but a loopback address needs API keys."""
    port: int = 6580
    """Port to listen on; 0 picks a free one."""
    ready_file: str | None = None
    """A file that holds the base URL while the service answers, for scripts that wait for it. After a kill -9 an old
    one is left over; remove it before the start."""
    task_roots: list[str] = field(default_factory=lambda: ["tasks"])
    """Folders of task packages. A job's data_dir must lie in one of them."""
    state_dir: str = "runs/sandbox"
    """Folder of the job database. One service at a time may use it; not on a network file system."""
    workers: int = 0
    """Programs that run at once; 0 is as many as the machine has cores for."""
    runner: str = "auto"
    """What holds the programs: auto (the strongest that works here), docker, bubblewrap or process."""
    allow_process: bool = False
    """Whether runner auto or process may run programs with no isolation but resource limits. Only for programs that
    you trust."""
    docker_image: str = "openmle/sandbox:cpu"
    """The image that programs run in, when Docker holds them."""
    max_timeout_seconds: float = 14400.0
    """The longest a program may run; a job that asks for more gets this."""
    memory_mib: int = 2048
    """Memory of one program, in MiB, all its processes together."""
    cpus: float = 1.0
    """Cores of one program."""
    processes: int = 256
    """Processes and threads that one program may have at once."""
    disk_mib: int = 1024
    """Largest file that a program may write, in MiB, and the size of its temporary file systems."""
    log_kib: int = 64
    """How much of a program's output is kept, in KiB: half from the head, half from the tail."""
    max_attempts: int = 3
    """How often a job is started, when machinery fails under it, before it is given up."""
    max_queued: int = 100_000
    """Jobs that may wait; more are answered 503 and can be submitted again later."""
    max_body_mib: float = 8.0
    """Largest request body accepted, in MiB."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port}: must be between 0 and 65535")
        if not self.task_roots:
            raise ConfigError("task_roots=[]: name at least one folder of task packages")
        if self.runner not in RUNNERS:
            raise ConfigError(f"runner={self.runner!r}: must be one of {', '.join(RUNNERS)}")
        if self.runner == "process" and not self.allow_process:
            raise ConfigError("runner=process: it does not isolate programs; set allow_process=true if you trust them")
        if self.workers < 0:
            raise ConfigError(f"workers={self.workers}: must be 0 (by the machine's cores) or more")
        for name in ("max_timeout_seconds", "memory_mib", "cpus", "processes", "disk_mib", "max_body_mib"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name}={value}: must be more than 0")
        for name, least in (("max_attempts", 1), ("max_queued", 1), ("log_kib", 2)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)}: must be at least {least}")

    def limits(self) -> Limits:
        """What every program may use."""
        return Limits(
            wall_seconds=self.max_timeout_seconds,
            memory_bytes=self.memory_mib * MIB,
            cpus=self.cpus,
            processes=self.processes,
            disk_bytes=self.disk_mib * MIB,
            log_bytes=self.log_kib * 1024,
        )

    def worker_count(self) -> int:
        """`workers`, or how many programs the machine has cores for."""
        return self.workers or max(1, int(len(os.sched_getaffinity(0)) // self.cpus))
