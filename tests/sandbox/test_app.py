"""The routes: what is accepted, what is refused, and how it is said."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from sandbox.make import KEYS, HeldRunner, http, serving

JOB = {"code": "pass", "data_dir": "tiny"}


async def test_a_submit_answers_201_once_and_200_again(tmp_path: Path) -> None:
    async with serving(tmp_path, HeldRunner(held=True)) as app, http(app) as client:
        first = await client.post("/api/v1/jobs", json=JOB | {"idempotency_key": "k"})
        again = await client.post("/api/v1/jobs", json=JOB | {"idempotency_key": "k"})
        other = await client.post("/api/v1/jobs", json=JOB | {"idempotency_key": "k", "code": "other"})
        keyless = [await client.post("/api/v1/jobs", json=JOB | {"idempotency_key": ""}) for _ in range(2)]
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert first.json()["job_id"] == again.json()["job_id"]
    assert other.json()["field"] == "idempotency_key"
    assert first.json()["job_id"] in other.json()["error"]
    assert [answer.status_code for answer in keyless] == [201, 201]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"{", 400, None),
        (b"", 400, None),
        (b"\xff\xfe", 400, None),
        (b'{"code": "\\ud800", "data_dir": "tiny"}', 400, None),
        (b"[]", 422, None),
        (b'{"data_dir": "tiny"}', 422, "code"),
        (b'{"code": "pass"}', 422, "data_dir"),
        (b'{"code": "pass", "data_dir": ""}', 422, "data_dir"),
        (b'{"code": "pass", "data_dir": "tiny", "timeout": 0}', 422, "timeout"),
        (b'{"code": "pass", "data_dir": "tiny", "timeout": 1e999}', 422, "timeout"),
        (b'{"code": "pass", "data_dir": "tiny", "priority": "high"}', 422, "priority"),
        (b'{"code": "pass", "data_dir": "tiny", "labels": {"a": 1}}', 422, "labels.a"),
        (b'{"code": "pass", "data_dir": "tiny", "eval_split": "train"}', 422, "eval_split"),
    ],
)
async def test_a_wrong_body_is_refused_with_the_fields_name(
    tmp_path: Path, body: bytes, status: int, field: str | None
) -> None:
    async with serving(tmp_path, HeldRunner()) as app, http(app) as client:
        answer = await client.post("/api/v1/jobs", content=body)
    assert (answer.status_code, answer.json().get("field")) == (status, field)
    assert answer.json()["error"].startswith(field or "")


async def test_a_data_dir_must_be_a_package_inside_a_root(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    async with serving(tmp_path, HeldRunner()) as app, http(app) as client:
        tasks = tmp_path / "tasks"
        (tasks / "link").symlink_to(outside)
        (tasks / "alias").symlink_to(tasks / "tiny")
        (tasks / "empty").mkdir()

        async def status(data_dir: str) -> int:
            answer = await client.post("/api/v1/jobs", json=JOB | {"data_dir": data_dir})
            assert answer.is_success or (answer.json()["field"] == "data_dir" and answer.json()["error"])
            return answer.status_code

        for wrong in ("../outside", str(outside), "link", "missing", "empty", "/", "tiny/../../outside"):
            assert await status(wrong) == 400, wrong
        for right in ("tiny", str(tasks / "tiny"), "alias", "empty/../tiny"):
            assert await status(right) == 201, right


@pytest.mark.parametrize("data_dir", ["a\x00b", "x" * 5000])
async def test_a_data_dir_that_is_no_path_is_refused(tmp_path: Path, data_dir: str) -> None:
    async with serving(tmp_path, HeldRunner()) as app, http(app) as client:
        answer = await client.post("/api/v1/jobs", json=JOB | {"data_dir": data_dir})
    assert (answer.status_code, answer.json()["field"]) == (400, "data_dir")


async def test_a_body_over_the_cap_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    async def chunks(count: int):
        for _ in range(count):
            yield b"x" * 1000

    async with serving(tmp_path, HeldRunner(), max_body_bytes=1000) as app, http(app) as client:
        sized = await client.post("/api/v1/jobs", content=b"x" * 1001)
        streamed = await client.post("/api/v1/jobs", content=chunks(3))
        at_the_cap = await client.post("/api/v1/jobs", content=b"x" * 1000)
    assert (sized.status_code, streamed.status_code, at_the_cap.status_code) == (413, 413, 400)
    assert "at most 1000" in sized.json()["error"]


async def test_a_full_queue_answers_503_with_a_number_of_seconds(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with serving(tmp_path, runner, max_queued=1) as app, http(app) as client:
        await client.post("/api/v1/jobs", json=JOB)
        await runner.until(lambda: len(runner.started) == 1)
        waiting = await client.post("/api/v1/jobs", json=JOB | {"idempotency_key": "k"})
        refused = await client.post("/api/v1/jobs", json=JOB)
        again = await client.post("/api/v1/jobs", json=JOB | {"idempotency_key": "k"})
    assert (waiting.status_code, refused.status_code, again.status_code) == (201, 503, 200)
    assert 0 < float(refused.headers["Retry-After"]) <= 30


async def test_waiting_answers_at_the_jobs_end(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with serving(tmp_path, runner) as app, http(app) as client:
        path = "/api/v1/jobs/" + (await client.post("/api/v1/jobs", json=JOB)).json()["job_id"]
        assert (await client.get(path, params={"wait": 0.01})).json()["status"] in ("queued", "running")
        waiting = asyncio.create_task(client.get(path, params={"wait": 60}))
        await runner.until(lambda: len(runner.started) == 1)
        assert (await client.get(path)).json()["status"] == "running"
        assert not waiting.done()
        await runner.release()
        async with asyncio.timeout(30):
            assert (await waiting).json()["status"] == "completed"
        for wait in ("soon", "-1", "nan"):
            assert (await client.get(path, params={"wait": wait})).status_code == 400


async def test_a_cancel_answers_how_the_job_stands(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with serving(tmp_path, runner) as app, http(app) as client:
        first, second = [(await client.post("/api/v1/jobs", json=JOB)).json()["job_id"] for _ in range(2)]
        assert (await client.delete(f"/api/v1/jobs/{second}")).json()["status"] == "cancelled"
        await runner.release()
        await client.get(f"/api/v1/jobs/{first}", params={"wait": 60})
        ended = await client.delete(f"/api/v1/jobs/{first}")
        assert (ended.status_code, ended.json()["status"]) == (200, "completed")


async def test_jobs_are_listed_by_status_label_and_limit(tmp_path: Path) -> None:
    async with serving(tmp_path, HeldRunner(held=True)) as app, http(app) as client:
        a, b = [
            (await client.post("/api/v1/jobs", json=JOB | {"labels": {"run": run}})).json()["job_id"] for run in "ab"
        ]
        await client.delete(f"/api/v1/jobs/{b}")

        async def listed(**parameters: object) -> list[str]:
            answer = await client.get("/api/v1/jobs", params=httpx.QueryParams(**parameters))
            return [job["job_id"] for job in answer.json()["jobs"]]

        assert await listed() == [b, a]
        assert await listed(limit=1) == [b]
        assert await listed(status="cancelled") == [b]
        assert await listed(label="run=a") == [a]
        assert await listed(label="run=c") == []
        for wrong in ("status=done", "label=run", "limit=-1", "limit=x"):
            assert (await client.get(f"/api/v1/jobs?{wrong}")).status_code == 400, wrong


async def test_unknown_jobs_and_paths_are_404_and_say_so_in_json(tmp_path: Path) -> None:
    async with serving(tmp_path, HeldRunner()) as app, http(app) as client:
        for method, path in [("GET", "jobs/x"), ("GET", "jobs/x?wait=60"), ("DELETE", "jobs/x"), ("GET", "nothing")]:
            answer = await client.request(method, f"/api/v1/{path}")
            assert answer.status_code == 404
            assert answer.json()["error"]
        assert (await client.put("/api/v1/jobs")).status_code == 405


async def test_health_needs_no_key_and_everything_else_does(tmp_path: Path) -> None:
    async with serving(tmp_path, HeldRunner(), secret=KEYS) as app, http(app) as client:
        health = await client.get("/health")
        assert (health.status_code, health.json()["isolation"], health.json()["version"]) == (200, "process", "0.1.0")
        for headers in ({}, {"X-API-Key": "wrong"}, {"X-API-Key": ""}, {"X-API-Key": "s3cret,"}, {"X-API-Key": "é"}):
            raw = {name.encode(): value.encode() for name, value in headers.items()}
            for method, path in [
                ("POST", "/api/v1/jobs"),
                ("GET", "/api/v1/jobs"),
                ("GET", "/api/v1/jobs/x"),
                ("DELETE", "/api/v1/jobs/x"),
                ("GET", "/api/v1/workers/status"),
            ]:
                answer = await client.request(method, path, headers=raw, content=json.dumps(JOB))
                assert answer.status_code == 401, (method, path, headers)
        assert (await client.post("/api/v1/jobs", json=JOB, headers={"X-API-Key": "s3cret"})).status_code == 201
