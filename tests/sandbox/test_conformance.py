"""The conformance checks: our service passes them, a service that holds nothing does not, and doctored answers fail."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from openmle_gym.errors import ConfigError, ExecutorUnavailable, PackageError
from openmle_gym.task import load_package
from pydantic import SecretStr
from sandbox_service.config import RUNNERS
from sandbox_service.conformance.check import CHECKS, CheckReport, CheckState, Group, Severity
from sandbox_service.conformance.cli import conformance
from sandbox_service.conformance.config import ConformanceConfig
from sandbox_service.conformance.package import write_package
from sandbox_service.conformance.programs import CANARY
from sandbox_service.conformance.run import Report, chosen, make_check, run_conformance
from sandbox_service.conformance.service import Service

CONFIGS = Path(sys.modules[ConformanceConfig.__module__].__file__ or "").parent.parent / "configs"
KEYS = {"CONFORMANCE_ONE": "one", "CONFORMANCE_TWO": "two", "CONFORMANCE_GRADE": "three"}
METRIC_SECONDS = 40
LIMITS = {"memory_mib": 512, "processes": 64, "disk_mib": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A service in a process of its own."""

    url: str
    restart_command: str


@contextmanager
def served(folder: Path, *settings: str) -> Iterator[Running]:
    """A service with the checks' task package, three keys and small limits; killed in the end, however often it was
    started again."""
    write_package(folder / "tasks" / "conformance")
    ready, pid, log = folder / "ready", folder / "pid", folder / "log"
    given = [f"{name}={value}" for name, value in LIMITS.items()]
    given += [f"state_dir={folder}/state", f"task_roots=[{folder}/tasks]", f"ready_file={ready}", "workers=3"]
    start = folder / "start.sh"
    words = " ".join(f"'{word}'" for word in (*given, *settings))
    start.write_text(
        f"port=0; [ -e {ready} ] && port=$(sed 's/.*://' {ready}); rm -f {ready}\n"
        f"[ -e {pid} ] && kill -9 $(cat {pid}) && while kill -0 $(cat {pid}) 2>/dev/null; do sleep 0.05; done\n"
        f"setsid {sys.executable} -m sandbox_service serve port=$port {words} </dev/null >>{log} 2>&1 &\n"
        f"echo $! >{pid}\n"
        f"for i in $(seq 600); do [ -e {ready} ] && exit 0; kill -0 $! || exit 1; sleep 0.1; done; exit 1\n"
    )
    keys = "submit:one,submit:two,grade:three"
    command = f"OPENMLE_SANDBOX_KEYS={keys} sh {start}"
    try:
        ended = subprocess.run(["sh", "-c", command], stderr=subprocess.DEVNULL, timeout=90)
        assert ended.returncode == 0, log.read_text()
        yield Running(url=ready.read_text(), restart_command=command)
    finally:
        if pid.exists():
            with suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)


def config_for(service: Running, **settings: object) -> ConformanceConfig:
    given: dict[str, object] = {
        "url": service.url,
        "key_variable": "CONFORMANCE_ONE",
        "second_key_variable": "CONFORMANCE_TWO",
        "grade_key_variable": "CONFORMANCE_GRADE",
        "flood_mib": 256,
        "grace_seconds": 60.0,  # other tests run beside these
        **LIMITS,
        **settings,
    }
    return ConformanceConfig(**given)  # pyright: ignore[reportArgumentType]  the settings are the tests' own


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def failures(report: Report) -> str:
    return "\n".join(f"{check.id}: {check.evidence}" for check in report.checks if check.state is CheckState.FAILED)


@pytest.mark.slow
@pytest.mark.parametrize(
    "runner",
    [
        pytest.param(runner, marks=[pytest.mark.docker] if runner == "docker" else [])
        for runner in RUNNERS
        if runner not in ("auto", "process")
    ],
)
async def test_our_service_passes_all_checks(runner: str, tmp_path: Path):
    with served(tmp_path, f"runner={runner}", "max_queued=200", f"grading_timeout_seconds={METRIC_SECONDS}") as service:
        config = config_for(
            service, restart_command=service.restart_command, max_queued=200, metric_timeout_seconds=METRIC_SECONDS
        )
        report = await run_conformance(config)
    assert report.failed_must + report.failed_should == 0, failures(report)
    assert [check.id for check in report.checks if check.state is CheckState.SKIPPED] == []
    assert report.passed == len(CHECKS)
    assert report.isolation == runner


@pytest.mark.slow
async def test_a_service_that_holds_nothing_fails(tmp_path: Path):
    must_fail = {
        "other-processes-are-not-seen",
        "system-calls-are-filtered",
        "the-isolation-is-told",
        "the-service-cannot-be-reached",
        "the-services-code-is-hidden",
    }
    with served(tmp_path, "runner=process", "allow_process=true") as service:
        report = await run_conformance(config_for(service, only=sorted({*must_fail, "a-perfect-submission"})))
    states = {check.id: check.state for check in report.checks}
    assert states == {**dict.fromkeys(must_fail, CheckState.FAILED), "a-perfect-submission": CheckState.PASSED}
    assert (report.failed_must, report.failed_should, report.ok) == (3, 2, False)


Json = dict[str, object]
Doctor = Callable[[httpx.Request, httpx.Response], httpx.Response]


def status(code: int, to: int) -> Doctor:
    """Answers one status instead of another, with an empty object."""
    return lambda request, response: httpx.Response(to, json={}) if response.status_code == code else response


def text(pattern: str, to: str) -> Doctor:
    """Changes the text of every answer, by a regular expression."""

    def doctor(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        return httpx.Response(response.status_code, text=re.sub(pattern, to, response.text, flags=re.DOTALL))

    return doctor


def result(**fields: object) -> Doctor:
    """Puts fields into every result; None for a name that begins with `no_` takes the field away."""

    def doctor(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        body = response.json()
        if isinstance(body, dict) and body.get("result"):
            body["result"] |= fields
            body["result"] = {name: value for name, value in body["result"].items() if value != "TAKEN AWAY"}
        return httpx.Response(response.status_code, json=body)

    return doctor


def log(change: Callable[[str], str]) -> Doctor:
    """Changes the log of every result."""

    def doctor(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        body = response.json()
        if isinstance(body, dict) and body.get("result"):
            body["result"]["run_log"] = change(body["result"]["run_log"])
        return httpx.Response(response.status_code, json=body)

    return doctor


class Doctored(httpx.AsyncBaseTransport):
    """The real service, whose answers are changed on the way."""

    def __init__(self, doctor: Doctor) -> None:
        self._real = httpx.AsyncHTTPTransport()
        self._doctor = doctor

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._real.handle_async_request(request)
        await response.aread()
        response.request = request
        return self._doctor(request, response)

    async def aclose(self) -> None:
        await self._real.aclose()


DOCTORED = {
    "environment-holds-no-secret": log(lambda text: text.replace('"suspicious": []', '"suspicious": ["API_KEY"]')),
    "api-keys-stay-with-the-service": log(lambda text: text + "one"),
    "no-unshare": log(lambda text: re.sub(r'"unshare": "E[A-Z]+"', '"unshare": "done"', text)),
    "the-world-cannot-be-reached": log(lambda text: re.sub(r'"world": "[^"]*"', '"world": "reached"', text)),
    "many-lines-keep-both-ends": log(lambda text: text.replace("Final Validation Score: 0.5", "")),
    "faked-markers": log(lambda text: text.replace("- - ", "--- ").replace("- -", "---")),
    "the-log-stands-between-the-markers": log(lambda text: text.replace("--- SANDBOX STDOUT START ---\n", "")),
    "errors-are-in-the-log": log(lambda text: text.replace("to the error stream", "")),
    "wall-clock-limit": result(result="success"),
    "memory-of-one-process": log(lambda text: text.replace("\n---", '\n@fact {"held": 752}\n---')),
    "the-worker-is-named": text(r'"worker_id": ?"[^"]*"', '"worker_id":null'),
    "times-are-iso-with-z": text(r'(T[\d:.]+)Z"', r'\1+00:00"'),
    "the-result-has-the-fields-that-clients-read": result(scores_by_split="TAKEN AWAY"),
    "the-score-stands-under-all-its-names": result(valid_score=None),
    "a-failed-program-is-a-completed-job": text('"status": ?"completed"', '"status":"failed"'),
    "the-same-key-for-another-program": status(409, 200),
    "an-unknown-job-is-404": status(404, 200),
    "broken-json-is-400": status(400, 500),
    "a-bad-field-is-named": text("timeout", "a field"),
    "a-body-that-is-too-large-is-413": status(413, 400),
    "no-key-is-401": status(401, 200),
    "a-wrong-key-is-401": status(401, 200),
    "test-scores-need-a-key-that-may": status(403, 201),
    "a-plain-job-has-no-test-score": result(test_score=0.5),
    "workers-are-shown": text("workers_show", "workers"),
    "health-needs-no-key": status(200, 503),
    "a-perfect-submission": result(score=0.001),
    "a-prediction-that-is-no-number": result(result="success", score=0.0),
    "a-metric-that-talks": result(message=CANARY),
    "a-link-to-passwd": result(message="cannot parse root:x:0:0:root"),
    "an-exit-without-a-submission": result(result="success"),
    "cancel-an-ended-job": text('"status": ?"completed"', '"status":"cancelled"'),
    "labels-come-back": text('"attempt": ?"7"', '"attempt":"8"'),
}
"""A fault in the answers, by the check that must see it."""


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with served(tmp_path_factory.mktemp("honest"), "runner=bubblewrap") as service:
        yield service


async def made(check_id: str, service: Running, transport: httpx.AsyncBaseTransport | None = None) -> CheckReport:
    seen = Service(config_for(service, patience_seconds=20.0), key=SecretStr("one"), transport=transport)
    try:
        return await make_check(CHECKS[check_id], seen)
    finally:
        await seen.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("check_id", DOCTORED)
async def test_a_check_passes_on_the_real_answer_and_fails_on_a_doctored_one(check_id: str, honest: Running):
    real, doctored = await asyncio.gather(made(check_id, honest), made(check_id, honest, Doctored(DOCTORED[check_id])))
    assert real.state is CheckState.PASSED, real.evidence
    assert doctored.state is CheckState.FAILED
    assert doctored.evidence


@pytest.mark.slow
def test_the_command_reports_as_json_and_by_its_exit_code(
    honest: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    settings = ["data_dir=conformance", "key_variable=CONFORMANCE_ONE", "only=[a-perfect-submission,a-fifo]"]
    assert conformance([f"url={honest.url}", *settings], configs=CONFIGS) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert (report["passed"], report["failed_must"], report["isolation"]) == (2, 0, "bubblewrap")
    assert [check["id"] for check in report["checks"]] == ["a-fifo", "a-perfect-submission"]
    assert "2 passed, 0 failed" in printed.err
    monkeypatch.setenv("CONFORMANCE_ONE", "not a key")
    with pytest.raises(ExecutorUnavailable, match="401"):
        conformance([f"url={honest.url}", *settings], configs=CONFIGS)


async def test_a_service_that_is_not_there_is_infrastructure_and_no_failed_check():
    with pytest.raises(ExecutorUnavailable, match="did not answer"):
        await run_conformance(ConformanceConfig(url="http://127.0.0.1:9"))


async def test_a_check_that_stumbles_over_an_answer_has_failed():
    def nonsense(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"job_id": "x", "status": "completed", "result": [1], "workers_show": [1]})

    service = Service(ConformanceConfig(url="http://x"), transport=httpx.MockTransport(nonsense))
    for check_id in ("a-perfect-submission", "workers-are-shown", "the-log-stands-between-the-markers"):
        report = await make_check(CHECKS[check_id], service)
        assert (report.state, "not of the form expected" in report.evidence) == (CheckState.FAILED, True)


async def test_what_was_not_given_is_skipped_and_says_so():
    def silent(request: httpx.Request) -> httpx.Response:
        raise AssertionError("a check that is skipped asks nothing")

    service = Service(ConformanceConfig(url="http://x"), transport=httpx.MockTransport(silent))
    for check_id, missing in {
        "no-accepted-job-is-lost": "restart_command",
        "no-key-is-401": "no key",
        "one-user-does-not-hold-up-another": "second_key_variable",
        "test-scores-for-a-key-that-may": "grade_key_variable",
        "a-metric-that-hangs": "metric_timeout_seconds",
        "a-full-queue-says-when-to-come-back": "max_queued",
    }.items():
        report = await make_check(CHECKS[check_id], service)
        assert (report.state, missing in report.evidence) == (CheckState.SKIPPED, True), report


def test_every_check_says_in_one_sentence_what_it_asserts():
    assert len(CHECKS) >= 60
    for check in CHECKS.values():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9_]+)*", check.id)
        assert 20 < len(check.asserts) < 200
        assert check.asserts.endswith(".")
    assert {check.group for check in CHECKS.values()} == set(Group)


def test_groups_and_ids_choose_checks():
    published = chosen([Group.PROTOCOL], [])
    assert {check.group for check in published} == {Group.PROTOCOL}
    assert [check.id for check in chosen(["a-fifo"], [])] == ["a-fifo"]
    assert len(chosen([], [Group.PROTOCOL])) == len(CHECKS) - len(published)
    assert any(check.severity is Severity.SHOULD for check in chosen([], []))
    with pytest.raises(ConfigError, match="only=afifo"):
        chosen(["afifo"], [])


def test_the_package_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "conformance"
    assert conformance([f"make_package={folder}"], configs=CONFIGS) == 0
    assert json.loads(capsys.readouterr().out) == {"package": str(folder)}
    package = load_package(folder)
    assert not package.manifest.metric.higher_is_better
    assert CANARY in (folder / "data/private/canary.txt").read_text()
    assert not any(CANARY in path.read_text() for path in (folder / "data/public").iterdir())
    with pytest.raises(ConfigError, match="not empty"):
        conformance([f"make_package={folder}"], configs=CONFIGS)


@pytest.mark.parametrize(
    "settings", [[], ["url=127.0.0.1:80"], ["url=http://x", "parallel=0"], ["url=http://x", "patience_seconds=.inf"]]
)
def test_settings_that_cannot_be_are_refused(settings: list[str]):
    with pytest.raises((ConfigError, PackageError)):
        conformance(settings, configs=CONFIGS)
