"""Writes the `metric.py` of a package: self-contained, so that it runs wherever numpy and pandas do."""

import inspect

from openmle_gym.manifest import Columns
from openmle_gym.metrics.library import MetricSpec, as_labels

_TEMPLATE = '''"""Scores a submission by {name} ({better} is better){over}."""

import numpy as np

ID_COLUMNS = {id_columns!r}
TARGET_COLUMNS = {target_columns!r}


{as_labels}

{function}

class {class_name}:
    def __init__(self, value={value!r}, higher_is_better={higher!r}):
        self.value = value
        self.higher_is_better = higher_is_better

    def validate_submission(self, submission, ground_truth):
        wanted = ID_COLUMNS + TARGET_COLUMNS
        missing = [column for column in wanted if column not in submission.columns]
        if missing:
            raise ValueError(f"no column {{missing[0]!r}}")
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
        predicted = y_pred.set_index(ID_COLUMNS).loc[y_true.set_index(ID_COLUMNS).index]
        scores = [
            {function_name}(y_true[column].to_numpy(), predicted[column].to_numpy()) for column in TARGET_COLUMNS
        ]
        return float(np.mean(scores))
'''


def render_metric_module(spec: MetricSpec, columns: Columns) -> str:
    """The text of a `metric.py`: one `*Metrics` class in the released packages' protocol; several targets are averaged."""
    return _TEMPLATE.format(
        name=spec.name,
        better="higher" if spec.higher_is_better else "lower",
        over="" if len(columns.target) == 1 else ", averaged over the target columns",
        id_columns=list(columns.id),
        target_columns=list(columns.target),
        as_labels=inspect.getsource(as_labels),
        function=inspect.getsource(spec.function),
        function_name=spec.function.__name__,
        class_name="".join(part.capitalize() for part in spec.name.split("_")) + "Metrics",
        value=columns.target[0],
        higher=spec.higher_is_better,
    )
