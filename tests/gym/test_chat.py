"""The client of OpenAI-compatible endpoints."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest
from openmle_gym.chat import Message, OpenAIChat, Usage
from openmle_gym.errors import ModelUnavailable
from openmle_gym.retry import retry_after_seconds
from pydantic import SecretStr

ASK = [Message(role="user", content="hello")]
Handler = Callable[[httpx.Request], httpx.Response]


def endpoint(handler: Handler, **settings: object) -> OpenAIChat:
    return OpenAIChat(
        "http://model.test/v1/",
        model="m",
        api_key=SecretStr("k"),
        transport=httpx.MockTransport(handler),
        **{"patience_seconds": 5.0, **settings},  # pyright: ignore
    )


def answer(**message: object) -> dict[str, object]:
    return {
        "model": "m-2",
        "choices": [{"message": {"role": "assistant", **message}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


async def test_what_is_sent_is_the_documented_request() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=answer(content="hi"))

    async with endpoint(handler, temperature=0.6, top_p=0.95, max_tokens=100) as model:
        reply = await model.complete(ASK, seed=3)
    assert str(seen[0].url) == "http://model.test/v1/chat/completions"
    assert seen[0].headers["Authorization"] == "Bearer k"
    assert json.loads(seen[0].content) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0.6,
        "top_p": 0.95,
        "max_tokens": 100,
        "seed": 3,
    }
    assert (reply.text, reply.model, reply.usage) == ("hi", "m-2", Usage(prompt_tokens=11, completion_tokens=7))


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_thinking_is_kept_apart_from_the_text(field: str) -> None:
    async with endpoint(lambda _: httpx.Response(200, json=answer(content="out", **{field: "in"}))) as model:
        reply = await model.complete(ASK)
    assert (reply.text, reply.reasoning) == ("out", "in")


async def test_a_reply_that_is_only_thinking_has_no_text() -> None:
    async with endpoint(lambda _: httpx.Response(200, json=answer(content=None, reasoning_content="in"))) as model:
        assert (await model.complete(ASK)).text == ""


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_an_overloaded_endpoint_is_asked_again(status: int) -> None:
    calls = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        if len(calls) < 3:
            return httpx.Response(status, headers={"Retry-After": "0"})
        return httpx.Response(200, json=answer(content="hi"))

    async with endpoint(handler) as model:
        assert (await model.complete(ASK)).text == "hi"
    assert len(calls) == 3


async def test_a_refusal_is_not_repeated_and_is_quoted() -> None:
    calls = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        return httpx.Response(401, json={"error": {"message": "bad key"}})

    async with endpoint(handler) as model:
        with pytest.raises(ModelUnavailable, match=r"401.*bad key"):
            await model.complete(ASK)
    assert len(calls) == 1


async def test_patience_ends() -> None:
    async with endpoint(lambda _: httpx.Response(503, text="busy"), patience_seconds=0.0) as model:
        with pytest.raises(ModelUnavailable, match="503: busy"):
            await model.complete(ASK)


async def test_a_connection_that_breaks_is_tried_again() -> None:
    calls = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        if len(calls) == 1:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(200, json=answer(content="hi"))

    async with endpoint(handler) as model:
        assert (await model.complete(ASK)).text == "hi"


async def test_an_answer_that_is_not_a_completion_is_an_error() -> None:
    async with endpoint(lambda _: httpx.Response(200, text="<html>")) as model:
        with pytest.raises(ModelUnavailable, match="not a chat completion"):
            await model.complete(ASK)


async def test_a_streamed_reply_reads_as_a_whole_one() -> None:
    events = [
        {"model": "m", "choices": [{"delta": {"reasoning_content": "think"}}]},
        {"model": "m", "choices": [{"delta": {"content": "he"}}]},
        {"model": "m", "choices": [{"delta": {"content": "llo"}, "finish_reason": "length"}]},
        {"model": "m", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    ]
    body = ": ping\n\n" + "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"

    def handler(request: httpx.Request) -> httpx.Response:
        assert json.loads(request.content)["stream"] is True
        return httpx.Response(200, text=body, headers={"Content-Type": "text/event-stream"})

    async with endpoint(handler, stream=True) as model:
        reply = await model.complete(ASK)
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("hello", "think", "length")
    assert reply.usage == Usage(prompt_tokens=3, completion_tokens=2)


def test_retry_after_is_read_in_seconds_and_as_a_date() -> None:
    assert retry_after_seconds("2.5", default=9.0) == 2.5
    assert retry_after_seconds("100000", default=9.0) == 30.0
    assert retry_after_seconds("-1", default=9.0) == 0.0
    assert retry_after_seconds("soon", default=9.0) == 9.0
    assert retry_after_seconds("nan", default=9.0) == 9.0
    assert retry_after_seconds(None, default=9.0) == 9.0
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    assert 15.0 < retry_after_seconds(later, default=9.0) <= 20.0
    assert retry_after_seconds(format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True), default=9.0) == 0.0
