"""From a program to a verdict: run it isolated, take its submission, grade that apart, say how it ended.

    program -> Runner (data/public only) -> submission.csv, read after death -> typed validation
            -> metric.py in a second isolated process (answers and submission, never the program) -> JobResult

What a service worker calls, and what `LocalExecutor` calls on a laptop: the same road.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from openmle_gym.errors import ConfigError
from openmle_gym.grading import GradedSplit, grade_submission
from openmle_gym.isolation.runner import INPUTS, PYTHON, Runner, RunResult, RunSpec
from openmle_gym.jobs import MIB, JobRequest, JobResult, Limits, Outcome
from openmle_gym.program import program_id
from openmle_gym.signature import PROGRAM_FILE, error_message, error_signature, self_reported_score
from openmle_gym.task import TaskPackage, load_package

SUBMISSION = "submission.csv"
SUBMISSION_BYTES = 256 * MIB
LOG_START, LOG_END = "--- SANDBOX STDOUT START ---", "--- SANDBOX STDOUT END ---"


async def run_job(
    request: JobRequest, *, package: TaskPackage, runner: Runner, limits: Limits | None = None
) -> JobResult:
    """Runs one program to its verdict.

    Args:
        limits: What the program may use; its wall clock is the request's timeout where that is shorter.

    Raises:
        InfrastructureError: The machinery failed, so nothing is known about the program.
    """
    limits = limits or Limits()
    limits = limits.model_copy(update={"wall_seconds": min(limits.wall_seconds, request.timeout_seconds)})
    direction = package.manifest.metric.higher_is_better
    if not request.code.strip():
        return JobResult(
            outcome=Outcome.CODE_MISSING,
            message="the program is empty",
            error_signature="no_code",
            eval_split=request.eval_split,
            higher_is_better=direction,
            isolation=runner.isolation,
        )
    run = await runner.run(program_spec(request, package, limits))
    ended = judge_run(run, limits).model_copy(update={"eval_split": request.eval_split, "higher_is_better": direction})
    submission = run.artifacts[SUBMISSION].content
    if ended.outcome is not Outcome.SUCCESS or submission is None:
        return ended
    return await _graded(ended, submission, request, package, runner)


def program_spec(request: JobRequest, package: TaskPackage, limits: Limits) -> RunSpec:
    """What a candidate is given: its own text and the package's public folder; nothing else."""
    return RunSpec(
        argv=(PYTHON, "-u", PROGRAM_FILE),
        files={PROGRAM_FILE: request.code.encode("utf-8", errors="surrogateescape")},
        inputs={"data": package.public_dir},
        environment={"DATA_DIR": f"{INPUTS}/data"},
        limits=limits,
        artifacts={SUBMISSION: SUBMISSION_BYTES},
        labels={**request.labels, "program_id": program_id(request.code)},
    )


def judge_run(run: RunResult, limits: Limits) -> JobResult:
    """The outcome of a run before grading: success means that there is a submission to grade."""
    outcome, signature, message = _verdict(run, limits)
    log = run.log.text
    return JobResult(
        outcome=outcome,
        error_signature=signature,
        message=message,
        warnings=list(run.warnings),
        self_reported_score=self_reported_score(log),
        exit_code=run.exit_code,
        program_seconds=run.wall_seconds,
        run_log=f"{LOG_START}\n{_defanged(log)}\n{LOG_END}\n",
        truncated_bytes=run.log.truncated_bytes,
        isolation=run.isolation,
    )


def _verdict(run: RunResult, limits: Limits) -> tuple[Outcome, str | None, str]:
    log = run.log.text
    if run.timed_out:
        return Outcome.TIMEOUT, "timeout", f"the program was stopped after {limits.wall_seconds:g} seconds"
    signature = error_signature(log)
    if (run.out_of_memory and run.exit_code != 0) or (
        run.exit_code and signature and signature.startswith("MemoryError")
    ):
        limit = limits.memory_bytes // MIB
        return Outcome.CODE_EXECUTION_ERROR, "oom", f"the program needed more than its {limit} MiB of memory"
    if run.exit_code and signature and "No space left on device" in log:
        return Outcome.CODE_EXECUTION_ERROR, "disk_full", "the program filled the disk that it was given"
    if run.signal is not None:
        return Outcome.CODE_EXECUTION_ERROR, f"signal_{run.signal}", f"the program was ended by signal {run.signal}"
    if run.exit_code != 0:
        return Outcome.CODE_EXECUTION_ERROR, signature or f"exit_{run.exit_code}", error_message(log)
    artifact = run.artifacts[SUBMISSION]
    if artifact.content is None:
        if artifact.refusal == "missing":
            return Outcome.SUBMISSION_MISSING, "submission_missing", f"the program ended without writing {SUBMISSION}"
        return Outcome.SCORING_FAILED, f"submission_{artifact.refusal}", f"{SUBMISSION} was refused: {artifact.refusal}"
    return Outcome.SUCCESS, None, ""


def _defanged(log: str) -> str:
    """The log with the marker lines broken, so that a program cannot print its own."""
    for marker in (LOG_START, LOG_END):
        log = log.replace(marker, marker.replace("---", "- -", 1))
    return log


async def _graded(
    ended: JobResult, submission: bytes, request: JobRequest, package: TaskPackage, runner: Runner
) -> JobResult:
    splits: Sequence[GradedSplit] = ("validation", "test") if request.eval_split == "both" else (request.eval_split,)
    started = asyncio.get_running_loop().time()
    grade = await grade_submission(package, submission, splits=splits, runner=runner)
    ended = ended.model_copy(
        update={
            "grading_seconds": asyncio.get_running_loop().time() - started,
            "warnings": [*ended.warnings, *grade.warnings],
        }
    )
    if not grade.accepted:
        return ended.model_copy(
            update={"outcome": Outcome.SCORING_FAILED, "error_signature": grade.code, "message": grade.message}
        )
    validation, test = grade.scores.get("validation"), grade.scores.get("test")
    return ended.model_copy(
        update={
            "validation_score": validation,
            "test_score": test,
            "score": test if request.eval_split == "test" else validation,
        }
    )


class LocalExecutor:
    """Runs jobs on this machine, without a service: an `Executor`."""

    def __init__(self, *, task_root: Path, runner: Runner, limits: Limits | None = None, parallel: int = 1) -> None:
        """Args:
        task_root: The folder that every job's `data_dir` must lie in.
        parallel: Jobs that run at once; the others wait.
        """
        self._task_root = task_root.resolve()
        self._runner = runner
        self._limits = limits or Limits()
        self._slots = asyncio.Semaphore(parallel)

    async def run(self, job: JobRequest) -> JobResult:
        """See `openmle_gym.jobs.Executor`."""
        package = load_package(resolve_package(job.data_dir, [self._task_root]))
        asked = asyncio.get_running_loop().time()
        async with self._slots:
            queued = asyncio.get_running_loop().time() - asked
            result = await run_job(job, package=package, runner=self._runner, limits=self._limits)
        return result.model_copy(update={"queue_seconds": queued})


def resolve_package(data_dir: str, roots: Sequence[Path]) -> Path:
    """The folder that a job's `data_dir` names: relative to a root, or absolute inside one.

    Raises:
        ConfigError: It lies in none of the roots; symbolic links do not lead out of them.
    """
    for root in roots:
        try:
            candidate = (root / data_dir).resolve()
            inside = candidate.is_relative_to(root.resolve()) and candidate.is_dir()
        except (ValueError, OSError) as error:  # a NUL, a name too long
            raise ConfigError(f"data_dir {data_dir[:200]!r}: {error}") from error
        if inside:
            return candidate
    raise ConfigError(f"data_dir {data_dir!r}: no such folder in the task roots")
