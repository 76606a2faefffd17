"""The learning loop on a virtual clock, with engines, sandbox and trainer in memory."""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from erl.rl.rl_fakes import Engine, Learner, Lines, Sandbox, Sink, make_run
from openmle_erl.engines.protocols import Finish, GenerateRequest, PauseMode
from openmle_erl.rl.evaluation import EvaluationConfig
from openmle_erl.rl.experience import snapshot
from openmle_erl.rl.groups import GroupConfig, GroupState
from openmle_erl.rl.pool import QueueConfig, task_of
from openmle_erl.rl.samples import Fate
from openmle_erl.rl.simulation import VirtualLoop
from openmle_erl.rl.train import ScheduleConfig, Training, checkpoints, parts, read_checkpoint
from openmle_gym.errors import ExecutorUnavailable
from openmle_gym.jobs import JobRequest, JobResult
from openmle_gym.operators import Operator
from openmle_gym.store import CardStore

Result = TypeVar("Result")


def virtually(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Runs on a clock that does not wait."""

    async def bounded() -> Result:
        async with asyncio.timeout(1e6):
            return await coroutine

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(bounded())


def run_to_end(folder: Path, **settings: Any) -> Training:
    async def whole() -> Training:
        training = make_run(folder, **settings)
        await training.run()
        return training

    return virtually(whole())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_sample_has_one_fate_and_every_step_its_groups(tmp_path: Path, asynchronous: bool) -> None:
    training = run_to_end(tmp_path / "run", asynchronous=asynchronous)
    fates = training.queue.fates()
    trained = training.queue.groups(GroupState.TRAINED, {})
    assert Counter(group.step for group in trained) == {1: 3, 2: 3, 3: 3, 4: 3}
    assert sum(fates.values()) == training.queue.next_attempt()
    assert fates["trained"] == sum(len(seen) for seen in training.trainer.seen) == 48  # type: ignore[attr-defined]
    assert fates["open"] == 0
    assert isinstance(training.sink, Sink)
    assert [record["step"] for record in training.sink.records] == [1, 2, 3, 4]
    assert training.engine.weights == [0, 1, 2, 3, 4]  # type: ignore[attr-defined]
    assert [path.name for path in (tmp_path / "run" / "weights").iterdir()] == ["version-000004"]


def test_engines_that_may_have_other_weights_are_given_the_first_before_they_generate(tmp_path: Path) -> None:
    events: list[str] = []

    async def whole() -> list[int]:
        engine = Engine(events.append)
        training = make_run(tmp_path / "run", engine=engine, hook=events.append)
        training.publish_first = True
        await training.run()
        return engine.weights

    assert virtually(whole()) == [0, 0, 1, 2, 3, 4]
    assert events.index("load_weights") < events.index("generate")


def test_synchronous_rollouts_rest_while_the_trainer_trains(tmp_path: Path) -> None:
    events: list[str] = []

    def tokens(request: GenerateRequest) -> list[int]:
        return random.Random(request.seed).sample(range(1, 10_000), 60 if "-eval-" in request.request_id else 3)

    def hook(event: str) -> None:
        events.append(event)
        assert event != "step" or engine.open == 0  # evaluation's long reply, too, is over

    engine = Engine(hook, tokens)
    run_to_end(tmp_path / "run", asynchronous=False, hook=hook, engine=engine, evaluated=("held-out",))
    learning = [place for place, event in enumerate(events) if event == "step"]
    for first, second in zip(learning[::2], learning[1::2], strict=True):
        assert set(events[first : second + 1]) == {"step"}


def test_asynchronous_rollouts_go_on_while_the_trainer_trains(tmp_path: Path) -> None:
    events: list[str] = []
    training = run_to_end(tmp_path / "run", hook=events.append)
    learning = [place for place, event in enumerate(events) if event == "step"]
    assert "generate" in events[learning[0] : learning[1]]
    assert training.queue.steps()[-1]["staleness/largest"] >= 1


@pytest.mark.parametrize("mode", ["in_place", "abort"])
def test_after_a_weight_update_finished_members_are_kept_and_others_go_on_or_begin_anew(
    tmp_path: Path, mode: str
) -> None:
    schedule = ScheduleConfig(steps=4, groups_per_step=3, checkpoint_interval=2, pause=mode)
    engine = Engine(tokens=lambda request: random.Random(request.seed).sample(range(1, 10_000), 12))
    training = run_to_end(tmp_path / "run", engine=engine, schedule=schedule)
    assert set(engine.modes) == {PauseMode(mode)}
    steps = training.queue.steps()
    assert any(step["rollout/restarts"] > 0 for step in steps) == (mode == "abort")
    assert any(step["staleness/mixed_share"] > 0 for step in steps) == (mode == "in_place")
    assert training.queue.fates()["trained"] == 48  # nothing that was finished was thrown away


def test_a_reply_that_updates_abort_again_and_again_goes_on_from_its_tokens(tmp_path: Path) -> None:
    async def whole() -> None:
        engine = Engine()
        training = make_run(tmp_path / "run", engine=engine)
        pool = training.pool
        pool._wanted = 1
        group = pool._begin()
        rolling = asyncio.create_task(pool.road.generate(group, group.members[0]))
        for _ in range(3):
            await asyncio.sleep(0.5)
            await engine.pause(PauseMode.ABORT)
            await engine.resume()
        reply = await rolling
        assert (reply.restarts, len(reply.reply_ids), reply.finish) == (3, 4, Finish.STOP)
        assert [(span.start, span.end) for span in reply.spans] == [(0, 1), (1, 2), (2, 3), (3, 4)]

    virtually(whole())


def test_a_lost_member_strands_nobody_and_is_in_no_loss(tmp_path: Path) -> None:
    class Flaky(Sandbox):
        async def run(self, job: JobRequest) -> JobResult:
            if int(job.labels["attempt"]) % 4 == 1:
                raise ExecutorUnavailable("503")
            return await super().run(job)

    group = GroupConfig(least=2, tries=2, barrier_seconds=30.0, try_seconds=100.0)
    training = run_to_end(tmp_path / "run", sandbox=Flaky(), group=group)
    fates = training.queue.fates()
    assert fates["trained"] == 36
    assert fates["infrastructure"] >= 12
    assert all(int(name) % 4 != 1 for seen in training.trainer.seen for name in seen)  # type: ignore[attr-defined]


def test_a_group_does_not_wait_for_a_member_that_hangs(tmp_path: Path) -> None:
    def seconds(value: int) -> float:
        return 1e6 if value % 3 == 0 else 1.0

    group = GroupConfig(least=2, barrier_seconds=30.0, try_seconds=1e9)
    training = run_to_end(tmp_path / "run", sandbox=Sandbox(seconds=seconds), group=group, samples=8)
    assert training.queue.fates()["late"] > 0
    assert training.step == 4


def test_a_member_that_hangs_is_given_up_after_its_tries(tmp_path: Path) -> None:
    hangs = Sandbox(seconds=lambda value: 1e9 if value % 3 == 0 else 1.0)
    group = GroupConfig(least=3, tries=1, barrier_seconds=1e9, try_seconds=50.0)
    training = run_to_end(tmp_path / "run", sandbox=hangs, group=group)
    fates = training.queue.fates()
    assert fates["infrastructure"] > 0
    assert fates["too_few"] > 0
    assert training.step == 4


def test_an_outage_pauses_the_run_and_is_never_a_reward(tmp_path: Path) -> None:
    class Out(Sandbox):
        tries = 0

        async def run(self, job: JobRequest) -> JobResult:
            self.tries += 1
            if asyncio.get_running_loop().time() < 5000.0:
                raise ExecutorUnavailable("connection refused")
            return await super().run(job)

    sandbox = Out()
    training = run_to_end(tmp_path / "run", sandbox=sandbox)
    assert training.step == 4
    assert training.pool.breaker.opened >= 1
    assert sandbox.tries - len(sandbox.runs) < 60  # probes, not a storm
    assert training.queue.fates()["trained"] == 48
    assert all(
        card.outcome in ("success", "code_execution_error")
        for card in CardStore(tmp_path / "run" / "experience.sqlite").cards()
    )


def test_groups_without_signal_are_replaced_within_bounds_and_then_change_nothing(tmp_path: Path) -> None:
    same = Engine(tokens=lambda request: [request.seed or 0, 5 - (request.seed or 0) % 5])  # every program crashes
    learner = Learner()
    schedule = ScheduleConfig(steps=2, groups_per_step=3, checkpoint_interval=2)
    group = GroupConfig(least=2, refills=2.0)
    training = run_to_end(
        tmp_path / "run", engine=same, learner=learner, schedule=schedule, group=group, asynchronous=False
    )
    assert training.queue.fates()["no_signal"] == 2 * 6 * 4
    assert training.queue.fates()["trained"] == 2 * 3 * 4
    assert set(learner.advantages) == {0.0}


def test_a_program_is_run_once_in_its_group_and_once_on_its_task(tmp_path: Path) -> None:
    few = Engine(tokens=lambda request: [1 + (request.seed or 0) % 4])
    sandbox = Sandbox()
    training = run_to_end(tmp_path / "run", engine=few, sandbox=sandbox, samples=8)
    runs = Counter(sandbox.runs)
    assert max(runs.values()) <= 3  # one for each task
    duplicates = training.queue.duplicates()
    assert set(duplicates) == {"group", "task"}
    assert sum(duplicates.values()) + len(sandbox.runs) == training.queue.next_attempt()


def test_stale_groups_are_dropped_and_counted(tmp_path: Path) -> None:
    limits = QueueConfig(in_flight_groups=4, ready_groups=6, max_staleness=0)
    training = run_to_end(tmp_path / "run", limits=limits)
    assert training.queue.fates()["stale"] > 0
    assert all(step["staleness/largest"] == 0 for step in training.queue.steps())


def test_tasks_take_turns(tmp_path: Path) -> None:
    training = run_to_end(tmp_path / "run")
    assert set(training.queue.exposure().values()) <= {3, 4, 5}
    turns = Counter(task_of(number, ["a", "b", "c"], 5) for number in range(29))
    assert sorted(turns.values()) == [9, 10, 10]


def test_parents_are_settled_programs_of_the_same_task_that_the_operator_accepts(tmp_path: Path) -> None:
    schedule = ScheduleConfig(steps=12, groups_per_step=3, checkpoint_interval=100)
    training = run_to_end(tmp_path / "run", schedule=schedule)
    cards = {card.attempt: card for card in CardStore(tmp_path / "run" / "experience.sqlite").cards(run_id="run")}
    groups = training.queue.groups(GroupState.TRAINED, cards)
    assert {group.operator for group in groups} == set(Operator)
    for group in groups:
        for parent in group.parents:
            assert cards[parent].task == group.task
            assert cards[parent].may_parent(group.operator)
            assert parent < group.members[0].attempt


def test_evaluation_stands_apart_and_stalls_nothing(tmp_path: Path) -> None:
    dialogue = Lines()
    training = run_to_end(
        tmp_path / "run",
        dialogue=dialogue,
        evaluated=("held-out",),
        evaluation=EvaluationConfig(interval=2, samples=3, parallel=2),
    )
    store = CardStore(tmp_path / "run" / "experience.sqlite")
    assert {card.task for card in store.cards(run_id="run-eval")} == {"held-out"}
    assert len(store.cards(run_id="run-eval")) == 6
    assert not training.experience.cards("held-out")
    assert isinstance(training.sink, Sink)
    evaluations = [record for record in training.sink.records if "eval/valid" in record]
    assert [record["eval/step"] for record in evaluations] == [2, 4]
    assert all(record["eval/samples"] == 3 for record in evaluations)
    for number, record in enumerate(evaluations):  # the weights of its step and, asynchronously, perhaps later ones
        names = [card.model for card in store.cards(run_id="run-eval")][3 * number : 3 * number + 3]
        seen = [[int(version) for version in name.removeprefix("policy v").split("-")] for name in names]
        assert record["eval/version/oldest"] == min(map(min, seen)) == record["eval/step"]
        assert record["eval/version/newest"] == max(map(max, seen)) >= record["eval/step"]
        assert record["eval/version/mixed"] == pytest.approx(sum(len(each) > 1 for each in seen) / 3)


def test_a_run_that_is_told_to_stop_ends_after_its_step_and_goes_on_later(tmp_path: Path) -> None:
    async def interrupted() -> int:
        training = make_run(tmp_path / "run")

        async def interrupt() -> None:
            await asyncio.sleep(30.0)
            await training.stop()

        stopping = asyncio.create_task(interrupt())
        steps = await training.run()
        await stopping
        return steps

    steps = virtually(interrupted())
    assert 0 < steps < 4
    assert read_checkpoint(checkpoints(tmp_path / "run")[-1]).step == steps
    training = run_to_end(tmp_path / "run")
    assert training.step == 4
    assert sum(training.queue.fates().values()) == training.queue.next_attempt()


def test_a_snapshot_is_what_the_policy_of_its_checkpoint_had_been_taught_from(tmp_path: Path) -> None:
    run_to_end(tmp_path / "run")
    first, last = (read_checkpoint(folder) for folder in checkpoints(tmp_path / "run"))
    assert (first.step, last.step) == (2, 4)
    counts = [snapshot(tmp_path / "run", at.settled, tmp_path / f"{at.step}.sqlite") for at in (first, last)]
    assert counts == [4 * first.settled, 4 * last.settled]
    assert first.settled < last.settled


def test_parts_cover_all_in_order() -> None:
    assert parts(7, 2) == [slice(0, 4), slice(4, 7)]
    assert parts(1, 3) == [slice(0, 1)]
    assert parts(0, 2) == []


def test_progress_is_on_bounds_that_do_not_move(tmp_path: Path) -> None:
    training = run_to_end(tmp_path / "run")
    cards = {card.attempt: card for card in CardStore(tmp_path / "run" / "experience.sqlite").cards(run_id="run")}
    for group in training.queue.groups(GroupState.TRAINED, cards):
        for member in group.members:
            assert member.card is not None
            score = member.card.validation.value if member.card.validation else 0.0
            assert member.progress == pytest.approx(score)
    steps = training.queue.steps()
    assert not np.isnan(steps[-1]["progress/mean"])
    assert Fate.TRAINED in training.queue.fates()
