"""Settings that cannot work are refused before anything starts, by the name of the field."""

from dataclasses import replace
from typing import Any

import pytest
from openmle_erl.engines.megatron.config import MegatronConfig, check_installed, check_model, check_world
from openmle_erl.engines.memory import ModelShape, ParallelSizes
from openmle_gym.errors import ConfigError

DENSE = ModelShape(
    layers=4, hidden=16, feed_forward=24, heads=8, key_value_heads=4, head_size=4, vocabulary=13, tied_embeddings=False
)
SPARSE = replace(DENSE, feed_forward=0, experts=4, experts_per_token=2, expert_feed_forward=8)
HOST: dict[str, Any] = {"device": "cpu", "precision": "float32", "dispatcher": "allgather"}


def test_what_the_cpu_can_do_is_accepted() -> None:
    for shape, sizes in ((DENSE, ParallelSizes(tensor=2, data=2)), (SPARSE, ParallelSizes(data=2, expert=2))):
        config = MegatronConfig(**HOST, parallel=sizes)
        check_model(config, shape)
        check_installed(config, transformer_engine=False)
        check_world(sizes, sizes.world)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "tpu"}, "device: must be one of cpu, cuda, got 'tpu'"),
        ({"precision": "float16"}, "precision: must be one of"),
        ({"dispatcher": "mail"}, "dispatcher: must be one of"),
        ({"temperature": 0.0}, "temperature: must be above 0"),
        ({"max_tokens_per_micro_batch": 0}, "max_tokens_per_micro_batch: must be at least 1"),
        ({"sequence_parallel": True}, r"sequence_parallel: .* parallel\.tensor is 1"),
        ({**HOST, "parallel": ParallelSizes(pipeline=2)}, r"parallel\.pipeline: needs CUDA"),
        ({**HOST, "parallel": ParallelSizes(context=2)}, r"parallel\.context: needs CUDA"),
        ({**HOST, "recompute": True}, "recompute: needs CUDA"),
        ({**HOST, "optimiser_offload": True}, "optimiser_offload: needs CUDA"),
        ({**HOST, "precision": "bfloat16"}, "precision: must be float32 where device is cpu"),
        ({**HOST, "dispatcher": "alltoall"}, "dispatcher: must be allgather where device is cpu"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        MegatronConfig(**settings)


@pytest.mark.parametrize(
    ("shape", "settings", "message"),
    [
        (DENSE, {"parallel": ParallelSizes(tensor=8)}, r"parallel\.tensor: 8 does not divide 4, key-value heads"),
        (DENSE, {"parallel": ParallelSizes(pipeline=3)}, r"parallel\.pipeline: 3 does not divide 4, layers"),
        (SPARSE, {"parallel": ParallelSizes(expert=3, data=3)}, r"parallel\.expert: 3 does not divide 4, experts"),
        (DENSE, {"parallel": ParallelSizes(expert=2, data=2)}, r"parallel\.expert: must be 1 for a dense model"),
        (DENSE, {"replay_routing": True}, "replay_routing: a dense model routes nothing"),
        (SPARSE, {"parallel": ParallelSizes(tensor=2)}, r"sequence_parallel: experts with parallel\.tensor=2 need it"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(shape: ModelShape, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        check_model(MegatronConfig(**settings), shape)


def test_what_needs_transformer_engine_is_refused_without_it() -> None:
    for settings in ({"parallel": ParallelSizes(context=2)}, {"optimiser_offload": True}):
        config = MegatronConfig(**settings)
        check_installed(config, transformer_engine=True)
        with pytest.raises(ConfigError, match="needs Transformer Engine"):
            check_installed(config, transformer_engine=False)


def test_processes_must_be_as_many_as_the_sizes_multiply_to() -> None:
    with pytest.raises(ConfigError, match="2 x 1 x 2 x 2 = 8 ranks, but there are 4 processes"):
        check_world(ParallelSizes(tensor=2, context=2, data=2), 4)
