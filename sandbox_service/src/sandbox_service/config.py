"""The settings of `openmle-sandbox serve`."""

import math
import os
from dataclasses import dataclass, field

from openmle_gym.errors import ConfigError
from openmle_gym.jobs import GRADING_LIMITS, MIB, Limits

from sandbox_service.records import QueuePolicy

RUNNERS = ("auto", "docker", "bubblewrap", "zygote", "process")


@dataclass
class ServeConfig:
    """What one service does. API keys are not among the settings: see `sandbox_service.auth`.

    Where a setting says that 0 is no limit, there is none by default.
    """

    host: str = "127.0.0.1"
    """Address to listen on. Anything but a loopback address needs API keys."""
    port: int = 6580
    """Port to listen on; 0 picks a free one."""
    tls_certificate: str | None = None
    """A PEM file with the certificate, for HTTPS; needs tls_key too."""
    tls_key: str | None = None
    """A PEM file with the certificate's key."""
    keys_file: str | None = None
    """A file of API keys, one scope:key a line, read again when it changes; without it OPENMLE_SANDBOX_KEYS_FILE names
    it."""
    ready_file: str | None = None
    """A file that holds the base URL while the service answers, for scripts that wait for it. After a kill -9 an old
    one is left over; remove it before the start."""
    task_roots: list[str] = field(default_factory=lambda: ["tasks"])
    """Folders of task packages. A job's data_dir must lie in one of them."""
    state_dir: str = "runs/sandbox"
    """Folder of the job database. One service at a time may use it; not on a network file system."""
    work_dir: str | None = None
    """Folder of the files of running programs, emptied at every start; without it, a folder in state_dir."""
    workers: int = 0
    """Programs that run at once on the CPU, on each machine; 0 is as many as it has cores for."""
    gpus: str = "none"
    """GPUs to hand out, one job on each at a time: none, all, or UUIDs between commas. Needs runner docker."""
    vram_mib: int = 12288
    """GPU memory of one program, in MiB."""
    gpu_on_cpu: bool = True
    """Whether a job with resource_type gpu runs on the CPU where no GPU is handed out, with a warning in its result;
    otherwise it is refused. Published clients ask for a GPU unless told otherwise."""
    runner: str = "auto"
    """What holds the programs: auto (the strongest that works here), docker, bubblewrap, zygote (bubblewrap's
    isolation with warm interpreters) or process."""
    allow_process: bool = False
    """Whether runner auto or process may run programs with no isolation but resource limits. Only for programs that
    you trust."""
    dispatch: str = "local"
    """Where programs run: local (this machine) or ray (the nodes of a Ray cluster; needs openmle-sandbox[ray])."""
    ray_address: str = "auto"
    """The Ray cluster; auto is the one that this machine is a node of."""
    ray_resource: str | None = None
    """A custom resource of Ray: only nodes that have it run programs, and as many at once as they have of it."""
    ray_ship_packages: bool = False
    """Whether task packages are sent to the nodes; otherwise task_roots must name the same folders everywhere."""
    ray_node_dir: str | None = None
    """Folder on every node for packages and the files of running programs; without it, .openmle/node in the home of
    whoever runs Ray there."""
    docker_image: str = "openmle/sandbox:cpu"
    """The image that programs run in, when Docker holds them."""
    docker_runtime: str | None = None
    """The engine's name of another container runtime, such as runsc, proven at the start; without it, its default."""
    docker_starts: int = 0
    """Containers that are started at once, whatever number runs; 0 is twice the machine's cores."""
    max_timeout_seconds: float = 14400.0
    """The longest a program may run; a job that asks for more gets this."""
    grading_timeout_seconds: float = 300.0
    """The longest that a task's metric may take on one submission."""
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
    output_mib: int = 4096
    """A program that prints more than so much, in MiB, kept or not, is killed."""
    max_attempts: int = 3
    """How often a job is started, when machinery fails under it, before it is given up."""
    max_queued: int = 100_000
    """Jobs that may wait; more are answered 503 and can be submitted again later."""
    max_queued_per_key: int = 0
    """Jobs of one key that may wait; more are answered 429. 0 is no limit."""
    max_running_per_key: int = 0
    """Jobs of one key that run at once; the others wait. 0 is no limit."""
    max_queue_seconds: float = 0.0
    """How long a job may wait for a worker before it fails; 0 is no limit. A job can ask for less."""
    aging_seconds: float = 600.0
    """When the oldest job of low priority has waited for so long, every fourth job started is of low priority."""
    drain_seconds: float = 30.0
    """How long running programs may go on after SIGTERM or SIGINT; then they are killed, and their jobs run again at
    the next start. A second signal kills them at once."""
    artifact_mib: float = 64.0
    """How much is kept of the files that one job leaves, in MiB, together; 0 keeps none."""
    max_artifacts_mib: float = 10240.0
    """How much is kept of all jobs' files, in MiB; the oldest go first."""
    keep_days: float = 30.0
    """How long the logs and files of ended jobs are kept. The jobs themselves stay, with their results."""
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
        if self.dispatch not in ("local", "ray"):
            raise ConfigError(f"dispatch={self.dispatch!r}: must be local or ray")
        if self.dispatch == "ray" and self.gpus not in ("none", "all"):
            raise ConfigError(f"gpus={self.gpus}: with dispatch ray must be none or all")
        if self.workers < 0:
            raise ConfigError(f"workers={self.workers}: must be 0 (by the machine's cores) or more")
        for name in (
            "max_timeout_seconds",
            "grading_timeout_seconds",
            "memory_mib",
            "vram_mib",
            "cpus",
            "processes",
            "disk_mib",
            "keep_days",
            "max_body_mib",
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name}={value}: must be more than 0")
        for name in (
            "docker_starts", "max_queued_per_key", "max_running_per_key", "max_queue_seconds", "aging_seconds",
            "drain_seconds", "artifact_mib", "max_artifacts_mib",
        ):  # fmt: skip
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name}={value}: must be 0 or more")
        if self.docker_runtime and self.runner not in ("auto", "docker"):
            raise ConfigError(f"docker_runtime={self.docker_runtime}: needs runner docker, not {self.runner}")
        if self.tls_key and not self.tls_certificate:
            raise ConfigError(f"tls_key={self.tls_key}: set tls_certificate too")
        for name in ("tls_certificate", "tls_key"):
            if (path := getattr(self, name)) and not os.access(path, os.R_OK):
                raise ConfigError(f"{name}={path}: cannot be read")
        for name, least in (("max_attempts", 1), ("max_queued", 1), ("log_kib", 2), ("output_mib", 1)):
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
            output_bytes=self.output_mib * MIB,
        )

    def grading_limits(self) -> Limits:
        """What a task's metric may use."""
        return GRADING_LIMITS.model_copy(update={"wall_seconds": self.grading_timeout_seconds})

    def policy(self) -> QueuePolicy:
        """Who may wait and run."""
        return QueuePolicy(
            max_queued=self.max_queued,
            max_queued_per_key=self.max_queued_per_key,
            max_running_per_key=self.max_running_per_key,
            queue_seconds=self.max_queue_seconds,
            aging_seconds=self.aging_seconds,
            max_attempts=self.max_attempts,
        )

    def worker_count(self) -> int:
        """`workers`, or how many programs the machine has cores for."""
        return self.workers or max(1, int(len(os.sched_getaffinity(0)) // self.cpus))
