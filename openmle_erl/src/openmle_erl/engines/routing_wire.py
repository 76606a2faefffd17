"""The experts that tokens went through, as SGLang writes them: base64 of int32, [tokens, layers, experts of a token].

SGLang counts all layers of a model, also those without experts, so models that have such layers are refused. Needs
numpy alone.
"""

import base64
import binascii
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from openmle_gym.errors import ConfigError

from openmle_erl.engines.protocols import RoutingShape


def routing_shape(folder: Path) -> RoutingShape:
    """Of a model in Hugging Face's layout.

    Raises:
        ConfigError: It routes nothing, or not in every layer.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    layers, experts = config.get("num_hidden_layers"), config.get("num_experts_per_tok")
    if not isinstance(layers, int) or not isinstance(experts, int):
        raise ConfigError(f"{path}: num_experts_per_tok is {experts!r}: a dense model routes nothing")
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise ConfigError(f"{path}: not every layer has experts; their routing cannot be recorded")
    return RoutingShape(layers, experts)


def write_experts(experts_NLK: NDArray[np.int16]) -> str:
    """As `meta_info.routed_experts` of a reply."""
    return base64.b64encode(experts_NLK.astype("<i4").tobytes()).decode("ascii")


def read_experts(text: str, shape: RoutingShape, *, tokens: int) -> NDArray[np.int16]:
    """[N, L, K] of so many tokens.

    Raises:
        ValueError: It is something else.
    """
    try:
        flat = np.frombuffer(base64.b64decode(text, validate=True), dtype="<i4")
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"routed_experts: {error}") from error
    if flat.size != tokens * shape.layers * shape.experts:
        raise ValueError(
            f"routed_experts: {flat.size} numbers, not {tokens} tokens x {shape.layers} layers x {shape.experts} experts"
        )
    if flat.size and not 0 <= flat.min() <= flat.max() < 2**15:
        raise ValueError(f"routed_experts: from {flat.min()} to {flat.max()}, which are no experts")
    return flat.reshape(tokens, *shape).astype(np.int16)
