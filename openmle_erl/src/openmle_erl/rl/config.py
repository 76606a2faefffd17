"""The settings of `openmle-erl train`. Defaults are the paper's where it has a value; profiles are `configs/erl/rl_*.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast, get_args

from omegaconf import MISSING
from openmle_gym.errors import ConfigError
from openmle_gym.jobs import MIB, Limits
from openmle_gym.memory import MemoryConfig
from openmle_gym.operators import Operator
from openmle_gym.policies.settings import PolicyConfig
from openmle_gym.prompts import PromptConfig
from openmle_gym.review import ReviewConfig

from openmle_erl.engines.protocols import Sampling
from openmle_erl.engines.settings import TorchTrainerConfig
from openmle_erl.rewards.advantages import AdvantageKind
from openmle_erl.rewards.bounds import BoundsMode
from openmle_erl.rewards.presets import PRESETS, RewardSettings
from openmle_erl.rl.breaker import BreakerConfig
from openmle_erl.rl.evaluation import EvaluationConfig
from openmle_erl.rl.groups import GroupConfig
from openmle_erl.rl.pool import QueueConfig
from openmle_erl.rl.train import ScheduleConfig
from openmle_erl.tracking import TrackingConfig

CONFIGS = Path(__file__).parent.parent / "configs"
TEMPLATE_TOKENS = 256
"""What a chat template may add to a prompt."""


@dataclass
class OperatorsConfig:
    """How often each operator is drawn; an operator that has no parents yet gives way to another."""

    draft: float = 0.50
    improve: float = 0.17
    debug: float = 0.17
    crossover: float = 0.16

    def __post_init__(self) -> None:
        for name, share in vars(self).items():
            if share < 0.0:
                raise ConfigError(f"operators.{name}: must be 0 or more, got {share}")

    def shares(self) -> Mapping[Operator, float]:
        """By operator."""
        return {Operator(name): share for name, share in vars(self).items()}


@dataclass
class SamplingConfig:
    """How training's replies are sampled."""

    max_new_tokens: int = 24_576
    """The longest reply, thinking included."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    """-1: all."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ConfigError(f"sampling.max_new_tokens: must be at least 1, got {self.max_new_tokens}")
        if not self.temperature > 0.0:
            raise ConfigError(f"sampling.temperature: must be more than 0, got {self.temperature}")

    def sampling(self) -> Sampling:
        """As engines take it."""
        return Sampling(**vars(self))


@dataclass
class RewardsConfig:
    """How scores become rewards, and rewards advantages."""

    preset: str = "robust"
    """robust, paper, medal_binary or human_rank; see docs/rewards.md."""
    advantage: str | None = None
    """Instead of the preset's: entropic, group_normalised or leave_one_out."""
    bounds: str | None = None
    """Instead of the preset's: top1_top8, top1_top16, top1_all_mean, top1_all_median, or theoretical for bounds that do
    not adapt."""
    published_parents: bool = False
    """Weigh parents as published: visits count samples instead of groups."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("preset", self.preset, tuple(PRESETS)),
            ("advantage", self.advantage, (None, *get_args(AdvantageKind))),
            ("bounds", self.bounds, (None, *get_args(BoundsMode))),
        ):
            if value not in known:
                names = ", ".join(str(each) for each in known if each)
                raise ConfigError(f"rewards.{name}: must be one of {names}, got {value!r}")

    def settings(self) -> RewardSettings:
        """The preset, with what is set instead."""
        settings = PRESETS[self.preset]
        if self.advantage is not None:
            settings = replace(
                settings, advantages=replace(settings.advantages, kind=cast(AdvantageKind, self.advantage))
            )
        if self.bounds is not None:
            settings = replace(settings, bounds_mode=cast(BoundsMode, self.bounds))
        return settings


@dataclass
class SandboxConfig:
    """Where programs run."""

    service: str | None = None
    """The sandbox service's address. Without one, programs run on this machine by `runner`."""
    runner: str = "auto"
    """Without a service: auto (the strongest there is), docker, zygote, bubblewrap or process."""
    allow_process: bool = False
    """Without a service: let `auto` fall back to plain processes, which isolate nothing."""
    docker_image: str = "openmle/sandbox:cpu"
    """Without a service: the image for Docker."""
    workers: int = 2
    """Without a service: programs that run at once."""
    timeout_seconds: float = 3600.0
    """Wall clock that one program gets."""
    memory_mib: int = 2048
    """Memory that one program is told it has, and gets when there is no service."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"sandbox.workers: must be at least 1, got {self.workers}")
        if not self.timeout_seconds > 0:
            raise ConfigError(f"sandbox.timeout_seconds: must be more than 0, got {self.timeout_seconds}")
        if self.memory_mib < 64:
            raise ConfigError(f"sandbox.memory_mib: must be at least 64, got {self.memory_mib}")

    def limits(self) -> Limits:
        """What one program gets, and is told that it gets."""
        return Limits(wall_seconds=self.timeout_seconds, memory_bytes=self.memory_mib * MIB)


@dataclass
class RolloutConfig:
    """Who generates."""

    engines: list[str] = field(default_factory=list)
    """Addresses of servers that speak SGLang's protocol and serve `model`. None: a local server is started on this
    machine, and ended with the run."""
    max_running: int = 64
    """Of the local server: how many requests are generated at once."""
    patience_seconds: float = 60.0
    """How long a request waits while no engine works, before it counts as a failure of machinery."""


@dataclass
class RLConfig:
    """`openmle-erl train`."""

    tasks: list[str] = MISSING
    """Task packages' folders, or folders that hold packages."""
    run_dir: str = MISSING
    """The run's folder; the same command goes on with a run that was stopped or killed."""
    model: str = MISSING
    """The folder of the model to start from, in Hugging Face's layout, with its tokenizer."""
    samples_per_group: int = 16
    """Samples of one prompt."""
    asynchronous: bool = True
    """Generate and execute while the trainer trains; otherwise one after the other."""
    context_tokens: int = 32_768
    """The longest prompt and reply together."""
    seed: int = 42
    """Of operators, parents, the tasks' order and sampling."""
    operators: OperatorsConfig = field(default_factory=OperatorsConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    group: GroupConfig = field(default_factory=GroupConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
    breaker: BreakerConfig = field(default_factory=BreakerConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    review: ReviewConfig = field(default_factory=ReviewConfig)
    judge: PolicyConfig = field(
        default_factory=lambda: PolicyConfig(
            kind="openai", base_url="http://127.0.0.1:30001/v1", model="judge", temperature=0.0, max_tokens=1024
        )
    )
    """With review.judge: who judges; by default an endpoint on this machine."""
    memory: MemoryConfig = field(default_factory=lambda: MemoryConfig(note_length=110, length=1500))
    """What prompts tell of earlier attempts; lengths are in tokens."""
    prompt: PromptConfig = field(
        default_factory=lambda: PromptConfig(
            length=7900, description=3000, data=2500, source=5000, output=1000, skills=0
        )
    )
    """The most that a prompt and its sections take, in tokens."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    trainer: TorchTrainerConfig = field(default_factory=TorchTrainerConfig)
    """The trainer on this machine; `openmle-erl launch` places others."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    """Where metrics go beside the run's own table."""
    trainer_processes: int = 1
    """Processes of this machine that the model is sharded over; 1: in the run's own."""

    def __post_init__(self) -> None:
        if self.samples_per_group < 2:
            raise ConfigError(f"samples_per_group: must be at least 2, got {self.samples_per_group}")
        if self.trainer_processes < 1:
            raise ConfigError(f"trainer_processes: must be at least 1, got {self.trainer_processes}")
        if self.group.least > self.samples_per_group:
            raise ConfigError(
                f"group.least: must be at most samples_per_group={self.samples_per_group}, got {self.group.least}"
            )
        batch = self.schedule.groups_per_step * self.samples_per_group
        if batch % self.schedule.optimiser_steps:
            raise ConfigError(
                f"schedule.optimiser_steps: {batch} samples (schedule.groups_per_step={self.schedule.groups_per_step} x "
                f"samples_per_group={self.samples_per_group}) do not divide by {self.schedule.optimiser_steps}"
            )
        needed = self.prompt.length + TEMPLATE_TOKENS + self.sampling.max_new_tokens
        if needed > self.context_tokens:
            raise ConfigError(
                f"context_tokens: must be at least {needed} (prompt.length={self.prompt.length} + {TEMPLATE_TOKENS} for "
                f"the template + sampling.max_new_tokens={self.sampling.max_new_tokens}), got {self.context_tokens}"
            )
        engine = self.trainer.engine
        if engine.temperature != self.sampling.temperature:
            raise ConfigError(
                f"trainer.engine.temperature: must be that of sampling.temperature={self.sampling.temperature}, so that "
                f"both speak of the same distribution, got {engine.temperature}"
            )
        if engine.lora.dropout:
            raise ConfigError(
                "trainer.engine.lora.dropout: must be 0, since the ratio compares two passes of one policy, got "
                f"{engine.lora.dropout}"
            )
        if self.memory.notes != "extractive":
            raise ConfigError(f"memory.notes: must be extractive in training, got {self.memory.notes!r}")
        if self.review.judge and self.judge.kind == "none":
            raise ConfigError("judge.kind: somebody must judge where review.judge is set, got 'none'")

    @property
    def global_batch(self) -> int:
        """Samples of one optimiser step."""
        return self.schedule.groups_per_step * self.samples_per_group // self.schedule.optimiser_steps
