"""What a judge is shown of a package: bounded, and only what was looked at. An answer is shown nowhere but in previews of
the tables that the judge is to judge.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import JsonValue

from openmle_gym.catalogue.overview import tree_bytes
from openmle_gym.check.finding import Report
from openmle_gym.manifest import Columns
from openmle_gym.task import TaskPackage

TEXT_CHARACTERS = 12_000
CODE_CHARACTERS = 12_000
CELL_CHARACTERS = 120
COLUMNS_SHOWN = 40
PREVIEW_ROWS = 5
RAW_FILES_SHOWN = 60
RAW_TABLES_SHOWN = 4
TABLES = ("train.csv", "test.csv", "sample_submission.csv", "test_answer.csv")

Evidence = dict[str, JsonValue]


def collect_evidence(package: TaskPackage, report: Report) -> Evidence:
    """By the names that a judge quotes its sources by, and some facts beside them."""
    raw, private = package.root / "raw", package.root / "data" / "private"
    tables: dict[str, JsonValue] = {}
    for name in TABLES:
        path = (private if name == "test_answer.csv" else package.public_dir) / name
        if path.is_file():
            tables[name] = _table(path)
    raw_tables = sorted(raw.glob("*.csv"))[:RAW_TABLES_SHOWN]
    evidence: Evidence = {
        "task_name": package.name,
        "metric": package.manifest.metric.model_dump(mode="json"),
        "columns": package.manifest.columns.model_dump(mode="json"),
        "known_issues": [*package.manifest.known_issues],
        "other_findings": [f"{finding.severity}: {finding.message}" for finding in report.findings[:20]],
        "processed_bytes": tree_bytes(package.root / "data"),
        "description.txt": _cut(package.description, TEXT_CHARACTERS),
        "prepare.py": _code(package.root / "utils" / "prepare.py"),
        "metric.py": _code(package.metric_path),
        "processed_csv_evidence": tables,
        "metric_smoke_test": "passed: the mechanical checks ran the metric, perfect answers and wrong ones among them",
    }
    if raw_tables:
        evidence["raw_csv_evidence"] = {path.name: _table(path) for path in raw_tables}
    if (inventory := _inventory(package.root)) is not None:
        evidence["raw_inventory"] = inventory
    if (usage := _usage(package.root, package.manifest.columns)) is not None:
        evidence["raw_usage_evidence"] = usage
    return evidence


def _code(path: Path) -> str:
    return _cut(path.read_text(encoding="utf-8", errors="replace"), CODE_CHARACTERS) if path.is_file() else ""


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n[... {len(text) - limit} characters cut]"


def _table(path: Path) -> dict[str, JsonValue]:
    """Rows, columns, and a few rows as text."""
    table = _rows(path)
    header = next(table, [])
    preview: list[JsonValue] = []
    rows = 0
    for cells in table:
        if rows < PREVIEW_ROWS:
            shown: list[JsonValue] = [_cut(cell, CELL_CHARACTERS) for cell in cells[:COLUMNS_SHOWN]]
            preview.append(shown)
        rows += 1
    facts: dict[str, JsonValue] = {"rows": rows, "columns": len(header), "names": list(header[:COLUMNS_SHOWN])}
    return {**facts, "first_rows": preview, "preview_is_cut": rows > PREVIEW_ROWS or len(header) > COLUMNS_SHOWN}


def _rows(path: Path) -> Iterator[list[str]]:
    """The rows that are not blank, the header first, whatever the encoding: raw files are as they came."""
    csv.field_size_limit(2**31 - 1)
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        yield from (cells for cells in csv.reader(file) if any(map(str.strip, cells)))


def _inventory(root: Path) -> JsonValue:
    """What lies in `raw/`, or the note that was left when it was removed; None without either."""
    raw = root / "raw"
    if raw.is_dir():
        files = sorted(path for path in raw.rglob("*") if path.is_file())
        shown: list[JsonValue] = [f"{path.relative_to(raw).as_posix()}: {path.stat().st_size} bytes" for path in files]
        return {"files": len(files), "first": shown[:RAW_FILES_SHOWN]}
    note = root / "raw.txt"
    return _cut(note.read_text(encoding="utf-8", errors="replace"), TEXT_CHARACTERS) if note.is_file() else None


def _usage(root: Path, columns: Columns) -> dict[str, JsonValue] | None:
    """How many of the labelled raw rows became rows of the task; None where raw rows cannot be counted."""
    paths = {name: root / place for name, place in _COUNTED.items()}
    if not all(path.is_file() for path in paths.values()):
        return None
    counts = {name: _table(path)["rows"] for name, path in paths.items()}
    raw, train, test = (int(str(counts[name])) for name in _COUNTED)
    header = next(_rows(paths["raw_train"]), [])
    return {
        "raw_train_rows": raw,
        "train_rows": train,
        "test_rows": test,
        "rows_are_conserved": train + test == raw,
        "share_of_raw_rows_used": round((train + test) / raw, 6) if raw else None,
        "raw_train_has_targets": [name for name in columns.target if name in header],
    }


_COUNTED = {"raw_train": "raw/train.csv", "train": "data/public/train.csv", "test": "data/public/test.csv"}


def is_quoted(evidence: Evidence, source: str, quotation: str) -> bool:
    """Whether what a judge quotes is in the source that it names, spaces and case aside; a number alone is not enough."""
    if source not in evidence:
        return False
    shown = evidence[source]
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
    wanted = _plain(quotation)
    return len(wanted) >= 4 and wanted in _plain(text)


def _plain(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum())
