"""Models, samples and settings that the ranks and the test that judges them both make, each for themselves."""

from pathlib import Path

import numpy as np
import torch
from openmle_erl.engines.megatron.config import MegatronConfig
from openmle_erl.engines.memory import ParallelSizes
from openmle_erl.engines.packing import TokenRow
from openmle_erl.engines.protocols import FloatArray, TrainingSample
from openmle_erl.engines.settings import OptimiserConfig
from openmle_erl.rl.objective import ObjectiveConfig
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

VOCABULARY = 131
CASES = {
    # Name: model, sizes, whether the loss has all its terms.
    "dense": ("dense", ParallelSizes(), False),
    "sparse": ("sparse", ParallelSizes(), False),
    "dense_tensor": ("dense", ParallelSizes(tensor=2), True),
    "dense_data": ("dense", ParallelSizes(data=2), False),
    "sparse_expert": ("sparse", ParallelSizes(data=2, expert=2), False),
}
LEARNING_RATE = 1e-3
LAYERS = 2
EXPERTS = 4


def make_model(kind: str) -> PreTrainedModel:
    """Random weights, the same every time; the dense one has its own output table, the sparse one shares it."""
    size = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": LAYERS, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
    torch.manual_seed(7)
    if kind == "dense":
        config = Qwen3Config(**size, **heads, tie_word_embeddings=False)
        model: PreTrainedModel = Qwen3ForCausalLM(config)
    else:
        experts = {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
        config = Qwen3MoeConfig(**size, **heads, **experts, norm_topk_prob=True, tie_word_embeddings=True)
        model = Qwen3MoeForCausalLM(config)
    with torch.no_grad():  # norms of ones would hide that one is missing
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model


def make_config(name: str, folder: Path) -> MegatronConfig:
    """Of a case; `folder` holds the models by kind."""
    kind, sizes, all_terms = CASES[name]
    terms = {"kl_coefficient": 0.1, "entropy_coefficient": 0.05} if all_terms else {}
    return MegatronConfig(
        model=str(folder / kind),
        parallel=sizes,
        optimiser=OptimiserConfig(learning_rate=LEARNING_RATE, max_grad_norm=0.01),
        objective=ObjectiveConfig(clip_low=0.2, clip_high=0.3, **terms),
        reference=str(folder / "reference") if all_terms else None,
        device="cpu",
        precision="float32",
        dispatcher="allgather",
        replay_routing=kind == "sparse",
        max_tokens_per_micro_batch=24,
        vocabulary_multiple=8,
        timeout_minutes=2,
    )


def make_samples(*, routed: bool = False) -> list[TrainingSample]:
    """Five, of odd lengths, some tokens not to be learnt."""
    random = np.random.default_rng(3)
    samples = []
    for number, (prompt, reply) in enumerate([(5, 9), (3, 4), (8, 13), (2, 7), (6, 1)]):
        length = prompt + reply
        ids = random.integers(0, VOCABULARY, length)
        mask = random.random(reply) < 0.8
        mask[0] = True
        experts = random.permuted(np.tile(np.arange(EXPERTS), (length, LAYERS, 1)), axis=-1)[..., :2]
        samples.append(
            TrainingSample(
                sample_id=f"s{number}",
                prompt_ids=tuple(ids[:prompt].tolist()),
                reply_ids=tuple(ids[prompt:].tolist()),
                loss_mask_T=mask,
                rollout_logprobs_T=(-4.8 + 0.3 * random.standard_normal(reply)).astype(np.float32),
                advantage=float(random.standard_normal()),
                experts_NLK=experts.astype(np.int16) if routed else None,
            )
        )
    return samples


def make_old(samples: list[TrainingSample]) -> list[FloatArray]:
    """Log-probabilities that are not quite the model's own, so that ratios are not 1."""
    random = np.random.default_rng(4)
    return [
        (sample.rollout_logprobs_T + 0.05 * random.standard_normal(len(sample.reply_ids))).astype(np.float32)
        for sample in samples
    ]


def make_rows(samples: list[TrainingSample]) -> list[TokenRow]:
    """The same as texts to be learnt, where the mask says so."""
    rows = []
    for sample in samples:
        ids = np.array([*sample.prompt_ids, *sample.reply_ids], dtype=np.int64)
        wanted = np.concatenate([np.zeros(len(sample.prompt_ids), dtype=np.bool_), sample.loss_mask_T])
        rows.append(TokenRow(ids=ids, wanted=wanted))
    return rows
