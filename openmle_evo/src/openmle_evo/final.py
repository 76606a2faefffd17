"""The one grading on the test split, after the search is over.

It is a call of its own, with a key of its own; nothing that selects can reach it.
"""

from datetime import UTC, datetime

from openmle_gym.evaluate import JobSettings
from openmle_gym.experience import ExperienceCard
from openmle_gym.jobs import Executor, JobRequest, JobResult
from openmle_gym.scores import TestScore
from openmle_gym.task import TaskPackage

from openmle_evo.run import FinalReport, Standing

SAMPLE_PROGRAM = """\
import os, shutil

shutil.copyfile(os.path.join(os.environ["DATA_DIR"], "sample_submission.csv"), "submission.csv")
"""
"""Hands in the sample submission, so that it is graded on the same rows by the same road."""


async def grade_finally(
    best: ExperienceCard, package: TaskPackage, *, cards: int, grader: Executor, settings: JobSettings
) -> FinalReport:
    """Grades the chosen program, and the sample submission beside it, on the test split.

    Args:
        cards: How many the run has.
        grader: An executor that may grade on the test split.

    Raises:
        InfrastructureError: The machinery failed; the run stays without a final report and can be graded later.
    """
    assert best.validation is not None
    assert best.program_id is not None
    program, sample = [
        await grader.run(_test_job(source, key, best, settings))
        for source, key in ((best.source, best.program_id), (SAMPLE_PROGRAM, "sample"))
    ]
    test = program.test()
    return FinalReport(
        attempt=best.attempt,
        program_id=best.program_id,
        validation=best.validation,
        test=test,
        message=_failure(program),
        sample_submission=sample.test(),
        standing=standing(test, package),
        sandbox_seconds=sum(each.program_seconds + each.grading_seconds for each in (program, sample)),
        cards=cards,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    )


def _test_job(source: str, key: str, best: ExperienceCard, settings: JobSettings) -> JobRequest:
    return JobRequest(
        name=best.task,
        code=source,
        data_dir=settings.data_dir,
        timeout_seconds=settings.timeout_seconds,
        resource_type=settings.resource_type,
        priority=1,
        eval_split="test",
        idempotency_key=f"{best.run_id}-final-{key}",
        labels={"run": best.run_id, "attempt": "final"},
    )


def _failure(result: JobResult) -> str:
    return "" if result.test() is not None else f"{result.outcome}: {result.message}"


def standing(test: TestScore | None, package: TaskPackage) -> Standing | None:
    """Where a test score stands among the reference leaderboard; None without either."""
    board = package.leaderboard
    if test is None or board is None:
        return None
    return Standing(
        entries=len(board.scores),
        rank=board.rank(test.value),
        fraction_beaten=board.fraction_beaten(test.value),
        medal=board.medal(test.value),
        made_by=package.manifest.provenance.leaderboard,
    )
