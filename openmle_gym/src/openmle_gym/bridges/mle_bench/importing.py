"""The whole bridge: a prepared competition to its two packages, and the proof that the official one scores as known."""

import asyncio
import math
from pathlib import Path
from typing import NamedTuple

from openmle_gym.bridges.mle_bench.carve import carve_search
from openmle_gym.bridges.mle_bench.competition import open_competition
from openmle_gym.bridges.mle_bench.official import SAMPLE, import_official
from openmle_gym.contracts import Contract
from openmle_gym.grading import grade_submission
from openmle_gym.isolation.runner import Runner
from openmle_gym.task import TaskPackage

SCORE_TOLERANCE = 1e-4


class Packages(NamedTuple):
    """What a competition became."""

    official: TaskPackage
    search: TaskPackage | None
    """None where no split protocol is known."""


class Verification(Contract):
    """Whether an official package scores as mle-bench does."""

    sample_score: float | None
    """Of the sample submission; None when it was refused."""
    expected: float | None
    """What it scores officially; None where that is not known."""
    answers_score: float | None
    """Of the answers themselves."""
    message: str = ""
    """Why there is no score."""

    @property
    def agrees(self) -> bool:
        """Whether both were graded, and the sample as expected."""
        if self.sample_score is None or self.answers_score is None:
            return False
        return self.expected is None or math.isclose(self.sample_score, self.expected, abs_tol=SCORE_TOLERANCE)


def import_competition(competition: str, *, data: Path, checkout: Path, output: Path) -> Packages:
    """Makes `<output>/official/<id>` and, where a split protocol is known, `<output>/search/<id>`.

    Args:
        data: The data folder of mle-bench.
        checkout: A clone of mle-bench.

    Raises:
        ConfigError: There is no such competition.
        PackageError: The prepared data cannot be used.
    """
    opened = open_competition(competition, data=data, checkout=checkout)
    official = import_official(opened, output / "official" / competition)
    if opened.facts.details is None:
        return Packages(official, None)
    return Packages(official, carve_search(official, opened.facts, output / "search" / competition))


async def verify_official(official: TaskPackage, *, expected: float | None, runner: Runner) -> Verification:
    """Grades the sample submission, and the answers as a submission, on the whole test.

    Raises:
        RunnerUnavailable: The grader could not be started.
    """
    shown = await asyncio.to_thread((official.public_dir / SAMPLE).read_bytes)
    sample = await grade_submission(official, shown, splits=("test",), runner=runner)
    columns = official.manifest.columns
    gold = official.answers[[*columns.id, *columns.target]].to_csv(index=False).encode()
    best = await grade_submission(official, gold, splits=("test",), runner=runner)
    return Verification(
        sample_score=sample.scores.get("test"),
        expected=expected,
        answers_score=best.scores.get("test"),
        message=sample.message or best.message,
    )
