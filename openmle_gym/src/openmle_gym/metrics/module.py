"""Writes the `metric.py` of a package: self-contained, so that it runs wherever numpy and pandas do."""

import ast
import inspect
from collections.abc import Callable
from functools import partial

from openmle_gym.manifest import Columns
from openmle_gym.metrics import functions
from openmle_gym.metrics.library import MetricSpec

_TEMPLATE = '''"""Scores a submission by {name} ({better} is better){over}."""

import numpy as np

ID_COLUMNS = {id_columns!r}
TARGET_COLUMNS = {target_columns!r}


{functions}

def same_rows(left, right):
    return left[ID_COLUMNS].reset_index(drop=True).equals(right[ID_COLUMNS].reset_index(drop=True))


class {class_name}:
    def __init__(self, value={value!r}, higher_is_better={higher!r}):
        self.value = value
        self.higher_is_better = higher_is_better

    def validate_submission(self, submission, ground_truth):
        wanted = ID_COLUMNS + TARGET_COLUMNS
        missing = [column for column in wanted if column not in submission.columns]
        if missing:
            raise ValueError(f"no column {{missing[0]!r}}")
        if not same_rows(submission, ground_truth):
            if submission.duplicated(ID_COLUMNS).any():
                raise ValueError("an id is there twice")
            joined = ground_truth[ID_COLUMNS].merge(submission[ID_COLUMNS], how="outer", indicator=True)
            if (joined["_merge"] != "both").any():
                raise ValueError("the ids are not those of the test data")
        for column in TARGET_COLUMNS:
            if submission[column].isna().any() and not ground_truth[column].isna().any():
                raise ValueError(f"a prediction is missing in column {{column!r}}")
        return "Submission is valid."

    def evaluate(self, y_true, y_pred):
        if not same_rows(y_pred, y_true):
            y_pred = y_pred.set_index(ID_COLUMNS).loc[y_true.set_index(ID_COLUMNS).index]
{evaluate}
'''
_EACH = """\
        scores = [{call} for column in TARGET_COLUMNS]
        return float(np.mean(scores))"""
_TOGETHER = """\
        return {call}"""


def render_metric_module(spec: MetricSpec, columns: Columns) -> str:
    """The text of a `metric.py`: one `*Metrics` class in the released packages' protocol."""
    function, arguments = (
        (spec.function.func, spec.function.keywords) if isinstance(spec.function, partial) else (spec.function, {})
    )
    chosen = "column" if spec.columns == "each" else "TARGET_COLUMNS"
    values = [f"y_true[{chosen}].to_numpy()", f"y_pred[{chosen}].to_numpy()"]
    call = f"{function.__name__}({', '.join([*values, *(f'{key}={value!r}' for key, value in arguments.items())])})"
    several = len(columns.target) > 1
    return _TEMPLATE.format(
        name=spec.name,
        better="higher" if spec.higher_is_better else "lower",
        over=", averaged over the target columns" if several and spec.columns == "each" else "",
        id_columns=list(columns.id),
        target_columns=list(columns.target),
        functions="\n\n".join(map(inspect.getsource, _with_helpers(function))),
        class_name="".join(part.capitalize() for part in spec.name.split("_")) + "Metrics",
        value=columns.target[0],
        higher=spec.higher_is_better,
        evaluate=(_EACH if spec.columns == "each" else _TOGETHER).format(call=call),
    )


def _with_helpers(function: Callable[..., object]) -> list[Callable[..., object]]:
    """A function after the helpers that it calls, and those that they call."""
    called = {node.id for node in ast.walk(ast.parse(inspect.getsource(function))) if isinstance(node, ast.Name)}
    needed: list[Callable[..., object]] = []
    for name, helper in inspect.getmembers(functions, inspect.isfunction):
        if name in called:
            needed += [each for each in _with_helpers(helper) if each not in needed]
    return [*needed, function]
