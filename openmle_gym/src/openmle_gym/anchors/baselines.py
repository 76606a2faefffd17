"""The baselines of the anchors' leaderboards: ordinary models of scikit-learn on a few views of a task's inputs.

A grid is views times models, so it is the same for every anchor of a modality: columns for tables, TF-IDF for text,
pixels and gradients for images, raw values, spectra and statistics for signals. All seeds are fixed.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    Models = Mapping[str, BaseEstimator]

SEED = 0
VIEWS: Mapping[str, tuple[str, ...]] = {
    "tabular": ("columns", "scaled"),
    "text": ("words", "letters", "topics"),
    "image": ("pixels", "gradients", "components", "moments"),
    "signal": ("scaled", "components", "spectrum", "moments"),
}
"""Of each grid; `openmle_gym.anchors.views` makes them."""
TREES = {"tabular": "columns", "text": "topics"}
"""Where a grid's models of trees see but one of its views."""


class Baseline(NamedTuple):
    """One line of a leaderboard."""

    entry: str
    view: str
    """What the model is given of the inputs."""
    model: "BaseEstimator"


def grid_baselines(grid: str, *, classification: bool, probability: bool, logged: bool) -> Iterator[Baseline]:
    """A grid's baselines.

    Args:
        probability: The metric wants probabilities, so models that have none are calibrated.
        logged: The metric is one of logarithms or ratios, so some models learn the target's logarithm too.
    """
    dummies = _dummy_classifiers() if classification else _dummy_regressors()
    for entry, model in dummies.items():
        yield Baseline(entry, VIEWS[grid][0], model)
    wide = grid == "tabular"
    smooth = _smooth_classifiers(probability, wide) if classification else _smooth_regressors(wide)
    trees = _tree_classifiers(wide) if classification else _tree_regressors(wide)
    for view in VIEWS[grid]:
        sparse = view in ("words", "letters")
        for entry, model in {**smooth, **trees}.items():
            if entry in trees and view != TREES.get(grid, view):
                continue
            if entry in smooth and view == "columns":
                continue
            if sparse and not _takes_sparse(entry):
                continue
            name = entry if wide else f"{view}, {entry}"
            yield Baseline(name, view, model)
            if logged and entry.startswith(("ridge", "random", "extra", "boosting")):
                yield Baseline(f"{name}, log target", view, _log_target(model))
        if sparse:
            for entry, model in (_sparse_classifiers() if classification else _sparse_regressors()).items():
                yield Baseline(f"{view}, {entry}", view, model)


def _takes_sparse(entry: str) -> bool:
    return not entry.startswith(("naive Bayes", "linear discriminant", "linear regression", "Bayesian", "network"))


def _log_target(model: "BaseEstimator") -> "BaseEstimator":
    import numpy as np
    from sklearn.compose import TransformedTargetRegressor

    return TransformedTargetRegressor(model, func=np.log1p, inverse_func=np.expm1)


def _dummy_classifiers() -> "Models":
    from sklearn.dummy import DummyClassifier

    return {
        "dummy, most frequent class": DummyClassifier(strategy="prior"),
        "dummy, random by class shares": DummyClassifier(strategy="stratified", random_state=SEED),
    }


def _dummy_regressors() -> "Models":
    from sklearn.dummy import DummyRegressor

    return {"dummy, mean": DummyRegressor(strategy="mean"), "dummy, median": DummyRegressor(strategy="median")}


def _smooth_classifiers(probability: bool, wide: bool) -> "Models":
    """Models that want their inputs scaled."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.svm import SVC

    models: dict[str, BaseEstimator] = {
        "naive Bayes": GaussianNB(var_smoothing=1e-3),
        "linear discriminant, shrinkage auto": LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
        "network, 16 units": MLPClassifier((16,), alpha=0.01, max_iter=60, random_state=SEED),
    }
    for c in (0.001, 0.01, 0.1, 1.0, 10.0) if wide else (0.1, 10.0):
        models[f"logistic regression, C={c:g}"] = LogisticRegression(C=c, max_iter=300)
    for k in (1, 3, 5, 10, 25) if wide else (1, 5):
        models[f"{k} nearest neighbours"] = KNeighborsClassifier(k)
    for c in (0.3, 1.0, 10.0) if wide else (1.0, 10.0):
        machine = SVC(C=c)
        models[f"support vectors, C={c:g}"] = CalibratedClassifierCV(machine, cv=3) if probability else machine
    return models


def _smooth_regressors(wide: bool) -> "Models":
    from sklearn.linear_model import BayesianRidge, ElasticNet, Ridge
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.neural_network import MLPRegressor
    from sklearn.svm import SVR

    models: dict[str, BaseEstimator] = {
        "Bayesian ridge": BayesianRidge(),
        "network, 16 units": _scaled_target(
            MLPRegressor(hidden_layer_sizes=(16,), alpha=0.01, max_iter=60, random_state=SEED)
        ),
    }
    for alpha in (0.01, 1.0, 10.0, 100.0, 1000.0) if wide else (0.01, 1.0, 100.0):
        models[f"ridge, alpha {alpha:g}"] = Ridge(alpha=alpha)
    for alpha in (0.001, 0.01, 0.1) if wide else (0.01,):
        models[f"elastic net, alpha {alpha:g}"] = _scaled_target(ElasticNet(alpha=alpha, max_iter=2000))
    for k in (1, 3, 5, 10, 30) if wide else (1, 10):
        models[f"{k} nearest neighbours"] = KNeighborsRegressor(k)
    for c in (0.1, 1.0, 10.0, 100.0) if wide else (1.0, 10.0):
        models[f"support vectors, C={c:g}"] = _scaled_target(SVR(C=c))
    return models


def _scaled_target(model: "BaseEstimator") -> "BaseEstimator":
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.preprocessing import StandardScaler

    return TransformedTargetRegressor(model, transformer=StandardScaler())


def _tree_classifiers(wide: bool) -> "Models":
    from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.tree import DecisionTreeClassifier

    models: dict[str, BaseEstimator] = {}
    for depth in (1, 2, 3, 5, 8, None) if wide else (3, None):
        name = f"decision tree, depth {depth or 'free'}"
        models[name] = DecisionTreeClassifier(max_depth=depth, random_state=SEED)
    for trees in (10, 30, 80) if wide else (40,):
        for leaf in (1, 2, 5) if wide else (1,):
            kind = f"{trees} trees, leaf {leaf}"
            models[f"random forest, {kind}"] = RandomForestClassifier(trees, min_samples_leaf=leaf, random_state=SEED)
            models[f"extra trees, {kind}"] = ExtraTreesClassifier(trees, min_samples_leaf=leaf, random_state=SEED)
    for rounds in (10, 30) if wide else (20,):
        model = HistGradientBoostingClassifier(max_iter=rounds, max_leaf_nodes=8, random_state=SEED)
        models[f"boosting, {rounds} rounds"] = model
    return models


def _tree_regressors(wide: bool) -> "Models":
    from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor, RandomForestRegressor
    from sklearn.tree import DecisionTreeRegressor

    models: dict[str, BaseEstimator] = {}
    for depth in (1, 2, 3, 5, 8, None) if wide else (3, None):
        name = f"decision tree, depth {depth or 'free'}"
        models[name] = DecisionTreeRegressor(max_depth=depth, random_state=SEED)
    for trees in (10, 40) if wide else (30,):
        for leaf in (1, 3, 8) if wide else (1,):
            kind = f"{trees} trees, leaf {leaf}"
            models[f"random forest, {kind}"] = RandomForestRegressor(
                trees, min_samples_leaf=leaf, max_features=0.5, random_state=SEED
            )
            models[f"extra trees, {kind}"] = ExtraTreesRegressor(
                trees, min_samples_leaf=leaf, max_features=0.5, random_state=SEED
            )
    for rounds in (20, 60, 150) if wide else (40,):
        model = HistGradientBoostingRegressor(max_iter=rounds, max_leaf_nodes=8, random_state=SEED)
        models[f"boosting, {rounds} rounds"] = model
    return models


def _sparse_classifiers() -> "Models":
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import BernoulliNB, ComplementNB, MultinomialNB

    models: dict[str, BaseEstimator] = {"naive Bayes of presence": BernoulliNB()}
    for alpha in (0.01, 0.1, 1.0):
        models[f"multinomial naive Bayes, alpha {alpha:g}"] = MultinomialNB(alpha=alpha)
        models[f"complement naive Bayes, alpha {alpha:g}"] = ComplementNB(alpha=alpha)
    for c in (0.3, 1.0, 3.0):
        models[f"balanced logistic regression, C={c:g}"] = LogisticRegression(
            C=c, class_weight="balanced", max_iter=300
        )
    return models


def _sparse_regressors() -> "Models":
    from sklearn.linear_model import Ridge
    from sklearn.neighbors import KNeighborsRegressor

    models: dict[str, BaseEstimator] = {
        f"ridge, alpha {alpha:g}": Ridge(alpha=alpha) for alpha in (0.1, 0.3, 3.0, 10.0)
    }
    for k in (3, 20, 50):
        models[f"{k} nearest neighbours by cosine"] = KNeighborsRegressor(k, metric="cosine", weights="distance")
    return models
