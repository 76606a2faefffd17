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
from sandbox_service.records import ArtifactInfo, JobFilter, KeyOverCap, KeyReused, Lease, QueueFull, QueuePolicy
from sandbox_service.store import JobStore

RESULT = JobResult(outcome=Outcome.TIMEOUT, run_log="log")


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path / "jobs.sqlite", QueuePolicy(max_attempts=2))


def store_with(tmp_path: Path, **policy: float) -> JobStore:
    return JobStore(tmp_path / "jobs.sqlite", QueuePolicy(**policy))  # pyright: ignore[reportArgumentType]


def submit(store: JobStore, code: str = "pass", *, owner: str = "me", **fields: object) -> str:
    return store.submit(request(code, **fields), owner=owner).view.job_id


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
    store.recover_running()
    assert not store.complete(lost, RESULT)
    assert view(store, job_id).status is JobState.QUEUED
    held = lease(store)
    assert (held.fence, held.attempts) == (2, 2)
    assert not store.complete(lost, RESULT)
    assert not store.fail(lost, "late")
    assert not store.retry(lost, "late")
    assert view(store, job_id).status is JobState.RUNNING
    assert store.complete(held, RESULT)
    assert not store.complete(held, RESULT)


def test_a_retried_job_keeps_its_place_and_fails_after_its_last_attempt(store: JobStore) -> None:
    first = submit(store)
    submit(store)
    assert store.retry(lease(store), "engine down")
    waiting = view(store, first)
    assert (waiting.status, waiting.started_at, waiting.completed_at, waiting.worker_id) == ("queued", None, None, None)
    again = lease(store)
    assert again.job_id == first
    assert store.retry(again, "engine down")
    failed = view(store, first)
    assert (failed.status, failed.error) == ("failed", "given up after 2 attempts: engine down")


def test_a_kind_of_trouble_may_give_a_job_up_sooner_than_others_and_a_lease_tells_of_the_attempt_before(
    tmp_path: Path,
) -> None:
    store = store_with(tmp_path, max_attempts=9)
    job_id = submit(store)
    first = lease(store)
    assert first.trouble is None
    assert store.retry(first, "node lost", most_attempts=2)
    second = lease(store)
    assert (second.attempts, second.trouble) == (2, "attempt 1: node lost")
    assert store.retry(second, "node lost", most_attempts=2)
    failed = view(store, job_id)
    assert (failed.status, failed.error) == ("failed", "given up after 2 attempts: node lost")
    assert failed.completed_at is not None


def test_jobs_of_a_dead_service_run_again_until_their_last_attempt(store: JobStore) -> None:
    job_id, waiting = submit(store), submit(store)
    lease(store)
    assert store.recover_running() == 1
    assert (view(store, job_id).status, view(store, job_id).attempts) == ("queued", 1)
    lease(store)
    assert store.recover_running() == 1
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
    tmp_path: Path,
) -> None:
    store = store_with(tmp_path, max_queued=1)
    job = request(idempotency_key="k", labels={"a": "1", "b": "2"})
    first = store.submit(job, owner="me")
    assert first.created
    waiting = store.submit(request(idempotency_key="k", labels={"b": "2", "a": "1"}), owner="me")
    assert (waiting.view.job_id, waiting.created) == (first.view.job_id, False)
    store.complete(lease(store), RESULT)
    ended = store.submit(job, owner="me")
    assert (ended.view.job_id, ended.created, ended.view.status) == (first.view.job_id, False, "completed")
    assert ended.view.result is not None
    assert store.submit(job, owner="you").created


def test_the_same_key_with_another_payload_is_refused(store: JobStore) -> None:
    submit(store, "print(1)", idempotency_key="k")
    with pytest.raises(KeyReused, match="'k'"):
        submit(store, "print(2)", idempotency_key="k")
    with pytest.raises(KeyReused):
        submit(store, "print(1)", idempotency_key="k", timeout=61)


def test_without_a_key_each_submit_is_a_job(store: JobStore) -> None:
    assert submit(store) != submit(store)


def test_a_full_queue_refuses_until_a_job_is_leased(tmp_path: Path) -> None:
    store = store_with(tmp_path, max_queued=2)
    for _ in range(2):
        store.submit(request(), owner="me")
    with pytest.raises(QueueFull):
        store.submit(request(), owner="me")
    lease(store)
    assert store.submit(request(), owner="me").created


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
        states = frozenset([state] if state else [])
        return [view.job_id for view in store.page(JobFilter(states=states, label=label), limit=limit).views]

    assert listed() == [b, a, done]
    assert listed(limit=1) == [b]
    assert listed(JobState.QUEUED) == [b, a]
    assert listed(label=("run", "a")) == [a, done]
    assert listed(JobState.QUEUED, ("run", "a")) == [a]
    assert listed(label=("run", "c")) == listed(label=("ru", "a")) == []
    (completed,) = store.page(JobFilter(states=frozenset([JobState.COMPLETED])), limit=1).views
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
    assert (store.count(JobState.QUEUED), store.page(JobFilter(), limit=9).views) == (0, [])


def test_a_store_of_another_version_or_program_is_refused(tmp_path: Path) -> None:
    newer = tmp_path / "newer.sqlite"
    JobStore(newer).close()
    JobStore(newer).close()
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 4")
    with pytest.raises(StoreError, match="schema version 4; this program reads versions 1 to 3"):
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


def test_a_run_of_many_jobs_does_not_keep_another_waiting(store: JobStore) -> None:
    """Two workers: the small run gets every second lease, though the large one came first."""
    large = [submit(store, labels={"run": "large"}) for _ in range(66)]
    small = [submit(store, labels={"run": "small"}) for _ in range(3)]
    order: list[str] = []
    running = [lease(store), lease(store)]
    while len(order) < 8:
        order.append(running[0].job_id)
        store.complete(running.pop(0), RESULT)
        running.append(lease(store))
    assert order == [large[0], small[0], large[1], small[1], large[2], small[2], large[3], large[4]]


def test_the_key_with_the_fewest_running_jobs_is_next(store: JobStore) -> None:
    mine = [submit(store, owner="me", labels={"run": run}) for run in ("a", "b", "c")]
    yours = [submit(store, owner="you") for _ in range(3)]
    leased = [lease(store) for _ in range(4)]
    assert [one.job_id for one in leased] == [mine[0], yours[0], mine[1], yours[1]]
    store.complete(leased[1], RESULT)
    store.complete(leased[3], RESULT)
    assert [lease(store).job_id for _ in range(2)] == [yours[2], mine[2]]


def test_a_run_that_comes_again_and_again_with_one_job_does_not_overtake(store: JobStore) -> None:
    """A share that was empty begins behind those that wait, not before them; with a new one at every turn, the one that
    waits all the time gets every third."""
    waiting = [submit(store, labels={"run": "waiting"}) for _ in range(9)]
    order: list[str] = []
    for turn in range(9):
        submit(store, labels={"run": f"fresh {turn}"})
        held = lease(store)
        order.append(held.job_id)
        store.complete(held, RESULT)
    assert [job_id in waiting for job_id in order].count(True) == 3


def test_a_key_at_its_cap_of_running_jobs_is_passed_over(tmp_path: Path) -> None:
    store = store_with(tmp_path, max_running_per_key=1)
    first, second = submit(store, priority=1), submit(store)
    other = submit(store, owner="you")
    held = lease(store)
    assert (held.job_id, lease(store).job_id, store.lease("w")) == (first, other, None)
    store.fail(held, "broken")
    assert lease(store).job_id == second


def test_a_key_over_its_cap_of_waiting_jobs_is_refused_and_others_are_not(tmp_path: Path) -> None:
    store = store_with(tmp_path, max_queued_per_key=2)
    submit(store)
    submit(store, priority=1, idempotency_key="k")
    with pytest.raises(KeyOverCap) as refused:
        submit(store)
    assert refused.value.retry_after_seconds > 0
    assert submit(store, priority=1, idempotency_key="k")
    assert submit(store, owner="you")
    lease(store)
    assert submit(store)


def test_low_priority_gets_every_fourth_lease_once_its_oldest_job_has_waited_long(tmp_path: Path) -> None:
    store = store_with(tmp_path, aging_seconds=0.0)
    for _ in range(8):
        submit(store, priority=2)
        submit(store, priority=1)
    low = {job.job_id for job in store.page(JobFilter(priority=2), limit=20).views}
    assert [lease(store).job_id in low for _ in range(8)] == [False, False, False, True] * 2


def test_low_priority_waits_while_it_is_young(tmp_path: Path) -> None:
    store = store_with(tmp_path, aging_seconds=1000.0)
    for _ in range(8):
        submit(store, priority=2)
        submit(store, priority=1)
    low = {job.job_id for job in store.page(JobFilter(priority=2), limit=20).views}
    assert [lease(store).job_id in low for _ in range(10)] == [False] * 8 + [True] * 2


def test_a_worker_leases_only_the_classes_that_it_serves(store: JobStore) -> None:
    gpu, cpu = submit(store, resource_type="gpu", priority=1), submit(store)
    found = store.lease("w", ("cpu",))
    assert found is not None
    assert (found.job_id, store.lease("w", ("cpu",))) == (cpu, None)
    assert lease(store).job_id == gpu


def test_a_job_that_waits_longer_than_it_may_fails(tmp_path: Path) -> None:
    store = store_with(tmp_path, queue_seconds=1000.0)
    patient, hasty = submit(store), submit(store, queue_timeout=1e-6)
    assert store.expire_queued() == [hasty]
    assert store.expire_queued() == []
    failed = view(store, hasty)
    assert (failed.status, failed.error) == ("failed", "queue timeout: no worker was free for it in time")
    assert (lease(store).job_id, store.lease("w")) == (patient, None)


def test_the_time_that_a_job_ran_is_not_waiting(store: JobStore) -> None:
    job_id = submit(store, queue_timeout=1000)
    with store.transaction():
        store._sql.execute("UPDATE jobs SET created_at = created_at - 600, deadline = deadline - 600")
    held = lease(store)
    with store.transaction():
        store._sql.execute("UPDATE jobs SET started_at = started_at - 300")
    store.retry(held, "engine down")
    (waited,) = store._sql.execute("SELECT deadline - created_at FROM jobs").fetchone()
    assert waited == pytest.approx(1300, abs=1)
    assert view(store, job_id).error == "attempt 1: engine down"


def test_what_failed_last_is_told_until_the_job_completes(store: JobStore) -> None:
    job_id = submit(store)
    lease(store)
    store.recover_running()
    assert view(store, job_id).error == "attempt 1: the service died while the job ran"
    store.complete(lease(store), RESULT)
    assert view(store, job_id).error is None


def test_all_jobs_with_a_label_are_cancelled_of_one_owner_or_of_all(store: JobStore) -> None:
    mine, running = submit(store, labels={"run": "a", "x": "1"}), submit(store, labels={"run": "a"}, priority=1)
    yours, other = submit(store, owner="you", labels={"run": "a"}), submit(store, labels={"run": "b"})
    held = lease(store)
    assert store.cancel_labelled(("run", "a"), owner="me") == [mine, running]
    assert not store.complete(held, RESULT)
    assert view(store, yours).status is JobState.QUEUED
    assert store.cancel_labelled(("run", "a"), owner=None) == [yours]
    assert lease(store).job_id == other


def test_pages_follow_one_another_without_gap_or_overlap(store: JobStore) -> None:
    jobs = [submit(store, owner="me" if n % 3 else "you", priority=1 + n % 2) for n in range(10)]
    for _ in range(4):
        store.complete(lease(store), RESULT)
    for wanted in (
        JobFilter(),
        JobFilter(states=frozenset([JobState.COMPLETED, JobState.QUEUED])),
        JobFilter(owner="me"),
        JobFilter(priority=2, states=frozenset([JobState.QUEUED])),
    ):
        whole = [view.job_id for view in store.page(wanted, limit=100).views]
        assert whole == [job_id for job_id in reversed(jobs) if job_id in whole]
        assert len(whole) > 3
        seen: list[str] = []
        before = None
        for _ in range(9):
            page = store.page(wanted, limit=3, before=before)
            seen += [view.job_id for view in page.views]
            before = page.next_before
            if before is None:
                break
        assert seen == whole


def test_lanes_states_and_outcomes_are_counted(store: JobStore) -> None:
    for priority, kind in ((1, "cpu"), (2, "cpu"), (2, "cpu"), (2, "gpu")):
        submit(store, priority=priority, resource_type=kind)
    store.complete(lease(store), RESULT)
    lease(store)
    lanes = {(lane.resource_class, lane.priority): (lane.queued, lane.running) for lane in store.lanes()}
    waiting = {("cpu", 1): (0, 0), ("cpu", 2): (1, 1), ("gpu", 2): (1, 0)}
    assert lanes == waiting
    assert [lane.oldest_seconds > 0 for lane in store.lanes()] == [False, True, True]
    assert store.outcomes() == {"timeout": 1}
    assert store.counts() == {"queued": 2, "running": 1, "completed": 1, "failed": 0, "cancelled": 0}


def test_logs_and_files_are_shed_by_age_and_the_oldest_files_by_size(store: JobStore) -> None:
    jobs = [submit(store) for _ in range(3)]
    for content, size in (("a", 10), ("b", 20), ("b", 20)):
        info = ArtifactInfo(name="submission.csv", sha256=content, size_bytes=size)
        store.complete(lease(store), RESULT, [info])
    assert store.artifact_contents() == {"a": 10, "b": 20}
    assert not store.shed(ended_before=0.0, most_artifact_bytes=30)
    assert store.artifact_contents() == {"a": 10, "b": 20}
    store.shed(ended_before=0.0, most_artifact_bytes=29)
    assert [len(store.artifacts(job_id)) for job_id in jobs] == [0, 1, 1]
    assert store.shed(ended_before=1e12, most_artifact_bytes=1000, jobs=2)
    assert store.shed(ended_before=1e12, most_artifact_bytes=1000, jobs=2)
    assert not store.shed(ended_before=1e12, most_artifact_bytes=1000)
    assert store.artifact_contents() == {}
    kept = view(store, jobs[0]).result
    assert kept is not None
    assert (kept.outcome, kept.run_log) == (Outcome.TIMEOUT, "")


VERSION_1 = """
CREATE TABLE jobs (seq INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
    idempotency_key TEXT, priority INTEGER NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
    fence INTEGER NOT NULL DEFAULT 0, worker_id TEXT, created_at REAL NOT NULL, started_at REAL, completed_at REAL,
    labels TEXT NOT NULL, error TEXT, request TEXT NOT NULL, result TEXT, UNIQUE (owner, idempotency_key));
CREATE INDEX jobs_to_lease ON jobs (priority, seq) WHERE state = 'queued';
CREATE INDEX jobs_by_state ON jobs (state, seq);
CREATE TABLE counts (state TEXT PRIMARY KEY, jobs INTEGER NOT NULL);
CREATE TRIGGER a_job_is_counted AFTER INSERT ON jobs BEGIN SELECT 1; END;
CREATE TRIGGER a_change_is_counted AFTER UPDATE OF state ON jobs BEGIN SELECT 1; END;
PRAGMA user_version = 1;
"""


def test_a_store_of_the_second_version_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    before = JobStore(path)
    job_id = submit(before)
    before.close()
    with sqlite3.connect(path) as connection:
        connection.executescript("DROP INDEX jobs_by_owner; PRAGMA user_version = 2;")
    upgraded = JobStore(path)
    assert [view.job_id for view in upgraded.page(JobFilter(owner="me"), limit=9).views] == [job_id]
    upgraded.close()
    with sqlite3.connect(path) as connection:
        plan = connection.execute(
            "EXPLAIN QUERY PLAN SELECT seq FROM jobs WHERE owner = 'me' ORDER BY seq DESC LIMIT 9"
        ).fetchall()
    assert "jobs_by_owner" in plan[0][-1]


def test_a_store_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    rows = [
        ("waits", "queued", 0, None, '{"run": "a"}', request("waits", idempotency_key="k", labels={"run": "a"})),
        ("runs", "running", 1, None, "{}", request("runs", resource_type="gpu")),
        ("ended", "completed", 1, RESULT.model_dump_json(by_alias=True), "{}", request("ended")),
    ]
    with sqlite3.connect(path) as connection:
        connection.executescript(VERSION_1)
        for name, state, attempts, result, labels, job in rows:
            connection.execute(
                "INSERT INTO jobs (job_id, owner, idempotency_key, priority, state, attempts, fence, created_at,"
                " started_at, labels, request, result) VALUES (?, 'me', ?, 2, ?, ?, ?, 1, 2, ?, ?, ?)",
                (
                    name,
                    job.idempotency_key,
                    state,
                    attempts,
                    attempts,
                    labels,
                    job.model_dump_json(by_alias=True),
                    result,
                ),
            )
    store = JobStore(path)
    assert store.counts() == {"queued": 1, "running": 1, "completed": 1, "failed": 0, "cancelled": 0}
    assert store.outcomes() == {"timeout": 1}
    assert view(store, "ended").result == RESULT
    again = store.submit(request("waits", idempotency_key="k", labels={"run": "a"}), owner="me")
    assert (again.view.job_id, again.created) == ("waits", False)
    assert store.cancel_labelled(("run", "a"), owner="me") == ["waits"]
    assert store.recover_running() == 1
    assert (lease(store).job_id, store.lease("w")) == ("runs", None)
    store.close()
    JobStore(path).close()


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
                fields = {
                    "priority": 1 + pick % 2,
                    "labels": {"run": f"r{pick % 3}"},
                    "idempotency_key": f"k{len(jobs)}",
                }
                jobs.append(submit(store, owner=f"o{pick % 2}", resource_type=("cpu", "gpu")[pick // 4], **fields))
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
                    changed = store.retry(held, "trouble")
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
                store.recover_running()
                valid.clear()
            elif step == "stop":
                store.release_running()
                valid.clear()
        states = {job_id: view(store, job_id).status for job_id in jobs}
        assert {job_id for job_id, state in states.items() if state is JobState.RUNNING} == set(valid)
        assert {job_id for job_id, state in states.items() if state.terminal} == {j for j in jobs if ends[j]}
        assert all(count <= 1 for count in ends.values())
        open_jobs = Counter(states.values())
        for table in ("owners", "shares"):
            (queued, running) = store._sql.execute(
                f"SELECT coalesce(sum(queued), 0), coalesce(sum(running), 0) FROM {table}"
            ).fetchone()
            assert (queued, running) == (open_jobs[JobState.QUEUED], open_jobs[JobState.RUNNING])
        assert store._sql.execute("SELECT count(*) FROM shares WHERE queued = 0 AND running = 0").fetchone()[0] == 0
        assert {state: store.count(state) for state in JobState} == {
            s: list(states.values()).count(s) for s in JobState
        }
        store.close()
