"""How a recipe's program estimates its own score: scikit-learn source text for a metric's name."""

import re
from dataclasses import dataclass

from openmle_gym.policies.recipe_prompt import TaskFacts


@dataclass(frozen=True, slots=True)
class OwnScore:
    """An expression over `{truth}` and `{guess}`."""

    expression: str
    imports: tuple[str, ...] = ()
    exact: bool = True
    """False where the task's metric is not known and a common one stands in."""


def _sklearn(function: str, arguments: str = "") -> OwnScore:
    return OwnScore(f"{function}({{truth}}, {{guess}}{arguments})", (f"sklearn.metrics.{function}",))


_RMSE = OwnScore("mean_squared_error({truth}, {guess}) ** 0.5", ("sklearn.metrics.mean_squared_error",))
_RMSLE = OwnScore(
    "mean_squared_log_error({truth}, np.maximum({guess}, 0)) ** 0.5", ("sklearn.metrics.mean_squared_log_error",)
)
_QWK = OwnScore(
    'cohen_kappa_score(np.rint({truth}).astype(int), np.rint({guess}).astype(int), weights="quadratic")',
    ("sklearn.metrics.cohen_kappa_score",),
)
_GINI = OwnScore("2 * roc_auc_score({truth}, {guess}) - 1", ("sklearn.metrics.roc_auc_score",))
_AUC = _sklearn("roc_auc_score")
_AUC_OF_MANY = _sklearn("roc_auc_score", ', multi_class="ovr"')
_LOG_LOSS = _sklearn("log_loss")
_ACCURACY = _sklearn("accuracy_score")

_LABELS = (
    (r"balanced_acc", _sklearn("balanced_accuracy_score")),
    (r"quadratic|qwk|weighted_kappa", _sklearn("cohen_kappa_score", ', weights="quadratic"')),
    (r"kappa", _sklearn("cohen_kappa_score")),
    (r"mcc|matthews", _sklearn("matthews_corrcoef")),
    (r"micro.*f1|f1.*micro", _sklearn("f1_score", ', average="micro"')),
    (r"weighted.*f1|f1.*weighted", _sklearn("f1_score", ', average="weighted"')),
    (r"f1", _sklearn("f1_score", ', average="macro"')),
    (r"precision", _sklearn("precision_score", "{average}")),
    (r"recall", _sklearn("recall_score", "{average}")),
    (r"acc", _ACCURACY),
)
_PROBABILITIES = (
    (r"average_precision|pr_auc|aucpr", _sklearn("average_precision_score")),
    (r"gini", _GINI),
    (r"auc", _AUC),
    (r"brier", _sklearn("brier_score_loss")),
    (r"log_?loss|entropy", _LOG_LOSS),
)
_NUMBERS = (
    (r"rmsle|log_error", _RMSLE),
    (r"mape|absolute_percentage", _sklearn("mean_absolute_percentage_error")),
    (r"median_absolute|medae", _sklearn("median_absolute_error")),
    (r"mae|absolute", _sklearn("mean_absolute_error")),
    (r"rmse|root_mean_squared", _RMSE),
    (r"mse|squared_error", _sklearn("mean_squared_error")),
    (r"qwk|quadratic", _QWK),
    (r"r2|r_squared|determination", _sklearn("r2_score")),
    (r"spearman", OwnScore("spearmanr({truth}, {guess})[0]", ("scipy.stats.spearmanr",))),
    (r"pearson|correlation", OwnScore("pearsonr({truth}, {guess})[0]", ("scipy.stats.pearsonr",))),
)


def own_score(facts: TaskFacts) -> OwnScore:
    """The expression for the task's metric, or for the most usual one of its kind."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", facts.metric).lower().replace("-", "_").replace(" ", "_")
    many = facts.classes > 2 or facts.one_column_per_class
    table = {"label": _LABELS, "probability": _PROBABILITIES, "number": _NUMBERS}[facts.output]
    found = next((score for pattern, score in table if re.search(pattern, name)), None)
    if found is _AUC and many:
        found = _AUC_OF_MANY
    if found is None:
        standing = {"label": _ACCURACY, "probability": _LOG_LOSS, "number": _RMSE}[facts.output]
        found = OwnScore(standing.expression, standing.imports, exact=False)
    average = ', average="macro"' if many else ""
    return OwnScore(found.expression.replace("{average}", average), found.imports, found.exact)
