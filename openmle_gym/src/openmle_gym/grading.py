"""Grading a submission: validated here, then scored by the package's `metric.py` in one isolated process of its own.

The metric's process sees the answers and the submission, never the program; the program's process saw no answers. The
metric gets both tables aligned row by row, so that one that pairs rows by position is right too. A metric that fails is
a value; only a runner that cannot work raises.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import Field, FiniteFloat, ValidationError

from openmle_gym.contracts import Contract, ForeignContract
from openmle_gym.errors import PackageError
from openmle_gym.grading_tables import Column, coded_column, pack, text_column
from openmle_gym.isolation.runner import INPUTS, PYTHON, Runner, RunResult, RunSpec
from openmle_gym.jobs import GRADING_LIMITS, MIB, Limits
from openmle_gym.leaderboard import Leaderboard, Medal
from openmle_gym.submission import AnswerKey, SubmissionFault, validate_submission
from openmle_gym.submission_bulk import FLOAT_PRECISION
from openmle_gym.submission_key import AnswerTarget
from openmle_gym.task import TaskPackage

RESULT = "result.json"
RESULT_BYTES = 64 * 1024
KEPT_ANSWERS = 4
CHILD = Path(__file__).with_name("grading_child.py")

GradedSplit = Literal["validation", "test", "all"]


class MetricFault(StrEnum):
    """Why a valid submission has no score."""

    REFUSED_BY_PACKAGE = "refused_by_package"
    """The package's own `validate_submission` refused it."""
    METRIC_FAILED = "metric_failed"
    """It raised, returned no number, or died."""
    METRIC_TIMEOUT = "metric_timeout"
    SCORE_NOT_FINITE = "score_not_finite"


class Grade(Contract):
    """What a submission is worth, or why it is worth nothing."""

    accepted: bool
    """There are scores."""
    code: SubmissionFault | MetricFault | None = None
    """Why there are none; None when there are."""
    message: str = ""
    """What is wrong, fit to show a model; empty when accepted."""
    row: int | None = None
    """The first offending row of the submission, counted from 1 without the header."""
    column: str | None = None
    warnings: tuple[str, ...] = ()
    scores: dict[GradedSplit, float] = Field(default_factory=dict)
    higher_is_better: bool
    rank: int | None = None
    """On the package's leaderboard, by the score on all rows; None without either."""
    fraction_beaten: float | None = None
    """Of the leaderboard, strictly."""
    medal: Medal | None = None


class _ChildResult(ForeignContract):
    """What `grading_child.py` writes."""

    fault: MetricFault | None = None
    message: str = ""
    scores: dict[GradedSplit, FiniteFloat] = Field(default_factory=dict)


async def grade_submission(
    package: TaskPackage,
    content: bytes,
    *,
    splits: Sequence[GradedSplit],
    runner: Runner,
    limits: Limits = GRADING_LIMITS,
) -> Grade:
    """Grades a submission on halves of the hidden answers, or on all of them.

    Args:
        content: The submission, as the program left it.
        limits: What the metric may use.

    Raises:
        PackageError: The package's answers cannot be used.
        RunnerUnavailable: The metric could not be started.
    """
    manifest = package.manifest
    hidden = await asyncio.to_thread(hidden_answers, package)
    verdict = await asyncio.to_thread(validate_submission, content, key=hidden.key)
    grade = Grade(
        accepted=verdict.accepted,
        code=verdict.code,
        message=verdict.message,
        row=verdict.row,
        column=verdict.column,
        warnings=verdict.warnings,
        higher_is_better=manifest.metric.higher_is_better,
    )
    if verdict.aligned is None:
        return grade
    spec = await asyncio.to_thread(_grading_spec, package, hidden, verdict.aligned, splits, limits)
    result = _read_result(await runner.run(spec), splits, limits)
    if result.fault is not None:
        return grade.model_copy(update={"accepted": False, "code": result.fault, "message": result.message})
    grade = grade.model_copy(update={"scores": result.scores})
    return with_standing(grade, package.leaderboard) if "all" in splits else grade


def with_standing(grade: Grade, leaderboard: Leaderboard | None) -> Grade:
    """The grade with rank and medal, where it has a score on all rows and there is a leaderboard."""
    score = grade.scores.get("all")
    if score is None or leaderboard is None:
        return grade
    return grade.model_copy(
        update={
            "rank": leaderboard.rank(score),
            "fraction_beaten": leaderboard.fraction_beaten(score),
            "medal": leaderboard.medal(score),
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenAnswers:
    """A package's answers, made ready to grade any number of submissions on."""

    package: TaskPackage
    key: AnswerKey
    table: bytes
    """As the grading process reads them."""


_hidden: OrderedDict[tuple[object, ...], HiddenAnswers] = OrderedDict()


def hidden_answers(package: TaskPackage) -> HiddenAnswers:
    """The package's answers; those of the last few packages are kept while their files do not change.

    Raises:
        PackageError: The answers cannot be used.
    """
    manifest = package.manifest
    stamp = package.answers_path.stat()
    of = (
        *(package.root, manifest.columns, manifest.metric.prediction, manifest.hidden_split),
        *(stamp.st_mtime_ns, stamp.st_size, stamp.st_ino),
    )
    if (kept := _hidden.get(of)) is not None:
        return kept
    try:
        key = AnswerKey(package.answers, manifest.columns, manifest.metric.prediction)
    except ValueError as error:
        raise PackageError(f"{package.answers_path}: {error}") from error
    made = HiddenAnswers(package=package, key=key, table=pack(answer_columns(package)))
    _hidden[of] = made
    while len(_hidden) > KEPT_ANSWERS:
        _hidden.popitem(last=False)
    return made


def answer_columns(package: TaskPackage) -> dict[str, Column]:
    """The answers as the metric sees them: free text as it is written, all else with the types that pandas reads."""
    answers, manifest = package.answers, package.manifest
    verbatim = set(manifest.columns.target) if manifest.metric.prediction == "text" else set()
    typed = pd.read_csv(
        package.answers_path,
        encoding="utf-8-sig",
        low_memory=False,
        float_precision=FLOAT_PRECISION,
        index_col=False,
    )
    columns: dict[str, Column] = {}
    for name in answers.columns:
        values = typed[name].to_numpy()
        if name not in verbatim and values.dtype.kind in "iufb" and len(values) == len(answers):
            columns[name] = Column(values=values)
        else:
            columns[name] = text_column(answers[name], verbatim=name in verbatim)
    return columns


def _grading_spec(
    package: TaskPackage, hidden: HiddenAnswers, aligned: pd.DataFrame, splits: Sequence[GradedSplit], limits: Limits
) -> RunSpec:
    targets = {target.name: prediction_column(target, aligned[target.name]) for target in hidden.key.targets}
    rows = [_rows(hidden.package, split) for split in splits]
    return RunSpec(
        argv=(PYTHON, f"{INPUTS}/{CHILD.name}", f"{INPUTS}/metric.py", RESULT),
        files={
            "answers.npy": hidden.table,
            "submission.npy": pack(targets, rows, order=list(aligned.columns), splits=list(splits)),
        },
        inputs={CHILD.name: CHILD, "metric.py": package.metric_path},
        limits=limits,
        artifacts={RESULT: RESULT_BYTES},
        labels={"task": package.name, "step": "grading"},
    )


def prediction_column(target: AnswerTarget, predictions: pd.Series) -> Column:
    """Numbers are integers where they and the answers are, so that a metric that compares text finds `1` in `1.0`."""
    if not target.is_number:
        forms = [str(form) for form in predictions.cat.categories]
        return coded_column(predictions.cat.codes.to_numpy(), forms, verbatim=target.is_text)
    values = predictions.to_numpy()
    if target.is_whole and np.all((values == np.rint(values)) & (np.abs(values) < 1e15)):
        values = values.astype(np.int64)
    return Column(values=values)


def _rows(package: TaskPackage, split: GradedSplit) -> np.ndarray:
    """[rows] bool: a split's rows among the answers'."""
    if split == "all":
        return np.ones(len(package.answers), dtype=bool)
    rows = package.validation_rows == (split == "validation")
    if not rows.any():
        raise PackageError(f"{package.root}: no row of the answers is in the {split} half")
    return rows


def _read_result(run: RunResult, splits: Sequence[GradedSplit], limits: Limits) -> _ChildResult:
    content = run.artifacts[RESULT].content
    if content is None:
        if run.timed_out:
            message = f"the metric was stopped after {limits.wall_seconds:g} seconds"
            return _ChildResult(fault=MetricFault.METRIC_TIMEOUT, message=message)
        how = f"signal {run.signal}" if run.exit_code is None else f"exit code {run.exit_code}"
        end = f"more than {limits.memory_bytes // MIB} MiB of memory" if run.out_of_memory else how
        return _ChildResult(fault=MetricFault.METRIC_FAILED, message=f"the metric ended without a score: {end}")
    try:
        result = _ChildResult.model_validate_json(content)
    except ValidationError:
        result = _ChildResult()
    if result.fault is None and set(result.scores) != set(splits):
        return _ChildResult(fault=MetricFault.METRIC_FAILED, message="the metric's result cannot be read")
    return result
