"""Competitions as mle-bench would have prepared them, small and made up, with graders that have the faults of real ones."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

GRADE = """
import numpy as np

from mlebench.competitions.utils import checked
from mlebench.grade_helpers import InvalidSubmissionError
from mlebench.utils import get_logger
from .classes import TARGETS

logger = get_logger(__name__)


def grade(submission, answers):
    checked(submission, answers)
    if (submission[TARGETS].to_numpy() < 0).any():
        raise InvalidSubmissionError("negative predictions")
    if (submission[TARGETS].to_numpy() > 1000).any():
        raise KeyError("a bug of the grader")
    submission.drop(columns=[c for c in submission.columns if c not in TARGETS], inplace=True)
    errors = submission.to_numpy(dtype=float) - answers[TARGETS].to_numpy(dtype=float)  # by position, ids ignored
    return np.float32(np.sqrt(np.mean(errors**2)))
"""
UTILS = """
from mlebench.grade_helpers import InvalidSubmissionError


def checked(submission, answers):
    if len(submission) != len(answers):
        raise InvalidSubmissionError("another number of rows")
"""
CONFIG = """
id: {id}
name: {id} by name
dataset:
  answers: {id}/prepared/private/{answers}
  sample_submission: {id}/prepared/{sample}
grader:
  name: any
  grade_fn: mlebench.competitions.{id}.grade:grade
preparer: mlebench.competitions.{id}.prepare:prepare
"""
Table = Sequence[Mapping[str, object]]


def write_table(path: Path, rows: Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        out = csv.DictWriter(file, list(rows[0]))
        out.writeheader()
        out.writerows(rows)


def read_table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class Bench:
    """A clone and a data folder of mle-bench."""

    def __init__(self, root: Path) -> None:
        self.checkout = root / "clone"
        self.data = root / "data"

    def add(
        self,
        id: str,
        *,
        targets: Sequence[str],
        answers: Table,
        sample: Table,
        answers_name: str = "test.csv",
        sample_name: str = "public/sample_submission.csv",
        grade: str = GRADE,
    ) -> Path:
        """Adds a competition; returns its public folder, to be filled."""
        folder = self.checkout / "mlebench" / "competitions" / id
        folder.mkdir(parents=True)
        (folder.parent / "utils.py").write_text(UTILS)
        (folder / "classes.py").write_text(f"TARGETS = {list(targets)!r}\n")
        (folder / "grade.py").write_text(grade)
        (folder / "config.yaml").write_text(CONFIG.format(id=id, answers=answers_name, sample=sample_name))
        (folder / "description.md").write_text(f"Predict for {id}.\n")
        write_table(folder / "leaderboard.csv", [{"teamId": n, "score": n / 10} for n in range(20)])
        prepared = self.data / id / "prepared"
        write_table(prepared / "private" / answers_name, answers)
        write_table(prepared / sample_name, sample)
        (prepared / "public").mkdir(exist_ok=True)
        return prepared / "public"
