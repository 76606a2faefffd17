"""The loop: budgets, order, and going on after a kill."""

import asyncio
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from evo.make import TASK, HashExecutor, SeededPolicy, toy_manifest
from hypothesis import given, settings
from hypothesis import strategies as st
from openmle_evo.config import BudgetConfig, IslandsConfig, SearchConfig
from openmle_evo.run import RunDirectory, read_run_manifest, write_whole
from openmle_evo.search import Search
from openmle_gym.chat import Completion, Message, Usage
from openmle_gym.errors import ConfigError, ExecutorUnavailable, ModelUnavailable, StoreError
from openmle_gym.evaluate import JobSettings
from openmle_gym.experience import ExperienceCard
from openmle_gym.features import best_card
from openmle_gym.jobs import Executor, JobRequest, JobResult, Limits
from openmle_gym.memory import MemoryConfig
from openmle_gym.operators import Operator

MANIFEST = toy_manifest()


def search(
    run: RunDirectory,
    *,
    executor: Executor | None = None,
    policy: SeededPolicy | None = None,
    steps: int = 40,
    memory: MemoryConfig | None = None,
    islands: IslandsConfig | None = None,
    workers: int = 1,
    **budget: float,
) -> Search:
    return Search(
        run=run,
        task=TASK,
        policy=policy or SeededPolicy(),
        executor=executor or HashExecutor(),
        config=SearchConfig(
            task="toy",
            workers=workers,
            budget=BudgetConfig(attempts=steps, **budget),  # pyright: ignore
            memory=memory or MemoryConfig(),
            islands=islands or IslandsConfig(),
        ),
        limits=Limits(),
        job=JobSettings(data_dir="toy", timeout_seconds=60),
    )


def shape(cards: Sequence[ExperienceCard]) -> list[tuple[object, ...]]:
    """What must be equal between two runs: everything but times."""
    return [(c.attempt, c.operator, c.parents, c.program_id, c.outcome, c.validation, c.selection) for c in cards]


async def test_a_run_stops_after_its_steps_and_returns_the_best(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, MANIFEST)
    best = await search(run, steps=30).run_to_end()
    cards = run.cards()
    assert [card.attempt for card in cards] == list(range(30))
    assert best is not None
    assert best.validation is not None
    assert best.validation.value == min(card.validation.value for card in cards if card.validation)
    assert (tmp_path / "best.py").read_text() == best.source
    assert {card.operator for card in cards} == set(Operator)


async def test_a_run_stops_when_its_sandbox_seconds_are_spent(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, MANIFEST)
    await search(run, steps=30, sandbox_seconds=7.0).run_to_end()
    assert len(run.cards()) == 7  # each program of the stand-in takes one second


async def test_many_workers_judge_every_attempt_once(tmp_path: Path) -> None:
    class Jumbled(HashExecutor):
        async def run(self, job: JobRequest) -> JobResult:
            for _ in range(len(job.code) % 5):
                await asyncio.sleep(0)
            return await super().run(job)

    run, executor = RunDirectory.create(tmp_path, MANIFEST), Jumbled()
    await search(run, executor=executor, steps=40, workers=7).run_to_end()
    assert sorted(card.attempt for card in run.cards()) == list(range(40))
    assert len(executor.runs) == len(set(executor.runs)) == 40


class Killed(BaseException):
    """Stands for the end of the process."""


class KillAt:
    """Counts calls, and ends the process at one of them."""

    def __init__(self, call: int) -> None:
        self.left = call

    def tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


class MortalPolicy(SeededPolicy):
    def __init__(self, kill: KillAt) -> None:
        super().__init__()
        self.kill = kill

    async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
        self.kill.tick()
        return await super().complete(messages, seed=seed)


class MortalExecutor(HashExecutor):
    def __init__(self, kill: KillAt) -> None:
        super().__init__()
        self.kill = kill

    async def run(self, job: JobRequest) -> JobResult:
        self.kill.tick()
        result = await super().run(job)
        self.kill.tick()
        return result


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=3), st.sampled_from(["extractive", "model", "eager"]))
def test_a_run_killed_anywhere_finishes_as_if_it_had_not_been(kills: list[int], notes: str) -> None:
    ways = {"memory": MemoryConfig(notes=notes), "islands": IslandsConfig(count=2, reset_probability=0.5)}
    with tempfile.TemporaryDirectory() as folder:
        whole = RunDirectory.create(Path(folder) / "whole", MANIFEST)
        asyncio.run(search(whole, steps=14, **ways).run_to_end())
        run = RunDirectory.create(Path(folder) / "killed", MANIFEST)
        for call in kills:
            kill = KillAt(call)
            mortal = search(run, executor=MortalExecutor(kill), policy=MortalPolicy(kill), steps=14, **ways)
            try:
                asyncio.run(mortal.run_to_end())
            except Killed:
                run.close()
                run = RunDirectory.resume(Path(folder) / "killed")
        asyncio.run(search(run, steps=14, **ways).run_to_end())
        assert shape(run.cards()) == shape(whole.cards())


async def test_a_resumed_run_does_not_ask_the_policy_again_for_a_reply_that_it_has(tmp_path: Path) -> None:
    class Down(HashExecutor):
        async def run(self, job: JobRequest) -> JobResult:
            raise ExecutorUnavailable("service is down")

    run, policy = RunDirectory.create(tmp_path, MANIFEST), SeededPolicy()
    with pytest.raises(ExecutorUnavailable):
        await search(run, executor=Down(), policy=policy, steps=3).run_to_end()
    assert policy.calls == 1
    assert run.cards() == []
    run.close()
    run = RunDirectory.resume(tmp_path)
    await search(run, policy=policy, steps=3).run_to_end()
    assert policy.calls == 3
    assert len(run.cards()) == 3


async def test_trouble_with_one_worker_stops_the_others_and_loses_nothing(tmp_path: Path) -> None:
    class BreaksOnce(HashExecutor):
        async def run(self, job: JobRequest) -> JobResult:
            if len(self.runs) == 5:
                raise ExecutorUnavailable("gone")
            return await super().run(job)

    run = RunDirectory.create(tmp_path, MANIFEST)
    with pytest.raises(ExecutorUnavailable):
        await search(run, executor=BreaksOnce(), steps=20, workers=4).run_to_end()
    run.close()
    run = RunDirectory.resume(tmp_path)
    best = await search(run, steps=20, workers=4).run_to_end()
    assert sorted(card.attempt for card in run.cards()) == list(range(20))
    assert best == best_card(run.cards())


async def test_a_run_of_failures_has_no_best(tmp_path: Path) -> None:
    class Failing(HashExecutor):
        async def run(self, job: JobRequest) -> JobResult:
            return (await super().run(job)).model_copy(update={"validation_score": None, "outcome": "timeout"})

    run = RunDirectory.create(tmp_path, MANIFEST)
    assert await search(run, executor=Failing(), steps=5).run_to_end() is None
    assert not (tmp_path / "best.py").exists()


class GradesOnTestToo(HashExecutor):
    """Says a marked test score in every place that a result has for one."""

    def __init__(self, marked: float) -> None:
        super().__init__()
        self.marked = marked

    async def run(self, job: JobRequest) -> JobResult:
        result = await super().run(job)
        return result.model_copy(update={"test_score": self.marked, "score": self.marked})


@settings(max_examples=6)
@given(
    st.integers(10**4, 10**5 - 1).map(lambda digits: (10 * digits + 7) / 10**6),
    st.sampled_from(["lineage", "everything", "none"]),
    st.sampled_from(["extractive", "model", "eager"]),
)
def test_no_prompt_of_a_run_shows_a_test_score_whatever_the_executor_says(marked: float, kind: str, notes: str) -> None:
    class Keeps(SeededPolicy):
        def __init__(self) -> None:
            super().__init__()
            self.prompts: list[str] = []

        async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
            self.prompts.append("\n".join(message.content for message in messages))
            return await super().complete(messages, seed=seed)

    policy = Keeps()
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory.create(Path(folder), MANIFEST)
        memory = MemoryConfig(kind=kind, notes=notes)
        asyncio.run(search(run, executor=GradesOnTestToo(marked), policy=policy, steps=20, memory=memory).run_to_end())
        cards = run.cards()
        stored = "\n".join(run.store.connection.iterdump())
        run.close()
    assert {card.operator for card in cards} == set(Operator)
    assert len(policy.prompts) >= 20
    shown = f"{marked:.6g}"  # six digits, the last one a 7
    assert not [prompt for prompt in policy.prompts if shown in prompt]
    assert shown not in stored


def test_a_run_directory_is_not_started_twice_nor_opened_by_two(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, MANIFEST)
    with pytest.raises(ConfigError, match="already holds a run"):
        RunDirectory.create(tmp_path, MANIFEST)
    with pytest.raises(ConfigError, match="another process"):
        RunDirectory.resume(tmp_path)
    run.close()
    RunDirectory.resume(tmp_path).close()


def test_a_folder_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no run \(no manifest.json\)"):
        read_run_manifest(tmp_path)


async def test_a_job_gets_no_more_time_than_the_budget_has_left_and_keeps_it_when_resumed(tmp_path: Path) -> None:
    class Timed(HashExecutor):
        def __init__(self) -> None:
            super().__init__()
            self.timeouts: list[float] = []

        async def run(self, job: JobRequest) -> JobResult:
            self.timeouts.append(job.timeout_seconds)
            return await super().run(job)

    executor = Timed()
    await search(RunDirectory.create(tmp_path, MANIFEST), executor=executor, sandbox_seconds=62.5).run_to_end()
    assert executor.timeouts[:4] == [60.0, 60.0, 60.0, 59.5]  # each program takes one second
    assert executor.timeouts[-1] == executor.timeouts[3] - (len(executor.timeouts) - 4)


async def test_every_model_call_is_in_the_ledger_notes_and_failed_ones_too(tmp_path: Path) -> None:
    class Dies(SeededPolicy):
        async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
            if self.calls == 12:
                raise ModelUnavailable("gone")
            return await super().complete(messages, seed=seed)

    run, policy = RunDirectory.create(tmp_path, MANIFEST), Dies()
    dying = search(run, policy=policy, memory=MemoryConfig(notes="eager"))
    with pytest.raises(ModelUnavailable):
        await dying.run_to_end()
    calls = run.calls()
    assert len(calls) == 13
    assert [call.failure for call in calls if call.failure] == ["gone"]
    assert sum(call.purpose == "note" for call in calls) >= 5
    assert (dying.ledger.calls, dying.ledger.failed_calls) == (13, 1)


async def test_a_token_budget_counts_notes(tmp_path: Path) -> None:
    class Counted(SeededPolicy):
        async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
            reply = await super().complete(messages, seed=seed)
            return reply.model_copy(update={"usage": Usage(prompt_tokens=90, completion_tokens=10)})

    plain = RunDirectory.create(tmp_path / "plain", MANIFEST)
    await search(plain, policy=Counted(), tokens=1000).run_to_end()
    eager = RunDirectory.create(tmp_path / "eager", MANIFEST)
    await search(eager, policy=Counted(), tokens=1000, memory=MemoryConfig(notes="eager")).run_to_end()
    assert (len(plain.cards()), len(eager.cards())) == (10, 5)


async def test_the_time_spent_adds_up_over_the_lives_of_a_run(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, MANIFEST)
    await search(run, steps=3).run_to_end()
    first = run.wall_seconds()
    run.close()
    run = RunDirectory.resume(tmp_path)
    assert run.wall_seconds() >= first > 0


async def test_when_the_wall_clock_is_spent_what_ends_in_its_grace_is_kept_and_the_rest_given_up(
    tmp_path: Path,
) -> None:
    class Slow(HashExecutor):
        async def run(self, job: JobRequest) -> JobResult:
            if len(self.runs) == 3:
                await asyncio.Event().wait()
            return await super().run(job)

    run = RunDirectory.create(tmp_path, MANIFEST)
    best = await search(run, executor=Slow(), workers=1, wall_seconds=2.0, grace_seconds=0.2).run_to_end()
    assert best == best_card(run.cards())
    assert len(run.cards()) == 3
    assert [pending.attempt.attempt for pending in run.pending()] == [3]


async def test_a_drained_search_finishes_what_is_under_way_and_begins_nothing(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, MANIFEST)
    going: Search | None = None

    class Stops(HashExecutor):
        async def run(self, job: JobRequest) -> JobResult:
            if len(self.runs) == 4 and going:
                going.drain()
            return await super().run(job)

    going = search(run, executor=Stops(), workers=3)
    await going.run_to_end()
    assert 5 <= len(run.cards()) <= 7
    assert run.pending() == []


class Slow(HashExecutor):
    """Lets several programs run at once; each takes half of the time that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.granted: dict[str, float] = {}
        self.most = 0.0

    async def run(self, job: JobRequest) -> JobResult:
        key = job.idempotency_key or ""
        assert job.timeout_seconds is not None
        self.granted[key] = job.timeout_seconds
        self.most = max(self.most, math.fsum(self.granted.values()))
        for _ in range(5):
            await asyncio.sleep(0)
        del self.granted[key]
        result = await super().run(job)
        return result.model_copy(update={"program_seconds": job.timeout_seconds / 2})


async def test_several_workers_together_never_get_more_sandbox_seconds_than_are_left(tmp_path: Path) -> None:
    run, executor = RunDirectory.create(tmp_path, MANIFEST), Slow()
    made = search(run, executor=executor, workers=8, sandbox_seconds=200.0)
    await made.run_to_end()
    assert 120.0 < executor.most <= 200.0  # three programs of 60 seconds at once, not eight
    assert made.ledger.sandbox_seconds < 201.0  # the last one gets a second, however little is left
    assert made.ledger.reserved_seconds == 0.0
    assert len(run.cards()) >= 6


async def test_a_worker_that_waits_for_budget_ends_when_told_to_stop(tmp_path: Path) -> None:
    class Stops(Slow):
        async def run(self, job: JobRequest) -> JobResult:
            made.drain()
            return await super().run(job)

    run = RunDirectory.create(tmp_path, MANIFEST)
    made = search(run, executor=Stops(), workers=4, sandbox_seconds=60.0)
    await asyncio.wait_for(made.run_to_end(), 30)
    assert len(run.cards()) == 1


async def test_a_full_disk_is_one_clear_error_and_the_run_goes_on_when_there_is_room(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, MANIFEST)
    await search(run, steps=3).run_to_end()
    (pages,) = run.store.connection.execute("PRAGMA page_count").fetchone()
    run.store.connection.execute(f"PRAGMA max_page_count = {pages}")
    full = r"store.sqlite: database or disk is full; what was committed is kept"
    with pytest.raises(StoreError, match=full), run.closing():
        await search(run).run_to_end()
    again = RunDirectory.resume(tmp_path)
    await search(again).run_to_end()
    assert [card.attempt for card in again.cards()] == list(range(40))


def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "final.json" / "taken").mkdir(parents=True)
    with pytest.raises(OSError, match=r"final\.json") as error:
        write_whole(tmp_path / "final.json", "{}")
    assert error.value.filename == str(tmp_path / "final.json")
    assert [path.name for path in tmp_path.iterdir()] == ["final.json"]
