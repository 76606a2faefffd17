"""The first grid of baselines, of the first five anchors' leaderboards; scores that were published rest on it."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from openmle_gym.anchors.baselines import Baseline

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

SEED = 0
LOGGED = ("linear", "ridge", "support", "random", "extra", "gradient", "histogram")
"""For a metric of logarithms, entries that begin so are there twice."""


def plain_baselines(*, classification: bool, logged: bool) -> Iterator[Baseline]:
    """From dummies to boosting, a few settings each, all seeds fixed."""
    models = _classifiers() if classification else _regressors()
    for entry, (model, scaled) in models.items():
        yield Baseline(entry, "table", _with_preparation(model, scaled=scaled))
        if logged and entry.startswith(LOGGED):
            yield Baseline(f"{entry}, log target", "table", _log_target(_with_preparation(model, scaled=scaled)))


def _with_preparation(model: "BaseEstimator", *, scaled: bool) -> "BaseEstimator":
    from sklearn.base import clone
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    filled = SimpleImputer(strategy="median")
    numbers = make_pipeline(filled, StandardScaler()) if scaled else filled
    prepared = make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), make_column_selector(dtype_exclude="number")),
    )
    return make_pipeline(prepared, clone(model))


def _log_target(model: "BaseEstimator") -> "BaseEstimator":
    from sklearn.compose import TransformedTargetRegressor

    return TransformedTargetRegressor(model, func=np.log1p, inverse_func=np.expm1)


def _classifiers() -> Mapping[str, tuple["BaseEstimator", bool]]:
    """Models by entry, and whether their numeric columns are scaled."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.dummy import DummyClassifier
    from sklearn.ensemble import (
        ExtraTreesClassifier,
        GradientBoostingClassifier,
        HistGradientBoostingClassifier,
        RandomForestClassifier,
    )
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.svm import SVC
    from sklearn.tree import DecisionTreeClassifier

    models: dict[str, tuple[BaseEstimator, bool]] = {
        "dummy, most frequent class": (DummyClassifier(strategy="prior"), False),
        "dummy, random by class shares": (DummyClassifier(strategy="stratified", random_state=SEED), False),
        "naive Bayes": (GaussianNB(), False),
        "naive Bayes, smoothing 0.1": (GaussianNB(var_smoothing=0.1), True),
        "linear discriminant, shrinkage auto": (LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"), False),
    }
    for c in (0.001, 0.01, 0.1, 1.0, 10.0):
        models[f"logistic regression, C={c:g}"] = (LogisticRegression(C=c, max_iter=1000), True)
    for k in (1, 3, 5, 10, 25, 50):
        models[f"{k} nearest neighbours"] = (KNeighborsClassifier(k), True)
    for depth in (1, 2, 3, 5, 8, None):
        models[f"decision tree, depth {depth or 'free'}"] = (
            DecisionTreeClassifier(max_depth=depth, random_state=SEED),
            False,
        )
    for c in (0.1, 1.0, 10.0):
        for kernel in ("linear", "rbf"):
            machine = CalibratedClassifierCV(SVC(C=c, kernel=kernel), cv=3)
            models[f"support vectors, {kernel}, C={c:g}"] = (machine, True)
    for trees in (10, 50, 200):
        for leaf in (1, 5):
            forest = RandomForestClassifier(trees, min_samples_leaf=leaf, random_state=SEED)
            extra = ExtraTreesClassifier(trees, min_samples_leaf=leaf, random_state=SEED)
            models[f"random forest, {trees} trees, leaf {leaf}"] = (forest, False)
            models[f"extra trees, {trees} trees, leaf {leaf}"] = (extra, False)
    for rounds, rate in ((50, 0.1), (150, 0.1), (100, 0.03)):
        boosted = GradientBoostingClassifier(n_estimators=rounds, learning_rate=rate, random_state=SEED)
        models[f"gradient boosting, {rounds} rounds, rate {rate}"] = (boosted, False)
        histograms = HistGradientBoostingClassifier(max_iter=rounds, learning_rate=rate, random_state=SEED)
        models[f"histogram boosting, {rounds} rounds, rate {rate}"] = (histograms, False)
    for width in (16, 64):
        network = MLPClassifier((width,), alpha=0.01, max_iter=300, random_state=SEED)
        models[f"neural network, {width} units"] = (network, True)
    return models


def _regressors() -> Mapping[str, tuple["BaseEstimator", bool]]:
    """Models by entry, and whether their numeric columns are scaled."""
    from sklearn.dummy import DummyRegressor
    from sklearn.ensemble import (
        ExtraTreesRegressor,
        GradientBoostingRegressor,
        HistGradientBoostingRegressor,
        RandomForestRegressor,
    )
    from sklearn.linear_model import BayesianRidge, Lasso, LinearRegression, Ridge
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.svm import SVR
    from sklearn.tree import DecisionTreeRegressor

    models: dict[str, tuple[BaseEstimator, bool]] = {
        "dummy, mean": (DummyRegressor(strategy="mean"), False),
        "dummy, median": (DummyRegressor(strategy="median"), False),
        "linear regression": (LinearRegression(), True),
        "Bayesian ridge": (BayesianRidge(), True),
    }
    for alpha in (1.0, 10.0, 100.0):
        models[f"ridge, alpha {alpha:g}"] = (Ridge(alpha=alpha), True)
    for alpha in (0.01, 1.0):
        models[f"lasso, alpha {alpha:g}"] = (Lasso(alpha=alpha, max_iter=5000), True)
    for k in (1, 3, 10, 30):
        models[f"{k} nearest neighbours"] = (KNeighborsRegressor(k), True)
    for depth in (1, 3, 6, None):
        models[f"decision tree, depth {depth or 'free'}"] = (
            DecisionTreeRegressor(max_depth=depth, random_state=SEED),
            False,
        )
    for c in (0.1, 1.0, 10.0, 100.0):
        models[f"support vectors, rbf, C={c:g}"] = (SVR(C=c), True)
    for trees in (10, 100):
        for leaf in (1, 5):
            forest = RandomForestRegressor(trees, min_samples_leaf=leaf, random_state=SEED)
            extra = ExtraTreesRegressor(trees, min_samples_leaf=leaf, random_state=SEED)
            models[f"random forest, {trees} trees, leaf {leaf}"] = (forest, False)
            models[f"extra trees, {trees} trees, leaf {leaf}"] = (extra, False)
    for rounds, rate in ((50, 0.1), (150, 0.1), (100, 0.03)):
        boosted = GradientBoostingRegressor(n_estimators=rounds, learning_rate=rate, random_state=SEED)
        models[f"gradient boosting, {rounds} rounds, rate {rate}"] = (boosted, False)
        histograms = HistGradientBoostingRegressor(max_iter=rounds, learning_rate=rate, random_state=SEED)
        models[f"histogram boosting, {rounds} rounds, rate {rate}"] = (histograms, False)
    return models
