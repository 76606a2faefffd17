"""A run that is killed by SIGKILL, at many places, and goes on: nothing finished is made twice or lost."""

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from erl.rl.rl_fakes import Hook, Learner, make_run
from openmle_erl.rl.groups import GroupState
from openmle_erl.rl.queue import GroupQueue
from openmle_erl.rl.simulation import VirtualLoop
from openmle_erl.rl.train import Training, checkpoints
from openmle_gym.errors import StoreError
from openmle_gym.store import CardStore

KILLS = {
    "generate": (3, 40),
    "execute": (1, 30),
    "logprobs": (1, 3),
    "step": (1, 2, 5, 8),
    "save_weights": (1, 3),
    "load_weights": (2,),
    "save": (1, 2),
}


STATEMENTS = {
    "BEGIN IMMEDIATE": (9,),
    "INSERT INTO groups": (2,),
    "INSERT INTO members": (6,),
    "UPDATE members SET": (30, 90),
    "UPDATE groups SET": (7,),
    "INSERT OR REPLACE": (2,),
    "COMMIT": (4, 11),
    "INSERT INTO cards": (20,),
}
"""A kill before the statement runs, some of them in the middle of a transaction."""


def live(folder: Path, kill_at: tuple[str, int] | None, *, evaluated: Sequence[str] = (), **modes: bool) -> int:
    """One life of the run in a process of its own; returns its exit status as `os.waitpid` gives it."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    happened: Counter[str] = Counter()

    def hook(event: str) -> None:
        happened[event] += 1
        if kill_at == (event, happened[event]):
            os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(whole(folder, hook, evaluated=evaluated, **modes))
        code = 0
    finally:
        os._exit(code)


async def whole(
    folder: Path,
    hook: Hook,
    *,
    asynchronous: bool = True,
    background: bool = False,
    evaluated: Sequence[str] = (),
) -> Training:
    """The run to its end; the hook hears of every statement on its file, too."""
    learner = Learner(hook, background=background)
    training = make_run(folder, hook=hook, asynchronous=asynchronous, learner=learner, evaluated=evaluated)
    for tables in (training.queue._tables, training.experience._store.connection):
        tables.set_trace_callback(lambda statement: hook(" ".join(statement.split()[:3])))
    await training.run()
    await training.trainer.close()
    return training


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_that_is_killed_anywhere_ends_as_one_that_was_not(tmp_path: Path, asynchronous: bool) -> None:
    for event, counts in KILLS.items():
        for count in counts:
            folder = tmp_path / f"{event}-{count}"
            assert live(folder, (event, count), asynchronous=asynchronous) == signal.SIGKILL, (event, count)
            replies = generated(folder)
            assert live(folder, None, asynchronous=asynchronous) == 0, (event, count)
            check(folder, replies)


def test_a_kill_between_any_two_statements_on_its_file_loses_nothing(tmp_path: Path) -> None:
    for event, counts in STATEMENTS.items():
        for count in counts:
            folder = tmp_path / f"{event}-{count}"
            assert live(folder, (event, count)) == signal.SIGKILL, (event, count)
            replies = generated(folder)
            assert live(folder, None) == 0, (event, count)
            check(folder, replies)


def test_a_kill_while_a_checkpoint_is_written_in_the_background_costs_that_checkpoint_alone(tmp_path: Path) -> None:
    for count in (1, 2):
        folder = tmp_path / str(count)
        assert live(folder, ("publish", count), background=True) == signal.SIGKILL
        assert [path.name for path in checkpoints(folder)] == ["step-000002"][: count - 1]
        replies = generated(folder)
        assert live(folder, None, background=True) == 0
        check(folder, replies)


def test_an_evaluation_that_a_kill_cuts_short_is_made_good(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert (
        live(run, ("step", 5), evaluated=["held-out"]) == signal.SIGKILL
    )  # of step 3, right after step 2's checkpoint
    assert [path.name for path in checkpoints(run)] == ["step-000002"]
    assert live(run, None, evaluated=["held-out"]) == 0
    queue = GroupQueue(run / "experience.sqlite")
    assert (queue.evaluated(2), queue.evaluated(3), queue.evaluated(4)) == (True, False, True)
    queue.close()


def test_a_run_whose_last_checkpoint_is_gone_goes_on_from_the_one_before(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert live(run, None) == 0
    shutil.rmtree(run / "checkpoints" / "step-000004")
    assert live(run, None) == 0
    check(run, {})


def test_a_run_whose_checkpoints_are_gone_says_so(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert live(run, None) == 0
    shutil.rmtree(run / "checkpoints")
    with (
        pytest.raises(StoreError, match=r"experience\.sqlite: cannot go back to step 0: what step 1 was trained on"),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        runner.run(whole(run, lambda event: None))


def test_a_run_that_is_killed_in_each_of_its_lives_ends_too(tmp_path: Path) -> None:
    for kill_at in [("generate", 5), ("execute", 9), ("step", 1), ("step", 2), ("step", 3), ("save", 1), ("step", 4)]:
        assert live(tmp_path / "run", kill_at, asynchronous=True) == signal.SIGKILL
    assert live(tmp_path / "run", None, asynchronous=True) == 0
    check(tmp_path / "run", {})


def generated(folder: Path) -> dict[int, tuple[int, ...]]:
    """The replies that are on disk, by attempt."""
    queue = GroupQueue(folder / "experience.sqlite")
    found = {
        member.attempt: member.rolled.reply_ids
        for state in (GroupState.IN_FLIGHT, GroupState.READY)
        for group in queue.groups(state, {})
        for member in group.members
        if member.rolled is not None
    }
    queue.close()
    return found


def check(folder: Path, replies: dict[int, tuple[int, ...]]) -> None:
    store = CardStore(folder / "experience.sqlite")
    cards = {card.attempt: card for card in store.cards(run_id="run")}
    queue = GroupQueue(folder / "experience.sqlite")
    trained = queue.groups(GroupState.TRAINED, cards)
    fates = queue.fates()
    assert Counter(group.step for group in trained) == {1: 3, 2: 3, 3: 3, 4: 3}
    assert fates["open"] == 0
    assert sum(fates.values()) == queue.next_attempt()
    assert fates["trained"] == 48
    assert len(cards) == queue.next_attempt()  # the store refuses a second card of one attempt
    assert [step["step"] for step in queue.steps()] == [1, 2, 3, 4]
    assert [path.name for path in checkpoints(folder)] == ["step-000002", "step-000004"]
    assert len(list((folder / "checkpoints").iterdir())) == 2
    assert (folder / "checkpoints" / "step-000004" / "trainer" / "steps").read_text() == "8"
    for attempt, reply in replies.items():
        assert f"value = {sum(reply)}" in cards[attempt].source  # what was generated was judged, not generated anew
    queue.close()
    store.close()
