"""Grading a submission on the hidden answers: the typed check, then the package's own metric, isolated.

`metric.py` is untrusted code. It runs in one isolated process that is given answers and submission and never the
program; a metric that fails is a value, like a program that fails.
"""

import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
from pydantic import Field, ValidationError

from openmle_gym.contracts import Contract
from openmle_gym.isolation.runner import INPUTS, PYTHON, Runner, RunResult, RunSpec
from openmle_gym.jobs import MIB, Limits
from openmle_gym.submission import validate_submission
from openmle_gym.task import TaskPackage

GradedSplit = Literal["validation", "test", "all"]
GRADING_LIMITS = Limits(wall_seconds=300.0, memory_bytes=4096 * MIB, processes=64)
RESULT = "result.json"
RESULT_BYTES = 64 * 1024
CHILD = "grading_child.py"


class Grade(Contract):
    """What a submission is worth, or why it is worth nothing."""

    accepted: bool
    code: str | None = None
    """A `SubmissionCode`, or `refused_by_package`, `metric_failed`, `metric_timeout`; None when accepted."""
    message: str = ""
    row: int | None = None
    column: str | None = None
    warnings: tuple[str, ...] = ()
    scores: dict[GradedSplit, float] = Field(default_factory=dict)
    """By split; empty when not accepted."""
    higher_is_better: bool
    rank: int | None = None
    """On the reference leaderboard, by the score on all rows; None without either."""
    fraction_beaten: float | None = None
    medal: str | None = None


class _Verdict(Contract):
    """What the metric said; what grading_child.py writes."""

    scores: dict[GradedSplit, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)
    code: Literal["refused_by_package", "metric_failed", "metric_timeout"] | None = None
    message: str = ""


async def grade_submission(
    package: TaskPackage, content: bytes, *, splits: Sequence[GradedSplit], runner: Runner
) -> Grade:
    """Checks and scores a submission.

    Args:
        content: The file as it was handed in.
        splits: Which rows of the answers to score it on; each gives one score.

    Raises:
        InfrastructureError: The metric could not be started for reasons of ours.
    """
    direction = package.manifest.metric.higher_is_better
    verdict = validate_submission(
        content,
        answers=package.answers,
        columns=package.manifest.columns,
        prediction=package.manifest.metric.prediction,
    )
    if verdict.aligned is None:
        return Grade(
            accepted=False,
            code=verdict.code,
            message=verdict.message,
            row=verdict.row,
            column=verdict.column,
            warnings=verdict.warnings,
            higher_is_better=direction,
        )
    result = await _run_metric(package, verdict.aligned, splits, runner)
    if result.code is not None:
        return Grade(
            accepted=False,
            code=result.code,
            message=result.message,
            warnings=verdict.warnings,
            higher_is_better=direction,
        )
    graded = Grade(accepted=True, warnings=verdict.warnings, scores=result.scores, higher_is_better=direction)
    return _with_standing(graded, package)


async def _run_metric(
    package: TaskPackage, aligned: pd.DataFrame, splits: Sequence[GradedSplit], runner: Runner
) -> _Verdict:
    with tempfile.TemporaryDirectory(prefix="openmle-grading-") as folder:
        _stage(package, aligned, splits, Path(folder))
        run = await runner.run(
            RunSpec(
                argv=(PYTHON, f"{INPUTS}/grading/{CHILD}", *splits),
                inputs={"grading": Path(folder)},
                limits=GRADING_LIMITS,
                artifacts={RESULT: RESULT_BYTES},
                labels={"grading": package.name},
            )
        )
    return _read_result(run, splits)


def _stage(package: TaskPackage, aligned: pd.DataFrame, splits: Sequence[GradedSplit], folder: Path) -> None:
    """Lays out all that the metric may see: answers and submission by split, and its own text."""
    folder.chmod(0o755)  # the isolated process is another user
    (folder / CHILD).write_bytes(resources.files("openmle_gym").joinpath(CHILD).read_bytes())
    (folder / "metric.py").write_bytes(package.metric_path.read_bytes())
    for split in splits:
        rows = split_mask(package, split)
        package.answers[rows].to_csv(folder / f"{split}_answers.csv", index=False)
        aligned[rows].to_csv(folder / f"{split}_submission.csv", index=False)


def split_mask(package: TaskPackage, split: GradedSplit) -> np.ndarray:
    """[rows of the answers] bool: the rows of a split."""
    if split == "all":
        return np.ones(len(package.answers), dtype=bool)
    return package.validation_rows if split == "validation" else ~package.validation_rows


def _read_result(run: RunResult, splits: Sequence[GradedSplit]) -> _Verdict:
    if run.timed_out:
        seconds = GRADING_LIMITS.wall_seconds
        return _Verdict(code="metric_timeout", message=f"the metric took more than {seconds:g} seconds")
    content = run.artifacts[RESULT].content
    try:
        verdict = _Verdict.model_validate_json(content or b"")
    except ValidationError:
        how = f"signal {run.signal}" if run.signal else f"exit code {run.exit_code}"
        last = run.log.text.strip().splitlines()[-1:] or ["no output"]
        return _Verdict(code="metric_failed", message=f"the metric left no result ({how}): {last[0][:300]}")
    if verdict.code is None and set(verdict.scores) != set(splits):
        return _Verdict(code="metric_failed", message="the metric left no score for some split")
    return verdict


def _with_standing(grade: Grade, package: TaskPackage) -> Grade:
    board, score = package.leaderboard, grade.scores.get("all")
    if board is None or score is None:
        return grade
    return grade.model_copy(
        update={"rank": board.rank(score), "fraction_beaten": board.fraction_beaten(score), "medal": board.medal(score)}
    )
