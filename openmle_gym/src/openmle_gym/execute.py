"""From a program to a verdict: run it isolated, take its submission, grade that apart, say how it ended.

    program -> Runner (data/public only) -> submission.csv, read after death -> typed validation
            -> metric.py in a second isolated process (answers and submission, never the program) -> JobResult

What a service worker calls, and what `LocalExecutor` calls on a laptop: the same road.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from openmle_gym.errors import ConfigError
from openmle_gym.isolation.runner import INPUTS, PYTHON, Artifact, Runner, RunResult, RunSpec
from openmle_gym.jobs import GRADING_LIMITS, MIB, SUBMISSION, JobRequest, JobResult, Limits, Outcome
from openmle_gym.program import program_id
from openmle_gym.signature import PROGRAM_FILE, self_reported_score
from openmle_gym.task import TaskPackage, load_package
from openmle_gym.verdict import judge

if TYPE_CHECKING:
    from openmle_gym.grading import GradedSplit

SUBMISSION_BYTES = 256 * MIB
LOG_START, LOG_END = "--- SANDBOX STDOUT START ---", "--- SANDBOX STDOUT END ---"


class JobRun(NamedTuple):
    """How a job ended, and what its program left behind."""

    result: JobResult
    artifacts: Mapping[str, bytes]
    """The files that the request names, by name, as far as they were found, could be trusted and fit."""


async def run_job(
    request: JobRequest,
    *,
    package: TaskPackage,
    runner: Runner,
    limits: Limits | None = None,
    grading_limits: Limits = GRADING_LIMITS,
    artifact_bytes: int = 0,
    adapted: Callable[[RunSpec], RunSpec] | None = None,
) -> JobRun:
    """Runs one program to its verdict.

    Args:
        limits: What the program may use; its wall clock is the request's timeout where that is shorter.
        grading_limits: What the metric may use.
        artifact_bytes: The most that is kept of the files that the request names, together.
        adapted: Puts into the program's spec what only the place knows where it runs (a GPU, who reads the log).

    Raises:
        InfrastructureError: The machinery failed, so nothing is known about the program.
    """
    limits = limits or Limits()
    limits = limits.model_copy(update={"wall_seconds": min(limits.wall_seconds, request.timeout_seconds)})
    direction = package.manifest.metric.higher_is_better
    if not request.code.strip():
        nothing = JobResult(
            outcome=Outcome.CODE_MISSING,
            message="the program is empty",
            error_signature="no_code",
            eval_split=request.eval_split,
            higher_is_better=direction,
            isolation=runner.isolation,
        )
        return JobRun(nothing, {})
    spec = program_spec(request, package, limits, artifact_bytes=artifact_bytes)
    run = await runner.run(adapted(spec) if adapted else spec)
    ended = judge_run(run, limits).model_copy(update={"eval_split": request.eval_split, "higher_is_better": direction})
    kept, refusals = _kept(request.artifacts if artifact_bytes else [], run.artifacts, artifact_bytes)
    ended = ended.model_copy(update={"warnings": [*ended.warnings, *refusals]})
    submission = run.artifacts[SUBMISSION].content
    if ended.outcome is Outcome.SUCCESS and submission is not None:
        ended = await _graded(ended, submission, request, package, runner, grading_limits)
    return JobRun(ended, kept)


def program_spec(request: JobRequest, package: TaskPackage, limits: Limits, *, artifact_bytes: int = 0) -> RunSpec:
    """What a candidate is given: its own text and the package's public folder; nothing else."""
    wanted = dict.fromkeys(request.artifacts, artifact_bytes) if artifact_bytes else {}
    return RunSpec(
        argv=(PYTHON, "-u", PROGRAM_FILE),
        files={PROGRAM_FILE: request.code.encode("utf-8", errors="surrogateescape")},
        inputs={"data": package.public_dir},
        environment={"DATA_DIR": f"{INPUTS}/data"},
        limits=limits,
        artifacts=wanted | {SUBMISSION: SUBMISSION_BYTES},
        labels={**request.labels, "program_id": program_id(request.code)},
    )


def _kept(
    names: Sequence[str], artifacts: Mapping[str, Artifact], budget_bytes: int
) -> tuple[dict[str, bytes], list[str]]:
    """The files to keep, in the order that they were asked for while they fit, and a warning for each that does not."""
    kept: dict[str, bytes] = {}
    warnings: list[str] = []
    for name in names:
        content, refusal = artifacts[name].content, artifacts[name].refusal
        if content is not None and len(content) <= budget_bytes:
            kept[name] = content
            budget_bytes -= len(content)
        elif refusal != "missing":
            warnings.append(f"artifact {name} was not kept: {refusal or 'too_large'}")
    return kept, warnings


def judge_run(run: RunResult, limits: Limits) -> JobResult:
    """The outcome of a run before grading: success means that there is a submission to grade."""
    outcome, signature, message = judge(run, limits)
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
        vram_enforcement=run.gpu.enforcement if run.gpu else None,
        peak_vram_bytes=run.gpu.peak_bytes if run.gpu else None,
    )


def _defanged(log: str) -> str:
    """The log with the marker lines broken, so that a program cannot print its own."""
    for marker in (LOG_START, LOG_END):
        log = log.replace(marker, marker.replace("---", "- -", 1))
    return log


async def _graded(
    ended: JobResult, submission: bytes, request: JobRequest, package: TaskPackage, runner: Runner, limits: Limits
) -> JobResult:
    await asyncio.to_thread(_import_grading)
    from openmle_gym.grading import grade_submission

    splits: Sequence[GradedSplit] = ("validation", "test") if request.eval_split == "both" else (request.eval_split,)
    started = asyncio.get_running_loop().time()
    grade = await grade_submission(package, submission, splits=splits, runner=runner, limits=limits)
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


def _import_grading() -> None:
    """Imports pandas too: a service answers sooner without it, and one whose nodes grade never needs it."""
    import openmle_gym.grading  # noqa: F401


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
        return (await self._run(job)).result

    async def submission(self, job: JobRequest) -> bytes | None:
        """See `openmle_gym.submissions.SubmissionSource`; nothing is kept here, so the program runs once more."""
        job = job.model_copy(update={"artifacts": [SUBMISSION]})
        return (await self._run(job, artifact_bytes=SUBMISSION_BYTES)).artifacts.get(SUBMISSION)

    async def _run(self, job: JobRequest, *, artifact_bytes: int = 0) -> JobRun:
        package = load_package(resolve_package(job.data_dir, [self._task_root]))
        asked = asyncio.get_running_loop().time()
        async with self._slots:
            queued = asyncio.get_running_loop().time() - asked
            run = await run_job(
                job, package=package, runner=self._runner, limits=self._limits, artifact_bytes=artifact_bytes
            )
        return run._replace(result=run.result.model_copy(update={"queue_seconds": queued}))


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
