"""The settings of supervised fine-tuning; the defaults are the published ones where both models share them."""

from dataclasses import dataclass, field

from omegaconf import MISSING
from openmle_gym.errors import ConfigError

from openmle_erl.engines.memory import ParallelSizes
from openmle_erl.engines.settings import OptimiserConfig, TorchEngineConfig
from openmle_erl.tracking import TrackingConfig

TRAINERS = ("torch", "megatron")


@dataclass
class ScratchConfig:
    """A small Qwen3 with random weights, and a tokenizer that is made from the corpus."""

    vocab_size: int = 1024
    tokenizer: str | None = None
    """A folder with the tokenizer to use instead; `vocab_size` is then its own."""
    layers: int = 0
    """0: training starts from engine.model instead."""
    hidden: int = 128
    """A multiple of 64."""
    experts: int = 0
    """0: a dense model; otherwise each token takes two of so many experts."""
    context: int = 8192

    def __post_init__(self) -> None:
        if self.layers < 0:
            raise ConfigError(f"scratch.layers: must be at least 0, got {self.layers}")
        if self.hidden < 64 or self.hidden % 64:
            raise ConfigError(f"scratch.hidden: must be a multiple of 64, got {self.hidden}")
        if self.vocab_size < 300:
            raise ConfigError(
                f"scratch.vocab_size: must be at least 300 (bytes and special tokens), got {self.vocab_size}"
            )
        if self.experts == 1 or self.experts < 0:
            raise ConfigError(f"scratch.experts: must be 0, or at least 2, got {self.experts}")


@dataclass
class MegatronLayout:
    """For trainer=megatron: what it needs beside engine and optimiser."""

    parallel: ParallelSizes = field(default_factory=ParallelSizes)
    sequence_parallel: bool = False
    dispatcher: str = "alltoall"
    """allgather, alltoall, or flex (DeepEP); a CPU can allgather alone, and does."""
    optimiser_offload: bool = False
    """Keep the optimiser's state on the host, and update there."""


def _paper_optimiser() -> OptimiserConfig:
    return OptimiserConfig(learning_rate=3e-5, schedule="cosine", warmup_fraction=0.1, beta2=0.95)


@dataclass
class SftConfig:
    """`openmle-erl sft`."""

    corpus: str = MISSING
    """JSON lines or Parquet of `messages`, as `openmle-erl sft-data build` writes them."""
    out: str = MISSING
    """The run's folder; the same command goes on with a run that was stopped."""
    validation: str | None = None
    """A corpus that is not trained on, for the evaluation loss; null: `holdout` of the corpus."""
    holdout: int = 0
    """Without `validation`: so many rows of the corpus, drawn by `seed`, are kept out for the evaluation loss."""
    trainer: str = "torch"
    """torch or megatron."""
    processes: int = 1
    """Processes on this machine, one a GPU; 1 trains in this one."""
    engine: TorchEngineConfig = field(default_factory=lambda: TorchEngineConfig(model=""))
    """The model and how it is computed; with trainer=megatron, its model, device, precision, max_tokens_per_micro_batch
    and gradient_checkpointing count."""
    scratch: ScratchConfig = field(default_factory=ScratchConfig)
    """A new small model instead of engine.model."""
    megatron: MegatronLayout = field(default_factory=MegatronLayout)
    optimiser: OptimiserConfig = field(default_factory=_paper_optimiser)
    epochs: int = 3
    """The rows that do not fill a last batch are left out of an epoch, others in each."""
    global_batch: int = 128
    """Conversations of one optimiser step."""
    max_tokens: int = 32_768
    """Longer conversations are left out, and counted."""
    seed: int = 42
    """Epoch number e, from 0, is shuffled by seed + e."""
    eval_every: int = 0
    """Steps between two evaluation losses; 0: at the beginning and at the end alone."""
    save_every: int = 0
    """Steps between two checkpoints; 0: none on the way."""
    keep: int = 1
    """So many checkpoints, the newest, are kept."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        if self.trainer not in TRAINERS:
            raise ConfigError(f"trainer: must be one of {', '.join(TRAINERS)}, got {self.trainer!r}")
        for name in ("processes", "epochs", "global_batch", "keep"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")
        for name in ("holdout", "eval_every", "save_every"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: must be at least 0, got {getattr(self, name)}")
        if self.max_tokens < 2:
            raise ConfigError(f"max_tokens: must be at least 2, got {self.max_tokens}")
        if self.validation is not None and self.holdout:
            raise ConfigError(f"holdout: {self.holdout}, but validation is {self.validation}; give one of them")
        if bool(self.engine.model) is bool(self.scratch.layers):
            raise ConfigError("engine.model: give a model's folder, or scratch.layers for a new one, and not both")
        if self.trainer == "megatron":
            self._check_megatron()

    def _check_megatron(self) -> None:
        world = self.megatron.parallel.world
        if world != self.processes:
            raise ConfigError(f"megatron.parallel: {world} ranks, but processes is {self.processes}")
        self.megatron.parallel.check_experts()
        if self.engine.lora.rank:
            raise ConfigError(f"engine.lora.rank: {self.engine.lora.rank}, but trainer=megatron trains all parameters")
        if self.global_batch % self.megatron.parallel.data:
            raise ConfigError(
                f"global_batch: {self.global_batch} must be a multiple of megatron.parallel.data, "
                f"{self.megatron.parallel.data}"
            )
