"""The routes: what is accepted, what is refused, and how it is said."""

import asyncio
import json
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from openmle_gym.isolation.runner import BoundedLog
from sandbox.make import KEYS, URL, HeldRunner, http, make_scheduler, serving
from sandbox_service.app import create_app
from sandbox_service.auth import Keys

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


async def test_an_error_names_the_field_and_the_value(tmp_path: Path) -> None:
    async with serving(tmp_path, HeldRunner()) as app, http(app) as client:
        one = (await client.post("/api/v1/jobs", json=JOB | {"timeout": -5})).json()
        two = (
            await client.post("/api/v1/jobs", json=JOB | {"labels": {"a": "x" * 999, "b": 3}, "priority": "p"})
        ).json()
        query = (await client.get("/api/v1/jobs", params={"limit": "many"})).json()
        twice = (await client.get("/api/v1/jobs?limit=1&limit=2")).json()
    assert (one["field"], one["error"].startswith("timeout: "), "-5" in one["error"]) == ("timeout", True, True)
    assert two["field"] == "priority"
    assert "priority: " in two["error"]
    assert "labels.b: " in two["error"]
    assert (query["field"], "'many'" in query["error"]) == ("limit", True)
    assert twice == {"error": "limit: is given 2 times", "field": "limit"}


async def test_a_value_in_an_error_is_cut(tmp_path: Path) -> None:
    async with serving(tmp_path, HeldRunner()) as app, http(app) as client:
        answer = await client.post("/api/v1/jobs", json=JOB | {"resource_type": "x" * 50_000})
    assert (answer.status_code, len(answer.content) < 500) == (422, True)


async def test_a_batch_answers_each_job_as_a_single_submit_would(tmp_path: Path) -> None:
    items = [
        JOB | {"idempotency_key": "a"},
        JOB | {"idempotency_key": "a"},
        JOB | {"idempotency_key": "a", "code": "other"},
        {"code": "pass"},
        "no job",
        JOB | {"data_dir": "missing"},
        JOB | {"eval_split": "test"},
        JOB | {"labels": {"run": "r"}},
    ]
    async with serving(tmp_path, HeldRunner(held=True)) as app, http(app) as client:
        answer = await client.post("/api/v1/jobs/batch", json={"jobs": items})
        singles = [await client.post("/api/v1/jobs", json=item) for item in items]
        again = (await client.post("/api/v1/jobs/batch", json={"jobs": items[:1]})).json()["jobs"]
    jobs = answer.json()["jobs"]
    assert answer.status_code == 200
    assert [job["status"] for job in jobs] == [201, 200, 409, 422, 422, 400, 403, 201]
    assert [single.status_code for single in singles] == [200, 200, 409, 422, 422, 400, 403, 201]
    for job, single in zip(jobs, singles, strict=True):
        assert (job["error"], job["field"]) == (single.json().get("error"), single.json().get("field"))
    assert jobs[0]["job"]["job_id"] == jobs[1]["job"]["job_id"] == again[0]["job"]["job_id"]
    assert (again[0]["status"], jobs[7]["job"]["labels"]) == (200, {"run": "r"})


async def test_a_batch_that_does_not_fit_the_queue_says_when_to_come_back(tmp_path: Path) -> None:
    items = [JOB | {"idempotency_key": str(number)} for number in range(4)]
    runner = HeldRunner(held=True)
    async with serving(tmp_path, runner, max_queued=2) as app, http(app) as client:
        await client.post("/api/v1/jobs", json=JOB)
        await runner.until(lambda: len(runner.started) == 1)
        first = await client.post("/api/v1/jobs/batch", json={"jobs": items})
        await runner.release()
        await runner.until(lambda: len(runner.finished) == 3)
        second = await client.post("/api/v1/jobs/batch", json={"jobs": items})
    assert [job["status"] for job in first.json()["jobs"]] == [201, 201, 503, 503]
    assert 0 < float(first.headers["Retry-After"]) <= 30
    assert [job["status"] for job in second.json()["jobs"]] == [200, 200, 201, 201]
    assert "Retry-After" not in second.headers


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"[]", 422, None),
        (b"{}", 422, "jobs"),
        (b'{"jobs": []}', 422, "jobs"),
        (b'{"jobs": {}}', 422, "jobs"),
        (b'{"jobs": [' + b"1," * 1000 + b"1]}", 422, "jobs"),
        (b'{"jobs": [', 400, None),
        (b'{"jobs": ["' + b"x" * 100_000 + b'"]}', 413, None),
    ],
)
async def test_a_wrong_batch_is_refused_as_a_whole(tmp_path: Path, body: bytes, status: int, field: str | None) -> None:
    async with serving(tmp_path, HeldRunner()) as app, http(app) as client:
        answer = await client.post("/api/v1/jobs/batch", content=body)
        assert (answer.status_code, answer.json().get("field")) == (status, field)
        assert (await client.get("/api/v1/jobs")).json()["jobs"] == []


async def test_too_many_waiting_jobs_of_one_key_are_429_and_others_may_submit(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with (
        serving(tmp_path, runner, secret=KEYS, max_queued_per_key=1) as app,
        http(app, "s3cret") as client,
        http(app, "other") as other,
    ):
        await client.post("/api/v1/jobs", json=JOB)
        await runner.until(lambda: len(runner.started) == 1)
        answers = [await client.post("/api/v1/jobs", json=JOB) for _ in range(2)]
        others = await other.post("/api/v1/jobs", json=JOB)
    assert [answer.status_code for answer in answers] == [201, 429]
    assert 0 < float(answers[1].headers["Retry-After"]) <= 30
    assert others.status_code == 201


async def test_a_list_is_read_page_by_page_and_filtered(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, HeldRunner(held=True), secret=KEYS) as app,
        http(app, "s3cret") as client,
        http(app, "other") as other,
    ):
        ids = [
            (await client.post("/api/v1/jobs", json=JOB | {"priority": 1 + n % 2})).json()["job_id"] for n in range(5)
        ]
        theirs = (await other.post("/api/v1/jobs", json=JOB | {"labels": {"run": "a=b"}})).json()["job_id"]
        await client.delete(f"/api/v1/jobs/{ids[4]}")

        async def listed(query: str) -> list[str]:
            answer = await client.get(f"/api/v1/jobs?{query}")
            assert answer.status_code == 200, answer.text
            return [job["job_id"] for job in answer.json()["jobs"]]

        pages, before = [], ""
        while True:
            page = (await client.get(f"/api/v1/jobs?limit=2{before}")).json()
            pages.append([job["job_id"] for job in page["jobs"]])
            if page["next_before"] is None:
                break
            before = f"&before={page['next_before']}"
        assert pages == [[theirs, ids[4]], [ids[3], ids[2]], [ids[1], ids[0]]]
        assert await listed("owner=me") == ids[::-1]
        assert await listed("priority=1") == [ids[4], ids[2], ids[0]]
        assert await listed("label=run=a=b") == [theirs]
        assert await listed("status=cancelled&status=running") == [ids[4], ids[0]]
        for wrong in ("status=done", "label=run", "limit=0", "limit=1001", "before=x", "priority=3"):
            assert (await client.get(f"/api/v1/jobs?{wrong}")).status_code == 400, wrong


async def test_jobs_that_carry_a_label_are_cancelled_together(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with (
        serving(tmp_path, runner, secret=KEYS) as app,
        http(app, "s3cret") as client,
        http(app, "other") as other,
        http(app, "4dmin") as admin,
    ):
        mine = [(await client.post("/api/v1/jobs", json=JOB | {"labels": {"run": "r"}})).json()["job_id"] for _ in "12"]
        kept = (await client.post("/api/v1/jobs", json=JOB | {"labels": {"run": "q"}})).json()["job_id"]
        theirs = (await other.post("/api/v1/jobs", json=JOB | {"labels": {"run": "r"}})).json()["job_id"]
        await runner.until(lambda: len(runner.started) == 1)
        answers = [await client.delete("/api/v1/jobs", params={"label": "run=r"}) for _ in "12"]

        async def state(job_id: str) -> str:
            return (await client.get(f"/api/v1/jobs/{job_id}")).json()["status"]

        assert [answer.json() for answer in answers] == [{"cancelled": 2}, {"cancelled": 0}]
        assert [await state(job_id) for job_id in mine] == ["cancelled"] * 2
        assert {await state(job_id) for job_id in (kept, theirs)} <= {"queued", "running"}
        assert (await admin.delete("/api/v1/jobs", params={"label": "run=r"})).json() == {"cancelled": 1}
        assert await state(theirs) == "cancelled"
        for wrong in ("", "?label=run", "?label=", "?label==r"):
            assert (await client.delete(f"/api/v1/jobs{wrong}")).status_code == 400, wrong


LINES = "".join(f"line {number}\n" for number in range(1, 6))


@pytest.mark.parametrize(
    ("query", "text", "left_out"),
    [
        ("", LINES, 0),
        ("?head=2", "line 1\nline 2\n[... 3 lines left out ...]\n", 3),
        ("?tail=1", "[... 4 lines left out ...]\nline 5\n", 4),
        ("?head=1&tail=2", "line 1\n[... 2 lines left out ...]\nline 4\nline 5\n", 2),
        ("?head=3&tail=2", LINES, 0),
        ("?head=9", LINES, 0),
        ("?head=0", "[... 5 lines left out ...]\n", 5),
    ],
)
async def test_a_log_is_read_whole_or_from_its_ends(tmp_path: Path, query: str, text: str, left_out: int) -> None:
    runner = HeldRunner()
    runner.log = BoundedLog(head=LINES)
    async with serving(tmp_path, runner) as app, http(app) as client:
        job_id = (await client.post("/api/v1/jobs", json=JOB)).json()["job_id"]
        await client.get(f"/api/v1/jobs/{job_id}?wait=60")
        plain = await client.get(f"/api/v1/jobs/{job_id}/logs{query}")
        told = await client.get(f"/api/v1/jobs/{job_id}/logs{query}", headers={"Accept": "application/json"})
    assert (plain.text, plain.headers["Content-Type"]) == (text, "text/plain; charset=utf-8")
    assert told.json() == {
        "job_id": job_id,
        "text": text,
        "left_out_lines": left_out,
        "truncated_bytes": 0,
        "total_bytes": len(LINES),
        "ended": True,
        "attempt": 1,
    }


async def test_a_running_programs_log_is_read_and_says_what_was_cut(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    runner.log = BoundedLog(head="begun\n", tail="\x1b[31mgoing on", truncated_bytes=1000)
    async with serving(tmp_path, runner) as app, http(app) as client:
        path = "/api/v1/jobs/" + (await client.post("/api/v1/jobs", json=JOB)).json()["job_id"]
        await runner.until(lambda: len(runner.started) == 1)
        answer = (await client.get(f"{path}/logs", headers={"Accept": "application/json"})).json()
        plain = await client.get(f"{path}/logs?tail=1")
        for wrong in ("head=-1", "tail=x", "head=1.5"):
            assert (await client.get(f"{path}/logs?{wrong}")).status_code == 400
    assert (answer["ended"], answer["truncated_bytes"], answer["total_bytes"] > 1000) == (False, 1000, True)
    assert answer["text"].startswith("begun\n\n[... 1000 bytes cut ...]\n")
    assert "going" in plain.text
    assert plain.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in plain.headers["Content-Security-Policy"]


async def test_files_are_listed_and_fetched_by_whoever_submitted_the_job_and_by_admin(tmp_path: Path) -> None:
    runner = HeldRunner()
    name = 'a "b"; filename=evil.html'
    runner.files = {"submission.csv": b"id,target\n0,1\n", name: b"<script>"}
    async with serving(tmp_path, runner, secret=KEYS) as app, http(app) as client:
        mine = {"X-API-Key": "s3cret"}
        body = JOB | {"artifacts": ["submission.csv", name, "missing"]}
        path = "/api/v1/jobs/" + (await client.post("/api/v1/jobs", json=body, headers=mine)).json()["job_id"]
        await client.get(f"{path}?wait=60", headers=mine)
        listed = (await client.get(f"{path}/artifacts", headers=mine)).json()["artifacts"]
        assert {(file["name"], file["size_bytes"]) for file in listed} == {("submission.csv", 14), (name, 8)}
        file = await client.get(f"{path}/artifacts/submission.csv", headers=mine)
        assert (file.status_code, file.content) == (200, b"id,target\n0,1\n")
        assert file.headers["Content-Type"] == "application/octet-stream"
        assert file.headers["Content-Disposition"] == 'attachment; filename="submission.csv"'
        part = await client.get(f"{path}/artifacts/submission.csv", headers=mine | {"Range": "bytes=3-8"})
        assert (part.status_code, part.content) == (206, b"target")
        for wrong in ("bytes=90-", "bytes=14-", "bytes=3-2", "bytes=-0", "bytes=0-1,3-4", "lines=1-2", "bytes=x"):
            beyond = await client.get(f"{path}/artifacts/submission.csv", headers=mine | {"Range": wrong})
            assert (beyond.status_code, beyond.json()["field"]) == (416, "Range"), wrong
        for right, content in (("bytes=13-", b"\n"), ("bytes=-2", b"1\n"), ("bytes=0-99", file.content)):
            part = await client.get(f"{path}/artifacts/submission.csv", headers=mine | {"Range": right})
            assert (part.status_code, part.content) == (206, content), right
        odd = await client.get(f"{path}/artifacts/{quote(name)}", headers=mine)
        assert odd.content == b"<script>"
        assert odd.headers["Content-Disposition"] == f"attachment; filename*=utf-8''{quote(name)}"
        for key, status in (("other", 403), ("gr4de", 403), ("4dmin", 200), ("wrong", 401)):
            for where in ("artifacts", "artifacts/submission.csv"):
                answer = await client.get(f"{path}/{where}", headers={"X-API-Key": key})
                assert answer.status_code == status, (key, where)
        for missing in ("missing", "..%2Fjobs.sqlite", "%2e%2e", "a/b", listed[0]["sha256"]):
            answer = await client.get(f"{path}/artifacts/{missing}", headers=mine)
            assert (answer.status_code, bool(answer.json()["error"])) == (404, True), missing


@pytest.mark.parametrize("what", ["", "/logs", "/events", "/artifacts", "/artifacts/submission.csv"])
@pytest.mark.parametrize("key", ["s3cret", "4dmin"])
async def test_an_unknown_job_has_nothing(tmp_path: Path, what: str, key: str) -> None:
    async with serving(tmp_path, HeldRunner(), secret=KEYS) as app, http(app, key) as client:
        answer = await client.get(f"/api/v1/jobs/{'0' * 32}{what}")
    assert (answer.status_code, answer.json()) == (404, {"error": "no such job"})


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/api/v1/jobs", {"GET", "HEAD", "POST", "DELETE"}),
        ("PATCH", "/api/v1/jobs/x", {"GET", "HEAD", "DELETE"}),
        ("POST", "/health", {"GET", "HEAD"}),
        ("DELETE", "/", {"GET", "HEAD"}),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(tmp_path: Path, method: str, path: str, allowed: set[str]) -> None:
    async with serving(tmp_path, HeldRunner()) as app, http(app) as client:
        answer = await client.request(method, path)
    assert answer.status_code == 405
    assert set(answer.headers["Allow"].replace(" ", "").split(",")) == allowed
    assert method in answer.json()["error"]


async def test_head_is_get_without_a_body(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with serving(tmp_path, runner) as app, http(app) as client:
        job_id = (await client.post("/api/v1/jobs", json=JOB)).json()["job_id"]
        for path in ("/health", "/api/v1/jobs", f"/api/v1/jobs/{job_id}", f"/api/v1/jobs/{job_id}/events", "/metrics"):
            async with asyncio.timeout(30):
                assert (await client.head(path)).status_code == 200, path
        assert (await client.head("/api/v1/jobs/x")).status_code == 404


async def test_metrics_tell_what_happens(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with serving(tmp_path, runner, secret=KEYS) as app, http(app, "s3cret") as client:
        for _ in range(3):
            await client.post("/api/v1/jobs", json=JOB)
        await runner.until(lambda: len(runner.started) == 1)
        before = (await client.get("/metrics")).text
        await runner.release()
        await runner.until(lambda: len(runner.finished) == 3)
        async with asyncio.timeout(30):
            while 'openmle_jobs{state="completed"} 3.0' not in (await client.get("/metrics")).text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        answer = await client.get("/metrics", headers={"X-API-Key": "", "Authorization": "Bearer other"})
        refused = await client.get("/metrics", headers={"X-API-Key": ""})
    assert 'openmle_queued_jobs{priority="2",resource_class="cpu"} 2.0' in before
    assert 'openmle_slots_used{resource_class="cpu"} 1.0' in before
    assert 'openmle_completed_jobs{outcome="submission_missing"} 3.0' in answer.text
    assert 'openmle_job_seconds_count{part="program"} 3.0' in answer.text
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert refused.status_code == 401


async def test_a_fault_of_ours_is_said_in_the_same_form(tmp_path: Path) -> None:
    never_entered = create_app(make_scheduler(tmp_path, HeldRunner()), Keys(None))
    transport = httpx.ASGITransport(never_entered, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
        answer = await client.get("/api/v1/workers/status")
    assert (answer.status_code, "log" in answer.json()["error"]) == (500, True)
