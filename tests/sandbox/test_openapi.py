"""The OpenAPI document: complete, and true of the running service."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from openmle_gym.isolation.runner import BoundedLog
from sandbox.make import HeldRunner, http, serving
from schemathesis.checks import CHECKS, load_all_checks

JOB = {"code": "pass", "data_dir": "tiny"}
EXAMPLES = 25
OPERATIONS = [
    ("POST", "/api/v1/jobs"),
    ("GET", "/api/v1/jobs"),
    ("DELETE", "/api/v1/jobs"),
    ("POST", "/api/v1/jobs/batch"),
    ("GET", "/api/v1/jobs/{job_id}"),
    ("DELETE", "/api/v1/jobs/{job_id}"),
    ("GET", "/api/v1/jobs/{job_id}/logs"),
    ("GET", "/api/v1/jobs/{job_id}/events"),
    ("GET", "/api/v1/jobs/{job_id}/artifacts"),
    ("GET", "/api/v1/jobs/{job_id}/artifacts/{name}"),
    ("GET", "/api/v1/workers/status"),
    ("GET", "/health"),
    ("GET", "/metrics"),
]


@contextmanager
def answering(folder: Path) -> Iterator[str]:
    """The application on a real socket, in a thread; programs end at once. Yields its URL."""
    ready, address = threading.Event(), []

    async def serve() -> None:
        runner = HeldRunner()
        runner.log = BoundedLog(head="hello\n")
        runner.files = {"submission.csv": b"id,target\n"}
        async with serving(folder, runner) as app:
            server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
            server.install_signal_handlers = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
            serving_task = asyncio.create_task(server.serve())
            while not server.started:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            address.append((server, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"))
            ready.set()
            await serving_task

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    server, url = address[0]
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with answering(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="module")
def job_id(url: str) -> str:
    """A job that has ended, with a log and a file."""
    made = httpx.post(f"{url}/api/v1/jobs", json=JOB | {"labels": {"run": "r"}}).json()["job_id"]
    assert httpx.get(f"{url}/api/v1/jobs/{made}?wait=60", timeout=70).json()["status"] == "completed"
    return made


@pytest.fixture(scope="module")
def document(url: str) -> dict[str, Any]:
    return httpx.get(f"{url}/openapi.json").json()


def test_every_operation_says_what_it_is_and_every_field_of_ours_has_words(document: dict[str, Any]) -> None:
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations) == len(OPERATIONS)
    assert all(operation["summary"] for operation in operations)
    schemas = document["components"]["schemas"]
    assert schemas["JobRequest"]["properties"]["code"]["description"] == "The program's whole source."
    assert schemas["JobResult"]["properties"]["exit_code"]["description"].startswith("None when the program was killed")
    parameters = {parameter["name"]: parameter for parameter in document["paths"]["/api/v1/jobs"]["get"]["parameters"]}
    assert parameters["label"]["schema"] == {"type": "string", "pattern": "^[^=]+="}
    assert parameters["status"]["schema"]["items"]["enum"][0] == "queued"
    assert all(parameter["description"] for parameter in parameters.values())


def test_the_document_names_the_wires_fields(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert {"code", "data_dir", "timeout", "resource_type", "priority", "idempotency_key"} <= set(
        schemas["JobRequest"]["properties"]
    )
    assert {"result", "score", "valid_score", "validation_score", "test_score", "scores_by_split", "run_log"} <= set(
        schemas["JobResult"]["properties"]
    )


async def test_every_route_of_the_api_is_in_the_document(tmp_path: Path) -> None:
    async with serving(tmp_path, HeldRunner()) as app, http(app) as client:
        document = (await client.get("/openapi.json")).json()
        routed = {route.path for route in app.routes}  # pyright: ignore[reportAttributeAccessIssue]
    assert routed - {"/", "/page.js", "/page.css", "/openapi.json"} == set(document["paths"])
    assert {(method.upper(), path) for path, methods in document["paths"].items() for method in methods} == set(
        OPERATIONS
    )


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
@pytest.mark.parametrize("known", [True, False])
def test_the_service_answers_as_the_document_says(url: str, job_id: str, method: str, path: str, known: bool) -> None:
    """Requests drawn from the document; with `known`, of a job, a file and a task that are there."""
    load_all_checks()
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    checks = [
        CHECKS.get_one(name)
        for name in (
            "not_a_server_error",
            "status_code_conformance",
            "content_type_conformance",
            "response_schema_conformance",
            "response_headers_conformance",
            "unsupported_method",
        )
    ]

    @given(case=schema[path][method].as_strategy())
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def agrees(case: schemathesis.Case) -> None:
        if known:
            _point_at_what_is_there(case, job_id)
        case.call_and_validate(checks=checks)

    agrees()


def _point_at_what_is_there(case: schemathesis.Case, job_id: str) -> None:
    case.path_parameters.update(
        {name: {"job_id": job_id, "name": "submission.csv"}[name] for name in case.path_parameters}
    )
    jobs = case.body.get("jobs", [case.body]) if isinstance(case.body, dict) else []
    for job in jobs:
        if isinstance(job, dict):
            job["data_dir"] = "tiny"
