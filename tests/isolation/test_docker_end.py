"""How a program in a container ended, from its supervisor's record, the engine's word and our own deeds."""

import pytest
from openmle_gym.errors import RunnerUnavailable
from openmle_gym.isolation.docker import State, Watched, program_end
from openmle_gym.isolation.logs import Record
from openmle_gym.isolation.runner import BoundedLog


def record(*, exit_code: int | None = None, signal: int | None = None, started: bool = True) -> Record:
    return Record(started=started, exit_code=exit_code, signal=signal, total_bytes=0, log=BoundedLog(head=""))


OURS_TIME, OURS_VRAM, NOT_OURS = Watched(timed_out=True), Watched(over_vram=True, peak_vram_bytes=9), Watched()


@pytest.mark.parametrize(
    ("said", "state", "watched", "end"),
    [
        (record(exit_code=0), State(0, False), NOT_OURS, (0, None)),
        (record(exit_code=137), State(137, False), NOT_OURS, (137, None)),
        (record(signal=9), State(137, False), NOT_OURS, (None, 9)),  # it killed itself
        (record(signal=9), State(137, True), NOT_OURS, (None, 9)),
        (record(exit_code=0), State(0, True), NOT_OURS, (0, None)),  # it outlived a process that was killed for memory
        (record(), State(137, False), OURS_TIME, (None, 9)),
        (record(exit_code=0), State(137, False), OURS_TIME, (None, 9)),  # its descendants lived on, then we came
        (record(), State(137, False), OURS_VRAM, (None, 9)),
        (record(), State(137, True), NOT_OURS, (None, 9)),  # the memory limit took the supervisor too
        (record(started=False), State(137, True), NOT_OURS, (None, 9)),
        (record(), State(3, False), NOT_OURS, (3, None)),  # it has overwritten its record
    ],
)
def test_each_end_of_the_program_is_told(
    said: Record, state: State, watched: Watched, end: tuple[int | None, int | None]
) -> None:
    assert program_end(said, state, watched) == end


@pytest.mark.parametrize(
    ("said", "state", "message"),
    [
        (record(), State(137, False), r"killed from outside \(status 137\)"),
        (record(), State(143, False), r"killed from outside \(status 143\)"),
        (record(started=False), State(137, False), "killed from outside"),
        (record(started=False), State(1, False), r"could not start the program \(status 1\)"),
    ],
)
def test_an_end_that_is_not_the_programs_is_trouble(said: Record, state: State, message: str) -> None:
    with pytest.raises(RunnerUnavailable, match=message):
        program_end(said, state, NOT_OURS)
