"""A task package on disk: its public half, which programs and prompts see, and its private half, which they never do.

<package>/task.toml                    our manifest; packages without one load too, inferred
<package>/data/public/                 description.txt, train.csv, test.csv, sample_submission.csv, ...
<package>/data/private/test_answer.csv
<package>/utils/{prepare,metric}.py    untrusted code: only ever run isolated
<package>/info/leaderboard.csv         optional
"""

import ast
import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from openmle_gym.errors import PackageError
from openmle_gym.leaderboard import Leaderboard, read_leaderboard
from openmle_gym.manifest import MANIFEST_NAME, Columns, HiddenSplit, Manifest, Metric, read_manifest
from openmle_gym.text_table import read_header, read_text_table

if TYPE_CHECKING:  # slow to import, and not needed to load a package
    import numpy as np
    import pandas as pd

LEADERBOARD_NAMES = ("info/leaderboard.csv", "info/public_leaderboard.csv")


@dataclass(frozen=True)
class TaskPackage:
    """A loaded task package. Made by `load_package`."""

    root: Path
    manifest: Manifest
    inferred: bool
    """The package has no `task.toml`; the manifest was worked out from its files."""

    @property
    def name(self) -> str:
        """The task's name."""
        return self.manifest.name

    @property
    def public_dir(self) -> Path:
        """The only folder that a program is ever given."""
        return self.root / "data" / "public"

    @property
    def metric_path(self) -> Path:
        """The package's `metric.py`: untrusted code."""
        return self.root / "utils" / "metric.py"

    @cached_property
    def description(self) -> str:
        """The statement of the task, as a model reads it."""
        return (self.public_dir / "description.txt").read_text(encoding="utf-8", errors="replace")

    @property
    def answers_path(self) -> Path:
        """The hidden answers."""
        return self.root / "data" / "private" / "test_answer.csv"

    @cached_property
    def answers(self) -> "pd.DataFrame":
        """The hidden answers, id and target columns as text, in file order.

        Raises:
            PackageError: They cannot be read, or lack a column.
        """
        frame = read_text_table(self.answers_path)
        wanted = [*self.manifest.columns.id, *self.manifest.columns.target]
        missing = [column for column in wanted if column not in frame.columns]
        if missing:
            header = ", ".join(map(repr, frame.columns[:20]))
            raise PackageError(f"{self.answers_path}: no column {missing[0]!r}; the header is {header}")
        return frame

    @cached_property
    def validation_rows(self) -> "np.ndarray":
        """[rows] bool: True where a row of the answers is in the validation half, False where it is in the test half.

        Rows are ordered by the first target, then by a hash of seed and id, and taken systematically, so the halves
        are stratified by the target whatever its kind, and a row's half does not depend on the file's order.
        """
        return split_rows(self.answers, self.manifest.columns, self.manifest.hidden_split)

    @cached_property
    def leaderboard(self) -> Leaderboard | None:
        """The reference leaderboard, or None where the package has none."""
        for name in LEADERBOARD_NAMES:
            if (self.root / name).is_file():
                return read_leaderboard(self.root / name, higher_is_better=self.manifest.metric.higher_is_better)
        return None


def split_rows(answers: "pd.DataFrame", columns: Columns, split: HiddenSplit) -> "np.ndarray":
    """See `TaskPackage.validation_rows`. [rows] bool."""
    import numpy as np
    import pandas as pd

    ids = map("\x1f".join, zip(*(answers[name] for name in columns.id), strict=True))
    digests = [hashlib.sha256(f"{split.seed}\x1f{row_id}".encode()).hexdigest() for row_id in ids]
    target = answers[columns.target[0]]
    numbers = pd.to_numeric(target, errors="coerce")
    order_by = numbers if numbers.notna().all() else target
    order = pd.DataFrame({"target": order_by.to_numpy(), "digest": digests}).sort_values(["target", "digest"]).index
    taken = np.floor((np.arange(len(answers)) + 1) * split.validation_fraction)
    rows = np.zeros(len(answers), dtype=bool)
    rows[order] = np.diff(taken, prepend=0.0) > 0
    return rows


def load_package(root: Path | str) -> TaskPackage:
    """Loads a task package, with or without our manifest. Reads no data beyond column names.

    Raises:
        PackageError: A required file is missing, the manifest is wrong, or it cannot be inferred.
    """
    root = Path(root).resolve()
    required = ["data/public/description.txt", "data/public/sample_submission.csv"]
    required += ["data/private/test_answer.csv", "utils/metric.py"]
    for name in required:
        if not (root / name).is_file():
            raise PackageError(f"{root}: no {name}")
    if (root / MANIFEST_NAME).is_file():
        return TaskPackage(root=root, manifest=read_manifest(root / MANIFEST_NAME), inferred=False)
    return TaskPackage(root=root, manifest=_infer_manifest(root), inferred=True)


def _infer_manifest(root: Path) -> Manifest:
    """A manifest for a released package that has none: columns from its files, direction from its metadata or metric."""
    facts = _released_metadata(root)
    direction = facts.get("higher_is_better")
    if not isinstance(direction, bool):
        direction = _declared_direction(root / "utils" / "metric.py")
    if direction is None:
        raise PackageError(
            f"{root}: cannot tell whether a higher score is better: no {MANIFEST_NAME}, no higher_is_better in "
            f"info/task_metadata.json, no such default in utils/metric.py; write a {MANIFEST_NAME}"
        )
    return Manifest(
        name=root.name,
        title=root.name,
        metric=Metric(
            name=_metric_class_name(root / "utils" / "metric.py") or "unknown",
            higher_is_better=direction,
            theoretical_min=_number(facts.get("theoretical_min")),
            theoretical_max=_number(facts.get("theoretical_max")),
        ),
        columns=_infer_columns(root),
        compute="gpu" if str(facts.get("cpu_gpu", "cpu")).lower() == "gpu" else "cpu",
    )


def _released_metadata(root: Path) -> dict[str, object]:
    path = root / "info" / "task_metadata.json"
    if not path.is_file():
        return {}
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8, an integer of thousands of digits
        raise PackageError(f"{path}: not valid JSON: {error}") from error
    return facts if isinstance(facts, dict) else {}


def _number(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _infer_columns(root: Path) -> Columns:
    """Ids are the sample submission's columns that test.csv has too; without any, its first column."""
    sample = _names(root / "data" / "public" / "sample_submission.csv")
    test_path = root / "data" / "public" / "test.csv"
    in_test = set(_names(test_path)) if test_path.is_file() else set()
    ids = tuple(column for column in sample if column in in_test) or tuple(sample[:1])
    targets = tuple(column for column in sample if column not in ids)
    if not targets:
        raise PackageError(f"{root}: sample_submission.csv has no target column beside {list(ids)}")
    return Columns(id=ids, target=targets)


def _names(path: Path) -> list[str]:
    return [name.strip() for name in read_header(path)]


def _metric_classes(path: Path) -> list[ast.ClassDef]:
    """The `*Metrics` classes of a metric module, by name, read from its source and never run."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # null bytes, or too deep for the parser
        raise PackageError(f"{path}: cannot be parsed: {error}") from error
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.endswith("Metrics")]
    return sorted(classes, key=lambda node: node.name)


def _metric_class_name(path: Path) -> str | None:
    classes = _metric_classes(path)
    return classes[0].name if classes else None


def _declared_direction(path: Path) -> bool | None:
    """The default of `higher_is_better` in the metric class's constructor."""
    for node in _metric_classes(path)[:1]:
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                arguments = [*method.args.args, *method.args.kwonlyargs]
                defaults = [*method.args.defaults, *method.args.kw_defaults]
                for argument, default in zip(reversed(arguments), reversed(defaults), strict=False):
                    if argument.arg == "higher_is_better" and isinstance(default, ast.Constant):
                        return bool(default.value)
    return None
