"""From submit to end with several workers, infrastructure trouble, cancels and stops."""

import asyncio
import os
from pathlib import Path

import pytest
from openmle_gym.errors import JobCancelled, PackageError, RunnerUnavailable
from openmle_gym.jobs import JobState, JobView, Outcome
from sandbox.make import HeldRunner, http, job_client, make_scheduler, make_task, request, serving
from sandbox_service.packages import Packages
from sandbox_service.scheduler import Scheduler


async def submit(scheduler: Scheduler, code: str, **fields: object) -> str:
    return (await scheduler.submit(request(code, **fields), owner="me")).view.job_id


async def ended(scheduler: Scheduler, job_id: str) -> JobView:
    """The job, woken by its end: the patience of `get` is longer than ours."""
    async with asyncio.timeout(30):
        view = await scheduler.get(job_id, wait_seconds=600)
    assert view is not None
    return view


async def test_a_job_runs_to_its_result_through_our_client(tmp_path: Path) -> None:
    async with serving(tmp_path, HeldRunner()) as app, job_client(app) as client:
        result = await client.run(request("print('hi')"))
    assert (result.outcome, result.program_seconds, result.isolation) == (Outcome.SUBMISSION_MISSING, 0.25, "process")
    assert result.queue_seconds > 0


async def test_a_free_worker_takes_the_most_urgent_job(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with make_scheduler(tmp_path, runner) as scheduler:
        await submit(scheduler, "first")
        await runner.until(lambda: runner.started == ["first"])
        for code, priority in (("a", 2), ("b", 2), ("c", 1), ("d", 1)):
            await submit(scheduler, code, priority=priority)
        await runner.release()
        await runner.until(lambda: len(runner.finished) == 5)
    assert runner.started == ["first", "c", "d", "a", "b"]


async def test_workers_run_side_by_side_and_no_more_than_they_are(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with make_scheduler(tmp_path, runner, workers=2) as scheduler:
        for code in ("a", "b", "c"):
            await submit(scheduler, code)
        await runner.until(lambda: len(runner.started) == 2)
        status = await scheduler.status()
        assert (status.running, status.queued, [w.status for w in status.workers_show]) == (2, 1, ["busy", "busy"])
        assert sorted(runner.started) == ["a", "b"]
        await runner.release()
        await runner.until(lambda: len(runner.finished) == 3)


async def test_many_jobs_on_idle_workers_all_run_once(tmp_path: Path) -> None:
    runner = HeldRunner()
    async with make_scheduler(tmp_path, runner, workers=5) as scheduler:
        codes = [f"job {number}" for number in range(60)]
        job_ids = await asyncio.gather(*(submit(scheduler, code) for code in codes))
        views = await asyncio.gather(*(ended(scheduler, job_id) for job_id in job_ids))
        assert {view.status for view in views} == {"completed"}
        assert (await scheduler.status()).queued == 0
    assert sorted(runner.finished) == sorted(codes)


async def test_a_cancelled_queued_job_never_starts(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with make_scheduler(tmp_path, runner) as scheduler:
        await submit(scheduler, "first")
        await runner.until(lambda: runner.started == ["first"])
        second, third = await submit(scheduler, "second"), await submit(scheduler, "third")
        await scheduler.cancel(second)
        view = await scheduler.get(second)
        assert view is not None
        assert view.status is JobState.CANCELLED
        await runner.release()
        await ended(scheduler, third)
    assert runner.finished == ["first", "third"]


async def test_cancelling_a_running_job_kills_its_program_and_frees_its_worker(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with make_scheduler(tmp_path, runner) as scheduler:
        first = await submit(scheduler, "first")
        await runner.until(lambda: runner.started == ["first"])
        await submit(scheduler, "second")
        waiting = asyncio.create_task(ended(scheduler, first))
        await asyncio.sleep(0)
        await scheduler.get(first)  # calls on the store are answered in order: by now the one above waits
        await scheduler.cancel(first)
        view = await waiting
        assert (view.status, view.result) == (JobState.CANCELLED, None)
        await runner.until(lambda: runner.started == ["first", "second"])
        assert runner.killed == ["first"]


async def test_our_client_says_cancelled_and_cancels_when_it_is_cancelled(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with serving(tmp_path, runner) as app, job_client(app) as client, http(app) as bare:
        told = asyncio.create_task(client.run(request("told")))
        await runner.until(lambda: runner.started == ["told"])
        (job,) = (await bare.get("/api/v1/jobs")).json()["jobs"]
        await client.cancel(job["job_id"])
        with pytest.raises(JobCancelled):
            await told
        dropped = asyncio.create_task(client.run(request("dropped")))
        await runner.until(lambda: "dropped" in runner.started)
        dropped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dropped
        newest = (await bare.get("/api/v1/jobs")).json()["jobs"][0]
        assert newest["status"] == "cancelled"


@pytest.mark.parametrize("trouble", [RunnerUnavailable("engine down"), ZeroDivisionError("a bug of ours")])
async def test_a_job_under_which_machinery_fails_runs_again(tmp_path: Path, trouble: Exception) -> None:
    runner = HeldRunner()
    runner.troubles = [trouble]
    async with make_scheduler(tmp_path, runner) as scheduler:
        view = await ended(scheduler, await submit(scheduler, "x"))
        assert (view.status, view.attempts) == ("completed", 2)


async def test_a_job_that_machinery_fails_under_each_time_is_given_up(tmp_path: Path) -> None:
    runner = HeldRunner()
    runner.troubles = [ZeroDivisionError("a bug of ours"), ZeroDivisionError("a bug of ours")]
    async with make_scheduler(tmp_path, runner, max_attempts=2) as scheduler:
        lost = await ended(scheduler, await submit(scheduler, "x"))
        assert (lost.status, lost.attempts, lost.result) == ("failed", 2, None)
        assert lost.error == "given up after 2 attempts: ZeroDivisionError: a bug of ours"
        fine = await ended(scheduler, await submit(scheduler, "y"))
        assert fine.status is JobState.COMPLETED


async def test_no_job_starts_until_a_runner_in_doubt_passes_its_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox_service.scheduler.FIRST_PAUSE_SECONDS", 0.0)
    runner = HeldRunner()
    runner.down_for_checks = 3
    async with make_scheduler(tmp_path, runner, workers=2, max_attempts=2) as scheduler:
        jobs = [await submit(scheduler, code) for code in ("a", "b", "c")]
        views = [await ended(scheduler, job_id) for job_id in jobs]
        assert [view.status for view in views] == ["completed"] * 3
    assert runner.checks == 4


async def test_a_job_whose_package_is_gone_when_it_starts_fails_at_once_and_says_so(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with make_scheduler(tmp_path, runner) as scheduler:
        await submit(scheduler, "first")
        await runner.until(lambda: runner.started == ["first"])
        second = await submit(scheduler, "second")
        (tmp_path / "tasks" / "tiny" / "utils" / "metric.py").unlink()
        (tmp_path / "tasks" / "tiny").rename(tmp_path / "tasks" / "elsewhere")
        await runner.release()
        view = await ended(scheduler, second)
        assert (view.status, view.attempts) == ("failed", 1)
        assert "'tiny'" in (view.error or "")


async def test_a_stop_kills_what_runs_and_answers_who_waits_and_the_next_start_runs_it(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with make_scheduler(tmp_path, runner, workers=2) as scheduler:
        jobs = [await submit(scheduler, code) for code in ("a", "b", "c")]
        await runner.until(lambda: len(runner.started) == 2)
        waiting = [asyncio.create_task(scheduler.get(job_id, wait_seconds=600)) for job_id in jobs]
        await asyncio.gather(*(scheduler.get(job_id) for job_id in jobs))
        await scheduler.stop()
        assert sorted(runner.killed) == ["a", "b"]
        views = await asyncio.gather(*waiting)
        assert [view.status.terminal for view in views if view] == [False] * 3
        late = await scheduler.get(jobs[0], wait_seconds=600)
        assert late is not None
        assert (late.status, late.attempts) == ("queued", 0)
        assert await submit(scheduler, "d")
    again = HeldRunner()
    async with make_scheduler(tmp_path, again) as scheduler:
        await again.until(lambda: len(again.finished) == 4)
    assert again.finished == ["a", "b", "c", "d"]


async def test_waiting_leaves_nothing_behind(tmp_path: Path) -> None:
    async with make_scheduler(tmp_path, HeldRunner(held=True)) as scheduler:
        job_id = await submit(scheduler, "x")
        view = await scheduler.get(job_id, wait_seconds=0.01)
        assert view is not None
        assert not view.status.terminal
        assert await scheduler.get("unknown", wait_seconds=600) is None
        assert scheduler._waiting == {}


def test_a_package_is_loaded_once_until_its_answers_or_its_manifest_change(tmp_path: Path) -> None:
    root = make_task(tmp_path / "tasks" / "tiny")
    packages = Packages([tmp_path / "tasks"])
    first = packages.load("tiny")
    assert packages.load(str(root)) is first
    answers = root / "data" / "private" / "test_answer.csv"
    os.utime(answers, ns=(1, 1))
    second = packages.load("tiny")
    assert second is not first
    manifest = root / "task.toml"
    manifest.write_text(manifest.read_text().replace('title = ""', 'title = "Tiny"'))
    assert packages.load("tiny").manifest.title == "Tiny"
    manifest.write_text("nonsense")
    with pytest.raises(PackageError):
        packages.load("tiny")
