"""A table of many packages that one can ask: SQLite, one row for each task and one for each of its modalities."""

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from pydantic import ValidationError

from openmle_gym.catalogue.overview import find_packages, tree_bytes
from openmle_gym.catalogue.taxonomy import category_of
from openmle_gym.contracts import Contract
from openmle_gym.errors import PackageError, StoreError
from openmle_gym.task import load_package
from openmle_gym.text_table import read_rows

_SCHEMA = """
CREATE TABLE tasks (
    name TEXT PRIMARY KEY, title TEXT NOT NULL, task_type TEXT NOT NULL, compute TEXT NOT NULL, metric TEXT NOT NULL,
    higher_is_better INTEGER NOT NULL, bytes INTEGER NOT NULL, train_rows INTEGER, test_rows INTEGER,
    licence TEXT NOT NULL, source TEXT NOT NULL, known_issues INTEGER NOT NULL, root TEXT NOT NULL
);
CREATE TABLE modalities (name TEXT NOT NULL REFERENCES tasks, modality TEXT NOT NULL, PRIMARY KEY (name, modality));
"""


class IndexedTask(Contract):
    """One task of an index."""

    name: str
    title: str
    modalities: tuple[str, ...]
    task_type: str
    compute: str
    metric: str
    higher_is_better: bool
    bytes: int
    """Of `data/`."""
    train_rows: int | None
    """None without such a file, or where it is no CSV."""
    test_rows: int | None
    licence: str
    source: str
    known_issues: int
    """How many are noted."""
    root: str


class Indexing(Contract):
    """What came of making an index."""

    tasks: int
    refused: dict[str, str]
    """Folders that are no usable package, and why."""


def build_index(roots: Sequence[Path], output: Path) -> Indexing:
    """Makes an index of all packages in some folders, in place of an older one.

    Raises:
        PackageError: A folder has no packages.
    """
    tasks: dict[str, IndexedTask] = {}
    refused: dict[str, str] = {}
    for path in (path for root in roots for path in find_packages(root)):
        try:
            task = index_task(path)
        except PackageError as error:
            refused[str(path)] = str(error)
            continue
        if task.name in tasks:
            refused[str(path)] = f"{task.name!r} is there already, from {tasks[task.name].root}"
        else:
            tasks[task.name] = task
    output.parent.mkdir(parents=True, exist_ok=True)
    fresh = output.with_name(f".{output.name}.new")
    fresh.unlink(missing_ok=True)
    with closing(sqlite3.connect(fresh)) as connection, connection:
        connection.executescript(_SCHEMA)
        for task in tasks.values():
            row = task.model_dump(exclude={"modalities"})
            connection.execute(
                f"INSERT INTO tasks ({', '.join(row)}) VALUES ({', '.join('?' for _ in row)})", tuple(row.values())
            )
            pairs = [(task.name, modality) for modality in task.modalities]
            connection.executemany("INSERT INTO modalities VALUES (?, ?)", pairs)
    os.replace(fresh, output)
    return Indexing(tasks=len(tasks), refused=refused)


def index_task(path: Path) -> IndexedTask:
    """The row of one package.

    Raises:
        PackageError: It cannot be loaded, or its modality or type is none of the lists'.
    """
    package = load_package(path)
    manifest, known = package.manifest, category_of(package.manifest)
    return IndexedTask(
        name=manifest.name,
        title=manifest.title or manifest.name,
        modalities=known.modalities,
        task_type=known.task_type,
        compute=manifest.compute.upper(),
        metric=manifest.metric.name,
        higher_is_better=manifest.metric.higher_is_better,
        bytes=tree_bytes(path / "data"),
        train_rows=_rows(package.public_dir / "train.csv"),
        test_rows=_rows(package.public_dir / "test.csv"),
        licence=manifest.provenance.licence,
        source=manifest.provenance.source,
        known_issues=len(manifest.known_issues),
        root=str(package.root),
    )


def _rows(path: Path) -> int | None:
    """The rows of a table but the header."""
    if not path.is_file():
        return None
    try:
        return sum(1 for _ in read_rows(path)) - 1
    except PackageError:  # `check` says what is wrong with it
        return None


def query_index(
    path: Path,
    *,
    modality: str | None = None,
    task_type: str | None = None,
    compute: str | None = None,
    min_bytes: int | None = None,
    max_bytes: int | None = None,
    max_rows: int | None = None,
) -> list[IndexedTask]:
    """The tasks that meet all conditions, by name; words in any case.

    Raises:
        StoreError: The file is no index.
    """
    conditions = {
        "name IN (SELECT name FROM modalities WHERE modality = ? COLLATE NOCASE)": modality,
        "task_type = ? COLLATE NOCASE": task_type,
        "compute = ? COLLATE NOCASE": compute,
        "bytes >= ?": min_bytes,
        "bytes <= ?": max_bytes,
        "COALESCE(train_rows, 0) <= ?": max_rows,
    }
    asked = {text: value for text, value in conditions.items() if value is not None}
    where = f" WHERE {' AND '.join(asked)}" if asked else ""
    if not path.is_file():
        raise StoreError(f"{path}: no such index")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            rows = connection.execute(f"SELECT * FROM tasks{where} ORDER BY name", tuple(asked.values())).fetchall()
            found = connection.execute("SELECT name, modality FROM modalities ORDER BY rowid").fetchall()
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path}: is no task index: {error}") from error
    modalities: dict[str, list[str]] = {}
    for name, each in found:
        modalities.setdefault(name, []).append(each)
    try:
        return [
            IndexedTask.model_validate({**dict(row), "modalities": tuple(modalities.get(row["name"], ()))})
            for row in rows
        ]
    except (IndexError, ValidationError) as error:
        raise StoreError(f"{path}: is no task index: {error}") from error
