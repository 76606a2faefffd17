"""How much GPU memory a training step needs, before anything is started. Plain arithmetic; nothing is imported.

The estimate is of the pipeline stage that needs most, with a distributed optimizer, bf16 weights, fp32 gradients and
flash attention. What it does not know: the CUDA context, communication buffers and fragmentation (keep a tenth of the
GPU free for them), and experts that get more tokens than their share.

Sources
    Weights, gradients, optimiser: 6 + 12/d bytes per parameter, from the table of Megatron-core's guide to its
    distributed optimizer (bf16 weights, fp32 gradients), d the ranks that share the optimiser's states.
    Activations: the counting of Korthikanti et al. 2022 (arXiv:2205.05198, section 4), done again for a block with
    RMSNorm, grouped queries with norms, rotary embedding, flash attention, SwiGLU and no dropout.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from openmle_gym.errors import ConfigError

BF16 = 2
FP32 = 4
OPTIMIZER_BYTES = 3 * FP32
"""Per parameter: fp32 copy and Adam's two moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What a decoder's memory depends on."""

    layers: int
    hidden: int
    feed_forward: int
    """Of the dense block; unused where there are experts."""
    heads: int
    key_value_heads: int
    head_size: int
    vocabulary: int
    tied_embeddings: bool
    experts: int = 0
    """0: a dense model."""
    experts_per_token: int = 0
    expert_feed_forward: int = 0
    shared_expert_feed_forward: int = 0
    gated_attention: bool = False
    """Whether a gate as wide as the queries is computed beside them."""

    @property
    def attention_parameters(self) -> int:
        """Of one layer, those that tensor parallelism splits."""
        queries = self.heads * self.head_size
        return self.hidden * (queries * (3 if self.gated_attention else 2) + 2 * self.key_value_heads * self.head_size)

    @property
    def replicated_parameters(self) -> int:
        """Of one layer, those that every tensor rank holds: norms and router."""
        return 2 * self.hidden + 2 * self.head_size + self.experts * self.hidden

    @property
    def feed_forward_parameters(self) -> int:
        """Of one layer, those that tensor parallelism splits: the dense block or the shared expert."""
        return 3 * self.hidden * (self.shared_expert_feed_forward if self.experts else self.feed_forward)

    @property
    def expert_parameters(self) -> int:
        """Of one layer's experts together."""
        return 3 * self.hidden * self.expert_feed_forward * self.experts

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        layer = (
            self.attention_parameters
            + self.replicated_parameters
            + self.feed_forward_parameters
            + self.expert_parameters
        )
        return self.layers * layer + self.hidden + self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2)


@dataclass
class ParallelSizes:
    """How many ways each axis is split."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    """Ways in which one expert's matrices are split."""
    data: int = 1
    """Replicas that see different samples."""

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "context", "expert", "expert_tensor", "data"):
            if getattr(self, name) < 1:
                raise ConfigError(f"parallel.{name}: must be at least 1, got {getattr(self, name)}")

    def check_experts(self) -> None:
        """Sees that experts can be split so over the ranks.

        Raises:
            ConfigError: They cannot.
        """
        if self.world % (self.pipeline * self.expert * self.expert_tensor):
            raise ConfigError(
                f"parallel.expert: pipeline x expert x expert_tensor = {self.pipeline} x {self.expert} x "
                f"{self.expert_tensor} must divide the {self.world} ranks"
            )

    @property
    def world(self) -> int:
        """Ranks in all."""
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def expert_data(self) -> int:
        """Replicas of each expert."""
        return self.world // (self.pipeline * self.expert * self.expert_tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes on the GPU that needs most, and on its host for it."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int
    host_bytes: int
    """Optimiser states that were moved off the GPU; 0 where they were not."""

    @property
    def total_bytes(self) -> int:
        """On the GPU."""
        return (
            self.weights_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
            + self.logits_bytes
        )


def from_hf_config(config: Mapping[str, object]) -> ModelShape:
    """The shape in a Hugging Face `config.json` of a Qwen3, Qwen3-MoE or Qwen3.5-MoE model.

    A linear-attention layer of Qwen3.5 is counted as a full-attention one, which has about as many parameters.

    Raises:
        ConfigError: Another model, or a field that is missing.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {**text, "tie_word_embeddings": config.get("tie_word_embeddings", text.get("tie_word_embeddings"))}
    kind = str(config.get("model_type", ""))
    if kind.removesuffix("_text") not in ("qwen3", "qwen3_moe", "qwen3_5_moe"):
        raise ConfigError(f"model_type: no memory estimate for {kind!r}; known: qwen3, qwen3_moe, qwen3_5_moe")

    def number(name: str) -> int:
        value = config.get(name)
        if not isinstance(value, int):
            raise ConfigError(f"{name}: the model's config.json must have it as an integer, got {value!r}")
        return value

    sparse = kind != "qwen3"
    experts = "num_local_experts" if "num_local_experts" in config else "num_experts"  # transformers 5; before it
    heads = number("num_attention_heads")
    hidden = number("hidden_size")
    return ModelShape(
        layers=number("num_hidden_layers"),
        hidden=hidden,
        feed_forward=0 if sparse else number("intermediate_size"),
        heads=heads,
        key_value_heads=number("num_key_value_heads"),
        head_size=number("head_dim") if config.get("head_dim") else hidden // heads,
        vocabulary=number("vocab_size"),
        tied_embeddings=bool(config.get("tie_word_embeddings")),
        experts=number(experts) if sparse else 0,
        experts_per_token=number("num_experts_per_tok") if sparse else 0,
        expert_feed_forward=number("moe_intermediate_size") if sparse else 0,
        shared_expert_feed_forward=number("shared_expert_intermediate_size") if kind.startswith("qwen3_5") else 0,
        gated_attention=kind.startswith("qwen3_5"),
    )


def estimate_memory(
    shape: ModelShape,
    parallel: ParallelSizes,
    *,
    micro_batch_tokens: int,
    recompute: bool,
    optimizer_offload: bool,
) -> MemoryEstimate:
    """Bytes per part; see the module for what is assumed and where it comes from.

    Args:
        micro_batch_tokens: Of one micro-batch on one GPU: after context parallelism has split the sequences, before
            sequence parallelism (assumed wherever tensor parallelism is used) splits the activations.
        recompute: Whether only each layer's input is kept and the layer is computed again in the backward pass.
        optimizer_offload: Whether fp32 copies and moments live on the host.
    """
    layers = ceil(shape.layers / parallel.pipeline)
    ends = 1 if parallel.pipeline > 1 or shape.tied_embeddings else 2
    table = ceil(shape.vocabulary / parallel.tensor) * shape.hidden * ends
    split = ceil((shape.attention_parameters + shape.feed_forward_parameters) / parallel.tensor)
    dense = layers * (split + shape.replicated_parameters) + table + shape.hidden
    experts = layers * ceil(shape.expert_parameters / (parallel.expert * parallel.expert_tensor))
    states = OPTIMIZER_BYTES * (ceil(dense / (parallel.data * parallel.context)) + ceil(experts / parallel.expert_data))

    tokens = ceil(micro_batch_tokens / parallel.tensor)
    one_layer = tokens * layer_bytes_per_token(shape)
    kept = tokens * BF16 * shape.hidden if recompute else one_layer
    in_flight = parallel.pipeline  # one forward, one backward: the first stage holds a micro-batch for every stage
    activations = layers * kept * in_flight + (one_layer if recompute else 0)
    logits = micro_batch_tokens * ceil(shape.vocabulary / parallel.tensor) * (BF16 + FP32 + FP32)
    return MemoryEstimate(
        weights_bytes=BF16 * (dense + experts),
        gradients_bytes=FP32 * (dense + experts),
        optimizer_bytes=0 if optimizer_offload else states,
        activations_bytes=activations,
        logits_bytes=logits,
        host_bytes=states if optimizer_offload else 0,
    )


def layer_bytes_per_token(shape: ModelShape) -> int:
    """Bytes that one layer keeps per token for its backward pass.

    bf16: inputs of the two norms and what they give (4 x hidden), queries, keys and values as projected, queries and
    keys again after their norms and after the rotation, the attention's result; in the feed-forward block three widths
    (gate, up, their product). fp32: the attention's log-sum-exp per head; for experts the router's logits and
    probabilities. A token that goes to k experts is kept k times before and after them.
    """
    queries = shape.heads * shape.head_size
    keys = shape.key_value_heads * shape.head_size
    attention = BF16 * (queries + 2 * keys + 2 * (queries + keys) + queries) + FP32 * shape.heads
    if shape.gated_attention:
        attention += BF16 * 2 * queries
    block = BF16 * 3 * (shape.shared_expert_feed_forward if shape.experts else shape.feed_forward)
    routed = BF16 * shape.experts_per_token * (2 * shape.hidden + 3 * shape.expert_feed_forward)
    return BF16 * 4 * shape.hidden + attention + block + routed + FP32 * 2 * shape.experts
