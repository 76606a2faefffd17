"""The durable queue: order, fences, idempotency, recovery."""

import sqlite3
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openmle_gym.errors import StoreError
from openmle_gym.jobs import JobResult, JobState, JobView, Outcome
from sandbox.make import request
from sandbox_service.store import JobStore, KeyReused, Lease, QueueFull

RESULT = JobResult(outcome=Outcome.TIMEOUT, run_log="log").model_dump_json(by_alias=True)


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path / "jobs.sqlite")


def submit(store: JobStore, code: str = "pass", **fields: object) -> str:
    return store.submit(request(code, **fields), owner="me", max_queued=100).view.job_id


def lease(store: JobStore) -> Lease:
    leased = store.lease("w1")
    assert leased is not None
    return leased


def view(store: JobStore, job_id: str) -> JobView:
    found = store.get(job_id)
    assert found is not None
    return found


def test_jobs_are_leased_by_priority_and_then_in_the_order_of_submits(store: JobStore) -> None:
    low, high, later_low, later_high = (submit(store, priority=priority) for priority in (2, 1, 2, 1))
    assert [lease(store).job_id for _ in range(4)] == [high, later_high, low, later_low]
    assert store.lease("w1") is None


def test_a_completed_job_keeps_its_result_and_its_times(store: JobStore) -> None:
    job_id = submit(store, labels={"run": "a"})
    assert store.complete(lease(store), RESULT)
    done = view(store, job_id)
    assert (done.status, done.worker_id, done.attempts, done.labels) == ("completed", "w1", 1, {"run": "a"})
    assert done.result is not None
    assert done.result.outcome is Outcome.TIMEOUT
    assert done.started_at is not None
    assert done.completed_at is not None
    assert done.created_at <= done.started_at <= done.completed_at


def test_an_end_from_a_lost_lease_changes_nothing(store: JobStore) -> None:
    job_id = submit(store)
    lost = lease(store)
    store.recover_running(max_attempts=3)
    assert not store.complete(lost, RESULT)
    assert view(store, job_id).status is JobState.QUEUED
    held = lease(store)
    assert (held.fence, held.attempts) == (2, 2)
    assert not store.complete(lost, RESULT)
    assert not store.fail(lost, "late")
    assert not store.retry(lost, "late", max_attempts=3)
    assert view(store, job_id).status is JobState.RUNNING
    assert store.complete(held, RESULT)
    assert not store.complete(held, RESULT)


def test_a_retried_job_keeps_its_place_and_fails_after_its_last_attempt(store: JobStore) -> None:
    first = submit(store)
    submit(store)
    assert store.retry(lease(store), "engine down", max_attempts=2)
    waiting = view(store, first)
    assert (waiting.status, waiting.started_at, waiting.completed_at, waiting.worker_id) == ("queued", None, None, None)
    again = lease(store)
    assert again.job_id == first
    assert store.retry(again, "engine down", max_attempts=2)
    failed = view(store, first)
    assert (failed.status, failed.error) == ("failed", "given up after 2 attempts: engine down")
    assert failed.completed_at is not None


def test_jobs_of_a_dead_service_run_again_until_their_last_attempt(store: JobStore) -> None:
    job_id, waiting = submit(store), submit(store)
    lease(store)
    assert store.recover_running(max_attempts=2) == 1
    assert (view(store, job_id).status, view(store, job_id).attempts) == ("queued", 1)
    lease(store)
    assert store.recover_running(max_attempts=2) == 1
    failed = view(store, job_id)
    assert failed.error == "given up after 2 attempts: the service died while the job ran"
    assert (failed.status, failed.completed_at is None) == ("failed", False)
    assert view(store, waiting).status is JobState.QUEUED


def test_a_stop_in_order_costs_no_attempt(store: JobStore) -> None:
    job_id = submit(store)
    lost = lease(store)
    store.release_running()
    assert (view(store, job_id).status, view(store, job_id).attempts) == ("queued", 0)
    again = lease(store)
    assert (again.attempts, again.fence) == (1, 2)
    assert not store.complete(lost, RESULT)


def test_the_same_key_and_payload_is_the_same_job_even_after_its_end_and_when_the_queue_is_full(
    store: JobStore,
) -> None:
    job = request(idempotency_key="k", labels={"a": "1", "b": "2"})
    first = store.submit(job, owner="me", max_queued=1)
    assert first.created
    waiting = store.submit(request(idempotency_key="k", labels={"b": "2", "a": "1"}), owner="me", max_queued=1)
    assert (waiting.view.job_id, waiting.created) == (first.view.job_id, False)
    store.complete(lease(store), RESULT)
    ended = store.submit(job, owner="me", max_queued=1)
    assert (ended.view.job_id, ended.created, ended.view.status) == (first.view.job_id, False, "completed")
    assert ended.view.result is not None
    assert store.submit(job, owner="you", max_queued=1).created


def test_the_same_key_with_another_payload_is_refused(store: JobStore) -> None:
    submit(store, "print(1)", idempotency_key="k")
    with pytest.raises(KeyReused, match="'k'"):
        submit(store, "print(2)", idempotency_key="k")
    with pytest.raises(KeyReused):
        submit(store, "print(1)", idempotency_key="k", timeout=61)


def test_without_a_key_each_submit_is_a_job(store: JobStore) -> None:
    assert submit(store) != submit(store)


def test_a_full_queue_refuses_until_a_job_is_leased(store: JobStore) -> None:
    for _ in range(2):
        store.submit(request(), owner="me", max_queued=2)
    with pytest.raises(QueueFull):
        store.submit(request(), owner="me", max_queued=2)
    lease(store)
    assert store.submit(request(), owner="me", max_queued=2).created


def test_only_queued_and_running_jobs_can_be_cancelled(store: JobStore) -> None:
    queued, running, done = submit(store), submit(store, priority=1), submit(store, priority=1)
    held = lease(store)
    store.complete(lease(store), RESULT)
    for job_id in (queued, running, done, "unknown"):
        store.cancel(job_id)
    assert [view(store, job_id).status for job_id in (queued, running, done)] == ["cancelled", "cancelled", "completed"]
    assert not store.complete(held, RESULT)
    assert store.lease("w1") is None


def test_jobs_are_listed_newest_first_by_state_and_label_without_logs(store: JobStore) -> None:
    done, a, b = (
        submit(store, labels={"run": "a"}),
        submit(store, labels={"run": "a"}),
        submit(store, labels={"run": "b"}),
    )
    store.complete(lease(store), RESULT)

    def listed(state: JobState | None = None, label: tuple[str, str] | None = None, limit: int = 10) -> list[str]:
        return [view.job_id for view in store.newest(state=state, label=label, limit=limit)]

    assert listed() == [b, a, done]
    assert listed(limit=1) == [b]
    assert listed(JobState.QUEUED) == [b, a]
    assert listed(label=("run", "a")) == [a, done]
    assert listed(JobState.QUEUED, ("run", "a")) == [a]
    assert listed(label=("run", "c")) == listed(label=("ru", "a")) == []
    (completed,) = store.newest(state=JobState.COMPLETED, label=None, limit=1)
    assert completed.result is not None
    assert (completed.result.run_log, completed.result.outcome) == ("", Outcome.TIMEOUT)


def test_a_failed_transaction_leaves_nothing(store: JobStore) -> None:
    def half_done(error: Exception) -> None:
        with store.transaction():
            submit(store)
            raise error

    with pytest.raises(ZeroDivisionError):
        half_done(ZeroDivisionError())
    with pytest.raises(StoreError, match="disk is full"):
        half_done(sqlite3.OperationalError("database or disk is full"))
    assert (store.count(JobState.QUEUED), store.newest(state=None, label=None, limit=9)) == (0, [])


def test_a_store_of_another_version_or_program_is_refused(tmp_path: Path) -> None:
    newer = tmp_path / "newer.sqlite"
    JobStore(newer).close()
    JobStore(newer).close()
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(StoreError, match="schema version 2; this program reads version 1"):
        JobStore(newer)
    text = tmp_path / "text.sqlite"
    text.write_text("hello, this is not a database at all, but long enough to be read as a header of one")
    with pytest.raises(StoreError, match="not a job store"):
        JobStore(text)
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE cards (a)")
    with pytest.raises(StoreError, match="schema version 0"):
        JobStore(foreign)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "lease", "complete", "fail", "retry", "cancel", "crash", "stop"]), st.integers(0, 7)
    ),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_whatever_happens_no_job_is_lost_and_none_ends_twice(steps: list[tuple[str, int]]) -> None:
    """Random submits, leases, ends by any lease ever given, cancels, crashes and stops, against a model of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.sqlite"
        store = JobStore(path)
        jobs: list[str] = []
        leases: list[Lease] = []
        valid: dict[str, Lease] = {}
        ends: Counter[str] = Counter()
        for step, pick in steps:
            if step == "submit":
                jobs.append(submit(store, idempotency_key=f"k{len(jobs)}", priority=1 + pick % 2))
            elif step == "lease" and (leased := store.lease(f"w{pick}")):
                assert leased.job_id not in valid
                leases.append(leased)
                valid[leased.job_id] = leased
            elif step in ("complete", "fail", "retry") and leases:
                held = leases[pick % len(leases)]
                if step == "complete":
                    changed = store.complete(held, RESULT)
                elif step == "fail":
                    changed = store.fail(held, "broken")
                else:
                    changed = store.retry(held, "trouble", max_attempts=3)
                assert changed == (valid.get(held.job_id) is held)
                if changed:
                    del valid[held.job_id]
                    ends[held.job_id] += step != "retry" or held.attempts >= 3
            elif step == "cancel" and jobs:
                job_id = jobs[pick % len(jobs)]
                ends[job_id] += not view(store, job_id).status.terminal
                store.cancel(job_id)
                valid.pop(job_id, None)
            elif step == "crash":
                store.close()
                store = JobStore(path)
                ends.update(job_id for job_id, held in valid.items() if held.attempts >= 3)
                store.recover_running(max_attempts=3)
                valid.clear()
            elif step == "stop":
                store.release_running()
                valid.clear()
        states = {job_id: view(store, job_id).status for job_id in jobs}
        assert {job_id for job_id, state in states.items() if state is JobState.RUNNING} == set(valid)
        assert {job_id for job_id, state in states.items() if state.terminal} == {j for j in jobs if ends[j]}
        assert all(count <= 1 for count in ends.values())
        assert {state: store.count(state) for state in JobState} == {
            s: list(states.values()).count(s) for s in JobState
        }
        store.close()
