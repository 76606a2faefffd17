"""The client against servers that misbehave: what is asked again, what is a sample, what is an error."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from openmle_erl.engines.protocols import Finish, GenerateRequest, PauseMode, RoutingShape, Sampling
from openmle_erl.engines.sglang import SGLangEngine
from openmle_gym.errors import ConfigError, InfrastructureError, ModelUnavailable
from pydantic import SecretStr

REQUEST = GenerateRequest(request_id="r", prompt_ids=(1, 2), sampling=Sampling(max_new_tokens=2))
Answer = Callable[[httpx.Request], httpx.Response]


def engine_of(answer: Answer, *, patience_seconds: float = 0.0) -> SGLangEngine:
    return SGLangEngine(
        "http://engine",
        api_key=SecretStr("asks"),
        admin_key=SecretStr("steers"),
        patience_seconds=patience_seconds,
        transport=httpx.MockTransport(answer),
    )


def reply(**changes: object) -> dict[str, object]:
    meta = {
        "id": "r",
        "finish_reason": {"type": "length", "length": 2},
        "output_token_logprobs": [[-1.0, 8, None], [-2.0, 9, None]],
        "weight_version": "4",
    }
    return {"text": "", "output_ids": [8, 9], "meta_info": {**meta, **changes}}


async def generate(body: dict[str, object], status: int = 200):
    async with engine_of(lambda request: httpx.Response(status, json=body)) as engine:
        return await engine.generate(REQUEST)


async def test_without_spans_all_tokens_are_of_the_version_that_the_reply_names():
    generation = await generate(reply())
    assert generation.spans == ((4, 0, 2),)
    assert generation.finish is Finish.LENGTH


@pytest.mark.parametrize("written", ["NaN", "-Infinity", "null"])
async def test_a_log_probability_that_is_no_number_is_no_sample(written):
    body = json.dumps(reply()).replace("-2.0", written)
    async with engine_of(lambda request: httpx.Response(200, content=body)) as engine:
        with pytest.raises(ModelUnavailable, match=r"log-probability (nan|-inf) of token 9|not a generation"):
            await engine.generate(REQUEST)


async def test_an_abort_that_is_an_answer_is_one():
    aborted = await generate(reply(finish_reason={"type": "abort", "message": "paused"}))
    assert aborted.finish is Finish.ABORT
    assert aborted.token_ids == (8, 9)


async def test_an_abort_that_is_a_failure_of_the_server_is_no_sample():
    failed = {"type": "abort", "message": "CUDA out of memory", "status_code": 500, "err_type": "InternalServerError"}
    with pytest.raises(ModelUnavailable, match="out of memory"):
        await generate(reply(finish_reason=failed))


async def test_a_refusal_within_a_reply_is_not_repeated():
    refused = {"type": "abort", "message": "too long", "status_code": 400, "err_type": "BadRequestError"}
    with pytest.raises(ConfigError, match="too long"):
        await generate(reply(finish_reason=refused))


@pytest.mark.parametrize(
    "changes",
    [
        {"output_token_logprobs": [[-1.0, 8, None]]},
        {"output_token_logprobs": [[-1.0, 8, None], [-2.0, 7, None]]},
        {"weight_versions": [{"version": "4", "start": 0, "end": 1}]},
        {"weight_versions": [{"version": "4", "start": 1, "end": 2}]},
        {"finish_reason": None},
    ],
    ids=["too few logprobs", "another token", "spans end early", "spans begin late", "no reason"],
)
async def test_a_reply_that_does_not_add_up_is_no_sample(changes):
    with pytest.raises(ModelUnavailable):
        await generate(reply(**changes))


ROUTED = replace(REQUEST, routing=RoutingShape(layers=2, experts=2))
# Three of four tokens (the last was not read), two layers, two experts: int32, little-endian, in base64.
EXPERTS = [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[127, 0], [1, 2]]]
WRITTEN = "AAAAAAEAAAACAAAAAwAAAAQAAAAFAAAABgAAAAcAAAB/AAAAAAAAAAEAAAACAAAA"


async def generate_routed(body: dict[str, object], asked: GenerateRequest = ROUTED):
    bodies: list[dict[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json=body)

    async with engine_of(answer) as engine:
        return await engine.generate(asked), bodies[0]


async def test_experts_are_asked_for_and_read_where_they_are_wanted():
    generation, body = await generate_routed(reply(routed_experts=WRITTEN))
    assert body["return_routed_experts"] is True
    assert generation.experts_NLK is not None
    assert generation.experts_NLK.tolist() == EXPERTS
    unwanted, body = await generate_routed(reply(routed_experts=WRITTEN), REQUEST)
    assert "return_routed_experts" not in body
    assert unwanted.experts_NLK is None


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (WRITTEN[:-16], "9 numbers, not 3 tokens x 2 layers x 2 experts"),
        ("/////w" + WRITTEN[6:], "from -1 to 127"),
        ("AA!", "routed_experts"),
    ],
    ids=["a token short", "no expert", "not base64"],
)
async def test_experts_that_do_not_add_up_are_no_sample(written, message):
    with pytest.raises(ModelUnavailable, match=message):
        await generate_routed(reply(routed_experts=written))


async def test_a_server_that_records_no_experts_is_no_engine_for_them_but_may_abort():
    with pytest.raises(ConfigError, match="--enable-return-routed-experts"):
        await generate_routed(reply())
    aborted, _ = await generate_routed(reply(finish_reason={"type": "abort", "message": "paused"}))
    assert aborted.experts_NLK is None


async def test_weights_that_somebody_else_named_are_no_version_of_ours():
    with pytest.raises(InfrastructureError, match="nightly"):
        await generate(reply(weight_version="nightly"))


async def test_an_overloaded_server_is_asked_again_under_another_name():
    names: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        names.append(json.loads(request.content)["rid"])
        if len(names) == 1:
            return httpx.Response(503, headers={"Retry-After": "0"})
        return httpx.Response(200, json=reply())

    async with engine_of(answer, patience_seconds=5.0) as engine:
        generation = await engine.generate(REQUEST)
    assert names == ["r", "r.1"]
    assert generation.request_id == "r"


async def test_a_server_that_is_gone_raises():
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with engine_of(answer) as engine:
        with pytest.raises(ModelUnavailable, match="refused"):
            await engine.generate(REQUEST)


@pytest.mark.parametrize(
    ("mode", "flushed"), [(PauseMode.ABORT, True), (PauseMode.RETRACT, True), (PauseMode.IN_PLACE, False)]
)
async def test_weights_are_loaded_then_the_cache_is_flushed_unless_requests_keep_it(mode, flushed):
    calls: list[tuple[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append((request.url.path, request.headers["Authorization"]))
        return httpx.Response(200, json={"success": True, "message": ""})

    async with engine_of(answer) as engine:
        await engine.pause(mode)
        await engine.load_weights(Path("/weights/5"), 5)
        await engine.resume()
    paths = ["/pause_generation", "/update_weights_from_disk", *["/flush_cache"] * flushed, "/continue_generation"]
    assert calls == [(path, "Bearer steers") for path in paths]


async def test_an_update_that_says_that_it_failed_did():
    async with engine_of(lambda request: httpx.Response(200, json={"success": False, "message": "no space"})) as engine:
        with pytest.raises(ModelUnavailable, match="no space"):
            await engine.load_weights(Path("/weights/5"), 5)


async def test_generating_uses_the_other_key():
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Authorization"])
        return httpx.Response(200, json=reply())

    async with engine_of(answer) as engine:
        await engine.generate(REQUEST)
    assert keys == ["Bearer asks"]
