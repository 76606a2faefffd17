"""Parallel Draft sampling: counts, kills, trouble, and the recipe policy on a real executor."""

import asyncio
import dataclasses
from pathlib import Path

import pytest
from erl.sft.sft_make import RMSE, CharTokenizer, CountingExecutor, SeededPolicy, facts
from hypothesis import given, settings
from hypothesis import strategies as st
from openmle_erl.sft.collect import Collector, CollectTask, TaskReport
from openmle_erl.sft.collection import Collection, CollectionManifest
from openmle_erl.sft.config import AcceptanceConfig, FilterConfig
from openmle_erl.sft.stopping import Budget
from openmle_gym.errors import ConfigError, ExecutorUnavailable, ModelUnavailable, PackageError
from openmle_gym.evaluate import JobSettings
from openmle_gym.execute import LocalExecutor
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.jobs import Executor, JobRequest, JobResult, Limits
from openmle_gym.manifest import Columns, Manifest
from openmle_gym.operators import Operator
from openmle_gym.policies.recipes import RecipePolicy
from openmle_gym.prompts import PublicTask, public_task
from toy import write_toy_package

MANIFEST = CollectionManifest(
    collection_id="c0",
    created_at="2026-01-01T00:00:00Z",
    openmle_version="0",
    policy="seeded",
    isolation="none",
    settings={"quota": 4, "workers": 1},
)


def task(name: str = "toy", budget: Budget | None = None) -> CollectTask:
    manifest = Manifest(name=name, metric=RMSE, columns=Columns(id=("id",), target=("y",)))
    return CollectTask(
        public=PublicTask(manifest=manifest, description="Predict y.", data="`train.csv`: 10 rows, 2 columns"),
        facts=dataclasses.replace(facts(), name=name),
        job=JobSettings(data_dir="toy", timeout_seconds=60),
        budget=budget or Budget(),
    )


def collector(collection: Collection, executor: Executor, policy=None, **more) -> Collector:
    return Collector(
        collection=collection,
        policy=policy or SeededPolicy(),
        executor=executor,
        limits=Limits(),
        **({"acceptance": AcceptanceConfig(), "filters": FilterConfig()} | more),
    )


@pytest.mark.parametrize(("every", "attempts", "accepted"), [(1, 4, 4), (2, 8, 4), (4, 16, 4), (None, 32, 0)])
async def test_sampling_takes_the_stated_counts(
    every: int | None, attempts: int, accepted: int, tmp_path: Path
) -> None:
    collection = Collection.open(tmp_path, MANIFEST)
    executor = CountingExecutor(every)
    (report,) = await collector(collection, executor).run([task()])
    assert (report.attempts, report.accepted, report.done) == (attempts, accepted, True)
    assert len(executor.keys) == len(set(executor.keys)) == attempts


async def test_a_finished_collection_asks_nothing_more(tmp_path: Path) -> None:
    collection = Collection.open(tmp_path, MANIFEST)
    first = await collector(collection, CountingExecutor()).run([task()])
    policy, executor = SeededPolicy(), CountingExecutor()
    assert await collector(collection, executor, policy).run([task()]) == first
    assert policy.seeds == executor.keys == []


class DiesAfter(CountingExecutor):
    """Is killed with the process that it is in, in the midst of a job."""

    def __init__(self, jobs: int, every: int) -> None:
        super().__init__(every)
        self.left = jobs

    async def run(self, job: JobRequest) -> JobResult:
        self.left -= 1
        if self.left < 0:
            raise asyncio.CancelledError
        return await super().run(job)


@given(kills=st.lists(st.integers(0, 6), max_size=4), every=st.integers(1, 5), workers=st.integers(1, 5))
@settings(max_examples=8)
def test_however_often_it_is_killed_the_same_attempts_are_judged_once_and_asked_once(
    kills: list[int], every: int, workers: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The release lost verdicts that came after its last snapshot, and then waited for ever."""
    tasks = [task("a"), task("b")]
    policy, judged = SeededPolicy(), []

    async def live(folder: Path, executor: CountingExecutor) -> list[TaskReport] | None:
        collection = Collection.open(folder, MANIFEST)
        try:
            return await collector(collection, executor, policy, workers=workers).run(tasks)
        except asyncio.CancelledError:
            return None
        finally:
            judged.extend(executor.keys)
            collection.close()

    folder = tmp_path_factory.mktemp("killed")
    for jobs in kills:
        asyncio.run(live(folder, DiesAfter(jobs, every)))
    reports = asyncio.run(live(folder, CountingExecutor(every)))
    assert reports is not None
    assert len(judged) == len(set(judged)) == sum(report.attempts for report in reports)
    assert len(policy.seeds) == len(set(policy.seeds)) == len(judged)
    whole = Collection.open(tmp_path_factory.mktemp("whole"), MANIFEST)
    assert reports == asyncio.run(collector(whole, CountingExecutor(every)).run(tasks))


async def test_a_reply_that_was_not_judged_yet_keeps_its_prompt_so_tokens_are_counted_after_a_kill(
    tmp_path: Path,
) -> None:
    """Resumed samples of the release had no messages, so its token filter rejected them all."""
    tokenizer = CharTokenizer()
    limit = FilterConfig(tokenizer="chars", max_tokens=1_000_000)
    collection = Collection.open(tmp_path, MANIFEST)
    with pytest.raises(asyncio.CancelledError):
        await collector(collection, DiesAfter(0, 1), filters=limit, tokenizer=tokenizer).run([task()])
    policy = SeededPolicy()
    asked_before = len(collection.exchanges("toy"))
    assert asked_before > 0
    (report,) = await collector(collection, CountingExecutor(), policy, filters=limit, tokenizer=tokenizer).run(
        [task()]
    )
    assert (report.attempts, report.accepted) == (4, 4)
    assert len(policy.seeds) == 4 - asked_before


async def test_the_token_filter_counts_the_whole_conversation_with_its_thinking(tmp_path: Path) -> None:
    collection = Collection.open(tmp_path, MANIFEST)
    filters = FilterConfig(tokenizer="chars", max_tokens=1)
    (report,) = await collector(collection, CountingExecutor(), filters=filters, tokenizer=CharTokenizer()).run(
        [task()]
    )
    assert report.dropped == {"too_many_tokens": 32}


class Troubled(CountingExecutor):
    """Is out of reach for one task."""

    def __init__(self, task: str, error: Exception) -> None:
        super().__init__()
        self.task, self.error = task, error

    async def run(self, job: JobRequest) -> JobResult:
        if job.name == self.task:
            raise self.error
        return await super().run(job)


@pytest.mark.parametrize("error", [ExecutorUnavailable("down"), PackageError("no answers")])
async def test_trouble_with_the_machinery_makes_no_card_and_spares_the_other_tasks(
    error: Exception, tmp_path: Path
) -> None:
    collection = Collection.open(tmp_path, MANIFEST)
    tasks = [task("a"), task("b"), task("c")]
    reports = await collector(collection, Troubled("a", error)).run(tasks)
    assert [(report.task, report.attempts, report.done) for report in reports] == [
        ("a", 0, False),
        ("b", 4, True),
        ("c", 4, True),
    ]
    assert reports[0].trouble == str(error)
    assert collection.cards("a") == []
    again = await collector(collection, CountingExecutor()).run(tasks)
    assert [report.done for report in again] == [True, True, True]


async def test_a_policy_that_refuses_for_good_ends_the_sampling_and_does_not_hang(tmp_path: Path) -> None:
    """A bad request from the release's provider killed a worker; the run then waited for it for ever."""

    class Refusing(SeededPolicy):
        async def complete(self, messages, *, seed=None):
            raise ModelUnavailable("HTTP 400: context too long")

    collection = Collection.open(tmp_path, MANIFEST)
    names = ["a", "b", "c", "d", "e"]
    sampling = collector(collection, CountingExecutor(), Refusing(), workers=1).run([task(name) for name in names])
    reports = await asyncio.wait_for(sampling, timeout=30)
    assert [report.trouble for report in reports[:3]] == ["HTTP 400: context too long"] * 3
    assert [report.trouble for report in reports[3:]] == ["not begun"] * 2  # after three tasks in a row it gives up


async def test_a_repeated_program_does_not_count_towards_the_quota(tmp_path: Path) -> None:
    class OneIdea(SeededPolicy):
        async def complete(self, messages, *, seed=None):
            reply = await super().complete(messages, seed=7)
            comment = f"# attempt {len(self.seeds)}\n"
            return reply.model_copy(update={"text": reply.text.replace("import os\n", f"{comment}import os\n")})

    collection = Collection.open(tmp_path, MANIFEST)
    (report,) = await collector(collection, CountingExecutor(), OneIdea()).run([task()])
    assert (report.attempts, report.accepted, report.dropped) == (32, 1, {"duplicate_program": 31})


async def test_at_most_so_many_attempts_are_under_way_at_once(tmp_path: Path) -> None:
    class Watching(CountingExecutor):
        running = most = 0

        async def run(self, job: JobRequest) -> JobResult:
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0)
            self.running -= 1
            return await super().run(job)

    executor = Watching()
    collection = Collection.open(tmp_path, MANIFEST)
    await collector(collection, executor, workers=3).run([task(name) for name in "abcde"])
    assert executor.most == 3


def test_other_settings_are_refused_and_the_number_of_workers_is_not_one_of_them(tmp_path: Path) -> None:
    Collection.open(tmp_path, MANIFEST).close()
    more_workers = MANIFEST.model_copy(update={"settings": {"quota": 4, "workers": 9}, "collection_id": "new"})
    reopened = Collection.open(tmp_path, more_workers)
    assert reopened.manifest.collection_id == "c0"
    with pytest.raises(ConfigError, match="another process is collecting"):
        Collection.open(tmp_path, MANIFEST)
    reopened.close()
    with pytest.raises(ConfigError, match=r"other settings \(quota\)"):
        Collection.open(tmp_path, MANIFEST.model_copy(update={"settings": {"quota": 5, "workers": 1}}))


@pytest.mark.slow
async def test_the_recipe_policy_collects_from_a_real_executor(tmp_path: Path) -> None:
    package = write_toy_package(tmp_path / "toy")
    runner = ProcessRunner(allow_no_isolation=True)
    executor = LocalExecutor(task_root=tmp_path, runner=runner, limits=Limits(wall_seconds=120), parallel=2)
    real = dataclasses.replace(
        task(budget=Budget(batch=2, quota=2, limit=6)),
        public=public_task(package),
        job=JobSettings(data_dir=str(package.root), timeout_seconds=120),
    )
    collection = Collection.open(tmp_path / "drafts", MANIFEST)
    (report,) = await collector(collection, executor, RecipePolicy(slip_rate=0.0)).run([real])
    assert report.done
    assert report.accepted >= 2
    accepted = [card for card in collection.cards("toy") if card.valid]
    assert {card.operator for card in accepted} == {Operator.DRAFT}
    assert all(card.test is None for card in collection.cards("toy"))
