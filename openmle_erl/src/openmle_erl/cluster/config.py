"""The settings of `openmle-erl launch`: one for all topologies, whose files (`configs/erl/topology/`) hold what differs."""

from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import MISSING
from openmle_gym.errors import ConfigError

from openmle_erl.engines.memory import ParallelSizes

CONFIGS = Path(__file__).parent.parent / "configs"
TRAINERS, ROLLOUTS = ("megatron", "torch"), ("sglang", "local")


@dataclass
class NodesConfig:
    """The machines, all alike, used whole."""

    count: int = 1
    gpus: int = 8
    """GPUs of each; 0: everything runs on the CPU."""
    gpu_memory_gib: float = 141.0
    """Of each GPU: 80 for an H100, 141 for an H200."""
    cpus: int = 64
    """CPU cores of each that are reserved."""

    def __post_init__(self) -> None:
        for name, least in (("count", 1), ("gpus", 0), ("cpus", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"nodes.{name}: must be at least {least}, got {getattr(self, name)}")
        if self.gpu_memory_gib <= 0:
            raise ConfigError(f"nodes.gpu_memory_gib: must be above 0, got {self.gpu_memory_gib}")


@dataclass
class TrainerShare:
    """Which processes train, and how the model lies over them."""

    engine: str = "megatron"
    """megatron, or torch (FSDP2, whose parallel sizes are all 1 but `data`)."""
    processes: int = 4
    """One for each GPU that trains."""
    parallel: ParallelSizes = field(default_factory=ParallelSizes)
    """`data` is worked out from the processes and the other sizes where it is 1."""
    optimiser_offload: bool = False
    """megatron: keep the optimiser's state on the host."""
    dispatcher: str = "alltoall"
    """megatron: how tokens reach their experts."""
    restarts: int = 3
    """How often all of them are started again from the run's last checkpoint after one died."""

    def __post_init__(self) -> None:
        if self.engine not in TRAINERS:
            raise ConfigError(f"trainer.engine: must be one of {', '.join(TRAINERS)}, got {self.engine!r}")
        for name, least in (("processes", 1), ("restarts", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"trainer.{name}: must be at least {least}, got {getattr(self, name)}")


@dataclass
class RolloutShare:
    """Which servers generate."""

    engine: str = "sglang"
    """sglang, or local: our small server, for small models."""
    engines: int = 4
    """How many servers."""
    gpus_per_engine: int = 1
    """SGLang's tensor parallelism."""
    memory_fraction: float = 0.7
    """sglang: the share of a GPU's memory for weights and attention cache."""
    attention_replicas: int = 1
    """sglang: how many ways attention is split by requests instead of heads (--attn-dp-size)."""
    expert_parallel: int = 1
    """sglang: how many ways experts are split (--ep-size)."""
    max_running: int | None = None
    """How many requests one engine works on at once; null: as the engine decides, the local server 64."""
    graph_batches: list[int] = field(default_factory=list)
    """sglang: batch sizes that get a CUDA graph; empty: as SGLang decides."""
    extra: list[str] = field(default_factory=list)
    """sglang: further arguments of sglang.launch_server, as they are."""
    python: str = "python"
    """sglang: the interpreter that has it; its pins conflict with the trainer's, so it has an environment of its own."""
    first_port: int = 30000
    """Engines of one node listen from here on; 0: on any free port (local only)."""
    start_seconds: float = 900.0
    """How long an engine may take to be healthy."""
    look_seconds: float = 5.0
    """Between two looks at the engines' health."""
    restarts: int = 5
    """How often one engine is replaced."""

    def __post_init__(self) -> None:
        if self.engine not in ROLLOUTS:
            raise ConfigError(f"rollout.engine: must be one of {', '.join(ROLLOUTS)}, got {self.engine!r}")
        ones = ("engines", "gpus_per_engine", "attention_replicas", "expert_parallel")
        for name, least in (*((name, 1) for name in ones), ("restarts", 0), ("first_port", 0), ("max_running", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"rollout.{name}: must be at least {least}, got {value}")
        if self.engine == "sglang" and self.first_port == 0:
            raise ConfigError("rollout.first_port: sglang needs one")
        if not 0.0 < self.memory_fraction < 1.0:
            raise ConfigError(f"rollout.memory_fraction: must be between 0 and 1, got {self.memory_fraction}")


@dataclass
class RayConfig:
    """The cluster. Its token comes from RAY_AUTH_TOKEN; where a cluster is started for one run, it is drawn anew."""

    address: str | None = None
    """A running cluster's, such as 10.0.0.1:16379; null: one is started on this machine, for one node."""
    port: int = 16380
    """Of the head that is to be started; outside 10002 to 19999 Ray would take it for a worker's, so ports there are
    refused, and 6379 is often taken."""

    def __post_init__(self) -> None:
        if not 1024 <= self.port <= 65535:
            raise ConfigError(f"ray.port: must be between 1024 and 65535, got {self.port}")


@dataclass
class LaunchConfig:
    """`openmle-erl launch`."""

    topology: str = MISSING
    """A file of `configs/erl/topology`: async_1node, async_2node, sync_1node, sync_2node, laptop."""
    profile: str = MISSING
    """The training's settings: a file of `configs/erl` as `openmle-erl train` takes it; the topology names its own."""
    model: str = ""
    """The model's folder in Hugging Face's layout, which all nodes see by this path. A dry run does without."""
    shape: str | None = None
    """For a dry run without the model: a file of `openmle_erl/cluster/shapes`; null: the published model's, where no
    model is given."""
    colocated: bool = False
    """Trainer and engines take turns on the same GPUs; otherwise each GPU has one of them."""
    nodes: NodesConfig = field(default_factory=NodesConfig)
    trainer: TrainerShare = field(default_factory=TrainerShare)
    rollout: RolloutShare = field(default_factory=RolloutShare)
    ray: RayConfig = field(default_factory=RayConfig)
    dry_run: bool = False
    """Check everything and print what would be started, and where; start nothing."""

    def __post_init__(self) -> None:
        if not self.model and not self.dry_run:
            raise ConfigError("model: missing; give it as model=VALUE")
