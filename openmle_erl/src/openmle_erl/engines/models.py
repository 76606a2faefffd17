"""Hugging Face models for training: loading, adapters, sharding, log-probabilities, and weights for others to load.

Shape suffixes: _N wanted tokens, _NV with the vocabulary, _K columns whose logits are needed; see `packing`.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from openmle_gym.errors import ConfigError
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from openmle_erl.engines.packing import MicroBatch
from openmle_erl.engines.settings import LoraSettings, TorchEngineConfig

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "chat_template.jinja", "generation_config.json",
)  # fmt: skip
ENTROPY_CHUNK = 1024
"""Tokens whose distributions are in memory at once while entropy without a gradient is computed."""


def load_model(folder: str, *, attention: str = "sdpa") -> PreTrainedModel:
    """A model in float32 on the CPU, in training mode.

    Raises:
        ConfigError: The folder holds none.
    """
    transformers_logging.disable_progress_bar()
    try:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=attention, local_files_only=True
        ).train()
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"model: {folder}: {error}") from error


def prepare(
    model: PreTrainedModel, config: TorchEngineConfig, device: torch.device, mesh: DeviceMesh | None
) -> nn.Module:
    """The model as it is trained: with adapters, on its device, and sharded where there is a mesh."""
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    decoder: Any = model.get_decoder()
    prepared: nn.Module = model
    if config.lora.rank:
        prepared = _with_adapters(model, config.lora)
    if mesh is None:
        return nn.Module.to(prepared, device)
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if compute_dtype(config, device) is torch.bfloat16 else None,
        reduce_dtype=torch.float32,
    )
    for layer in decoder.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(prepared, mesh=mesh, mp_policy=policy)
    return prepared


def compute_dtype(config: TorchEngineConfig, device: torch.device) -> torch.dtype:
    """The precision of the arithmetic."""
    if config.precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if config.precision == "bfloat16" else torch.float32


def _with_adapters(model: PreTrainedModel, lora: LoraSettings) -> nn.Module:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ConfigError(f"lora.rank: {lora.rank} needs peft: pip install peft") from error
    return get_peft_model(
        model,
        LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType]  (peft says int, and computes with floats)
            lora_dropout=lora.dropout,
            target_modules=list(lora.targets),
            task_type="CAUSAL_LM",
        ),
    )


class TokenLogprobs(NamedTuple):
    """Of a micro-batch's wanted tokens."""

    logprobs_N: Tensor
    entropy_N: Tensor | None


def token_logprobs(
    model: nn.Module,
    batch: MicroBatch,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    entropy_gradient: bool = False,
) -> TokenLogprobs:
    """Log-probabilities, in float32, of the tokens that were asked for; logits are computed for these alone.

    Args:
        entropy: Compute the entropy at each token too, without a gradient unless `entropy_gradient`.
    """
    logits = model(
        input_ids=batch.input_ids_RL,
        position_ids=batch.position_ids_RL,
        attention_mask=None,
        use_cache=False,
        logits_to_keep=batch.columns_K,
    ).logits
    logits_NV = logits[batch.row_N, batch.column_N].float() / temperature
    total_N = logits_NV.logsumexp(-1)
    logprobs_N = logits_NV.gather(-1, batch.target_N[:, None])[:, 0] - total_N
    if not batch.counts:
        logprobs_N = logits.float().sum() * 0.0 + logprobs_N  # keeps the pass in the graph, for processes in step
    if not entropy:
        return TokenLogprobs(logprobs_N, None)
    if entropy_gradient:
        return TokenLogprobs(logprobs_N, _entropy(logits_NV, total_N))
    with torch.no_grad():
        chunks = zip(logits_NV.detach().split(ENTROPY_CHUNK), total_N.detach().split(ENTROPY_CHUNK), strict=True)
        return TokenLogprobs(logprobs_N, torch.cat([_entropy(*chunk) for chunk in chunks]))


def _entropy(logits_NV: Tensor, total_N: Tensor) -> Tensor:
    """log Z minus the mean logit."""
    return total_N - ((logits_NV - total_N[:, None]).exp() * logits_NV).sum(-1)


def merged_state(state: Mapping[str, Tensor], lora: LoraSettings) -> dict[str, Tensor]:
    """The state of a model with adapters as that of the model without: W + alpha / rank * B A."""
    merged: dict[str, Tensor] = {}
    for name, value in state.items():
        if ".lora_" in name:
            continue
        plain = name.removeprefix("base_model.model.")
        if ".base_layer." in plain:
            down = state[name.replace(".base_layer.weight", ".lora_A.default.weight")]
            up = state[name.replace(".base_layer.weight", ".lora_B.default.weight")]
            value = value + lora.alpha / lora.rank * (up @ down)
            plain = plain.replace(".base_layer.", ".")
        merged[plain] = value
    return merged


def write_weights(state: Mapping[str, Tensor], config: Any, source: Path, folder: Path, *, dtype: torch.dtype) -> None:
    """Writes a model's folder in Hugging Face's layout, with the tokenizer of the model it came from.

    Args:
        state: All parameters, by the names of the model in memory.
        config: The model's `PretrainedConfig`.
        folder: Appears whole or not at all; one that is there is replaced.
    """
    with torch.device("meta"):
        shell = AutoModelForCausalLM.from_config(config, dtype=dtype)
    tied = {name: tensor.to(dtype) for name, tensor in state.items()}
    shell.load_state_dict(tied, strict=not config.tie_word_embeddings, assign=True)
    shell.tie_weights()
    partial = partial_folder(folder)
    shell.save_pretrained(partial)
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, partial / name)
    publish(partial, folder)


def partial_folder(folder: Path) -> Path:
    """An empty folder beside another, to be filled and published under its name."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def publish(partial: Path, folder: Path) -> None:
    """Gives a filled folder its name; one that had it is gone afterwards."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.replace(old)
    os.replace(partial, folder)
    shutil.rmtree(old, ignore_errors=True)
