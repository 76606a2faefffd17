"""What published clients send and read, written from a description of their behaviour."""

import re
from pathlib import Path

import pytest
from sandbox.make import KEYS, HeldRunner, http, serving

ISO_Z = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
SEARCH_CLIENT = {
    "name": "tiny",
    "code": "print(1)",
    "data_dir": "tiny",
    "timeout": 7200,
    "resource_type": "gpu",
    "priority": 1,
    "idempotency_key": "0123456789abcdef0123456789abcdef",
    "environment": {"EXECUTION_MODE": "shell", "DATA_DIR": "tiny", "SANDBOX_DATA_DIR": "tiny", "EVAL_SPLIT": "both"},
    "eval_split": "both",
}
RL_CLIENT = {
    "name": "tiny",
    "code": "print(1)",
    "data_dir": "tiny",
    "timeout": 3600,
    "resource_type": "gpu",
    "priority": 1,
    "environment": {
        "EXECUTION_MODE": "shell",
        "DATA_DIR": "tiny",
        "SANDBOX_DATA_DIR": "tiny",
        "HF_ENDPOINT": "https://hub.example",
    },
}
SFT_CLIENT = RL_CLIENT | {"resource_type": "cpu", "priority": 2, "unheard_of": {"a": [1]}, "trace_id": "t"}


@pytest.mark.parametrize("body", [SEARCH_CLIENT, RL_CLIENT, SFT_CLIENT], ids=["search", "rl", "sft"])
async def test_submit_and_poll_as_the_published_clients_do(tmp_path: Path, body: dict[str, object]) -> None:
    async with serving(tmp_path, HeldRunner(), secret=KEYS) as app, http(app, "gr4de") as client:
        absolute = {"data_dir": str(tmp_path / "tasks" / "tiny"), "name": str(tmp_path / "tasks" / "tiny")}
        answer = await client.post("/api/v1/jobs", json=body | absolute, headers={"X-Trace-ID": "t"})
        assert answer.is_success
        job_id = answer.json()["job_id"]
        assert isinstance(job_id, str)
        assert answer.json()["status"] == "queued"
        ended = await client.get(f"/api/v1/jobs/{job_id}", params={"wait": 30})
    view = ended.json()
    assert (view["job_id"], view["status"]) == (job_id, "completed")
    for moment in ("created_at", "started_at", "completed_at"):
        assert ISO_Z.fullmatch(view[moment]), view[moment]
    assert view["created_at"] <= view["started_at"] <= view["completed_at"]
    assert view["worker_id"]
    result = view["result"]
    assert result["result"] == "submission_missing"
    assert [result[name] for name in ("score", "valid_score", "validation_score", "test_score")] == [None] * 4
    assert result["scores_by_split"] == {}
    assert result["eval_split"] == body.get("eval_split", "validation")
    assert result["run_log"] == "--- SANDBOX STDOUT START ---\nhello\n\n--- SANDBOX STDOUT END ---\n"


async def test_a_waiting_job_shows_queued_then_running_with_times_that_are_not_yet(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with serving(tmp_path, runner) as app, http(app) as client:
        first, second = [(await client.post("/api/v1/jobs", json=RL_CLIENT)).json()["job_id"] for _ in range(2)]
        assert first != second
        await runner.until(lambda: len(runner.started) == 1)
        running = (await client.get(f"/api/v1/jobs/{first}")).json()
        queued = (await client.get(f"/api/v1/jobs/{second}")).json()
    assert (running["status"], running["completed_at"], running["result"]) == ("running", None, None)
    assert ISO_Z.fullmatch(running["started_at"])
    assert (queued["status"], queued["started_at"], queued["worker_id"]) == ("queued", None, None)


@pytest.mark.parametrize(("priority", "order"), [(1, "xab"), (2, "abx"), (0, "xab"), (7, "xab"), (-1, "xab")])
async def test_a_priority_other_than_1_or_2_means_1(tmp_path: Path, priority: int, order: str) -> None:
    runner = HeldRunner(held=True)
    async with serving(tmp_path, runner) as app, http(app) as client:
        await client.post("/api/v1/jobs", json=RL_CLIENT)
        await runner.until(lambda: len(runner.started) == 1)
        for code, its in (("a", 2), ("b", 2), ("x", priority)):
            await client.post("/api/v1/jobs", json=RL_CLIENT | {"code": code, "priority": its})
        await runner.release()
        await runner.until(lambda: len(runner.finished) == 4)
    assert "".join(runner.finished[1:]) == order


async def test_workers_show_says_who_is_idle(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with serving(tmp_path, runner, workers=3) as app, http(app) as client:
        job_id = (await client.post("/api/v1/jobs", json=RL_CLIENT)).json()["job_id"]
        await runner.until(lambda: len(runner.started) == 1)
        status = (await client.get("/api/v1/workers/status")).json()
    assert sorted(worker["status"] for worker in status["workers_show"]) == ["busy", "idle", "idle"]
    assert [worker["job_id"] for worker in status["workers_show"] if worker["status"] == "busy"] == [job_id]
    assert len({worker["worker_id"] for worker in status["workers_show"]}) == 3
    assert (status["queued"], status["running"], status["isolation"]) == (0, 1, "process")
