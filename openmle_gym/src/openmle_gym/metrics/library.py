"""The metric library: each function with its name, direction, bounds and what it is a function of."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from openmle_gym.manifest import Metric
from openmle_gym.metrics import functions as f
from openmle_gym.submission import Prediction

Columns = Literal["each", "together"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """A metric and what a manifest says of it."""

    name: str
    function: Callable[[np.ndarray, np.ndarray], float]
    """Of answers and predictions, [rows] each; where `columns` is `together`, [rows, targets] each."""
    higher_is_better: bool
    theoretical_min: float | None
    theoretical_max: float | None
    prediction: Prediction
    columns: Columns
    """With several target columns: `each` is scored by itself and the scores are averaged, or all `together`."""

    def declaration(self) -> Metric:
        """The metric as a manifest states it."""
        return Metric(
            name=self.name,
            higher_is_better=self.higher_is_better,
            theoretical_min=self.theoretical_min,
            theoretical_max=self.theoretical_max,
            prediction=self.prediction,
        )


def _gain(
    name: str,
    function: Callable[..., float],
    prediction: Prediction,
    low: float | None = 0.0,
    *,
    columns: Columns = "each",
) -> MetricSpec:
    """Higher is better, and 1 is perfect."""
    return MetricSpec(
        name=name,
        function=function,
        higher_is_better=True,
        theoretical_min=low,
        theoretical_max=1.0,
        prediction=prediction,
        columns=columns,
    )


def _loss(
    name: str,
    function: Callable[..., float],
    prediction: Prediction,
    high: float | None = None,
    *,
    columns: Columns = "each",
) -> MetricSpec:
    """Lower is better, and 0 is perfect."""
    return MetricSpec(
        name=name,
        function=function,
        higher_is_better=False,
        theoretical_min=0.0,
        theoretical_max=high,
        prediction=prediction,
        columns=columns,
    )


METRICS: dict[str, MetricSpec] = {
    spec.name: spec
    for spec in (
        _gain("accuracy", f.accuracy, "label"),
        _gain("balanced_accuracy", f.balanced_accuracy, "label"),
        _gain("f1", f.f1_macro, "label"),
        _gain("f1_binary", f.f1_binary, "label"),
        _gain("f1_micro", f.f1_micro, "label"),
        _gain("f1_weighted", f.f1_weighted, "label"),
        _gain("mcc", f.mcc, "label", -1.0),
        _gain("qwk", f.qwk, "number", -1.0),
        _gain("auc", f.auc, "probability"),
        _gain("average_precision", f.average_precision, "probability"),
        _loss("log_loss", f.log_loss, "probability"),
        _loss("multiclass_log_loss", f.multiclass_log_loss, "probability", columns="together"),
        _loss("brier", f.brier, "probability"),
        _loss("rmse", f.rmse, "number"),
        _loss("rmsle", f.rmsle, "number"),
        _loss("mae", f.mae, "number"),
        _loss("median_ae", f.median_ae, "number"),
        _loss("mape", f.mape, "number"),
        _loss("smape", f.smape, "number", 2.0),
        *(_loss(f"pinball_{q}", partial(f.pinball, quantile=q / 100), "number") for q in (10, 50, 90)),
        _gain("r2", f.r2, "number", None),
        _gain("pearson", f.pearson, "number", -1.0),
        _gain("spearman", f.spearman, "number", -1.0),
        *(_gain(f"map_at_{k}", partial(f.map_at_k, k=k), "label") for k in (3, 5, 10, 12)),
        *(_gain(f"ndcg_at_{k}", partial(f.ndcg_at_k, k=k), "label") for k in (5, 10)),
        _gain("token_accuracy", f.token_accuracy, "label"),
        _gain("dice", f.dice, "label"),
        _gain("iou", f.iou, "label"),
    )
}
"""By the name that `openmle-gym new --metric` and a manifest use. `f1` is the macro average; `auc`, `rmse` and the like
over several target columns are the column-wise means, so `auc` over one column for each class is the one-vs-rest
macro average."""
