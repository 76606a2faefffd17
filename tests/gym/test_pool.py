"""Endpoints that stand in for each other, and what a request carries."""

import json
from collections.abc import Sequence

import httpx
import pytest
from openmle_gym.chat import Completion, Message, OpenAIChat
from openmle_gym.errors import ModelUnavailable
from openmle_gym.policies.pool import PolicyPool

ASKED = [Message(role="user", content="hello")]


class Endpoint:
    """Answers with its name, or is down; counts what it was asked."""

    def __init__(self, name: str, *, up: bool = True) -> None:
        self.name = name
        self.up = up
        self.asked = 0

    async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
        self.asked += 1
        if not self.up:
            raise ModelUnavailable(f"{self.name} is down")
        return Completion(text=f"seed {seed}", model=self.name)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_the_first_endpoint_answers_while_it_is_up() -> None:
    first, second = Endpoint("first"), Endpoint("second")
    reply = await PolicyPool([first, second]).complete(ASKED, seed=7)
    assert (reply.model, reply.text, second.asked) == ("first", "seed 7", 0)


async def test_the_next_endpoint_answers_where_one_is_down_and_the_reply_says_which() -> None:
    pool = PolicyPool([Endpoint("first", up=False), Endpoint("second", up=False), Endpoint("third")])
    assert (await pool.complete(ASKED)).model == "third"


async def test_an_endpoint_that_failed_rests_and_is_then_the_first_again() -> None:
    first, second, clock = Endpoint("first", up=False), Endpoint("second"), Clock()
    pool = PolicyPool([first, second], rest_seconds=100.0, clock=clock)
    await pool.complete(ASKED)
    first.up = True
    clock.now = 99.0
    assert (await pool.complete(ASKED)).model == "second"
    assert first.asked == 1
    clock.now = 100.0
    assert (await pool.complete(ASKED)).model == "first"


async def test_a_resting_endpoint_is_asked_before_giving_up_and_then_is_healthy() -> None:
    first, second, clock = Endpoint("first", up=False), Endpoint("second"), Clock()
    pool = PolicyPool([first, second], rest_seconds=100.0, clock=clock)
    await pool.complete(ASKED)
    first.up, second.up = True, False
    assert (await pool.complete(ASKED)).model == "first"
    asked = second.asked
    assert (await pool.complete(ASKED)).model == "first"
    assert second.asked == asked


async def test_a_pool_of_which_all_are_down_is_unavailable_and_says_why() -> None:
    pool = PolicyPool([Endpoint("first", up=False), Endpoint("second", up=False)])
    with pytest.raises(ModelUnavailable, match="none of 2 endpoints answers: first is down; second is down"):
        await pool.complete(ASKED)


async def test_a_bug_in_an_endpoint_is_not_taken_for_an_outage() -> None:
    class Broken(Endpoint):
        async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
            raise ZeroDivisionError

    second = Endpoint("second")
    with pytest.raises(ZeroDivisionError):
        await PolicyPool([Broken("first"), second]).complete(ASKED)
    assert second.asked == 0


def test_a_pool_needs_an_endpoint() -> None:
    with pytest.raises(ValueError, match="at least one"):
        PolicyPool([])


async def test_extra_fields_reach_the_request_beside_the_standard_ones() -> None:
    bodies: list[dict[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json={"choices": [{"message": {"content": "ok"}}]})

    extra = {"top_k": 20, "min_p": 0, "chat_template_kwargs": {"enable_thinking": True}}
    async with OpenAIChat(
        "http://host/v1", model="m", temperature=0.6, extra=extra, transport=httpx.MockTransport(answer)
    ) as client:
        await client.complete(ASKED, seed=3)
    assert bodies == [{"model": "m", "messages": [ASKED[0].model_dump()], "temperature": 0.6, "seed": 3, **extra}]
