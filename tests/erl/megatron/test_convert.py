"""Hugging Face's weights to Megatron's and back, sharded every way, give the same bits."""

from collections import defaultdict
from dataclasses import replace
from itertools import product

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from openmle_erl.engines.megatron.convert import (
    Coordinates,
    fuse,
    local_name,
    padded_vocabulary,
    split,
    to_hugging_face,
    to_megatron,
)
from openmle_erl.engines.megatron.names import Entry, Fusion, Spec, Split, entries
from openmle_erl.engines.memory import ModelShape, ParallelSizes
from torch import Tensor

DENSE = ModelShape(
    layers=4, hidden=16, feed_forward=24, heads=8, key_value_heads=4, head_size=4, vocabulary=13, tied_embeddings=False
)
SPARSE = replace(DENSE, feed_forward=0, experts=4, experts_per_token=2, expert_feed_forward=8)


def random_weights(shape: ModelShape) -> dict[str, Tensor]:
    """What Hugging Face's models of that shape have on disk."""
    queries, keys = shape.heads * shape.head_size, shape.key_value_heads * shape.head_size
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocabulary, shape.hidden),
        "model.norm.weight": (shape.hidden,),
    }
    if not shape.tied_embeddings:
        sizes["lm_head.weight"] = (shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        sizes |= {at + f"{name}.weight": (shape.hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        sizes |= {at + f"self_attn.{name}.weight": (shape.head_size,) for name in ("q_norm", "k_norm")}
        sizes[at + "self_attn.q_proj.weight"] = (queries, shape.hidden)
        sizes[at + "self_attn.k_proj.weight"] = sizes[at + "self_attn.v_proj.weight"] = (keys, shape.hidden)
        sizes[at + "self_attn.o_proj.weight"] = (shape.hidden, queries)
        blocks = [(at + "mlp.", shape.feed_forward)]
        if shape.experts:
            sizes[at + "mlp.gate.weight"] = (shape.experts, shape.hidden)
            blocks = [(f"{at}mlp.experts.{n}.", shape.expert_feed_forward) for n in range(shape.experts)]
        for block, width in blocks:
            sizes[block + "gate_proj.weight"] = sizes[block + "up_proj.weight"] = (width, shape.hidden)
            sizes[block + "down_proj.weight"] = (shape.hidden, width)
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(size, generator=generator) for name, size in sizes.items()}


@settings(max_examples=40, deadline=None)
@given(
    sparse=st.booleans(),
    tied=st.booleans(),
    spec=st.sampled_from(Spec),
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2]),
    expert=st.sampled_from([1, 2]),
    expert_tensor=st.sampled_from([1, 2]),
    multiple=st.sampled_from([1, 8]),
)
def test_a_round_trip_over_all_ranks_gives_the_same_bits(
    *, sparse: bool, tied: bool, spec: Spec, tensor: int, pipeline: int, expert: int, expert_tensor: int, multiple: int
) -> None:
    shape = replace(SPARSE if sparse else DENSE, tied_embeddings=tied)
    experts = (expert, expert_tensor) if sparse else (1, 1)
    sizes = ParallelSizes(
        tensor=tensor, pipeline=pipeline, expert=experts[0], expert_tensor=experts[1], data=experts[0] * experts[1]
    )
    weights = random_weights(shape)
    ranks = {}
    for t, p, e, et in product(*(range(n) for n in (tensor, pipeline, *experts))):
        place = Coordinates(sizes=sizes, tensor=t, pipeline=p, expert=e, expert_tensor=et)
        ranks[t, p, e, et] = dict(to_megatron(weights.__getitem__, shape, spec, place, multiple=multiple))
    back: dict[str, Tensor] = {}
    for entry in entries(shape, spec, pipeline=pipeline):
        name = local_name(entry, shape, sizes)
        p = entry.layer // (shape.layers // pipeline) if entry.layer is not None else None
        p = (0 if entry.name.startswith("embedding") else pipeline - 1) if p is None else p
        if entry.expert is None:
            shards = [ranks[t, p, 0, 0][name] for t in range(tensor)]
        else:
            e = entry.expert // (shape.experts // expert)
            shards = [ranks[0, p, e, et][name] for et in range(experts[1])]
        for theirs, value in to_hugging_face(entry, shards, shape):
            assert theirs not in back
            back[theirs] = value
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in weights)


def test_queries_keys_and_values_are_joined_group_by_group() -> None:
    """Two groups of two queries, one number a head: q0 q1 k0 v0, q2 q3 k1 v1."""
    shape = replace(DENSE, heads=4, key_value_heads=2, head_size=1)
    q, k, v = (torch.tensor(rows)[:, None] for rows in ([0.0, 1, 2, 3], [10.0, 11], [20.0, 21]))
    entry = Entry(name="qkv", sources=("q", "k", "v"), fusion=Fusion.QKV, split=Split.ROWS)
    whole = fuse(entry, [q, k, v], shape, rows=0)
    assert whole.flatten().tolist() == [0, 1, 10, 20, 2, 3, 11, 21]
    assert [shard.flatten().tolist() for shard in split(entry, whole, 2)] == [[0, 1, 10, 20], [2, 3, 11, 21]]


def test_each_tensor_rank_has_its_own_part_of_gate_and_of_up() -> None:
    entry = Entry(name="fc1", sources=("gate", "up"), fusion=Fusion.GATE_UP, split=Split.ROWS)
    whole = torch.tensor([1.0, 2, 11, 12])[:, None]
    assert [shard.flatten().tolist() for shard in split(entry, whole, 2)] == [[1, 11], [2, 12]]


def test_the_vocabulary_is_padded_to_a_multiple_on_every_rank() -> None:
    assert padded_vocabulary(13, 2, 4) == 16
    assert padded_vocabulary(151936, 4, 128) == 152064
    assert padded_vocabulary(16, 2, 8) == 16


def test_names_of_fused_norms_and_grouped_experts_differ_between_the_tables() -> None:
    names: dict[tuple[bool, Spec], set[str]] = defaultdict(set)
    for sparse, spec in product((False, True), Spec):
        names[sparse, spec] = {entry.name for entry in entries(SPARSE if sparse else DENSE, spec)}
    layer = "decoder.layers.{layer}."
    assert names[False, Spec.LOCAL] - names[False, Spec.TRANSFORMER_ENGINE] == {
        layer + "input_layernorm.weight",
        layer + "pre_mlp_layernorm.weight",
    }
    assert names[False, Spec.TRANSFORMER_ENGINE] - names[False, Spec.LOCAL] == {
        layer + "self_attention.linear_qkv.layer_norm_weight",
        layer + "mlp.linear_fc1.layer_norm_weight",
    }
    assert layer + "mlp.experts.local_experts.{expert}.linear_fc1.weight" in names[True, Spec.LOCAL]
    assert layer + "mlp.experts.linear_fc1.weight{expert}" in names[True, Spec.TRANSFORMER_ENGINE]
    assert all(layer + "pre_mlp_layernorm.weight" in names[True, spec] for spec in Spec)
