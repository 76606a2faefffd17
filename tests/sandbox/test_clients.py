"""The three published clients against a real service: how each submits, retries, polls and reads, one test each.

The clients here are our own, written from a description of how the published ones behave. Their pauses are shorter.
"""

import asyncio
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from sandbox.make import KEYS, SUBMITS_ONES
from sandbox.service import Service, running_service

pytestmark = pytest.mark.slow

OVERLOADED = (429, 502, 503, 504)
POLL_SECONDS = 0.05


class Answer(NamedTuple):
    """What a client hands on: a status of HTTP, or of its own making, and a body."""

    status: int
    body: dict


@dataclass
class PublishedClient:
    """What the three have in common; the fields are where they differ."""

    url: str
    key: str
    submit_statuses: tuple[int, ...] = OVERLOADED
    submit_attempts: int = 20
    honours_retry_after: bool = False
    terminal: tuple[str, ...] | None = None
    """None: whatever is neither queued nor running."""
    extra: Mapping[str, object] = field(default_factory=dict)
    statuses_seen: list[int] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    async def evaluate(self, code: str, *, wait_seconds: float = 60.0, **body: object) -> Answer:
        """One program from submit to what the client makes of it."""
        timeout = httpx.Timeout(10.0, read=100.0, write=30.0, pool=60.0)
        async with httpx.AsyncClient(
            base_url=self.url, headers={"X-API-Key": self.key}, timeout=timeout, trust_env=False
        ) as http:
            payload = {
                "name": "tiny",
                "code": code,
                "data_dir": "tiny",
                "timeout": 30,
                "environment": {"EXECUTION_MODE": "shell", "DATA_DIR": "tiny", "SANDBOX_DATA_DIR": "tiny"},
                **self.extra,
                **body,
            }
            submitted = await self._submit(http, payload)
            if "job_id" not in submitted.body:
                return submitted if submitted.status >= 400 else Answer(500, {"error": "no job_id returned"})
            return await self._poll(http, submitted.body["job_id"], wait_seconds)

    async def _submit(self, http: httpx.AsyncClient, payload: Mapping[str, object]) -> Answer:
        for attempt in range(self.submit_attempts):
            try:
                response = await http.post("/api/v1/jobs", json=payload)
            except httpx.TransportError:
                await self._pause(None, attempt)
                continue
            self.statuses_seen.append(response.status_code)
            if response.status_code in self.submit_statuses and attempt < self.submit_attempts - 1:
                await self._pause(response, attempt)
                continue
            if response.status_code >= 400:
                return Answer(response.status_code, {"error": "submit failed"})
            return Answer(200, response.json())
        return Answer(503, {"error": "connection_failed"})

    async def _pause(self, response: httpx.Response | None, attempt: int) -> None:
        pause = 0.05 * (attempt + 1)
        if self.honours_retry_after and response is not None:
            try:
                pause = min(30.0, max(0.0, float(response.headers["Retry-After"])))  # a date is not understood
            except (KeyError, ValueError):
                self.pauses.append(-1.0)
            else:
                self.pauses.append(pause)
        await asyncio.sleep(min(pause, 0.2))

    async def _poll(self, http: httpx.AsyncClient, job_id: str, wait_seconds: float) -> Answer:
        deadline = time.monotonic() + wait_seconds
        troubles = 0
        while time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS)
            try:
                response = await http.get(f"/api/v1/jobs/{job_id}")
            except httpx.TransportError:
                troubles += 1
                if troubles > 20:
                    return Answer(503, {"error": "poll_failed", "job_id": job_id})
                await asyncio.sleep(0.25)
                continue
            if response.status_code >= 400:
                return Answer(response.status_code, {"error": "poll_failed", "job_id": job_id})
            troubles = 0
            body = response.json()
            ended = body["status"] not in ("queued", "running")
            if self.terminal is not None and ended and body["status"] not in self.terminal:
                return Answer(502, {"error": "unexpected_poll_response"})
            if ended:
                return Answer(200, body)
        return Answer(504, {"error": "wait_timeout exceeded", "job_id": job_id})


def search_client(url: str, key: str = "gr4de") -> PublishedClient:
    """The search's: fifty attempts, numeric Retry-After, 500 retried too, an idempotency key per call."""
    return PublishedClient(
        url=url,
        key=key,
        submit_statuses=(429, 500, 502, 503, 504),
        submit_attempts=50,
        honours_retry_after=True,
        terminal=("completed", "failed", "cancelled"),
        extra={"resource_type": "gpu", "priority": 1, "idempotency_key": uuid.uuid4().hex},
    )


def sft_client(url: str, key: str = "s3cret") -> PublishedClient:
    """The data production's: low priority, its own pauses, known ends of other names."""
    return PublishedClient(
        url=url,
        key=key,
        terminal=("success", "failed", "timeout", "canceled", "cancelled", "completed"),
        extra={"resource_type": "cpu", "priority": 2},
    )


def rl_client(url: str, key: str = "s3cret") -> PublishedClient:
    """The training's: always a GPU, priority 1, no idempotency key, any state but two is an end."""
    return PublishedClient(
        url=url,
        key=key,
        extra={"resource_type": "gpu", "priority": 1, "environment": {"HF_ENDPOINT": "https://hub.example"}},
    )


CLIENTS = [search_client, sft_client, rl_client]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service"), keys=KEYS) as running:
        yield running


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_program_is_evaluated_and_every_field_that_is_read_is_there(service: Service, client) -> None:
    answer = await client(service.url).evaluate(SUBMITS_ONES)
    job, result = answer.body, answer.body["result"]
    assert (answer.status, job["status"], result["result"]) == (200, "completed", "success")
    assert [result[name] for name in ("score", "valid_score", "validation_score")] == [1.0, 1.0, 1.0]
    assert (result["test_score"], result["scores_by_split"], result["eval_split"]) == (
        None,
        {"validation": 1.0},
        "validation",
    )
    times = [datetime.fromisoformat(job[name]) for name in ("created_at", "started_at", "completed_at")]
    assert all(job[name].endswith("Z") for name in ("created_at", "started_at", "completed_at"))
    assert times == sorted(times)
    assert job["worker_id"]
    start, end = "--- SANDBOX STDOUT START ---", "--- SANDBOX STDOUT END ---"
    inside = result["run_log"].partition(start)[2].partition(end)[0]
    assert "Final Validation Score: 0.5" in inside


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("code", "label"),
    [
        ("1 / 0", "code_execution_error"),
        ("  ", "code_missing"),
        ("pass", "submission_missing"),
        ("open('submission.csv', 'w').write('nonsense')", "scoring_failed"),
        ("import time; time.sleep(60)", "timeout"),
    ],
)
async def test_a_failing_program_is_a_completed_job_with_a_known_label(
    service: Service, client, code: str, label: str
) -> None:
    answer = await client(service.url).evaluate(code, timeout=1 if label == "timeout" else 30)
    assert (answer.status, answer.body["status"]) == (200, "completed")
    assert (answer.body["result"]["result"], answer.body["result"]["score"]) == (label, None)


async def test_both_splits_come_back_to_the_search_client(service: Service) -> None:
    answer = await search_client(service.url).evaluate(
        SUBMITS_ONES, eval_split="both", environment={"EVAL_SPLIT": "both"}
    )
    result = answer.body["result"]
    assert result["scores_by_split"] == {"validation": 1.0, "test": pytest.approx(4 / 6)}
    assert (result["score"], result["valid_score"], result["test_score"]) == (1.0, 1.0, pytest.approx(4 / 6))
    assert result["eval_split"] == "both"


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_wrong_key_is_final_at_once(service: Service, client) -> None:
    asking = client(service.url, "wrong")
    assert (await asking.evaluate("pass")).status == 401
    assert asking.statuses_seen == [401]


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_cancelled_job_is_an_end_for_every_client(service: Service, client) -> None:
    asking = client(service.url)
    label = {"labels": {"test": uuid.uuid4().hex}}
    evaluation = asyncio.create_task(asking.evaluate(service.held("never"), **label))
    with service.client("4dmin") as admin:
        parameters = {"label": f"test={label['labels']['test']}"}
        async with asyncio.timeout(60):
            while admin.delete("/api/v1/jobs", params=parameters).json() != {"cancelled": 1}:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    answer = await evaluation
    assert (answer.status, answer.body["status"], answer.body["result"]) == (200, "cancelled", None)


@pytest.mark.parametrize("client", CLIENTS)
async def test_who_waits_too_long_is_told_by_himself_and_the_job_goes_on(service: Service, client) -> None:
    name = uuid.uuid4().hex
    answer = await client(service.url).evaluate(service.held(name), wait_seconds=0.5)
    assert (answer.status, answer.body["error"]) == (504, "wait_timeout exceeded")
    service.open_gate(name)
    with service.client("s3cret") as asking:
        view = asking.get(f"/api/v1/jobs/{answer.body['job_id']}", params={"wait": 60}).json()
    assert (view["status"], view["result"]["result"]) == ("completed", "submission_missing")


@pytest.mark.parametrize("client", CLIENTS)
async def test_overload_is_waited_out(tmp_path: Path, client) -> None:
    with running_service(tmp_path, "workers=1", "max_queued=1", keys=KEYS) as service:
        with service.client("4dmin") as filler:
            job = {"code": service.held(), "data_dir": "tiny"}
            running = filler.post("/api/v1/jobs", json=job).json()["job_id"]
            while filler.get(f"/api/v1/jobs/{running}").json()["status"] != "running":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert filler.post("/api/v1/jobs", json=job).status_code == 201
        asking = client(service.url)
        evaluation = asyncio.create_task(asking.evaluate("pass"))
        async with asyncio.timeout(60):
            while len(asking.statuses_seen) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        service.open_gate()
        answer = await evaluation
    assert (answer.status, answer.body["result"]["result"]) == (200, "submission_missing")
    assert set(asking.statuses_seen[:-1]) <= {429, 503}
    assert asking.statuses_seen[-1] == 201
    assert all(0 < pause <= 30 for pause in asking.pauses)


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_restart_of_the_service_is_waited_out(tmp_path: Path, client) -> None:
    with running_service(tmp_path, "drain_seconds=0", keys=KEYS) as service:
        asking = client(service.url)
        evaluation = asyncio.create_task(asking.evaluate(service.held()))
        async with asyncio.timeout(60):
            while not asking.statuses_seen:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        port = service.url.rpartition(":")[2]
        service.process.kill()
        service.process.wait()
        with running_service(tmp_path, f"port={port}", keys=KEYS) as again:
            again.open_gate()
            answer = await evaluation
    assert (answer.status, answer.body["status"], answer.body["attempts"]) == (200, "completed", 2)


async def test_a_submit_that_is_sent_again_is_the_same_job(service: Service) -> None:
    asking = search_client(service.url)
    first, second = await asking.evaluate("print(1)"), await asking.evaluate("print(1)")
    assert first.body["job_id"] == second.body["job_id"]
    assert asking.statuses_seen == [201, 200]


async def test_idle_workers_are_counted_as_the_search_client_does(service: Service) -> None:
    with service.client("s3cret") as client:
        body = client.get("/api/v1/workers/status", timeout=5).json()
        assert client.get("/health", headers={"X-API-Key": ""}).is_success
    assert sum(str(worker["status"]).lower() == "idle" for worker in body["workers_show"]) == 2
