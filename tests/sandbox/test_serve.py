"""The command as a process of its own: killed, stopped, started twice, and graded end to end.

Programs are held by nothing here (runner=process), so that these can report to the test through files.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from openmle_gym.client import JobClient
from openmle_gym.jobs import JobState, JobView, Outcome
from pydantic import SecretStr
from sandbox.make import KEYS, SUBMITS_ONES, make_task, request

pytestmark = pytest.mark.slow

REPORTS = """\
import os, time
with open({starts!r}, "a") as starts:
    starts.write("{name} " + str(os.getpid()) + "\\n")
while {held} and not os.path.exists({gate!r}):
    time.sleep(0.01)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    process: asyncio.subprocess.Process
    url: str
    ready_file: Path
    log: Path


class Programs:
    """Programs that note their start and, where held, go on until the gate is opened."""

    def __init__(self, folder: Path) -> None:
        self._starts = folder / "starts"
        self._gate = folder / "gate"

    def code(self, name: str, *, held: bool = False) -> str:
        return REPORTS.format(name=name, held=held, starts=str(self._starts), gate=str(self._gate))

    def started(self) -> list[str]:
        return [line.split()[0] for line in self._lines()]

    def pid(self, name: str) -> int:
        return next(int(line.split()[1]) for line in self._lines() if line.split()[0] == name)

    def open_gate(self) -> None:
        self._gate.touch()

    def _lines(self) -> list[str]:
        return self._starts.read_text().splitlines() if self._starts.exists() else []


async def until(reached: Callable[[], bool]) -> None:
    """Looks until a condition outside this process holds."""
    async with asyncio.timeout(60):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def uses_pandas(service: Service) -> bool:
    return "/pandas/" in Path(f"/proc/{service.process.pid}/maps").read_text()


@asynccontextmanager
async def running(
    folder: Path, *overrides: str, keys: SecretStr | None = None, ready: str = "ready"
) -> AsyncIterator[Service]:
    """A service on `folder` that answers; killed in the end, whatever happens."""
    if not (folder / "tasks").exists():
        make_task(folder / "tasks" / "tiny")
    ready_file, log = folder / ready, folder / "log"
    ready_file.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "OPENMLE_SANDBOX_KEYS"}
    if keys:
        environment["OPENMLE_SANDBOX_KEYS"] = keys.get_secret_value()
    settings = ["port=0", "runner=process", "allow_process=true", "workers=2", f"ready_file={ready_file}"]
    settings += [f"state_dir={folder}/state", f"task_roots=[{folder}/tasks]", *overrides]
    with log.open("ab") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sandbox_service", "serve", *settings), stderr=stderr, env=environment
        )
    try:
        await until(lambda: ready_file.exists() or process.returncode is not None)
        assert process.returncode is None, log.read_text()
        yield Service(process=process, url=ready_file.read_text(), ready_file=ready_file, log=log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ended(client: JobClient, job_id: str) -> JobView:
    """The job at its end."""
    async with asyncio.timeout(60):
        while not (view := await client.get(job_id, wait_seconds=10)).status.terminal:
            pass
    return view


async def test_a_service_takes_and_runs_jobs_without_pandas_until_one_is_graded(tmp_path: Path) -> None:
    async with running(tmp_path) as service, JobClient(service.url) as client:
        crash = await client.submit(request("1 / 0"))
        assert (await ended(client, crash.job_id)).status is JobState.COMPLETED
        assert not uses_pandas(service)
        graded = await ended(client, (await client.submit(request(SUBMITS_ONES))).job_id)
        assert graded.result is not None
        assert graded.result.validation_score == 1.0
        assert uses_pandas(service)


async def test_after_kill_9_every_job_ends_once_and_finished_results_stay(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    async with running(tmp_path) as service, JobClient(service.url) as client:
        codes = {name: programs.code(name, held=name in "cd") for name in "abcdef"}
        keyed = {name: request(code, idempotency_key=name) for name, code in codes.items()}
        ids = {name: (await client.submit(job)).job_id for name, job in keyed.items()}
        before = {name: await ended(client, ids[name]) for name in "ab"}
        await until(lambda: len(programs.started()) == 4)
        service.process.send_signal(signal.SIGKILL)
        await service.process.wait()
    await until(lambda: not any(alive(programs.pid(name)) for name in "cd"))
    programs.open_gate()
    async with running(tmp_path) as service, JobClient(service.url) as client:
        after = {name: await ended(client, ids[name]) for name in ids}
        again = {name: (await client.submit(job)).job_id for name, job in keyed.items()}
    assert {name: after[name] for name in "ab"} == before
    assert {name: (view.status, view.attempts) for name, view in after.items()} == {
        name: ("completed", 2 if name in "cd" else 1) for name in "abcdef"
    }
    assert sorted(programs.started()) == sorted("abcdef" + "cd")
    assert again == ids


async def test_a_job_that_the_service_dies_under_each_time_is_given_up(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    for life in (1, 2):
        async with running(tmp_path, "max_attempts=2") as service, JobClient(service.url) as client:
            job_id = (await client.submit(request(programs.code("x", held=True), idempotency_key="x"))).job_id
            await until(lambda life=life: len(programs.started()) == life)
    async with running(tmp_path, "max_attempts=2") as service, JobClient(service.url) as client:
        view = await client.get(job_id)
    assert (view.status, view.error) == ("failed", "given up after 2 attempts: the service died while the job ran")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_kills_programs_answers_long_polls_and_keeps_the_jobs(tmp_path: Path, number: int) -> None:
    programs = Programs(tmp_path)
    async with running(tmp_path, "drain_seconds=0") as service, JobClient(service.url) as client:
        job_id = (await client.submit(request(programs.code("x", held=True)))).job_id
        await until(lambda: programs.started() == ["x"])
        polls = [asyncio.create_task(client.get(job_id, wait_seconds=60)) for _ in range(3)]
        async with httpx.AsyncClient(base_url=service.url) as bare:
            await bare.get("/health")
        service.process.send_signal(number)
        async with asyncio.timeout(15):
            assert await service.process.wait() == 0
        assert [view.status for view in await asyncio.gather(*polls)] == ["running"] * 3
        assert not alive(programs.pid("x"))
        assert not service.ready_file.exists()
    programs.open_gate()
    async with running(tmp_path) as service, JobClient(service.url) as client:
        view = await ended(client, job_id)
    assert (view.status, view.attempts, programs.started()) == ("completed", 1, ["x", "x"])


async def test_a_drain_lets_a_running_job_end_and_starts_no_other(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    async with running(tmp_path, "drain_seconds=600", "workers=1") as service, JobClient(service.url) as client:
        held = (await client.submit(request(programs.code("held", held=True)))).job_id
        waiting = (await client.submit(request(programs.code("waiting")))).job_id
        await until(lambda: programs.started() == ["held"])
        service.process.send_signal(signal.SIGTERM)
        await until(lambda: not service.ready_file.exists())
        assert (await client.get(held)).status == "running"
        polls = [asyncio.create_task(client.get(job_id, wait_seconds=60)) for job_id in (held, waiting)]
        programs.open_gate()
        async with asyncio.timeout(30):
            assert [view.status for view in await asyncio.gather(*polls)] == ["completed", "queued"]
            assert await service.process.wait() == 0
    async with running(tmp_path) as service, JobClient(service.url) as client:
        assert (await ended(client, waiting)).attempts == 1
    assert programs.started() == ["held", "waiting"]


async def test_a_second_signal_ends_a_drain_at_once_also_with_open_streams(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    async with running(tmp_path, "drain_seconds=600") as service, JobClient(service.url) as client:
        job_id = (await client.submit(request(programs.code("x", held=True)))).job_id
        await until(lambda: programs.started() == ["x"])
        async with (
            httpx.AsyncClient(base_url=service.url, timeout=60) as bare,
            bare.stream("GET", f"/api/v1/jobs/{job_id}/events") as events,
        ):
            assert events.status_code == 200
            service.process.send_signal(signal.SIGTERM)
            await until(lambda: not service.ready_file.exists())
            service.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(15):
                assert await service.process.wait() == 0
        assert not alive(programs.pid("x"))


async def test_after_kill_9_no_files_of_programs_are_left(tmp_path: Path) -> None:
    programs, work = Programs(tmp_path), tmp_path / "state" / "work"
    async with running(tmp_path) as service, JobClient(service.url) as client:
        await client.submit(request(programs.code("x", held=True)))
        await until(lambda: programs.started() == ["x"])
        (left,) = work.glob("openmle-run-*")
        service.process.kill()
        await service.process.wait()
        assert left.exists()
    programs.open_gate()
    async with running(tmp_path):
        assert not left.exists()


@pytest.mark.docker
async def test_after_kill_9_running_containers_are_removed_and_their_jobs_run_again(tmp_path: Path) -> None:
    import docker

    engine = docker.from_env()

    def attempts(job_id: str) -> list[str]:
        found = engine.api.containers(all=True, filters={"label": f"openmle.job={job_id}"})
        return [container["Labels"]["openmle.attempt"] for container in found]

    async with running(tmp_path, "runner=docker") as service, JobClient(service.url) as client:
        job_id = (await client.submit(request("import time; time.sleep(600)"))).job_id
        await until(lambda: attempts(job_id) == ["1"])
        service.process.kill()
        await service.process.wait()
        assert attempts(job_id) == ["1"]
    async with running(tmp_path, "runner=docker") as service, JobClient(service.url) as client:
        await until(lambda: attempts(job_id) == ["2"])
        view = await client.get(job_id)
        assert (view.status, view.attempts) == ("running", 2)
        assert view.error == "attempt 1: the service died while the job ran"
        await client.cancel(job_id)
        await until(lambda: attempts(job_id) == [])
    engine.close()


async def test_a_second_service_on_the_same_state_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as service, JobClient(service.url) as client:
        with pytest.raises(AssertionError, match=f"a service runs on it already \\(process {service.process.pid}\\)"):
            async with running(tmp_path, ready="second"):
                pass
        assert service.ready_file.read_text() == service.url
        view = await ended(client, (await client.submit(request("print(1)"))).job_id)
        assert view.status == "completed"


async def test_a_client_that_sends_too_large_a_body_reads_the_refusal(tmp_path: Path) -> None:
    async with running(tmp_path, "max_body_mib=0.5") as service, httpx.AsyncClient(base_url=service.url) as client:
        answer = await client.post("/api/v1/jobs", content=b"x" * 20_000_000)
        assert answer.status_code == 413
        assert (await client.get("/health")).status_code == 200


async def test_a_program_is_run_and_graded_and_only_grade_sees_test(tmp_path: Path) -> None:
    async with running(tmp_path, keys=KEYS) as service:
        graders, searchers = (JobClient(service.url, api_key=SecretStr(key)) for key in ("gr4de", "s3cret"))
        async with graders, searchers:
            both = await graders.submit(request(SUBMITS_ONES, eval_split="both"))
            graded, test = (
                await ended(graders, both.job_id),
                await graders.run(request(SUBMITS_ONES, eval_split="test")),
            )
            searched = await searchers.run(request(SUBMITS_ONES))
            peeked = await searchers.get(both.job_id)
    result = graded.result
    assert result is not None
    assert (result.outcome, result.self_reported_score, result.isolation) == (Outcome.SUCCESS, 0.5, "process")
    assert (result.validation_score, result.test_score, result.score) == (1.0, pytest.approx(4 / 6), 1.0)
    assert (test.validation_score, test.test_score, test.score) == (None, pytest.approx(4 / 6), pytest.approx(4 / 6))
    assert (searched.validation_score, searched.test_score, searched.score) == (1.0, None, 1.0)
    assert peeked.result is not None
    assert (peeked.result.validation_score, peeked.result.test_score, peeked.result.score) == (1.0, None, 1.0)
    assert "0.66" not in peeked.model_dump_json()


async def test_keys_reach_no_program_and_no_log(tmp_path: Path) -> None:
    async with running(tmp_path, keys=KEYS) as service, JobClient(service.url, api_key=SecretStr("s3cret")) as client:
        seen = await client.run(request("import os, json; print(json.dumps(dict(os.environ)))"))
        log = service.log.read_text()
    assert "DATA_DIR" in seen.run_log
    for secret in ("s3cret", "gr4de", "4dmin"):
        assert secret not in seen.run_log
        assert secret not in log
    assert "listening on http://127.0.0.1:" in log
    assert "programs are held by process" in log
