"""What the local server reads and writes: the subset of SGLang's protocol that `sglang` speaks, and OpenAI's chat."""

import time
from collections.abc import Mapping
from typing import Literal

from openmle_gym.chat import Completion, Message
from openmle_gym.contracts import Contract, ForeignContract
from pydantic import Field, JsonValue

from openmle_erl.engines.protocols import Finish, GenerateRequest, Generation, PauseMode, RoutingShape, Sampling
from openmle_erl.engines.routing_wire import write_experts

ALL_TOKENS = 1 << 30
"""SGLang's default of top_k."""


class SamplingParams(Contract):
    """Of `/generate`. As in SGLang, what is unknown is refused; so is what SGLang knows and this server does not do."""

    max_new_tokens: int = Field(default=128, ge=1)
    temperature: float = Field(default=1.0, ge=0.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=ALL_TOKENS, ge=-1)
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    sampling_seed: int | None = None
    n: Literal[1] = 1

    def sampling(self) -> Sampling:
        """As engines know it."""
        return Sampling(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k if 0 < self.top_k < ALL_TOKENS else -1,
            stop_token_ids=self.stop_token_ids or (),
        )


class GenerateBody(ForeignContract):
    """`/generate`, for one prompt."""

    rid: str | None = None
    text: str | None = None
    input_ids: tuple[int, ...] | None = None
    sampling_params: SamplingParams = Field(default_factory=SamplingParams)
    return_logprob: bool = False
    return_routed_experts: bool = False
    routed_experts_start_len: Literal[0] = 0
    stream: Literal[False] = False


class PauseBody(ForeignContract):
    """`/pause_generation`."""

    mode: PauseMode = PauseMode.ABORT


class AbortBody(ForeignContract):
    """`/abort_request`."""

    rid: str = ""
    abort_all: bool = False


class DiskBody(ForeignContract):
    """`/update_weights_from_disk`."""

    model_path: str
    weight_version: str | None = None


class GroupBody(ForeignContract):
    """`/init_weights_update_group`."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    group_name: str = "weight_update_group"
    backend: str = "nccl"


class LeaveBody(ForeignContract):
    """`/destroy_weights_update_group`."""

    group_name: str = "weight_update_group"


class TensorsBody(ForeignContract):
    """`/update_weights_from_distributed`."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str = "weight_update_group"
    weight_version: str | None = None


class ChatMessage(ForeignContract):
    """A message of OpenAI's protocol."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str

    def plain(self) -> Message:
        """As OpenMLE knows it."""
        return Message(role="system" if self.role == "developer" else self.role, content=self.content)


class ChatBody(ForeignContract):
    """`/v1/chat/completions`."""

    messages: list[ChatMessage]
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = -1
    seed: int | None = None
    n: Literal[1] = 1
    stream: Literal[False] = False


def generate_reply(
    generation: Generation, *, prompt_tokens: int, version: str, text: str, logprobs: bool
) -> dict[str, JsonValue]:
    """A reply of `/generate`.

    Args:
        version: Of the weights now.
    """
    ids = list(generation.token_ids)
    reasons: Mapping[Finish, dict[str, JsonValue]] = {
        Finish.STOP: {"type": "stop", "matched": ids[-1] if ids else None},
        Finish.LENGTH: {"type": "length", "length": len(ids)},
        Finish.ABORT: {"type": "abort", "message": "aborted"},
    }
    meta: dict[str, JsonValue] = {
        "id": generation.request_id,
        "finish_reason": reasons[generation.finish],
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(ids),
        "cached_tokens": 0,
        "weight_version": version_name(generation.spans[-1].version) if generation.spans else version,
        "weight_versions": [
            {"version": version_name(span.version), "start": span.start, "end": span.end} for span in generation.spans
        ],
    }
    if logprobs:
        values = generation.logprobs_T.tolist()
        meta["output_token_logprobs"] = [[value, token, None] for value, token in zip(values, ids, strict=True)]
        meta["output_token_logprobs_length"] = len(ids)
    if generation.experts_NLK is not None:
        meta["routed_experts"] = write_experts(generation.experts_NLK)
    return {"text": text, "output_ids": [*ids], "meta_info": meta}


def version_name(version: int) -> str:
    """A version as SGLang names it."""
    return str(version) if version else "default"


def generate_request(
    body: GenerateBody, rid: str, prompt: tuple[int, ...], routing: RoutingShape | None
) -> GenerateRequest:
    """As engines know it.

    Args:
        routing: Of the model.
    """
    parameters = body.sampling_params
    return GenerateRequest(
        request_id=rid,
        prompt_ids=prompt,
        sampling=parameters.sampling(),
        seed=parameters.sampling_seed,
        routing=routing if body.return_routed_experts else None,
    )


def chat_reply(completion: Completion, *, number: int) -> dict[str, JsonValue]:
    """A reply of `/v1/chat/completions`."""
    message: dict[str, JsonValue] = {"role": "assistant", "content": completion.text}
    if completion.reasoning:
        message["reasoning_content"] = completion.reasoning
    usage = completion.usage
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": completion.model,
        "choices": [{"index": 0, "message": message, "finish_reason": completion.finish_reason, "logprobs": None}],
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
    }
