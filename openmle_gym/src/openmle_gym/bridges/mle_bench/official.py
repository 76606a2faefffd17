"""A prepared competition as a package whose official test stays whole: for the one final submission."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from openmle_gym.bridges.mle_bench.archives import unpack_archives
from openmle_gym.bridges.mle_bench.competition import Competition, leaderboard_text, refuse_pointer
from openmle_gym.bridges.mle_bench.grader import grader_module
from openmle_gym.bridges.placing import finish, link_tree, placed, write_file
from openmle_gym.errors import PackageError
from openmle_gym.manifest import Columns, HiddenSplit, Manifest, Metric, Provenance
from openmle_gym.task import TaskPackage, load_package
from openmle_gym.text_table import read_header, read_text_table

ROW_ID = "row_id"
"""Names rows where the official submission has no column that does."""
SAMPLE = "sample_submission.csv"
PREPARE = '''"""The files were prepared by mle-bench."""


def prepare(raw, public, private):
    raise RuntimeError("this package was made from a competition that mle-bench prepared")
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What a submission looks like."""

    columns: Columns
    order: list[str]
    """The columns that the grader is given, as the official sample has them."""
    added: list[str]
    """Columns of our answers that the grader does not know."""
    sample: pd.DataFrame
    answers: pd.DataFrame


def import_official(competition: Competition, destination: Path) -> TaskPackage:
    """Makes the package; its public files are links to the prepared ones, archives unpacked.

    Raises:
        PackageError: The prepared data cannot be used.
    """
    with placed(destination) as root:
        public = root / "data" / "public"
        link_tree(competition.public, public)
        for path in public.glob("*.csv"):
            refuse_pointer(path)
        unpacked = unpack_archives(public)
        sample_name, submission = _submission(competition, public)
        submission.sample.to_csv(_fresh(public / SAMPLE), index=False)
        submission.answers.to_csv(_fresh(root / "data" / "private" / "test_answer.csv"), index=False)
        write_file(public / "description.txt", _description(competition, public, sample_name, submission, unpacked))
        module = grader_module(competition, submission.columns, order=submission.order, added=submission.added)
        write_file(root / "utils" / "metric.py", module)
        write_file(root / "utils" / "prepare.py", PREPARE)
        write_file(root / "info" / "leaderboard.csv", leaderboard_text(competition))
        finish(_manifest(competition, submission), root)
    return load_package(destination)


def _fresh(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # it may be a link to the original
    return path


def _submission(competition: Competition, public: Path) -> tuple[str, Submission]:
    """The sample submission's name, and what a submission looks like; adds row ids to the test rows where needed."""
    name = next((name for name in competition.sample_names if (public / name).is_file()), None)
    if name is None:
        raise PackageError(f"{public}: no sample submission; looked for {', '.join(competition.sample_names)}")
    sample, answers = read_text_table(public / name), read_text_table(competition.answers)
    header = [str(column) for column in sample.columns]
    test = read_header(public / "test.csv") if (public / "test.csv").is_file() else []
    details = competition.facts.details
    ids = list(details.id) if details else [column for column in header if column in test] or header[:1]
    targets = [column for column in header if column not in ids and column not in test]
    if not targets:
        targets = [column for column in header if column not in ids]
    order = [column for column in header if column in targets or (column in ids and column in answers)]
    added: list[str] = []
    if not set(ids) <= set(answers.columns) or answers.duplicated(ids).any() or sample.duplicated(ids).any():
        ids, added = [ROW_ID], [ROW_ID]
        _number_rows(public / "test.csv", sample, answers)
    for column in targets:
        if column not in answers:
            answers[column] = "0"
            added.append(column)
    columns = Columns(id=tuple(ids), target=tuple(targets))
    shown = sample[[str(column) for column in sample.columns if column in (*ids, *targets)]]
    return name, Submission(columns=columns, order=order, added=added, sample=shown, answers=answers)


def _number_rows(test: Path, *tables: pd.DataFrame) -> None:
    """Puts a column of numbers before the rows of the sample, the answers and the test file, which are in one order."""
    rows = {len(table) for table in tables}
    if len(rows) > 1:
        raise PackageError(f"{test.parent}: sample submission and answers have {sorted(rows)} rows and no common ids")
    for table in tables:
        table.insert(0, ROW_ID, [str(number) for number in range(len(table))])
    if test.is_file():
        frame = read_text_table(test)
        if len(frame) in rows:
            frame.insert(0, ROW_ID, [str(number) for number in range(len(frame))])
            frame.to_csv(_fresh(test), index=False)


def _description(
    competition: Competition, public: Path, sample: str, submission: Submission, unpacked: tuple[str, ...]
) -> str:
    """The official description, and how the files here differ from it."""
    found = [folder / "description.md" for folder in (public, competition.folder)]
    path = next((path for path in found if path.is_file()), None)
    if path is None:
        raise PackageError(f"{competition.folder}: no description.md")
    columns = [*submission.columns.id, *submission.columns.target]
    listed = ", ".join(columns[:8]) + (f", ... ({len(columns)} columns)" if len(columns) > 8 else "")
    notes = [f"Write `submission.csv` with the columns of `{SAMPLE}`: {listed}."]
    if sample != SAMPLE:
        notes.append(f"`{SAMPLE}` is what is called `{sample}` above.")
    if unpacked:
        notes.append(f"These archives are unpacked beside their names: {', '.join(unpacked)}.")
    if ROW_ID in submission.added:
        notes.append(f"`{ROW_ID}` numbers the test rows from 0, in the order of the official file.")
    text = path.read_text(encoding="utf-8", errors="replace").rstrip()
    return f"{text}\n\n## Files here\n\n" + "".join(f"* {note}\n" for note in notes)


def _manifest(competition: Competition, submission: Submission) -> Manifest:
    facts = competition.facts
    details = facts.details
    return Manifest(
        name=facts.id,
        title=competition.title,
        task_type=details.task_type if details else "other",
        modality=details.modality if details else ("tabular",),
        metric=Metric(
            name=facts.metric,
            higher_is_better=facts.higher_is_better,
            prediction=details.prediction if details else "number",
        ),
        columns=submission.columns,
        hidden_split=HiddenSplit(validation_fraction=0.0),
        provenance=Provenance(
            source=f"https://www.kaggle.com/c/{facts.id}, prepared by mle-bench",
            licence="the rules of the competition",
            train_test_split="mle-bench's official split, its test whole",
            leaderboard="private leaderboard of the competition",
        ),
        known_issues=(*(("known to be bad",) if facts.known_bad else ()), *facts.known_issues),
    )
