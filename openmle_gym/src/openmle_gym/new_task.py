"""One CSV file becomes a task package, without any model.

The table is normalised (UTF-8, commas, a point in numbers) into `raw/train.csv`; everything else is made from it by the
package's own prepare.py, run isolated, so that the package can be made again from itself.
"""

import difflib
import io
import json
import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import pandas as pd

from openmle_gym.assemble import PackageParts, assemble_package
from openmle_gym.errors import PackageError
from openmle_gym.isolation.runner import Runner
from openmle_gym.manifest import Columns, Manifest, Provenance, TaskType
from openmle_gym.metrics import METRICS, MetricSpec, render_metric_module
from openmle_gym.new_task_table import INDEX, read_table
from openmle_gym.task import TaskPackage

FEWEST_ROWS = 50
MOST_CLASSES_PER_ROW = 0.2
"""A label column with more distinct values than this share of rows names rows rather than classes."""
NEW_ID = "row_id"

_ID_NAME = re.compile(r"(id|index|key|.*_id|.*[a-z]Id|.*ID)", re.ASCII)
_BASELINES = {
    "label": ("most frequent", "the most frequent training label for every row"),
    "probability": ("share", "the share of the training rows that have the label for every row"),
    "number": ("mean", "the training mean for every row"),
}

logger = logging.getLogger(__name__)


async def new_task(
    train: Path,
    *,
    target: Sequence[str],
    metric: str,
    destination: Path,
    runner: Runner,
    id_column: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    name: str | None = None,
    title: str | None = None,
    encoding: str | None = None,
) -> TaskPackage:
    """Makes a task package from a table of labelled rows.

    Rows without a target are dropped; how many is logged, and stated in the manifest's provenance.

    Args:
        target: The columns to predict.
        metric: A name of `openmle_gym.metrics.METRICS`.
        destination: The package's own folder; must not exist.
        runner: What runs the package's prepare.py.
        id_column: The column that names a row. Where None, a column that is called like an id and holds no value
            twice is taken; without one, `row_id` is made.
        test_fraction: The share of rows whose answers are hidden.
        seed: Of the split.
        name: By default the file's name.
        encoding: A codec of Python's; by default it is found.

    Raises:
        ConfigError: There is no such codec.
        PackageError: The table, a column, the metric or the destination will not do; says which and why.
        RunnerUnavailable: The isolation cannot run prepare.py.
    """
    _check_arguments(target, metric, destination, test_fraction)
    table = read_table(train, encoding=encoding)
    targets = tuple(target)
    for column in (*targets, *([id_column] if id_column else [])):
        if column not in table.columns:
            near = difflib.get_close_matches(column, list(table.columns), n=3, cutoff=0.5)
            hint = (
                f"did you mean {' or '.join(map(repr, near))}?"
                if near
                else f"there are {', '.join(table.columns[:20])}"
            )
            raise PackageError(f"{train}: no column {column!r}; {hint}")
    kept = table[~_missing(table, targets)]
    dropped = len(table) - len(kept)
    if dropped:
        logger.warning("%s: %d rows without a target were dropped", train, dropped)
    if len(kept) < FEWEST_ROWS:
        raise PackageError(f"{train}: {len(kept)} rows with a target; a task needs at least {FEWEST_ROWS}")
    if kept.shape[1] == len(targets) + (id_column is not None):
        raise PackageError(f"{train}: no column is left to predict {', '.join(targets)} from")
    spec = METRICS[metric]
    if spec.columns == "together":
        _check_classes(kept[list(targets)], spec, where=str(train))
    for column in targets:
        _check_target(kept[column], spec, where=f"{train}: column {column!r}")
    identity = _identity(kept, id_column, targets, where=str(train))
    made = _Made(
        name=_task_name(name or train.stem),
        title=title or name or train.stem,
        source=train.name,
        columns=Columns(id=(identity,), target=targets),
        id_is_new=identity not in kept.columns,
        spec=spec,
        test_fraction=test_fraction,
        seed=seed,
        dropped=dropped,
        features=kept.drop(columns=[*targets, *([identity] if identity in kept.columns else [])]),
        labels=kept[list(targets)],
    )
    return await assemble_package(made.parts(table), destination, runner=runner)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """All that is settled about a new task before its files are made."""

    name: str
    title: str
    source: str
    columns: Columns
    id_is_new: bool
    spec: MetricSpec
    test_fraction: float
    seed: int
    dropped: int
    features: pd.DataFrame
    labels: pd.DataFrame

    @property
    def task_type(self) -> TaskType:
        """Numbers may be predicted for classes too (`qwk`); what is predicted decides."""
        return "regression" if self.spec.prediction == "number" else "classification"

    def parts(self, table: pd.DataFrame) -> PackageParts:
        return PackageParts(
            manifest=self._manifest(),
            raw={"train.csv": table.to_csv(index=False, lineterminator="\n").encode()},
            prepare=self._prepare(),
            metric=render_metric_module(self.spec, self.columns),
        )

    def _manifest(self) -> Manifest:
        spec = self.spec
        split = (
            f"{self.test_fraction:.0%} test rows, stratified by the target, in the order of a hash (seed {self.seed})"
        )
        if self.dropped:
            split += f"; {self.dropped} rows without a target were dropped"
        return Manifest(
            name=self.name,
            title=self.title,
            task_type=self.task_type,
            metric=spec.declaration(),
            columns=self.columns,
            provenance=Provenance(source=self.source, licence="not stated", train_test_split=split),
        )

    def _prepare(self) -> str:
        settings = {
            "NAME": self.name,
            "ID": self.columns.id[0],
            "ID_IS_NEW": self.id_is_new,
            "TARGETS": list(self.columns.target),
            "TEST_FRACTION": self.test_fraction,
            "SEED": self.seed,
            "BASELINE": _BASELINES[self.spec.prediction][0],
        }
        source = resources.files("openmle_gym").joinpath("new_task_prepare.py").read_text(encoding="utf-8")
        for key, value in settings.items():
            source = re.sub(rf"^{key} = .*$", lambda _, k=key, v=value: f"{k} = {v!r}", source, flags=re.MULTILINE)
        lines = "".join(f"    {line!r}\n" for line in self._description().splitlines(keepends=True))
        return source.replace('DESCRIPTION = ""\n', f"DESCRIPTION = (\n{lines})\n")

    def _description(self) -> str:
        """The statement; prepare.py fills in how many rows there are and an example."""
        spec, targets = self.spec, ", ".join(f"`{column}`" for column in self.columns.target)
        better = "Higher" if spec.higher_is_better else "Lower"
        each = len(self.columns.target) > 1 and spec.columns == "each"
        over = ", averaged over the target columns" if each else ""
        identity = self.columns.id[0]
        what = f"- `{identity}`: {'number of' if self.id_is_new else 'names'} the row; not a feature"
        return "\n".join(
            [
                f"# {self.title}",
                "",
                "## Description",
                "",
                f"Predict {targets} of the rows of `test.csv` from the other columns, having learned from `train.csv`.",
                "",
                "## Evaluation",
                "",
                f"Submissions are scored by {spec.name}{over}. {better} is better.",
                "",
                "## Submission File",
                "",
                f"For every `{identity}` in `test.csv`, predict {self._predictions()}:",
                "",
                "```",
                "<example>",
                "```",
                "",
                "## Files",
                "",
                "- `train.csv`: <train rows> labelled rows",
                f"- `test.csv`: <test rows> rows without {targets}",
                f"- `sample_submission.csv`: a valid submission that predicts {_BASELINES[spec.prediction][1]}",
                "",
                "## Columns",
                "",
                what,
                *[f"- `{column}`: {_kind(self.features[column])}" for column in self.features.columns],
                *[f"- `{column}` (train only): {_kind(self.labels[column])}" for column in self.labels.columns],
                "",
            ]
        )

    def _predictions(self) -> str:
        if self.spec.prediction == "number":
            return "a number"
        if self.spec.prediction == "label":
            return "a label as in the training rows"
        if self.spec.columns == "together":
            return "the probability, between 0 and 1, of each class in its column; those of a row add up to 1"
        positive = " and ".join(f"{_ordered(self.labels[name])[-1]!r}" for name in self.labels.columns)
        return f"the probability, between 0 and 1, of {positive}"


def _check_arguments(target: Sequence[str], metric: str, destination: Path, test_fraction: float) -> None:
    if destination.exists():
        raise PackageError(f"{destination}: is there already")
    if not target or len(set(target)) < len(target):
        raise PackageError(f"targets {list(target)}: name each column to predict once")
    if metric not in METRICS:
        raise PackageError(f"no metric {metric!r}; there are {', '.join(METRICS)}")
    if not 0 < test_fraction < 1:
        raise PackageError(f"test_fraction {test_fraction}: must be between 0 and 1")


def _missing(table: pd.DataFrame, targets: Sequence[str]) -> pd.Series:
    """[rows] bool: where a target is empty or one of the words that pandas reads as missing."""
    read = pd.read_csv(io.StringIO(table[list(targets)].to_csv(index=False)), skip_blank_lines=False)
    return pd.Series(read.isna().any(axis=1).to_numpy(), index=table.index)


def _check_target(values: pd.Series, spec: MetricSpec, *, where: str) -> None:
    numbers = pd.to_numeric(values, errors="coerce")
    distinct = values.nunique()
    if distinct < 2:
        raise PackageError(f"{where}: every row has the same value")
    if spec.prediction == "number" and not (finite := numbers.map(math.isfinite)).all():
        place = int(finite.to_numpy().argmin())
        row = int(values.index.to_numpy()[place]) + 2  # counted from 1, the header too
        raise PackageError(f"{where}: {spec.name} needs numbers, but row {row} has {values.iloc[place]!r}")
    if spec.prediction == "probability" and distinct != 2:
        raise PackageError(f"{where}: {spec.name} needs two classes, but there are {distinct}")
    if spec.prediction == "label" and distinct > MOST_CLASSES_PER_ROW * len(values):
        raise PackageError(
            f"{where}: {spec.name} needs classes, but {len(values)} rows have {distinct} different values"
        )
    if spec.name == "rmsle" and (numbers < 0).any():
        raise PackageError(f"{where}: rmsle needs values of at least 0, but there is {numbers.min():g}")


def _check_classes(values: pd.DataFrame, spec: MetricSpec, *, where: str) -> None:
    """The targets of a metric that takes them together are one column for each class, with a 1 in one of them."""
    if values.shape[1] < 2:
        raise PackageError(
            f"{where}: {spec.name} needs one column for each class, but the only target is {values.columns[0]!r}"
        )
    numbers = values.apply(pd.to_numeric, errors="coerce")
    wrong = ~(numbers.isin((0, 1)).all(axis=1) & (numbers.sum(axis=1) == 1))
    if wrong.any():
        example = ", ".join(map(repr, values[wrong].iloc[0]))
        raise PackageError(
            f"{where}: {spec.name} needs 1 in one target column and 0 in the others, but a row has {example}"
        )


def _identity(table: pd.DataFrame, id_column: str | None, targets: Sequence[str], *, where: str) -> str:
    """The id column: the given one, one that looks like it, or a new name."""
    if id_column is not None:
        if id_column in targets:
            raise PackageError(f"{where}: column {id_column!r} is both id and target")
        if not _names_rows(table[id_column]):
            raise PackageError(f"{where}: column {id_column!r} does not name rows: a value is missing or there twice")
        return id_column
    for column in sorted(table.columns, key=lambda name: name == INDEX):
        if column not in targets and _ID_NAME.fullmatch(column) and _names_rows(table[column]):
            return column
    name = NEW_ID
    while name in table.columns:
        name += "_"
    return name


def _names_rows(values: pd.Series) -> bool:
    return bool(values.is_unique and (values.str.strip() != "").all())


def _task_name(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-")
    if not name:
        raise PackageError(f"name {text!r}: needs a letter or a digit")
    return name


def _ordered(values: pd.Series) -> list[str]:
    """The distinct values, as numbers where all are."""
    numbers = pd.to_numeric(values, errors="coerce")
    keyed = numbers if numbers.notna().all() else values
    return [values[index] for index in keyed.drop_duplicates().sort_values().index]


def _kind(values: pd.Series) -> str:
    """What a column holds, in a few words."""
    known = values[values.str.strip() != ""]
    gaps = ", with gaps" if len(known) < len(values) else ""
    if pd.to_numeric(known, errors="coerce").notna().all():
        return f"number{gaps}"
    if known.nunique() <= 12:
        return f"one of {', '.join(json.dumps(value, ensure_ascii=False) for value in sorted(known.unique()))}{gaps}"
    return f"text{gaps}"
