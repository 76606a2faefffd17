"""Talking to whatever answers an operator's prompt."""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal, NamedTuple, Protocol, Self

import httpx
from pydantic import JsonValue, SecretStr, ValidationError

from openmle_gym.contracts import Contract, ForeignContract
from openmle_gym.errors import ModelUnavailable
from openmle_gym.retry import retrying


class Message(Contract):
    """One chat message."""

    role: Literal["system", "user", "assistant"]
    content: str


class Usage(Contract):
    """Tokens of one call."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False
    """True when the counts are a guess (four characters to a token), as for the policy without a model."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            estimated=self.estimated or other.estimated,
        )


class Completion(Contract):
    """What a policy answered."""

    text: str
    reasoning: str = ""
    """Thinking that the endpoint returned apart from the text; never program text."""
    finish_reason: str = "stop"
    """`length` when the reply was cut at the token limit."""
    model: str = ""
    usage: Usage = Usage()
    seconds: float = 0.0
    """Wall clock of the call, retries included."""
    cost_usd: float | None = None
    """None when no price is known."""


class Prices(NamedTuple):
    """US dollars for a million tokens."""

    prompt: float
    completion: float

    def cost(self, usage: Usage) -> float:
        """Of one call, in US dollars."""
        return (usage.prompt_tokens * self.prompt + usage.completion_tokens * self.completion) / 1e6


class ChatModel(Protocol):
    """Anything that completes a chat: an endpoint, a checkpoint, the built-in recipes."""

    async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
        """Answers the messages; with the same seed as equal as the model can make it.

        Raises:
            ModelUnavailable: The endpoint cannot be reached, or refuses.
        """
        ...


class OpenAIChat:
    """A client of any OpenAI-compatible endpoint: SGLang, vLLM, llama.cpp, hosted providers.

    Use as an async context manager.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        api_key: SecretStr | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        extra: Mapping[str, JsonValue] | None = None,
        timeout_seconds: float = 1500.0,
        patience_seconds: float = 600.0,
        stream: bool = False,
        prices: Prices | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Args:
        base_url: Up to and including `/v1`.
        extra: Fields of the request beyond the standard, as the server knows them: top_k, min_p,
            chat_template_kwargs, ...
        timeout_seconds: How long one call may take; with `stream`, how long the endpoint may be silent.
        patience_seconds: How long an endpoint that does not answer, or says that it is overloaded, is asked again.
        """
        self.base_url = base_url.rstrip("/")
        self.model = model
        self._stream = stream
        self._prices = prices
        self._patience_seconds = patience_seconds
        settings = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
        self._settings: dict[str, JsonValue] = {
            **{name: value for name, value in settings.items() if value is not None},
            **(extra or {}),
        }
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key.get_secret_value()}"} if api_key else {},
            timeout=httpx.Timeout(timeout_seconds, connect=15.0),
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
        """See `ChatModel`."""
        body: dict[str, object] = {
            "model": self.model,
            "messages": [message.model_dump() for message in messages],
            **self._settings,
        }
        if seed is not None:
            body["seed"] = seed
        call = self._streamed if self._stream else self._whole
        url = f"{self.base_url}/chat/completions"
        clock = asyncio.get_running_loop().time
        started = clock()
        reply = await retrying(
            lambda: call(url, body),
            place=url,
            patience_seconds=self._patience_seconds,
            unavailable=ModelUnavailable,
        )
        return Completion(
            text=reply.text,
            reasoning=reply.reasoning,
            finish_reason=reply.finish_reason or "stop",
            model=reply.model or self.model,
            usage=reply.usage,
            seconds=clock() - started,
            cost_usd=self._prices.cost(reply.usage) if self._prices else None,
        )

    async def _whole(self, url: str, body: dict[str, object]) -> "_Reply":
        response = (await self._http.post(url, json=body)).raise_for_status()
        reply = _Reply()
        reply.add(response.text, url)
        return reply

    async def _streamed(self, url: str, body: dict[str, object]) -> "_Reply":
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        reply = _Reply()
        async with self._http.stream("POST", url, json=body) as response:
            if response.is_error:
                await response.aread()
                response.raise_for_status()
            async for line in response.aiter_lines():
                data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                if data and data != "[DONE]":
                    reply.add(data, url)
        return reply


class _WireMessage(ForeignContract):
    """`message` of a whole reply, `delta` of a streamed one; providers name thinking differently."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _WireChoice(ForeignContract):
    message: _WireMessage | None = None
    delta: _WireMessage | None = None
    finish_reason: str | None = None


class _WireUsage(ForeignContract):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0


class _WireReply(ForeignContract):
    model: str | None = None
    choices: tuple[_WireChoice, ...] = ()
    usage: _WireUsage | None = None


class _Reply:
    """A reply as its pieces come in: one for a whole reply, many for a streamed one."""

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.finish_reason: str | None = None
        self.model: str | None = None
        self.usage = Usage()

    def add(self, data: str, url: str) -> None:
        """Adds one JSON body or one event.

        Raises:
            ModelUnavailable: It does not read as a chat completion.
        """
        try:
            piece = _WireReply.model_validate_json(data)
        except ValidationError as error:
            raise ModelUnavailable(f"{url}: the answer is not a chat completion: {data[:300]!r}") from error
        self.model = piece.model or self.model
        if piece.usage is not None:
            tokens = piece.usage
            self.usage = Usage(prompt_tokens=tokens.prompt_tokens, completion_tokens=tokens.completion_tokens or 0)
        for choice in piece.choices[:1]:
            message = choice.message or choice.delta or _WireMessage()
            self.text += message.content or ""
            self.reasoning += message.reasoning_content or message.reasoning or ""
            self.finish_reason = choice.finish_reason or self.finish_reason
