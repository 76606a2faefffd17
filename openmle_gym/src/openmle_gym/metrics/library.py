"""The metrics themselves: functions of two 1-D arrays that need numpy alone.

Each function's source is copied into the `metric.py` of a package, so it uses nothing from this module but `np` and
`as_labels`.
Definitions are scikit-learn's where it has the metric; the tests compare.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from openmle_gym.manifest import Metric
from openmle_gym.submission import Prediction


def as_labels(values):
    """Labels as text; numbers in their plainest spelling, so that 1 and 1.0 are one label."""
    if values.dtype.kind in "iuf":
        return np.array([f"{value:.15g}" for value in values.astype(float)])
    return values.astype(str)


def accuracy(y_true, y_pred):
    """Share of equal labels."""
    return float(np.mean(as_labels(y_true) == as_labels(y_pred)))


def balanced_accuracy(y_true, y_pred):
    """Mean recall over the classes of y_true."""
    y_true, y_pred = as_labels(y_true), as_labels(y_pred)
    return float(np.mean([np.mean(y_pred[y_true == label] == label) for label in np.unique(y_true)]))


def f1_macro(y_true, y_pred):
    """Mean F1 over the classes of either array; a class without true positives counts 0."""
    y_true, y_pred = as_labels(y_true), as_labels(y_pred)
    scores = []
    for label in np.union1d(y_true, y_pred):
        hits = np.sum((y_true == label) & (y_pred == label))
        scores.append(2 * hits / (np.sum(y_true == label) + np.sum(y_pred == label)))
    return float(np.mean(scores))


def auc(y_true, y_pred):
    """Area under the ROC curve by ranks, ties counted half; the larger of the two labels is positive."""
    labels = np.unique(y_true)
    if len(labels) != 2:
        raise ValueError(f"AUC needs two classes among the answers, got {len(labels)}")
    positive = y_true == labels[1]
    _, inverse, counts = np.unique(y_pred.astype(float), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    hits, misses = np.sum(positive), np.sum(~positive)
    return float((np.sum(ranks[positive]) - hits * (hits + 1) / 2) / (hits * misses))


def log_loss(y_true, y_pred):
    """Mean negative log-likelihood of the larger of two labels; probabilities are clipped to [1e-15, 1 - 1e-15]."""
    labels = np.unique(y_true)
    if len(labels) > 2:
        raise ValueError(f"binary log loss needs two classes among the answers, got {len(labels)}")
    positive = y_true.astype(float) == 1.0 if len(labels) == 1 else y_true == labels[1]
    probability = np.clip(y_pred.astype(float), 1e-15, 1 - 1e-15)
    return float(-np.mean(np.where(positive, np.log(probability), np.log(1 - probability))))


def rmse(y_true, y_pred):
    """Root of the mean squared error."""
    return float(np.sqrt(np.mean((y_true.astype(float) - y_pred.astype(float)) ** 2)))


def rmsle(y_true, y_pred):
    """Root mean squared error of log(1 + value); predictions below 0 count as 0."""
    y_true, y_pred = y_true.astype(float), np.maximum(y_pred.astype(float), 0.0)
    return float(np.sqrt(np.mean((np.log1p(y_true) - np.log1p(y_pred)) ** 2)))


def mae(y_true, y_pred):
    """Mean absolute error."""
    return float(np.mean(np.abs(y_true.astype(float) - y_pred.astype(float))))


def mape(y_true, y_pred):
    """Mean absolute error relative to the answer; 1 is 100 %."""
    y_true, y_pred = y_true.astype(float), y_pred.astype(float)
    return float(np.mean(np.abs(y_true - y_pred) / np.maximum(np.abs(y_true), np.finfo(float).eps)))


def r2(y_true, y_pred):
    """Coefficient of determination."""
    y_true, y_pred = y_true.astype(float), y_pred.astype(float)
    spread = np.sum((y_true - np.mean(y_true)) ** 2)
    if spread == 0:
        raise ValueError("R2 needs answers that are not all equal")
    return float(1 - np.sum((y_true - y_pred) ** 2) / spread)


def qwk(y_true, y_pred):
    """Cohen's kappa with quadratic weights over whole-numbered labels; predictions are rounded.

    The quadratic disagreement expected of independent raters is var(a) + var(b) + (mean(a) - mean(b))^2.
    """
    y_true, y_pred = np.rint(y_true.astype(float)), np.rint(y_pred.astype(float))
    expected = np.var(y_true) + np.var(y_pred) + (np.mean(y_true) - np.mean(y_pred)) ** 2
    return float(1.0 - np.mean((y_true - y_pred) ** 2) / expected) if expected > 0 else 1.0


def mcc(y_true, y_pred):
    """Matthews correlation coefficient, any number of classes; 0 where it is undefined."""
    y_true, y_pred = as_labels(y_true), as_labels(y_pred)
    labels = np.union1d(y_true, y_pred)
    true = (y_true[:, None] == labels).astype(float)
    pred = (y_pred[:, None] == labels).astype(float)
    true, pred = true - true.mean(axis=0), pred - pred.mean(axis=0)
    spread = np.sqrt(np.sum(true * true) * np.sum(pred * pred))
    return float(np.sum(true * pred) / spread) if spread > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """A metric and what a manifest says of it."""

    name: str
    function: Callable[[np.ndarray, np.ndarray], float]
    higher_is_better: bool
    theoretical_min: float | None
    theoretical_max: float | None
    prediction: Prediction

    def declaration(self) -> Metric:
        """The metric as a manifest states it."""
        return Metric(
            name=self.name,
            higher_is_better=self.higher_is_better,
            theoretical_min=self.theoretical_min,
            theoretical_max=self.theoretical_max,
            prediction=self.prediction,
        )


def _spec(
    name: str, function: Callable, higher: bool, low: float | None, high: float | None, prediction: Prediction
) -> MetricSpec:
    return MetricSpec(
        name=name,
        function=function,
        higher_is_better=higher,
        theoretical_min=low,
        theoretical_max=high,
        prediction=prediction,
    )


METRICS: dict[str, MetricSpec] = {
    spec.name: spec
    for spec in (
        _spec("accuracy", accuracy, True, 0.0, 1.0, "label"),
        _spec("balanced_accuracy", balanced_accuracy, True, 0.0, 1.0, "label"),
        _spec("f1", f1_macro, True, 0.0, 1.0, "label"),
        _spec("mcc", mcc, True, -1.0, 1.0, "label"),
        _spec("qwk", qwk, True, -1.0, 1.0, "number"),
        _spec("auc", auc, True, 0.0, 1.0, "probability"),
        _spec("log_loss", log_loss, False, 0.0, None, "probability"),
        _spec("rmse", rmse, False, 0.0, None, "number"),
        _spec("rmsle", rmsle, False, 0.0, None, "number"),
        _spec("mae", mae, False, 0.0, None, "number"),
        _spec("mape", mape, False, 0.0, None, "number"),
        _spec("r2", r2, True, None, 1.0, "number"),
    )
}
"""By the name that `openmle-gym new --metric` and a manifest use."""
