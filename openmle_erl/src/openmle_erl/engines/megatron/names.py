"""Which Megatron parameter is made of which Hugging Face parameters, for Qwen3 and Qwen3-MoE.

Two tables of names, since a module that fuses a norm into the linear layer after it (Transformer Engine) names the norm's
weight after that layer. Hugging Face's names are those on disk, where every expert has its own keys. No torch here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from openmle_erl.engines.memory import ModelShape


class Spec(StrEnum):
    """Which modules a Megatron layer is built of."""

    LOCAL = "local"
    """Megatron-core's own."""
    TRANSFORMER_ENGINE = "transformer_engine"
    """With norms fused into the linear layers and experts in one grouped module."""


class Fusion(StrEnum):
    """How Hugging Face's tensors become one of Megatron's."""

    NONE = "none"
    QKV = "qkv"
    """For each group of keys and values: its queries, its key, its value."""
    GATE_UP = "gate_up"
    """The gate's rows, then the up-projection's."""
    VOCABULARY = "vocabulary"
    """Rows of zeros are added until the count divides."""


class Split(StrEnum):
    """How tensor parallelism divides a parameter."""

    WHOLE = "whole"
    ROWS = "rows"
    COLUMNS = "columns"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One Megatron parameter of the whole, unsplit model."""

    name: str
    """Megatron's name, with `{layer}` and `{expert}` where a rank puts its own numbers."""
    sources: tuple[str, ...]
    """Hugging Face's names, in the order in which they are fused."""
    fusion: Fusion = Fusion.NONE
    split: Split = Split.WHOLE
    layer: int | None = None
    """Of the whole model; None outside the layers."""
    expert: int | None = None
    """Of the whole layer; None for what is not an expert's."""
    copy: bool = False
    """Whether it holds what another entry holds too: a tied output table on a later pipeline stage."""


EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"
FINAL_NORM = "decoder.final_layernorm.weight"


def entries(shape: ModelShape, spec: Spec, *, pipeline: int = 1) -> Iterator[Entry]:
    """All parameters, in the order of the layers: embedding, layers, final norm, output table."""
    table = ("model.embed_tokens.weight",)
    yield Entry(name=EMBEDDING, sources=table, fusion=Fusion.VOCABULARY, split=Split.ROWS)
    for layer in range(shape.layers):
        yield from _attention(layer, spec)
        yield from _experts(layer, shape.experts, spec) if shape.experts else _dense(layer, spec)
    yield Entry(name=FINAL_NORM, sources=("model.norm.weight",))
    if not shape.tied_embeddings:
        yield Entry(name=OUTPUT, sources=("lm_head.weight",), fusion=Fusion.VOCABULARY, split=Split.ROWS)
    elif pipeline > 1:
        yield Entry(name=OUTPUT, sources=table, fusion=Fusion.VOCABULARY, split=Split.ROWS, copy=True)


def _attention(layer: int, spec: Spec) -> Iterator[Entry]:
    ours, theirs = "decoder.layers.{layer}.", f"model.layers.{layer}."
    fused = spec is Spec.TRANSFORMER_ENGINE
    norm = "self_attention.linear_qkv.layer_norm_weight" if fused else "input_layernorm.weight"
    yield Entry(name=ours + norm, sources=(theirs + "input_layernorm.weight",), layer=layer)
    yield Entry(
        name=ours + "self_attention.linear_qkv.weight",
        sources=tuple(f"{theirs}self_attn.{letter}_proj.weight" for letter in "qkv"),
        fusion=Fusion.QKV,
        split=Split.ROWS,
        layer=layer,
    )
    for letter in "qk":
        name = f"{ours}self_attention.{letter}_layernorm.weight"
        yield Entry(name=name, sources=(f"{theirs}self_attn.{letter}_norm.weight",), layer=layer)
    name = ours + "self_attention.linear_proj.weight"
    yield Entry(name=name, sources=(theirs + "self_attn.o_proj.weight",), split=Split.COLUMNS, layer=layer)


def _dense(layer: int, spec: Spec) -> Iterator[Entry]:
    ours, theirs = "decoder.layers.{layer}.", f"model.layers.{layer}."
    fused = spec is Spec.TRANSFORMER_ENGINE
    norm = "mlp.linear_fc1.layer_norm_weight" if fused else "pre_mlp_layernorm.weight"
    yield Entry(name=ours + norm, sources=(theirs + "post_attention_layernorm.weight",), layer=layer)
    yield from _block(layer, ours + "mlp.linear_fc1.weight", ours + "mlp.linear_fc2.weight", theirs + "mlp.")


def _experts(layer: int, experts: int, spec: Spec) -> Iterator[Entry]:
    ours, theirs = "decoder.layers.{layer}.", f"model.layers.{layer}."
    norm = ours + "pre_mlp_layernorm.weight"
    yield Entry(name=norm, sources=(theirs + "post_attention_layernorm.weight",), layer=layer)
    yield Entry(name=ours + "mlp.router.weight", sources=(theirs + "mlp.gate.weight",), layer=layer)
    one = ours + "mlp.experts.{module}.weight{expert}"
    if spec is Spec.LOCAL:
        one = ours + "mlp.experts.local_experts.{expert}.{module}.weight"
    for expert in range(experts):
        up, down = (one.replace("{module}", module) for module in ("linear_fc1", "linear_fc2"))
        yield from _block(layer, up, down, f"{theirs}mlp.experts.{expert}.", expert)


def _block(layer: int, up: str, down: str, theirs: str, expert: int | None = None) -> Iterator[Entry]:
    yield Entry(
        name=up,
        sources=(theirs + "gate_proj.weight", theirs + "up_proj.weight"),
        fusion=Fusion.GATE_UP,
        split=Split.ROWS,
        layer=layer,
        expert=expert,
    )
    yield Entry(name=down, sources=(theirs + "down_proj.weight",), split=Split.COLUMNS, layer=layer, expert=expert)
