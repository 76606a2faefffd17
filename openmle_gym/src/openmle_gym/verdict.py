"""From how a run ended to what it means: the outcome, and one signature for each kind of failure.

Signatures of the limits, beside those of ordinary errors (`Type@function`, `exit_N`, `signal_N`):

    timeout              we killed it at the wall clock
    oom                  memory: killed there, or an allocation failed and the program gave up
    gpu_oom              GPU memory: likewise
    too_many_processes   processes and threads: likewise
    disk_full            a file system of its own was full
    file_too_large       a file grew past the largest size
    too_much_output      we killed it because it printed without end

Output that is merely more than is kept ends no program and is no failure: what is cut is counted in the log. A program of which a process was
killed for memory, and which then ended well, has succeeded; its runner warns. A kill that neither we nor the program
ordered never gets here: the runner raises RunnerUnavailable.
"""

import re
from typing import NamedTuple

from openmle_gym.isolation.runner import Artifact, RunResult
from openmle_gym.jobs import MIB, SUBMISSION, Limits, Outcome
from openmle_gym.signature import error_message, error_signature, failure_text

_SIGXFSZ = 25
_SAID: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "gpu_oom",
        re.compile(r"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAlloc"),
    ),
    ("oom", re.compile(r"^(?:[\w.]*MemoryError)\b|std::bad_alloc|\[Errno 12\]|Cannot allocate memory", re.MULTILINE)),
    ("too_many_processes", re.compile(r"can't start new thread|pthread_create failed|[Cc]annot fork")),
    # Both, in whatever order; anchored, so that a hostile log cannot make it slow.
    ("too_many_processes", re.compile(r"\A(?=.*fork)(?=.*(?:\[Errno 11\]|Resource temporarily))", re.DOTALL)),
    ("disk_full", re.compile(r"No space left on device|\[Errno 28\]|Disk quota exceeded")),
    ("file_too_large", re.compile(r"File too large|\[Errno 27\]|File size limit exceeded")),
)
"""How programs and libraries report, in the text of their failure, that a limit stopped them."""


class Verdict(NamedTuple):
    """What a run means before grading."""

    outcome: Outcome
    """Success means that there is a submission to grade."""
    error_signature: str | None
    """None on success."""
    message: str
    """For a model to read; empty on success."""


def judge(run: RunResult, limits: Limits) -> Verdict:
    """Judges a run of a candidate, whose artifacts hold `SUBMISSION`."""
    if run.timed_out:
        return Verdict(Outcome.TIMEOUT, "timeout", f"the program was stopped after {limits.wall_seconds:g} seconds")
    if run.exit_code != 0:
        signature = _limit_that_stopped(run)
        if signature is not None:
            return _failed(signature, _limit_message(signature, limits))
        if run.signal is not None:
            return _failed(f"signal_{run.signal}", f"the program was ended by signal {run.signal}")
        return _failed(error_signature(run.log.text) or f"exit_{run.exit_code}", error_message(run.log.text))
    return _judge_submission(run.artifacts[SUBMISSION])


def _failed(signature: str, message: str) -> Verdict:
    return Verdict(Outcome.CODE_EXECUTION_ERROR, signature, message)


def _limit_that_stopped(run: RunResult) -> str | None:
    """What a runner did or the kernel counted is certain, so it comes before what the program says."""
    if run.gpu is not None and run.gpu.over_limit:
        return "gpu_oom"
    if run.out_of_memory:
        return "oom"
    if run.too_many_processes:
        return "too_many_processes"
    if run.too_much_output:
        return "too_much_output"
    if run.disk_full:
        return "disk_full"
    if run.signal == _SIGXFSZ:
        return "file_too_large"
    said = failure_text(run.log.text)
    return next((signature for signature, pattern in _SAID if pattern.search(said)), None)


def _limit_message(signature: str, limits: Limits) -> str:
    if signature == "oom":
        return f"the program needed more than its {limits.memory_bytes // MIB} MiB of memory"
    if signature == "gpu_oom":
        return "the program needed more GPU memory than it was given"
    if signature == "too_many_processes":
        return f"the program needed more than its {limits.processes} processes and threads"
    if signature == "too_much_output":
        return f"the program was stopped after it had printed {limits.output_bytes // MIB} MiB"
    if signature == "disk_full":
        return "the program filled the disk that it was given"
    return f"the program wrote a file of more than its {limits.disk_bytes // MIB} MiB"


def _judge_submission(artifact: Artifact) -> Verdict:
    if artifact.content is not None:
        return Verdict(Outcome.SUCCESS, None, "")
    if artifact.refusal == "missing":
        return Verdict(
            Outcome.SUBMISSION_MISSING, "submission_missing", f"the program ended without writing {SUBMISSION}"
        )
    return Verdict(
        Outcome.SCORING_FAILED, f"submission_{artifact.refusal}", f"{SUBMISSION} was refused: {artifact.refusal}"
    )
