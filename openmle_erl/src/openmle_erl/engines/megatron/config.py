"""Settings of the Megatron engine; nothing heavy is imported."""

from dataclasses import dataclass, field

from omegaconf import MISSING
from openmle_gym.errors import ConfigError

from openmle_erl.engines.memory import ModelShape, ParallelSizes
from openmle_erl.engines.settings import OptimiserConfig
from openmle_erl.rl.objective import ObjectiveConfig

DEVICES = ("cpu", "cuda")
PRECISIONS = ("float32", "bfloat16")
DISPATCHERS = ("allgather", "alltoall", "flex")


@dataclass
class MegatronConfig:
    """The trainer `megatron`: how a model is laid out over ranks, and how it learns."""

    model: str = MISSING
    """The folder of a Qwen3 or Qwen3-MoE in Hugging Face's layout, with its tokenizer."""
    parallel: ParallelSizes = field(default_factory=ParallelSizes)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    reference: str | None = None
    """The reference model's folder, where objective.kl_coefficient is above 0; null: the model that training starts
    from."""
    device: str = "cuda"
    """cpu does what Megatron-core can do without CUDA: see docs/training.md."""
    precision: str = "bfloat16"
    """Of weights and arithmetic; gradients and the optimiser's state are float32 in any case."""
    sequence_parallel: bool = False
    """Norms and residuals are split over the tensor ranks too, along the sequence."""
    max_tokens_per_micro_batch: int = 13_824
    """Of one forward pass on one GPU; with context parallelism, times its ranks. A longer sequence has one of its own."""
    recompute: bool = False
    """Keep each layer's input alone; compute the layer again on the way back."""
    dispatcher: str = "alltoall"
    """How tokens reach their experts: allgather, alltoall, or flex (DeepEP)."""
    replay_routing: bool = False
    """Send each token through the experts that the rollout engine recorded, where a sample has them."""
    optimiser_offload: bool = False
    """Keep float32 weights and moments on the host, and update them there."""
    temperature: float = 1.0
    """Log-probabilities are those of logits / temperature, as a rollout at that temperature has them."""
    vocabulary_multiple: int = 128
    """Rows of the embedding table on each tensor rank are a multiple of this."""
    timeout_minutes: int = 30
    """After which a collective operation that has not ended fails."""

    def __post_init__(self) -> None:
        for name, known in (("device", DEVICES), ("precision", PRECISIONS), ("dispatcher", DISPATCHERS)):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name}: must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        for name in ("max_tokens_per_micro_batch", "vocabulary_multiple", "timeout_minutes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if self.temperature <= 0.0:
            raise ConfigError(f"temperature: must be above 0, got {self.temperature}")
        if self.sequence_parallel and self.parallel.tensor == 1:
            raise ConfigError("sequence_parallel: splits the sequence over tensor ranks, but parallel.tensor is 1")
        self.parallel.check_experts()
        if self.device == "cpu":
            self._check_cpu()

    def _check_cpu(self) -> None:
        """What Megatron-core cannot do without CUDA is refused here, not deep inside it."""
        cuda_alone = {
            "parallel.pipeline": self.parallel.pipeline > 1,
            "parallel.context": self.parallel.context > 1,
            "parallel.expert_tensor": self.parallel.expert_tensor > 1,
            "sequence_parallel": self.sequence_parallel,
            "recompute": self.recompute,
            "optimiser_offload": self.optimiser_offload,
        }
        for name, wanted in cuda_alone.items():
            if wanted:
                raise ConfigError(f"{name}: needs CUDA, but device is cpu")
        for name, only in (("precision", "float32"), ("dispatcher", "allgather")):
            if getattr(self, name) != only:
                raise ConfigError(f"{name}: must be {only} where device is cpu, got {getattr(self, name)!r}")


def check_model(config: MegatronConfig, shape: ModelShape) -> None:
    """Raises ConfigError where Megatron cannot train this model with these settings; the message names the field."""
    sizes = config.parallel
    counts = {
        "tensor": [("key-value heads", shape.key_value_heads), ("heads", shape.heads)],
        "pipeline": [("layers", shape.layers)],
    }
    if shape.experts:
        counts["expert"] = [("experts", shape.experts)]
        counts["expert_tensor"] = [("an expert's width", shape.expert_feed_forward)]
    else:
        counts["tensor"].append(("the feed-forward width", shape.feed_forward))
    for name, divided in counts.items():
        for what, count in divided:
            if count % getattr(sizes, name):
                raise ConfigError(f"parallel.{name}: {getattr(sizes, name)} does not divide {count}, {what}")
    if not shape.experts:
        for name in ("expert", "expert_tensor"):
            if getattr(sizes, name) > 1:
                raise ConfigError(f"parallel.{name}: must be 1 for a dense model, got {getattr(sizes, name)}")
        if config.replay_routing:
            raise ConfigError("replay_routing: a dense model routes nothing")
    elif sizes.tensor > 1 and not config.sequence_parallel:
        raise ConfigError(
            f"sequence_parallel: experts with parallel.tensor={sizes.tensor} need it"
            + (", and it needs CUDA" if config.device == "cpu" else "")
        )


def check_installed(config: MegatronConfig, *, transformer_engine: bool) -> None:
    """Raises ConfigError where settings need Transformer Engine and it is not there."""
    needs = {"parallel.context": config.parallel.context > 1, "optimiser_offload": config.optimiser_offload}
    for name, wanted in needs.items():
        if wanted and not transformer_engine:
            raise ConfigError(f"{name}: needs Transformer Engine, which is not installed")


def check_world(sizes: ParallelSizes, processes: int) -> None:
    """Raises ConfigError where the processes that were started are not as many as the sizes multiply to."""
    if processes != sizes.world:
        raise ConfigError(
            f"parallel: tensor x pipeline x context x data = {sizes.tensor} x {sizes.pipeline} x {sizes.context} x "
            f"{sizes.data} = {sizes.world} ranks, but there are {processes} processes"
        )
