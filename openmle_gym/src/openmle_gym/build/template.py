"""Tasks without any model: what is asked is worked out from the profile, and prepare.py is a template."""

import re
from collections.abc import Sequence
from importlib import resources

from openmle_gym.build.columns import ColumnProfile
from openmle_gym.build.numerals import MISSING
from openmle_gym.build.profile import Profile, TableProfile
from openmle_gym.build.source import Source
from openmle_gym.build.spec import TaskSpec, parse_spec
from openmle_gym.build.split_advisor import PREFIX, SplitAdvice
from openmle_gym.errors import PackageError
from openmle_gym.metrics import METRICS

_BASELINES = {"label": "most frequent", "probability": "share", "number": "mean", "text": "most frequent"}
_MANY_VALUES = 20
"""A numeric target with more distinct values than this is a number to predict, not a class."""
_CLASS, _FILE = "class", "file"


def template_specs(
    profile: Profile,
    source: Source,
    *,
    name: str,
    title: str,
    targets: Sequence[str] = (),
    metric: str = "",
    id_column: str = "",
    table: str = "",
    count: int = 1,
) -> list[TaskSpec]:
    """Up to `count` tasks, one for each target that the profile finds, the likeliest first.

    Args:
        targets: The columns to predict, all in one task; by default the profile's candidates, one in each.

    Raises:
        PackageError: Nothing in the data can be predicted, or a wish cannot be met.
    """
    chosen = _main_table(profile, source, table, targets)
    if chosen is None:
        return [_folders(profile, name, title or name, metric)]
    wanted = [tuple(targets)] if targets else [(target,) for target in chosen.candidates.targets[:count]]
    if not wanted:
        raise PackageError(f"{source.name}: no column of {chosen.path} looks like a target; name one: target=COLUMN")
    return [
        _of_table(chosen, each, name if number == 0 else f"{name}-{_slug('-'.join(each))}", title, metric, id_column)
        for number, each in enumerate(wanted)
    ]


def _main_table(profile: Profile, source: Source, table: str, targets: Sequence[str]) -> TableProfile | None:
    if table:
        found = profile.table(table)
        if found is None:
            raise PackageError(f"{source.name}: no table {table!r}; there are {_names(profile)}")
        return found
    fitting = [each for each in profile.tables if each.candidates.targets and set(targets) <= set(each.names)]
    if not fitting and profile.class_folder and not targets:
        return None
    if not fitting:
        what = f"no table has the columns {', '.join(targets)}" if targets else "no table with a target"
        raise PackageError(f"{source.name}: {what}; there are {_names(profile)}")
    return max(fitting, key=lambda each: (bool(each.twin), "train" in each.path.casefold(), each.rows))


def _names(profile: Profile) -> str:
    return ", ".join(table.path for table in profile.tables[:10]) or "none"


def _of_table(
    table: TableProfile, targets: Sequence[str], name: str, title: str, metric: str, id_column: str
) -> TaskSpec:
    columns = [table.column(target) for target in targets]
    missing = [target for target, column in zip(targets, columns, strict=True) if column is None]
    if missing:
        raise PackageError(f"{table.path}: no column {missing[0]!r}; it has {', '.join(table.names[:20])}")
    metric = metric or suggest_metric([column for column in columns if column is not None])
    if metric not in METRICS:
        raise PackageError(f"no metric {metric!r}; there are {', '.join(METRICS)}")
    if id_column and table.column(id_column) is None:
        raise PackageError(f"{table.path}: no column {id_column!r}; it has {', '.join(table.names[:20])}")
    ids = [each for each in table.candidates.ids if each not in targets and table.exact]
    identity = id_column or (ids[0] if ids else "row_id")
    while not id_column and not ids and identity in table.names:
        identity += "_"
    features = [each for each in table.names if each not in (identity, *targets)]
    if not features:
        raise PackageError(f"{table.path}: no column is left to predict {', '.join(targets)} from")
    texts = [each for each in table.columns if each.kind == "text" and each.longest > 60]
    what = ", ".join(f"`{target}`" for target in targets)
    inputs = ", ".join(f"`{each}`" for each in features[:12]) + (" and others" if len(features) > 12 else "")
    return _sound(
        {
            "name": name,
            "title": title or f"Predict {', '.join(targets)}",
            "statement": f"Each row of the tables is one case. Predict {what} from the other columns: {inputs}.",
            "table": table.path,
            "id": [identity],
            "target": list(targets),
            "metric": metric,
            "task_type": "regression" if METRICS[metric].prediction == "number" else "classification",
            "modality": ["tabular", "text"] if texts else ["tabular"],
        }
    )


def _folders(profile: Profile, name: str, title: str, metric: str) -> TaskSpec:
    """Files whose folders name their classes."""
    folder = profile.class_folder
    kinds = {group.kind for group in profile.groups if folder == "." or group.folder.startswith(f"{folder}/")}
    kind = "image" if "image" in kinds else "audio"
    return _sound(
        {
            "name": name,
            "title": title,
            "statement": f"Each row names one {kind} file in the column `{_FILE}`, which lies in the folder train/ or "
            f"test/. Predict `{_CLASS}`, the class that the {kind} belongs to.",
            "id": ["row_id"],
            "target": [_CLASS],
            "metric": metric or "accuracy",
            "task_type": "classification",
            "modality": [kind],
        }
    )


def _sound(fields: dict[str, object]) -> TaskSpec:
    spec = parse_spec(METRICS[str(fields["metric"])].declaration().model_dump(include={"higher_is_better"}) | fields)
    if isinstance(spec, str):
        raise PackageError(f"{fields['name']}: {spec}")
    return spec


def suggest_metric(targets: Sequence[ColumnProfile]) -> str:
    """RMSE of numbers with many values, AUC of two classes of numbers 0 and 1, macro F1 or accuracy of the others."""
    first = targets[0]
    if first.numeric and first.distinct > _MANY_VALUES:
        return "rmse"
    if first.distinct == 2:
        return "auc" if first.kind == "integer" else "f1"
    return "accuracy" if first.distinct <= 2 * _MANY_VALUES else "f1_micro"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-") or "task"


def render_prepare(spec: TaskSpec, profile: Profile, advice: SplitAdvice, *, seed: int) -> str:
    """The source of a prepare.py for a task."""
    table = profile.table(spec.table) if spec.table else None
    settings: dict[str, object] = {
        "TABLE": spec.table,
        "READ": _reading(table) if table is not None else {},
        "ID": spec.id[0],
        "ID_IS_NEW": table is None or table.column(spec.id[0]) is None,
        "TARGETS": list(spec.target),
        "STRATEGY": advice.strategy,
        "GROUP": advice.column.removeprefix(PREFIX) if advice.strategy == "grouped" else "",
        "GROUP_PATTERN": r"(.*[^_\-./ ])[_\-./][^_\-./ ]+" if advice.column.startswith(PREFIX) else "",
        "TIME": advice.column if advice.strategy == "time" else "",
        "TEST_FRACTION": advice.test_fraction,
        "SEED": seed,
        "BASELINE": _BASELINES[spec.prediction],
        "FILES_COLUMN": "" if table is not None else _FILE,
        "FILES_FOLDER": "" if table is not None else profile.class_folder,
        "MISSING": sorted(MISSING),
    }
    source = resources.files("openmle_gym.build").joinpath("template_prepare.py").read_text(encoding="utf-8")
    for key, value in settings.items():
        source = re.sub(rf"^{key} = .*$", lambda _, k=key, v=value: f"{k} = {v!r}", source, count=1, flags=re.MULTILINE)
    return source


def _reading(table: TableProfile) -> dict[str, str]:
    return {"format": table.format, "delimiter": table.delimiter, "encoding": table.encoding, "sheet": table.sheet}
