"""How a run ended, and what that means."""

import pytest
from openmle_gym.isolation.runner import Artifact, BoundedLog, GpuUse, Isolation, RunResult
from openmle_gym.jobs import MIB, Limits, Outcome
from openmle_gym.verdict import judge

LIMITS = Limits(wall_seconds=1.5, memory_bytes=100 * MIB, processes=40, disk_bytes=16 * MIB, output_bytes=3 * MIB)
FAILED = Outcome.CODE_EXECUTION_ERROR


def traceback(error: str, *, line: str = "work()", library: str = "") -> str:
    return (
        f'Traceback (most recent call last):\n  File "/sandbox/main.py", line 8, in fit\n    {line}\n{library}{error}\n'
    )


IN_FORK = '  File "/usr/lib/python3.11/subprocess.py", line 1885, in _execute_child\n    self.pid = _fork_exec(\n'
EXHAUSTED = "BlockingIOError: [Errno 11] Resource temporarily unavailable"


def ended(
    exit_code: int | None = 1,
    log: str = "",
    *,
    signal: int | None = None,
    timed_out: bool = False,
    out_of_memory: bool = False,
    too_many_processes: bool = False,
    disk_full: bool = False,
    too_much_output: bool = False,
    gpu: GpuUse | None = None,
    submission: Artifact | None = None,
) -> RunResult:
    return RunResult(
        exit_code=None if signal else exit_code,
        signal=signal,
        timed_out=timed_out,
        out_of_memory=out_of_memory,
        too_many_processes=too_many_processes,
        disk_full=disk_full,
        too_much_output=too_much_output,
        gpu=gpu,
        wall_seconds=1.0,
        log=BoundedLog(head=log),
        artifacts={"submission.csv": submission or Artifact(content=b"id\n")},
        isolation=Isolation.DOCKER,
    )


VRAM_KILL = GpuUse(enforcement="watchdog", peak_bytes=13, over_limit=True)
VRAM_WELL = GpuUse(enforcement="watchdog", peak_bytes=3)


@pytest.mark.parametrize(
    ("run", "outcome", "signature"),
    [
        (ended(0), Outcome.SUCCESS, None),
        (ended(0, "MemoryError\nNo space left on device\n"), Outcome.SUCCESS, None),
        (ended(0, out_of_memory=True), Outcome.SUCCESS, None),
        (ended(0, gpu=VRAM_WELL), Outcome.SUCCESS, None),
        (ended(0, submission=Artifact(refusal="missing")), Outcome.SUBMISSION_MISSING, "submission_missing"),
        (ended(0, submission=Artifact(refusal="hard_link")), Outcome.SCORING_FAILED, "submission_hard_link"),
        (ended(0, submission=Artifact(refusal="too_large")), Outcome.SCORING_FAILED, "submission_too_large"),
        (ended(signal=9, timed_out=True), Outcome.TIMEOUT, "timeout"),
        (ended(signal=9, timed_out=True, out_of_memory=True), Outcome.TIMEOUT, "timeout"),
        (ended(signal=9, out_of_memory=True), FAILED, "oom"),
        (ended(1, traceback("BrokenProcessPool: a child died"), out_of_memory=True), FAILED, "oom"),
        (ended(1, traceback("MemoryError")), FAILED, "oom"),
        (ended(1, traceback("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8 GiB")), FAILED, "oom"),
        (ended(signal=6, log="terminate called after throwing an instance of 'std::bad_alloc'\n"), FAILED, "oom"),
        (ended(1, traceback("OSError: [Errno 12] Cannot allocate memory")), FAILED, "oom"),
        (ended(1, traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to")), FAILED, "gpu_oom"),
        (ended(signal=9, gpu=VRAM_KILL), FAILED, "gpu_oom"),
        (ended(signal=9, too_many_processes=True), FAILED, "too_many_processes"),
        (ended(signal=9, disk_full=True), FAILED, "disk_full"),
        (ended(signal=9, too_much_output=True), FAILED, "too_much_output"),
        (ended(1, traceback("RuntimeError: can't start new thread")), FAILED, "too_many_processes"),
        (ended(1, traceback(EXHAUSTED, library=IN_FORK)), FAILED, "too_many_processes"),
        (ended(1, traceback(EXHAUSTED, line="os.fork()")), FAILED, "too_many_processes"),
        (ended(2, "sh: 0: Cannot fork\n"), FAILED, "too_many_processes"),
        (ended(1, traceback(EXHAUSTED, line="pipe.read()")), FAILED, "BlockingIOError@fit"),
        (ended(1, traceback("OSError: [Errno 28] No space left on device")), FAILED, "disk_full"),
        (ended(1, "cp: error writing 'x': No space left on device\n"), FAILED, "disk_full"),
        (ended(1, traceback("OSError: [Errno 27] File too large")), FAILED, "file_too_large"),
        (ended(signal=25), FAILED, "file_too_large"),
        (ended(signal=11), FAILED, "signal_11"),
        (ended(signal=9), FAILED, "signal_9"),
        (ended(7, "bye\n"), FAILED, "exit_7"),
        (ended(1, traceback("ValueError: Input X contains NaN.")), FAILED, "ValueError@fit"),
    ],
)
def test_each_end_has_its_outcome_and_signature(run: RunResult, outcome: Outcome, signature: str | None) -> None:
    verdict = judge(run, LIMITS)
    assert (verdict.outcome, verdict.error_signature) == (outcome, signature)
    assert bool(verdict.message) == (outcome is not Outcome.SUCCESS)


def test_a_limit_that_an_earlier_error_met_and_survived_is_not_what_ended_it() -> None:
    log = traceback("OSError: [Errno 28] No space left on device") + "going on\n" + traceback("KeyError: 'x'")
    assert judge(ended(1, log), LIMITS).error_signature == "KeyError@fit"


@pytest.mark.parametrize(
    "sentence",
    [
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    ],
)
def test_a_limit_that_led_to_the_last_error_is_what_ended_it(sentence: str) -> None:
    log = traceback("OSError: [Errno 28] No space left on device") + f"\n{sentence}\n\n" + traceback("KeyError: 'x'")
    assert judge(ended(1, log), LIMITS).error_signature == "disk_full"


def test_words_of_an_earlier_log_are_no_failure() -> None:
    log = "Cannot allocate memory\n" + "epoch\n" * 500 + "bye\n"
    assert judge(ended(3, log), LIMITS).error_signature == "exit_3"


def test_messages_name_the_limit() -> None:
    def message(run: RunResult) -> str:
        return judge(run, LIMITS).message

    assert message(ended(signal=9, timed_out=True)) == "the program was stopped after 1.5 seconds"
    assert message(ended(signal=9, out_of_memory=True)) == "the program needed more than its 100 MiB of memory"
    assert message(ended(signal=9, too_many_processes=True)).endswith("its 40 processes and threads")
    assert message(ended(signal=9, too_much_output=True)) == "the program was stopped after it had printed 3 MiB"
    assert message(ended(signal=25)) == "the program wrote a file of more than its 16 MiB"
    assert message(ended(1, traceback("ValueError: bad"))) == "ValueError: bad (line 8: work())"
