"""The client of the sandbox service, against a service played by a function."""

import asyncio
import json
from collections.abc import Callable

import httpx
import pytest
from openmle_gym.client import SUBMISSIONS, JobClient
from openmle_gym.errors import ExecutorUnavailable, JobCancelled, JobLost
from openmle_gym.jobs import JobRequest, Outcome
from pydantic import SecretStr

JOB = JobRequest(code="print(1)", data_dir="toy", idempotency_key="key", timeout_seconds=5)
DONE = {"result": "success", "score": 0.5, "validation_score": 0.5, "higher_is_better": True, "run_log": ""}


def view(status: str, **fields: object) -> dict[str, object]:
    return {"job_id": "j1", "status": status, "created_at": "2026-01-01T00:00:00Z", **fields}


def client(handler: Callable[[httpx.Request], httpx.Response], **settings: object) -> JobClient:
    transport = httpx.MockTransport(handler)
    return JobClient("http://box.test", api_key=SecretStr("k"), transport=transport, **settings)  # pyright: ignore


async def test_a_job_is_submitted_waited_for_and_read() -> None:
    seen: list[httpx.Request] = []
    answers = [view("queued"), view("running"), view("completed", result=DONE)]

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=answers[len(seen) - 1])

    async with client(handler) as service:
        result = await service.run(JOB)
    assert result.outcome is Outcome.SUCCESS
    score = result.validation()
    assert score is not None
    assert score.value == 0.5
    assert [request.method for request in seen] == ["POST", "GET", "GET"]
    assert seen[0].headers["X-API-Key"] == "k"
    body = json.loads(seen[0].content)
    assert (body["timeout"], body["data_dir"], body["idempotency_key"]) == (5, "toy", "key")
    assert seen[1].url.params["wait"] == "20.0"


async def test_a_submit_is_repeated_with_the_same_key_until_the_service_answers() -> None:
    keys: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        keys.append(json.loads(request.content)["idempotency_key"])
        if len(keys) < 3:
            return httpx.Response(503, headers={"Retry-After": "0"})
        return httpx.Response(200, json=view("completed", result=DONE))

    async with client(handler) as service:
        await service.run(JOB)
    assert keys == ["key"] * 3


async def test_a_refused_request_is_an_error_that_quotes_the_service() -> None:
    async with client(lambda _: httpx.Response(403, json={"error": "wrong key"})) as service:
        with pytest.raises(ExecutorUnavailable, match=r"403.*wrong key"):
            await service.run(JOB)


async def test_a_service_that_is_gone_is_an_error_when_patience_ends() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    async with client(handler, patience_seconds=0.0) as service:
        with pytest.raises(ExecutorUnavailable, match="refused"):
            await service.run(JOB)


async def test_a_lost_job_is_submitted_again_under_a_new_key_and_in_the_end_given_up() -> None:
    keys: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            keys.append(json.loads(request.content)["idempotency_key"])
            return httpx.Response(200, json=view("queued"))
        return httpx.Response(200, json=view("failed", error="worker lost"))

    async with client(handler) as service:
        with pytest.raises(JobLost, match="worker lost"):
            await service.run(JOB)
    assert keys == ["key", "key.1", "key.2", "key.3"]
    assert len(keys) == SUBMISSIONS


async def test_a_job_that_was_cancelled_before_this_run_asked_is_run_anew() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        key = json.loads(request.content)["idempotency_key"]
        state = view("cancelled") if key == "key" else view("completed", result=DONE)
        return httpx.Response(200, json=state)

    async with client(handler) as service:
        assert (await service.run(JOB)).outcome is Outcome.SUCCESS


async def test_a_job_cancelled_while_we_wait_is_not_run_anew() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=view("queued" if request.method == "POST" else "cancelled"))

    async with client(handler) as service:
        with pytest.raises(JobCancelled):
            await service.run(JOB)


async def test_cancelling_the_call_cancels_the_job() -> None:
    waiting, methods = asyncio.Event(), []

    async def handler(request: httpx.Request) -> httpx.Response:
        methods.append(request.method)
        if request.method == "GET":
            waiting.set()
            await asyncio.Event().wait()
        return httpx.Response(200, json=view("queued"))

    async with client(handler) as service:  # pyright: ignore
        call = asyncio.create_task(service.run(JOB))
        await waiting.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert methods == ["POST", "GET", "DELETE"]


async def test_an_answer_that_is_not_a_job_is_an_error() -> None:
    async with client(lambda _: httpx.Response(200, text="<html>")) as service:
        with pytest.raises(ExecutorUnavailable, match="not a job"):
            await service.run(JOB)
