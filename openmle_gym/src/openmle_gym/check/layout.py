"""The files of a package and the shape of its tables: the original's findings, by its ids, and a few of ours."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from openmle_gym.check.finding import Finding, error, info, warning
from openmle_gym.check.subject import TABLES, Subject, file_sha256
from openmle_gym.check.tables import CHUNK_ROWS, Table
from openmle_gym.submission import MAX_SUBMISSION_BYTES

REQUIRED = (
    "data/public/description.txt",
    "data/public/sample_submission.csv",
    "data/private/test_answer.csv",
    "utils/prepare.py",
    "utils/metric.py",
)
FEW_ROWS = 50
MANY_BYTES = 100 * 2**30
_SEPARATORS = ";\t|"


def files(subject: Subject) -> Iterator[Finding]:
    """Every file that a package must have is there, and the package loads."""
    missing = [name for name in REQUIRED if not (subject.root / name).is_file()]
    if missing:
        yield error("missing_required_files", f"missing: {', '.join(missing)}", files=list(missing))
    elif subject.package is None:
        yield error("task_process_failed", f"the package cannot be loaded: {subject.refusal}")
    for name in ("train", "test"):
        if f"{name}.csv" in subject.tables:
            continue
        others = [path.name for path in subject.public_files if path.suffix != ".txt" and path.name not in TABLES]
        if others and f"{name}.csv" not in subject.unreadable:
            yield info(f"missing_{name}_csv", f"no {name}.csv; the package's inputs are other files", files=len(others))
        else:
            yield error(f"missing_{name}_csv", f"no {name}.csv that can be read")


def structure(subject: Subject) -> Iterator[Finding]:
    """Every table can be read, has rows, named columns, each once, and rows of one width."""
    number = 0
    for reason in subject.unreadable.values():
        number += 1
        yield error(f"structure_error_{number}", reason)
    for table in subject.tables.values():
        yield from _shape(table)
        if len(table.columns) == 1 and any(mark in table.columns[0] for mark in _SEPARATORS):
            number += 1
            yield error(f"structure_error_{number}", f"{table.name}: the columns are not separated by commas")
        if any(not name for name in table.columns):
            number += 1
            yield error(f"structure_error_{number}", f"{table.name}: a column has no name")


def _shape(table: Table) -> Iterator[Finding]:
    if not table.columns:
        yield error(f"missing_header_{table.label}", f"{table.name} has no columns")
        return
    if table.rows == 0:
        yield error(f"empty_{table.label}", f"{table.name} has no rows")
    twice = sorted({name for name in table.columns if table.columns.count(name) > 1})
    if twice:
        yield error(f"duplicate_columns_{table.label}", f"{table.name}: two columns {twice[0]!r}", columns=list(twice))
    if table.ragged:
        yield error(
            f"row_width_{table.label}",
            f"{table.name}: row {table.first_ragged[0]} has not {len(table.columns)} cells",
            rows=table.ragged,
            first=list(table.first_ragged),
        )
    if table.loose_quote:
        yield warning(f"loose_quote_{table.label}", f"{table.name}: quotes do not pair in {table.loose_quote}")


def rows_and_ids(subject: Subject) -> Iterator[Finding]:
    """Submission, answers and test data are about the same rows; a row of test data may ask for several."""
    if subject.columns is None or not {"test.csv", "sample_submission.csv", "test_answer.csv"} <= set(subject.tables):
        return
    test, sample, answers = (subject.tables[name] for name in ("test.csv", "sample_submission.csv", "test_answer.csv"))
    aligned = set(subject.columns.id) <= set(test.columns)
    for table in (sample, answers) if aligned else ():
        if table.rows != test.rows:
            yield error(
                f"row_count_mismatch_{table.label}",
                f"{table.name} has {table.rows} rows, test.csv {test.rows}",
                rows=table.rows,
                test_rows=test.rows,
            )
    if repeated := sample.repeated_ids():
        yield error(
            "duplicate_submission_identifiers", f"{repeated} rows of the sample submission repeat an id", rows=repeated
        )
    if aligned:
        if repeated := test.repeated_ids():
            yield error("duplicate_test_identifiers", f"{repeated} rows of test.csv repeat an id", rows=repeated)
        if len(sample.id_hashes) == test.rows and sample.ids_digest() != test.ids_digest():
            same = np.array_equal(np.sort(sample.id_hashes), np.sort(test.id_hashes))
            how = "in another order" if same else "others"
            yield (warning if same else error)(
                "test_submission_identifier_mismatch",
                f"the ids of the sample submission are {how} than those of test.csv",
            )
    shown = [name for name in subject.columns.target if name in test.columns]
    if shown:
        yield error("target_columns_in_test", f"test.csv has the target column {shown[0]!r}", columns=list(shown))


def metric_reads_all_rows(subject: Subject) -> Iterator[Finding]:
    """pandas, which a metric reads tables with, finds as many rows as there are."""
    ids = {"sample_submission.csv": "metric_submission_row_mismatch", "test_answer.csv": "metric_answer_row_mismatch"}
    for name, id in ids.items():
        table = subject.tables.get(name)
        if table is None or table.ragged or not table.columns:
            continue
        try:
            found = sum(len(chunk) for chunk in pd.read_csv(table.path, usecols=[0], chunksize=CHUNK_ROWS))
        except ValueError as problem:  # pandas' own errors among them
            yield error(id, f"pandas cannot read {name}: {problem}")
            continue
        if found != table.rows:
            yield error(
                id, f"pandas reads {found} rows of {name}, which has {table.rows}", pandas=found, rows=table.rows
            )


def sizes(subject: Subject) -> Iterator[Finding]:
    """Enough rows to tell programs apart, and nothing too large to handle."""
    for name in ("train.csv", "test.csv"):
        table = subject.tables.get(name)
        if table is not None and 0 < table.rows < FEW_ROWS:
            yield warning("few_rows", f"{name} has only {table.rows} rows", rows=table.rows)
    sample = subject.path("sample_submission.csv")
    if sample.is_file() and sample.stat().st_size > MAX_SUBMISSION_BYTES:
        yield error(
            "submission_too_large",
            "the sample submission is larger than any that is graded",
            bytes=sample.stat().st_size,
        )
    total = sum(path.stat().st_size for path in subject.public_files)
    if total > MANY_BYTES:
        yield warning("package_too_large", f"the public files have {total / 2**30:.0f} GiB", bytes=total)


def links(subject: Subject) -> Iterator[Finding]:
    """No symbolic link in the public folder: it breaks, or leads out of it."""
    found = [
        path.relative_to(subject.root).as_posix() for path in sorted(subject.public.rglob("*")) if path.is_symlink()
    ]
    if found:
        yield error("symlink_in_public", f"{found[0]} is a symbolic link", files=[*found[:10]])


def hashes(subject: Subject) -> Iterator[Finding]:
    """The files are those that the manifest was written for."""
    if subject.package is None:
        return
    for name, digest in subject.package.manifest.files.items():
        path = subject.root / name
        if not path.is_file():
            yield error("file_hash_mismatch", f"{name}, which the manifest names, is not there", file=name)
        elif file_sha256(path) != digest:
            yield error("file_hash_mismatch", f"{name} is not the file that the manifest names", file=name)


def provenance(subject: Subject) -> Iterator[Finding]:
    """The manifest says where the data are from and on what terms."""
    if subject.package is None:
        return
    facts = subject.package.manifest.provenance
    if facts.licence.strip().casefold() in ("", "not stated", "unknown"):
        yield warning("licence_missing", "the manifest states no licence")
    if not facts.source.strip():
        yield warning("source_missing", "the manifest does not say where the data are from")
