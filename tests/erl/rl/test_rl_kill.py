"""A run that is killed by SIGKILL, at many places, and goes on: nothing finished is made twice or lost."""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from erl.rl.rl_fakes import make_run
from openmle_erl.rl.groups import GroupState
from openmle_erl.rl.queue import GroupQueue
from openmle_erl.rl.simulation import VirtualLoop
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


def live(folder: Path, kill_at: tuple[str, int] | None, *, asynchronous: bool) -> int:
    """One life of the run in a process of its own; returns its exit status as `os.waitpid` gives it."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    happened: Counter[str] = Counter()

    def hook(event: str) -> None:
        happened[event] += 1
        if kill_at == (event, happened[event]):
            os.kill(os.getpid(), signal.SIGKILL)

    async def life() -> None:
        await make_run(folder, hook=hook, asynchronous=asynchronous).run()

    code = 1
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(life())
        code = 0
    finally:
        os._exit(code)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_that_is_killed_anywhere_ends_as_one_that_was_not(tmp_path: Path, asynchronous: bool) -> None:
    for event, counts in KILLS.items():
        for count in counts:
            folder = tmp_path / f"{event}-{count}"
            assert live(folder, (event, count), asynchronous=asynchronous) == signal.SIGKILL, (event, count)
            replies = generated(folder)
            assert live(folder, None, asynchronous=asynchronous) == 0, (event, count)
            check(folder, replies)


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
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-000002", "step-000004"]
    assert (folder / "checkpoints" / "step-000004" / "trainer" / "steps").read_text() == "8"
    for attempt, reply in replies.items():
        assert f"value = {sum(reply)}" in cards[attempt].source  # what was generated was judged, not generated anew
    queue.close()
    store.close()
