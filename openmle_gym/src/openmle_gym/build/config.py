"""The settings of `openmle-gym build`."""

from dataclasses import dataclass, field
from pathlib import Path

from openmle_gym.errors import ConfigError
from openmle_gym.metrics import METRICS
from openmle_gym.policies.settings import PolicyConfig

CONFIGS = Path(__file__).parent.parent / "configs"


def _no_model() -> PolicyConfig:
    return PolicyConfig(kind="none")


@dataclass
class BuildConfig:
    """How to build."""

    output: str = "tasks"
    """The folder of packages."""
    work: str = ""
    """The folder of the build's state and of all that it downloads; by default builds/NAME. The same folder resumes."""
    name: str = ""
    """The package's name; by default the source's. With several tasks, what each name begins with."""
    title: str = ""
    """The task's title, where no model gives one."""
    target: list[str] = field(default_factory=list)
    """The columns to predict; by default they are found."""
    id: str = ""
    """The column that names a row; by default one is found or made."""
    metric: str = ""
    """How predictions are scored, by a name of the metric library; by default it is chosen."""
    table: str = ""
    """The file with the labelled rows, relative to the raw data; by default it is found."""
    licence: str = ""
    """The data's licence, where the source does not state it."""
    tasks: int = 0
    """How many tasks to propose; by default 3 for a Kaggle data set with a model, else 1."""
    retries: int = 2
    """How often a stage's answer may be mended: N retries are N+1 attempts."""
    seed: int = 0
    """Of the split, where no model writes prepare.py."""
    keep_raw: bool = True
    """Keep the raw data in the package; otherwise an inventory of them, raw.txt."""
    allow_mle_bench: bool = False
    """Build competitions of MLE-Bench too, which nothing should be trained on."""
    runner: str = "auto"
    """How untrusted code is held: auto, docker, zygote, bubblewrap or process."""
    docker_image: str = "openmle/sandbox:cpu"
    """What Docker's runner needs."""
    allow_process: bool = False
    """Let auto fall back to no isolation at all."""
    prepare_seconds: float = 900.0
    """How long a prepare.py may run."""
    prepare_memory_mb: int = 8192
    """What a prepare.py may use."""
    unpacked_gb: float = 200.0
    """The most that may come out of the source's archives, in GiB."""
    policy: PolicyConfig = field(default_factory=_no_model)
    """The model; `policy.kind=none` builds without one."""

    def __post_init__(self) -> None:
        for name, least in (("tasks", 0), ("retries", 0), ("prepare_seconds", 0.1), ("prepare_memory_mb", 64)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: must be at least {least}, got {getattr(self, name)}")
        if self.unpacked_gb <= 0:
            raise ConfigError(f"unpacked_gb: must be above 0, got {self.unpacked_gb}")
        if self.metric and self.metric not in METRICS:
            raise ConfigError(f"metric: no metric {self.metric!r}; there are {', '.join(METRICS)}")
        if self.policy.kind == "recipes":
            raise ConfigError("policy.kind: the built-in policy writes no tasks; use openai or none")
