"""A Megatron GPT model of a Hugging Face configuration, for this rank: built, and filled with this rank's weights.

With Transformer Engine (CUDA) layers are its own; without it they are Megatron-core's local ones with the attention,
norms and router of `modules`, on any device.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.tensor_parallel.random import initialize_rng_tracker, model_parallel_cuda_manual_seed
from megatron.core.transformer.moe.moe_utils import get_default_pg_collection
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from openmle_gym.errors import ConfigError
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional

from openmle_erl.engines.megatron.config import MegatronConfig, check_installed, check_model
from openmle_erl.engines.megatron.convert import Coordinates, padded_vocabulary, to_megatron
from openmle_erl.engines.megatron.modules import HostDispatcher, HostRotary, PackedAttention, PlainNorm, PlainRouter
from openmle_erl.engines.megatron.names import Spec
from openmle_erl.engines.memory import ModelShape, from_hf_config

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SEED = 0
"""Of weights that are overwritten at once; nothing in a step draws random numbers."""


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a model that this engine knows.

    Raises:
        ConfigError: It is another one, or uses something that is not built here.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"model: {path} does not exist")
    config = json.loads(path.read_text(encoding="utf-8"))
    if config.get("model_type") not in ("qwen3", "qwen3_moe"):
        raise ConfigError(f"{path}: model_type: must be qwen3 or qwen3_moe, got {config.get('model_type')!r}")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    built = {
        "attention_bias": not config.get("attention_bias"),
        "hidden_act": config.get("hidden_act", "silu") == "silu",
        "use_sliding_window": not config.get("use_sliding_window"),
        "mlp_only_layers": not config.get("mlp_only_layers"),
        "decoder_sparse_step": config.get("decoder_sparse_step", 1) == 1,
        "rope_parameters": rope.get("rope_type", rope.get("type", "default")) == "default",
    }
    for name, fine in built.items():
        if not fine:
            raise ConfigError(f"{path}: {name}: {config.get(name)!r} is not built for Megatron here")
    return config


def layer_spec(config: MegatronConfig) -> Spec:
    """Transformer Engine's modules where they are installed and can run."""
    if config.device == "cuda":
        try:
            import transformer_engine  # noqa: F401  # pyright: ignore[reportMissingImports]
        except ImportError:
            return Spec.LOCAL
        return Spec.TRANSFORMER_ENGINE
    return Spec.LOCAL


def coordinates(config: MegatronConfig) -> Coordinates:
    """Where this process stands, once Megatron's groups exist."""
    return Coordinates(
        sizes=config.parallel,
        tensor=parallel_state.get_tensor_model_parallel_rank(),
        pipeline=parallel_state.get_pipeline_model_parallel_rank(),
        expert=parallel_state.get_expert_model_parallel_rank(),
        expert_tensor=parallel_state.get_expert_tensor_parallel_rank() or 0,
    )


def transformer_config(config: MegatronConfig, theirs: Mapping[str, Any], shape: ModelShape) -> TransformerConfig:
    """Megatron's own settings for a model of Hugging Face's."""
    sizes, fused = config.parallel, layer_spec(config) is Spec.TRANSFORMER_ENGINE
    init = partial(torch.nn.init.normal_, std=0.02)
    named: dict[str, Any] = {
        "num_layers": shape.layers,
        "hidden_size": shape.hidden,
        "ffn_hidden_size": shape.expert_feed_forward if shape.experts else shape.feed_forward,
        "num_attention_heads": shape.heads,
        "num_query_groups": shape.key_value_heads,
        "kv_channels": shape.head_size,
        "normalization": "RMSNorm",
        "layernorm_epsilon": theirs["rms_norm_eps"],
        "qk_layernorm": True,
        "gated_linear_unit": True,
        "activation_func": functional.silu,
        "add_bias_linear": False,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "init_method": init,
        "output_layer_init_method": init,
        # Sharding.
        "tensor_model_parallel_size": sizes.tensor,
        "pipeline_model_parallel_size": sizes.pipeline,
        "context_parallel_size": sizes.context,
        "expert_model_parallel_size": sizes.expert,
        "expert_tensor_parallel_size": sizes.expert_tensor,
        "sequence_parallel": config.sequence_parallel,
        "variable_seq_lengths": sizes.pipeline > 1,
        # Numbers: gradients are sums, which the loss has divided already.
        "params_dtype": DTYPES[config.precision],
        "pipeline_dtype": DTYPES[config.precision],
        "bf16": config.precision == "bfloat16",
        "calculate_per_token_loss": True,
        "attention_softmax_in_fp32": True,
        "use_cpu_initialization": config.device == "cpu",
        # Fused kernels that exist on CUDA alone.
        "bias_activation_fusion": config.device == "cuda",
        "bias_dropout_fusion": config.device == "cuda",
        "apply_rope_fusion": fused,
        "masked_softmax_fusion": False,
        "persist_layer_norm": False,
        "gradient_accumulation_fusion": False,
    }
    if shape.experts:
        named |= {
            "num_moe_experts": shape.experts,
            "moe_router_topk": shape.experts_per_token,
            "moe_ffn_hidden_size": shape.expert_feed_forward,
            "moe_router_pre_softmax": not theirs.get("norm_topk_prob"),
            "moe_router_load_balancing_type": "none",
            "moe_aux_loss_coeff": 0.0,
            "moe_router_dtype": "fp32",
            "moe_token_dispatcher_type": config.dispatcher,
            "moe_enable_deepep": config.dispatcher == "flex",
            "moe_grouped_gemm": fused,
            "moe_permute_fusion": fused,
        }
    if config.recompute:
        named |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return TransformerConfig(**named)


def block_spec(config: MegatronConfig, shape: ModelShape) -> ModuleSpec | TransformerBlockSubmodules:
    """The modules of which the layers are built."""
    experts = shape.experts or None
    if layer_spec(config) is Spec.TRANSFORMER_ENGINE:
        return get_gpt_layer_with_transformer_engine_spec(
            num_experts=experts, moe_grouped_gemm=bool(experts), qk_layernorm=True
        )
    layer = get_gpt_layer_local_spec(num_experts=experts, qk_layernorm=True, normalization="RMSNorm")
    parts: Any = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = PlainNorm
    attention = parts.self_attention.submodules
    attention.core_attention = PackedAttention
    attention.q_layernorm = attention.k_layernorm = PlainNorm
    if experts:
        # From 0.17 on what builds the experts is a partial, before it a spec.
        mlp: Any = parts.mlp.submodules if isinstance(parts.mlp, ModuleSpec) else parts.mlp.keywords["submodules"]
        mlp.router = PlainRouter
    layers = shape.layers // config.parallel.pipeline
    norm: Any = PlainNorm
    return TransformerBlockSubmodules(layer_specs=[layer] * layers, layer_norm=norm)


def build(config: MegatronConfig, theirs: Mapping[str, Any]) -> GPTModel:
    """This rank's part of the model, with arbitrary weights. Megatron's process groups must exist."""
    shape = from_hf_config(theirs)
    check_model(config, shape)
    check_installed(config, transformer_engine=layer_spec(config) is Spec.TRANSFORMER_ENGINE)
    if config.device == "cuda":
        model_parallel_cuda_manual_seed(SEED)
    else:
        # The tracker that tracks nothing: the other one keeps states of CUDA generators.
        initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)
    settings = transformer_config(config, theirs, shape)
    rope = theirs.get("rope_parameters") or theirs
    model = GPTModel(
        config=settings,
        transformer_layer_spec=block_spec(config, shape),  # pyright: ignore[reportArgumentType]  (as it takes, undeclared)
        vocab_size=padded_vocabulary(shape.vocabulary, config.parallel.tensor, config.vocabulary_multiple),
        max_sequence_length=theirs["max_position_embeddings"],
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=shape.tied_embeddings,
        position_embedding_type="rope",
        rotary_base=int(rope.get("rope_theta", 10_000)),
    )
    if config.device == "cuda":
        return model.cuda()
    model.rotary_pos_emb = HostRotary(
        shape.head_size, 1.0, rotary_base=int(rope.get("rope_theta", 10_000)), use_cpu_initialization=True
    )
    if shape.experts:
        for layer in model.decoder.layers:
            experts: Any = layer.mlp
            experts.token_dispatcher = HostDispatcher(
                experts.num_local_experts, experts.local_expert_indices, settings, get_default_pg_collection()
            )
    return model


@torch.no_grad()
def load(model: GPTModel, config: MegatronConfig, theirs: Mapping[str, Any], read: Callable[[str], Tensor]) -> None:
    """Fills the model from tensors by Hugging Face's names.

    Raises:
        ConfigError: A parameter was not filled, or one is unknown: these weights are of another model.
    """
    parameters = dict(model.named_parameters())
    named = to_megatron(
        read, from_hf_config(theirs), layer_spec(config), coordinates(config), multiple=config.vocabulary_multiple
    )
    for name, tensor in named:
        if name not in parameters:
            raise ConfigError(f"model: Megatron's model has no parameter {name}")
        parameters.pop(name).copy_(tensor)
    if parameters:
        raise ConfigError(f"model: nothing was found for the parameters {sorted(parameters)}")


class Safetensors:
    """The tensors of a folder in Hugging Face's layout, read one at a time."""

    def __init__(self, folder: Path) -> None:
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            self._files = {name: folder / file for name, file in files.items()}
        elif (one := folder / "model.safetensors").is_file():
            with safe_open(one, "pt") as opened:
                self._files = dict.fromkeys(opened.keys(), one)
        else:
            raise ConfigError(f"model: {folder} holds neither {index.name} nor model.safetensors")

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._files:
            raise ConfigError(f"model: the safetensors lack {name}")
        with safe_open(self._files[name], "pt") as opened:
            return opened.get_tensor(name)
