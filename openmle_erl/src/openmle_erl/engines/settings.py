"""Settings of the torch engine, without torch: the model, the optimiser, LoRA, and what a trainer for RL adds."""

import math
from dataclasses import dataclass, field

from omegaconf import MISSING
from openmle_gym.errors import ConfigError

from openmle_erl.rl.objective import ObjectiveConfig

SCHEDULES = ("constant", "cosine")
DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass
class OptimiserConfig:
    """AdamW, its schedule and the clip of the gradient. The defaults are the paper's for RL."""

    learning_rate: float = 1e-6
    """At its height."""
    schedule: str = "constant"
    """constant, or cosine: down to min_learning_rate at the end."""
    min_learning_rate: float = 0.0
    """Where cosine ends."""
    warmup_fraction: float = 0.0
    """The share of all steps over which the rate rises linearly to its height."""
    total_steps: int | None = None
    """All steps of the run; a cosine and a warm-up need it. Supervised fine-tuning works it out from its corpus."""
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    """Of matrices; norms and biases do not decay."""
    max_grad_norm: float = 1.0
    """A longer gradient is scaled to this length."""

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ConfigError(f"optimiser.schedule: must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}")
        for name in ("learning_rate", "epsilon", "max_grad_norm"):
            if getattr(self, name) <= 0.0:
                raise ConfigError(f"optimiser.{name}: must be above 0, got {getattr(self, name)}")
        for name in ("min_learning_rate", "weight_decay"):
            if getattr(self, name) < 0.0:
                raise ConfigError(f"optimiser.{name}: must be at least 0, got {getattr(self, name)}")
        for name in ("beta1", "beta2", "warmup_fraction"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"optimiser.{name}: must be in [0, 1), got {getattr(self, name)}")
        if self.min_learning_rate > self.learning_rate:
            raise ConfigError(f"optimiser.min_learning_rate: {self.min_learning_rate} is above {self.learning_rate}")
        if self.total_steps is not None and self.total_steps < 1:
            raise ConfigError(f"optimiser.total_steps: must be at least 1, or null, got {self.total_steps}")


def learning_rate_at(step: int, config: OptimiserConfig) -> float:
    """The rate of the optimiser step number `step`, from 0.

    The warm-up's first step has a rate above 0, and its last has the full rate; the cosine's last step has the
    smallest rate. Beyond `total_steps` a cosine stays at its end.

    Raises:
        ConfigError: The schedule needs `total_steps`.
    """
    if config.schedule == "constant" and config.warmup_fraction == 0.0:
        return config.learning_rate
    if config.total_steps is None:
        raise ConfigError("optimiser.total_steps: missing; a cosine and a warm-up need it")
    warmup = math.ceil(config.warmup_fraction * config.total_steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    if config.schedule == "constant":
        return config.learning_rate
    done = min(1.0, (step - warmup) / max(1, config.total_steps - warmup - 1))
    height = config.learning_rate - config.min_learning_rate
    return config.min_learning_rate + 0.5 * height * (1.0 + math.cos(math.pi * done))


@dataclass
class LoraSettings:
    """Low-rank adapters instead of all parameters, by peft."""

    rank: int = 0
    """0: all parameters are trained."""
    alpha: float = 32.0
    """The adapters' product is scaled by alpha / rank."""
    dropout: float = 0.0
    targets: list[str] = field(
        default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )
    """The linear layers that get adapters, by the end of their names."""

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ConfigError(f"lora.rank: must be at least 0, got {self.rank}")
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"lora.dropout: must be in [0, 1), got {self.dropout}")
        if self.rank and not self.targets:
            raise ConfigError("lora.targets: must name at least one kind of layer")


@dataclass
class TorchEngineConfig:
    """A Hugging Face model that is trained by torch, on one device or sharded over several."""

    model: str = MISSING
    """The folder of a causal language model in Hugging Face's layout, with its tokenizer."""
    device: str = "auto"
    """auto (a GPU where there is one), cpu or cuda."""
    precision: str = "auto"
    """Of the arithmetic: auto (bfloat16 on a GPU, float32 on a CPU), float32 or bfloat16. Weights, gradients and the
    optimiser's state are float32 in any case."""
    attention: str = "sdpa"
    """transformers' name of the attention: sdpa, eager, flash_attention_2 (where its package is installed)."""
    max_tokens_per_micro_batch: int = 8192
    """Tokens of one forward pass on one device; a longer sequence has a pass of its own."""
    packing: bool = True
    """Sequences lie one behind the other in one row, kept apart by their positions; otherwise one a row, padded."""
    gradient_checkpointing: bool = False
    """Keep no activations within a layer; compute them again on the way back."""
    temperature: float = 1.0
    """Log-probabilities are those of logits / temperature, as a rollout at that temperature has them."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    seed: int = 42
    """Of what is drawn while training, such as dropout and fresh adapters."""
    async_save: bool = False
    """Write checkpoints in the background; the folder appears when it is whole."""

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ConfigError(f"engine.device: must be one of {', '.join(DEVICES)}, got {self.device!r}")
        if self.precision not in PRECISIONS:
            raise ConfigError(f"engine.precision: must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        if self.max_tokens_per_micro_batch < 1:
            raise ConfigError(
                f"engine.max_tokens_per_micro_batch: must be at least 1, got {self.max_tokens_per_micro_batch}"
            )
        if self.temperature <= 0.0:
            raise ConfigError(f"engine.temperature: must be above 0, got {self.temperature}")


@dataclass
class TorchTrainerConfig:
    """The trainer `torch` of reinforcement learning."""

    engine: TorchEngineConfig = field(default_factory=TorchEngineConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    reference: str | None = None
    """The reference model's folder, where objective.kl_coefficient is above 0; null: the model that training starts
    from."""
    replay_routing: bool = False
    """Send each token through the experts that the rollout engine recorded, where a sample has them."""
