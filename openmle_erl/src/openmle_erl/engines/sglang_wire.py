"""What SGLang 0.5.23 reads and writes, as far as `sglang` needs it."""

import math

import numpy as np
from numpy.typing import NDArray
from openmle_gym.contracts import ForeignContract
from openmle_gym.errors import ConfigError, InfrastructureError, ModelUnavailable
from pydantic import JsonValue, ValidationError

from openmle_erl.engines.protocols import Finish, GenerateRequest, Generation, VersionSpan
from openmle_erl.engines.routing_wire import read_experts

REFUSED = frozenset({400, 413, 422})
"""Statuses of a request that is wrong in itself."""
FIRST_VERSION = "default"
"""SGLang's name of the weights that it started with."""


class ModelInfo(ForeignContract):
    """What is used of `/model_info`."""

    model_path: str
    weight_version: str | None = None


class Success(ForeignContract):
    """What routes that steer answer."""

    success: bool = True
    message: str = ""


class _FinishReason(ForeignContract):
    type: Finish
    message: str | None = None
    status_code: int | None = None
    err_type: str | None = None


class _Span(ForeignContract):
    version: str
    start: int
    end: int


class _MetaInfo(ForeignContract):
    finish_reason: _FinishReason
    output_token_logprobs: tuple[tuple[float, int, str | None], ...] = ()
    weight_version: str | None = None
    weight_versions: tuple[_Span, ...] = ()
    routed_experts: str | None = None


class _Reply(ForeignContract):
    output_ids: tuple[int, ...]
    meta_info: _MetaInfo


def generate_body(request: GenerateRequest, rid: str) -> dict[str, JsonValue]:
    """A request as `/generate` reads it."""
    sampling = request.sampling
    parameters: dict[str, JsonValue] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stop_token_ids": list(sampling.stop_token_ids),
        "skip_special_tokens": False,
    }
    if request.seed is not None:
        parameters["sampling_seed"] = request.seed
    body: dict[str, JsonValue] = {
        "rid": rid,
        "input_ids": list(request.prompt_ids),
        "sampling_params": parameters,
        "return_logprob": True,
        "logprob_start_len": -1,
        "stream": False,
    }
    return body | {"return_routed_experts": True} if request.routing else body


def read_generation(content: bytes, request: GenerateRequest, *, place: str) -> Generation:
    """A reply of `/generate`.

    Raises:
        ModelUnavailable: The server failed at this request, or the reply is not one to it.
        ConfigError: The server refuses the request, or was asked for experts and does not record them.
    """
    try:
        reply = _Reply.model_validate_json(content)
    except ValidationError as error:
        raise ModelUnavailable(f"{place}: the answer is not a generation: {content[:300]!r}") from error
    meta, ids = reply.meta_info, reply.output_ids
    reason = meta.finish_reason
    if reason.type is Finish.ABORT and reason.status_code is not None:
        trouble = f"{place}: request {request.request_id}: {reason.status_code} {reason.message}"
        raise ConfigError(trouble) if reason.status_code in REFUSED else ModelUnavailable(trouble)
    if tuple(entry[1] for entry in meta.output_token_logprobs) != ids:
        raise ModelUnavailable(f"{place}: {len(meta.output_token_logprobs)} log-probabilities for {len(ids)} tokens")
    if wrong := [entry for entry in meta.output_token_logprobs if not math.isfinite(entry[0])]:
        raise ModelUnavailable(f"{place}: log-probability {wrong[0][0]} of token {wrong[0][1]}")
    spans = tuple(
        VersionSpan(read_version(span.version), span.start, span.end)
        for span in meta.weight_versions
        if span.end > span.start
    )
    if not meta.weight_versions and ids:
        spans = (VersionSpan(read_version(meta.weight_version), 0, len(ids)),)
    if [0, *(span.end for span in spans)] != [*(span.start for span in spans), len(ids)]:
        raise ModelUnavailable(f"{place}: the spans {spans} do not cover {len(ids)} tokens")
    return Generation(
        request_id=request.request_id,
        token_ids=ids,
        logprobs_T=np.asarray([entry[0] for entry in meta.output_token_logprobs], dtype=np.float32),
        finish=reason.type,
        spans=spans,
        experts_NLK=_experts(reply, request, place=place),
    )


def _experts(reply: _Reply, request: GenerateRequest, *, place: str) -> NDArray[np.int16] | None:
    written = reply.meta_info.routed_experts
    if request.routing is None or (written is None and reply.meta_info.finish_reason.type is Finish.ABORT):
        return None
    if written is None:
        raise ConfigError(
            f"{place}: no routed_experts in the answer: an SGLang server records them with --enable-return-routed-experts"
        )
    try:
        return read_experts(written, request.routing, tokens=len(request.prompt_ids) + len(reply.output_ids) - 1)
    except ValueError as error:
        raise ModelUnavailable(f"{place}: request {request.request_id}: {error}") from error


def read_version(name: str | None) -> int:
    """Weights' version by the name that a server gives them; 0 for those it started with.

    Raises:
        InfrastructureError: Somebody else named them.
    """
    if name is None or name == FIRST_VERSION:
        return 0
    if not name.isdecimal():
        raise InfrastructureError(f"weight_version {name!r} is none of ours")
    return int(name)
