"""The memory estimate against numbers worked out by hand."""

from dataclasses import replace

import pytest
from openmle_erl.engines.memory import ModelShape, ParallelSizes, estimate_memory, from_hf_config, layer_bytes_per_token
from openmle_gym.errors import ConfigError

TINY = ModelShape(
    layers=2, hidden=8, feed_forward=16, heads=2, key_value_heads=1, head_size=4, vocabulary=10, tied_embeddings=False
)
# Attention 8·8 + 8·4·2 + 8·8 = 192, norms 2·8 + 2·4 = 24, block 3·8·16 = 384: 600 a layer; tables 2·10·8 = 160, norm 8.
TINY_PARAMETERS = 2 * 600 + 160 + 8
SPARSE = replace(TINY, feed_forward=0, experts=4, experts_per_token=2, expert_feed_forward=4)
# Attention 192, norms 24, router 4·8 = 32, experts 4·3·8·4 = 384: 632 a layer.
A3B = {
    "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 6144,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "tie_word_embeddings": False, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
}  # fmt: skip


def test_parameters_are_counted_as_by_hand() -> None:
    assert TINY.parameters == TINY_PARAMETERS == 1368
    assert replace(TINY, tied_embeddings=True).parameters == 1368 - 80
    assert SPARSE.parameters == 2 * 632 + 168


def test_the_papers_model_has_thirty_and_a_half_billion_parameters() -> None:
    assert from_hf_config(A3B).parameters == 30_532_122_624


def test_one_gpu_needs_eighteen_bytes_a_parameter() -> None:
    one = estimate_memory(TINY, ParallelSizes(), micro_batch_tokens=0, recompute=False, optimizer_offload=False)
    assert (one.weights_bytes, one.gradients_bytes, one.optimizer_bytes) == (2 * 1368, 4 * 1368, 12 * 1368)
    assert one.total_bytes == 18 * 1368


def test_replicas_share_the_optimizer_and_nothing_else() -> None:
    four = estimate_memory(TINY, ParallelSizes(data=4), micro_batch_tokens=0, recompute=False, optimizer_offload=False)
    assert four.weights_bytes == 2 * 1368
    assert four.optimizer_bytes == 12 * 342


def test_tensor_parallelism_splits_matrices_and_tables_but_no_norms() -> None:
    two = estimate_memory(TINY, ParallelSizes(tensor=2), micro_batch_tokens=0, recompute=False, optimizer_offload=False)
    assert two.weights_bytes == 2 * (2 * (576 // 2 + 24) + 80 + 8)


def test_a_pipeline_stage_holds_half_the_layers_and_one_table() -> None:
    two = estimate_memory(
        TINY, ParallelSizes(pipeline=2), micro_batch_tokens=0, recompute=False, optimizer_offload=False
    )
    assert two.weights_bytes == 2 * (600 + 80 + 8)


def test_experts_are_split_by_their_own_axis_and_share_states_with_their_own_replicas() -> None:
    parallel = ParallelSizes(tensor=2, data=2, expert=2)
    assert (parallel.world, parallel.expert_data) == (4, 2)
    estimate = estimate_memory(SPARSE, parallel, micro_batch_tokens=0, recompute=False, optimizer_offload=True)
    dense, experts = 2 * (96 + 56) + 80 + 8, 2 * 192
    assert estimate.weights_bytes == 2 * (dense + experts)
    assert estimate.optimizer_bytes == 0
    assert estimate.host_bytes == 12 * (dense // 2 + experts // 2)


def test_activations_of_a_token_are_counted_as_by_hand() -> None:
    # 4·8 + (8 + 2·4 + 2·(8 + 4) + 8) + 3·16 = 128 values of two bytes, and two heads' log-sum-exp of four.
    assert layer_bytes_per_token(TINY) == 2 * 128 + 8
    # 4·8 + 48 values, two experts of 2·8 + 3·4; four logits and four probabilities.
    assert layer_bytes_per_token(SPARSE) == 2 * (80 + 2 * 28) + 8 + 4 * 8


def test_recomputation_keeps_the_layers_inputs_and_one_layer() -> None:
    sizes = {"micro_batch_tokens": 6, "optimizer_offload": False}
    kept = estimate_memory(TINY, ParallelSizes(), recompute=False, **sizes)
    again = estimate_memory(TINY, ParallelSizes(), recompute=True, **sizes)
    assert kept.activations_bytes == 2 * 6 * 264
    assert again.activations_bytes == 2 * 6 * 16 + 6 * 264
    assert again.logits_bytes == 6 * 10 * 10


def test_the_first_pipeline_stage_holds_as_many_micro_batches_as_there_are_stages() -> None:
    two = estimate_memory(
        TINY, ParallelSizes(pipeline=2), micro_batch_tokens=6, recompute=False, optimizer_offload=False
    )
    assert two.activations_bytes == 1 * 6 * 264 * 2


def test_a_model_that_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="model_type: no memory estimate for 'llama'"):
        from_hf_config({"model_type": "llama"})
    with pytest.raises(ConfigError, match="num_experts: "):
        from_hf_config({name: value for name, value in A3B.items() if name != "num_experts"})


def test_the_larger_model_is_read_from_its_text_config() -> None:
    text = {
        "model_type": "qwen3_5_moe_text", "num_hidden_layers": 40, "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320, "num_experts": 256, "num_experts_per_tok": 8,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    }  # fmt: skip
    shape = from_hf_config({"model_type": "qwen3_5_moe", "text_config": text, "tie_word_embeddings": False})
    assert not shape.tied_embeddings
    assert 34e9 < shape.parameters < 36e9


def test_sizes_that_do_not_fit_name_their_field() -> None:
    with pytest.raises(ConfigError, match=r"parallel\.tensor: must be at least 1, got 0"):
        ParallelSizes(tensor=0)
    with pytest.raises(ConfigError, match=r"parallel\.expert: .* must divide the 2 ranks"):
        ParallelSizes(data=2, expert=4).check_experts()
