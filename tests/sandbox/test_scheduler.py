"""From submit to end with several workers, infrastructure trouble, cancels and stops."""

import asyncio
import os
from contextlib import aclosing
from pathlib import Path

import pytest
from openmle_gym.errors import ConfigError, JobCancelled, JobLost, PackageError, RunnerUnavailable
from openmle_gym.isolation.runner import BoundedLog
from openmle_gym.jobs import MIB, JobState, JobView, Outcome
from openmle_gym.signature import PROGRAM_FILE
from sandbox.make import HeldRunner, http, job_client, make_scheduler, make_task, request, serving
from sandbox.test_slots import FakeNvml
from sandbox_service.dispatch.local import SERVICE_LABEL
from sandbox_service.gpu import Gpu, Gpus
from sandbox_service.packages import Packages
from sandbox_service.records import KeyReused, LogChunk, NoSuchResource, QueueFull, Submitted
from sandbox_service.scheduler import Scheduler
from sandbox_service.worker import NO_GPU


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
        assert view.result is not None
        [flag] = view.result.warnings
        assert flag == f"not the first start of this job; attempt 1: {type(trouble).__name__}: {trouble}"


async def test_a_job_that_is_lost_with_its_node_is_queued_again_once_and_not_a_third_time(tmp_path: Path) -> None:
    runner = HeldRunner()
    runner.troubles = [JobLost("node a was lost"), JobLost("node b was lost"), JobLost("node c was lost")]
    async with make_scheduler(tmp_path, runner, max_attempts=9) as scheduler:
        twice = await ended(scheduler, await submit(scheduler, "kills nodes"))
        assert (twice.status, twice.attempts) == ("failed", 2)
        assert twice.error == "given up after 2 attempts: JobLost: node b was lost"
        once = await ended(scheduler, await submit(scheduler, "has bad luck"))
        assert (once.status, once.attempts) == ("completed", 2)


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
    monkeypatch.setattr("sandbox_service.pool.FIRST_PAUSE_SECONDS", 0.0)
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
        assert len(scheduler._waiters) == 0


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


def test_a_package_that_was_just_usable_is_believed_to_be_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_task(tmp_path / "tasks" / "tiny")
    packages = Packages([tmp_path / "tasks"])
    assert not packages.believed("tiny")
    packages.load("tiny")
    with pytest.raises(ConfigError):
        packages.load("missing")
    assert (packages.believed("tiny"), packages.believed("missing")) == (True, False)
    monkeypatch.setattr("sandbox_service.packages.CHECKED_SECONDS", 0.0)
    assert not packages.believed("tiny")


async def test_two_runs_share_the_workers_whichever_came_first(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with make_scheduler(tmp_path, runner, workers=2) as scheduler:
        for code in ("a0", "a1", "a2", "a3"):
            await submit(scheduler, code, labels={"run": "a"})
        await runner.until(lambda: len(runner.started) == 2)
        for code in ("b0", "b1"):
            await submit(scheduler, code, labels={"run": "b"})
        await runner.release()
        await runner.until(lambda: len(runner.finished) == 6)
    assert runner.started.index("b1") < runner.started.index("a3")


async def test_a_batch_is_queued_whole_and_each_refusal_stands_in_its_place(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with make_scheduler(tmp_path, runner, max_queued=3, gpu_on_cpu=False) as scheduler:
        await submit(scheduler, "first")
        await runner.until(lambda: runner.started == ["first"])
        jobs = [request("a", idempotency_key="k"), request("b", resource_type="gpu"), request("c", idempotency_key="k")]
        jobs += [request("a", idempotency_key="k"), request("d"), request("e"), request("f")]
        answers = await scheduler.submit_many(jobs, owner="me")
        kinds = [answer.created if isinstance(answer, Submitted) else type(answer) for answer in answers]
        assert kinds == [True, NoSuchResource, KeyReused, False, True, True, QueueFull]
        assert (await scheduler.status()).queued == 3


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
async def test_a_job_for_a_gpu_runs_on_the_cpu_with_a_warning_where_there_is_none(tmp_path: Path, kind: str) -> None:
    async with make_scheduler(tmp_path, HeldRunner()) as scheduler:
        view = await ended(scheduler, await submit(scheduler, "x", resource_type=kind))
    assert view.result is not None
    assert (NO_GPU in view.result.warnings) == (kind == "gpu")


async def test_a_job_for_a_gpu_is_refused_where_none_is_and_the_cpu_may_not_do(tmp_path: Path) -> None:
    async with make_scheduler(tmp_path, HeldRunner(), gpu_on_cpu=False) as scheduler:
        with pytest.raises(NoSuchResource, match="'gpu'"):
            await submit(scheduler, "x", resource_type="gpu")
        assert (await scheduler.status()).queued == 0


async def test_where_there_is_a_gpu_jobs_for_it_wait_for_it_and_get_it_alone(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    gpus = Gpus(FakeNvml(Gpu(uuid="GPU-a", name="a", total_bytes=MIB)), vram_bytes=MIB)
    async with make_scheduler(tmp_path, runner, gpus=gpus) as scheduler:
        first, second = [await submit(scheduler, code, resource_type="gpu") for code in ("g1", "g2")]
        await submit(scheduler, "c")
        await runner.until(lambda: len(runner.started) == 2)
        assert sorted(runner.started) == ["c", "g1"]
        assert (await scheduler.facts()).slots() == {"cpu": (1, 1), "gpu": (1, 1)}
        await runner.release()
        views = [await ended(scheduler, job_id) for job_id in (first, second)]
    assert {view.worker_id for view in views} == {"gpu-GPU-a"}
    granted = {spec.files[PROGRAM_FILE].decode(): spec.gpu.uuids if spec.gpu else None for spec in runner.specs}
    assert granted == {"g1": ("GPU-a",), "g2": ("GPU-a",), "c": None}


async def test_a_place_that_was_lost_while_it_waited_for_a_job_gets_none_and_costs_none_an_attempt(
    tmp_path: Path,
) -> None:
    nvml = FakeNvml(Gpu(uuid="GPU-a", name="a", total_bytes=MIB))
    async with make_scheduler(tmp_path, HeldRunner(), gpus=Gpus(nvml, vram_bytes=MIB)) as scheduler:
        await ended(scheduler, await submit(scheduler, "first", resource_type="gpu"))
        await asyncio.sleep(0.2)  # until the GPU is taken hold of again
        nvml.computing["GPU-a"] = [4711]
        job_id = await submit(scheduler, "second", resource_type="gpu")
        waiting = await scheduler.get(job_id, wait_seconds=0.3)
        assert waiting is not None
        assert (waiting.status, waiting.attempts) == ("queued", 0)
        nvml.computing["GPU-a"] = []
        view = await ended(scheduler, job_id)
        assert (view.status, view.attempts) == ("completed", 1)


async def test_a_job_that_nobody_takes_in_time_fails_and_who_waits_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox_service.scheduler.EXPIRY_SECONDS", 0.01)
    runner = HeldRunner(held=True)
    async with make_scheduler(tmp_path, runner) as scheduler:
        await submit(scheduler, "first")
        await runner.until(lambda: runner.started == ["first"])
        view = await ended(scheduler, await submit(scheduler, "second", queue_timeout=0.02))
    assert (view.status, view.attempts, view.result) == (JobState.FAILED, 0, None)
    assert (view.error or "").startswith("queue timeout")


async def test_watching_shows_every_state_to_the_end(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with make_scheduler(tmp_path, runner) as scheduler:
        first = await submit(scheduler, "first")
        await runner.until(lambda: runner.started == ["first"])
        second = await submit(scheduler, "second")
        seen: list[str] = []
        async with asyncio.timeout(30), aclosing(scheduler.watch(second)) as views:
            async for view in views:
                seen.append(view.status)
                if view.status is JobState.QUEUED:
                    await scheduler.cancel(first)
                elif view.status is JobState.RUNNING:
                    await runner.release()
        assert seen == ["queued", "running", "completed"]
        assert [view async for view in scheduler.watch("unknown")] == []
        assert len(scheduler._waiters) == 0


async def test_watchers_and_followers_end_when_the_service_stops(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    async with make_scheduler(tmp_path, runner) as scheduler:
        job_id = await submit(scheduler, "x")
        await runner.until(lambda: runner.started == ["x"])

        async def watch() -> list[str]:
            return [view.status async for view in scheduler.watch(job_id)]

        heard = asyncio.Event()

        async def follow() -> str:
            text = ""
            async for chunk in scheduler.follow_log(job_id):
                text += chunk.text
                heard.set()
            return text

        tasks = [asyncio.create_task(watch()), asyncio.create_task(follow())]
        await scheduler.get(job_id)
        await heard.wait()
        await scheduler.stop()
        async with asyncio.timeout(30):
            states, text = await asyncio.gather(*tasks)
    assert states[0] == "running"
    assert text == "hello\n"


async def test_the_output_of_a_running_job_is_read_and_followed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox_service.scheduler.LOG_LOOK_SECONDS", 0.01)
    runner = HeldRunner(held=True)
    async with make_scheduler(tmp_path, runner) as scheduler:
        job_id = await submit(scheduler, "x")
        await runner.until(lambda: runner.started == ["x"])
        log = await scheduler.log(job_id)
        assert log is not None
        assert (log.text, log.total_bytes, log.ended, log.attempt) == ("hello\n", 6, False, 1)
        chunks: list[LogChunk] = []
        async with asyncio.timeout(30), aclosing(scheduler.follow_log(job_id)) as pieces:
            async for chunk in pieces:
                chunks.append(chunk)
                if chunk.text == "hello\n":
                    runner.log = BoundedLog(head="hello\nwor", tail="last", truncated_bytes=100)
                elif chunk.skipped_bytes:
                    await runner.release()
        assert [(chunk.text, chunk.skipped_bytes) for chunk in chunks] == [("hello\n", 0), ("wor", 0), ("last", 100)]
        log = await scheduler.log(job_id)
        assert log is not None
        assert (log.truncated_bytes, log.total_bytes, log.ended) == (100, 113, True)
        assert await scheduler.log("unknown") is None
        again = [chunk async for chunk in scheduler.follow_log(job_id)]
        assert [(chunk.text, chunk.skipped_bytes) for chunk in again] == [("hello\nwor", 0), ("last", 100)]


async def test_files_that_were_asked_for_are_kept_as_far_as_they_fit(tmp_path: Path) -> None:
    runner = HeldRunner()
    runner.files = {"a.txt": b"a" * 600, "b.txt": b"b" * 500, "c.txt": b"c" * 400, "d.txt": b"d" * 2000}
    async with make_scheduler(tmp_path, runner, artifact_bytes=1000) as scheduler:
        names = ["a.txt", "b.txt", "c.txt", "d.txt", "missing.txt"]
        view = await ended(scheduler, job_id := await submit(scheduler, "x", artifacts=names))
        kept = await scheduler.artifacts(job_id)
        assert [(info.name, info.size_bytes) for info in kept] == [("a.txt", 600), ("c.txt", 400)]
        path = await scheduler.artifact_path(job_id, "a.txt")
        assert path is not None
        assert path.read_bytes() == b"a" * 600
        assert await scheduler.artifact_path(job_id, "b.txt") is None
        assert view.result is not None
        assert view.result.warnings == [
            "artifact b.txt was not kept: too_large",
            "artifact d.txt was not kept: too_large",
        ]


async def test_the_oldest_files_go_when_there_are_too_many_and_what_a_crash_left_goes_too(tmp_path: Path) -> None:
    runner = HeldRunner()
    runner.files = {"f": b"x" * 900}
    async with make_scheduler(tmp_path, runner) as scheduler:
        old = await submit(scheduler, "x", artifacts=["f"])
        await ended(scheduler, old)
        runner.files = {"f": b"y" * 900}
        new = await submit(scheduler, "x", artifacts=["f"])
        await ended(scheduler, new)
    orphan = tmp_path / "artifacts" / "00" / ("0" * 64)
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"")
    async with make_scheduler(tmp_path, HeldRunner(), most_artifact_bytes=1000) as scheduler:
        async with asyncio.timeout(30):
            while orphan.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await scheduler.artifacts(old) == []
        assert await scheduler.artifact_path(new, "f") is not None
        view = await scheduler.get(old)
        assert view is not None
        assert view.status is JobState.COMPLETED
        assert (await scheduler.facts()).artifact_bytes == 900
    assert len(list((tmp_path / "artifacts").glob("??/*"))) == 1


async def test_the_figures_say_what_waits_runs_and_ended(tmp_path: Path) -> None:
    runner = HeldRunner(held=True)
    runner.troubles = [ZeroDivisionError("a bug of ours")]
    async with make_scheduler(tmp_path, runner, workers=2) as scheduler:
        for code in ("a", "b", "c"):
            await submit(scheduler, code)
        await runner.until(lambda: len(runner.started) == 3)
        facts = await scheduler.facts()
        (lane,) = facts.lanes
        assert (lane.resource_class, lane.priority, lane.queued, lane.running) == ("cpu", 2, 1, 2)
        assert (facts.slots(), facts.infrastructure_errors) == ({"cpu": (2, 2)}, {"ZeroDivisionError": 1})
        await runner.release()
        await runner.until(lambda: len(runner.finished) == 3)
        while (facts := await scheduler.facts()).states[JobState.COMPLETED] < 3:
            pass
        assert facts.outcomes == {"submission_missing": 3}
        program = facts.durations["program"]
        assert (program.sum_seconds, program.counts[:3]) == (0.75, (0, 3, 0))


async def test_all_that_runs_carries_the_services_and_the_jobs_labels_which_a_client_cannot_change(
    tmp_path: Path,
) -> None:
    runner = HeldRunner()
    async with make_scheduler(tmp_path, runner) as scheduler:
        job_id = await submit(scheduler, "x", labels={"run": "a", SERVICE_LABEL: "other"})
        await ended(scheduler, job_id)
    (spec,) = runner.specs
    expected = {"run": "a", SERVICE_LABEL: "test", "openmle.job": job_id, "openmle.attempt": "1"}
    assert {name: spec.labels[name] for name in expected} == expected


def test_public_data_that_anybody_can_read_is_mounted_where_it_lies(tmp_path: Path) -> None:
    make_task(tmp_path / "tasks" / "tiny")
    packages = Packages([tmp_path / "tasks"], staging=tmp_path / "staging")
    package = packages.load("tiny")
    assert packages.shared_data(package) == package.public_dir
    assert not (tmp_path / "staging").exists()


def test_public_data_that_not_anybody_can_read_is_copied_once_for_all_jobs_and_tasks(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_task(tmp_path / "tasks" / name)
        (tmp_path / "tasks" / name / "data" / "public" / "train.csv").chmod(0o600)
    packages = Packages([tmp_path / "tasks"], staging=tmp_path / "staging")
    package = packages.load("one")
    shared = packages.shared_data(package)
    assert packages.shared_data(package) == packages.shared_data(packages.load("two")) == shared
    assert [path.name for path in (tmp_path / "staging").iterdir()] == [shared.name]
    public = package.public_dir
    assert {path.name: path.read_bytes() for path in shared.iterdir()} == {
        path.name: path.read_bytes() for path in public.iterdir()
    }
    assert {path.stat().st_mode & 0o777 for path in shared.iterdir()} == {0o444}
    assert shared.stat().st_mode & 0o777 == 0o755
    (public / "train.csv").write_text("id,target\n1,1\n")
    changed = packages.shared_data(package)
    assert changed != shared
    assert (changed / "train.csv").read_text() == "id,target\n1,1\n"


def test_public_data_with_a_link_that_leads_out_of_it_is_refused(tmp_path: Path) -> None:
    root = make_task(tmp_path / "tasks" / "tiny")
    (root / "data" / "public" / "extra.csv").symlink_to("../private/test_answer.csv")
    packages = Packages([tmp_path / "tasks"], staging=tmp_path / "staging")
    with pytest.raises(PackageError, match=r"extra.csv: a link that leads out"):
        packages.shared_data(packages.load("tiny"))
