"""The model families that recipes choose from, with the ranges of their settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from openmle_gym.policies import recipe_costs as costs
from openmle_gym.policies.recipe_settings import Choice, Real, Setting, Whole

Kind = Literal["classification", "regression"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One kind of model."""

    title: str
    path: str
    """Module and class, such as `sklearn.svm.SVC`."""
    settings: Mapping[str, Setting]
    fixed: str = ""
    """Arguments that are always the same, as source text."""
    wants_scaling: bool = False
    has_probabilities: bool = True
    most_rows: int = 1_000_000
    full_rank: bool = False
    """Fails unless each class has more rows than there are columns."""
    weight: float = 1.0
    """How often a draft takes it, relative to the others."""
    cost: costs.Cost


_WEIGHTS = Choice((None, "balanced"))
_SHARE = Real(0.1, 1.0)

CLASSIFIERS: Mapping[str, Family] = {
    "logistic": Family(
        title="logistic regression",
        path="sklearn.linear_model.LogisticRegression",
        settings={"C": Real(1e-3, 100), "class_weight": _WEIGHTS},
        fixed="max_iter=400",
        wants_scaling=True,
        cost=costs.linear,
    ),
    "sgd": Family(
        title="elastic-net logistic regression by stochastic gradient descent",
        path="sklearn.linear_model.SGDClassifier",
        settings={"alpha": Real(1e-5, 1e-1), "l1_ratio": _SHARE, "class_weight": _WEIGHTS},
        fixed='loss="log_loss", penalty="elasticnet", random_state=SEED',
        wants_scaling=True,
        weight=0.5,
        cost=costs.linear,
    ),
    "lda": Family(
        title="linear discriminant analysis",
        path="sklearn.discriminant_analysis.LinearDiscriminantAnalysis",
        settings={"shrinkage": Real(1e-3, 1.0)},
        fixed='solver="lsqr"',
        weight=0.7,
        cost=costs.linear,
    ),
    "qda": Family(
        title="quadratic discriminant analysis",
        path="sklearn.discriminant_analysis.QuadraticDiscriminantAnalysis",
        settings={"reg_param": Real(1e-2, 0.9)},
        wants_scaling=True,
        full_rank=True,
        weight=0.5,
        cost=costs.linear,
    ),
    "naive_bayes": Family(
        title="Gaussian naive Bayes",
        path="sklearn.naive_bayes.GaussianNB",
        settings={"var_smoothing": Real(1e-9, 1.0)},
        weight=0.5,
        cost=costs.linear,
    ),
    "neighbours": Family(
        title="nearest neighbours",
        path="sklearn.neighbors.KNeighborsClassifier",
        settings={
            "n_neighbors": Whole(1, 60),
            "weights": Choice(("uniform", "distance")),
            "p": Choice((1, 2)),
        },
        wants_scaling=True,
        cost=costs.neighbours,
    ),
    "svm": Family(
        title="a support vector machine",
        path="sklearn.svm.SVC",
        settings={
            "C": Real(0.05, 100),
            "gamma": Real(5e-4, 0.5),
            "kernel": Choice(("rbf", "rbf", "rbf", "poly", "sigmoid")),
            "class_weight": _WEIGHTS,
        },
        fixed="max_iter=20_000",
        wants_scaling=True,
        has_probabilities=False,
        most_rows=8_000,
        cost=costs.kernel,
    ),
    "tree": Family(
        title="a decision tree",
        path="sklearn.tree.DecisionTreeClassifier",
        settings={"max_depth": Whole(2, 14), "min_samples_leaf": Whole(1, 40), "class_weight": _WEIGHTS},
        fixed="random_state=SEED",
        weight=0.6,
        cost=costs.one_tree,
    ),
    "forest": Family(
        title="a random forest",
        path="sklearn.ensemble.RandomForestClassifier",
        settings={
            "n_estimators": Whole(25, 300),
            "max_features": _SHARE,
            "min_samples_leaf": Whole(1, 15),
            "criterion": Choice(("gini", "entropy")),
            "class_weight": _WEIGHTS,
        },
        fixed="random_state=SEED",
        cost=costs.trees,
    ),
    "extra_trees": Family(
        title="extremely randomised trees",
        path="sklearn.ensemble.ExtraTreesClassifier",
        settings={
            "n_estimators": Whole(25, 300),
            "max_features": _SHARE,
            "min_samples_leaf": Whole(1, 15),
            "criterion": Choice(("gini", "entropy")),
            "class_weight": _WEIGHTS,
        },
        fixed="random_state=SEED",
        cost=costs.random_trees,
    ),
    "hist_boosting": Family(
        title="histogram gradient boosting",
        path="sklearn.ensemble.HistGradientBoostingClassifier",
        settings={
            "learning_rate": Real(0.02, 0.4),
            "max_iter": Whole(30, 250),
            "max_leaf_nodes": Whole(3, 48),
            "min_samples_leaf": Whole(3, 60),
            "l2_regularization": Real(1e-3, 30),
            "max_features": _SHARE,
            "class_weight": _WEIGHTS,
        },
        fixed="random_state=SEED",
        cost=costs.histograms,
    ),
    "gradient_boosting": Family(
        title="gradient boosting",
        path="sklearn.ensemble.GradientBoostingClassifier",
        settings={
            "learning_rate": Real(0.02, 0.4),
            "n_estimators": Whole(30, 200),
            "max_depth": Whole(1, 6),
            "subsample": Real(0.4, 1.0),
            "max_features": _SHARE,
        },
        fixed="random_state=SEED",
        cost=costs.gradient,
    ),
    "network": Family(
        title="a small neural network",
        path="sklearn.neural_network.MLPClassifier",
        settings={
            "hidden_layer_sizes": Choice(((16,), (32,), (64,), (128,), (64, 32))),
            "alpha": Real(1e-5, 3.0),
            "learning_rate_init": Real(5e-4, 2e-2),
            "activation": Choice(("relu", "tanh")),
            "max_iter": Whole(40, 200),
        },
        fixed="random_state=SEED",
        wants_scaling=True,
        cost=costs.network,
    ),
}

REGRESSORS: Mapping[str, Family] = {
    "ridge": Family(
        title="ridge regression",
        path="sklearn.linear_model.Ridge",
        settings={"alpha": Real(1e-3, 1e3)},
        wants_scaling=True,
        cost=costs.linear,
    ),
    "lasso": Family(
        title="the lasso",
        path="sklearn.linear_model.Lasso",
        settings={"alpha": Real(1e-4, 10)},
        fixed="max_iter=3000",
        wants_scaling=True,
        weight=0.7,
        cost=costs.linear,
    ),
    "elastic_net": Family(
        title="the elastic net",
        path="sklearn.linear_model.ElasticNet",
        settings={"alpha": Real(1e-4, 3), "l1_ratio": _SHARE},
        fixed="max_iter=3000",
        wants_scaling=True,
        cost=costs.linear,
    ),
    "bayesian_ridge": Family(
        title="Bayesian ridge regression",
        path="sklearn.linear_model.BayesianRidge",
        settings={"alpha_1": Real(1e-7, 1e-2), "lambda_1": Real(1e-7, 1e-2)},
        wants_scaling=True,
        weight=0.5,
        cost=costs.linear,
    ),
    "huber": Family(
        title="Huber regression",
        path="sklearn.linear_model.HuberRegressor",
        settings={"epsilon": Real(1.05, 3.0), "alpha": Real(1e-5, 10)},
        fixed="max_iter=300",
        wants_scaling=True,
        weight=0.5,
        cost=costs.linear,
    ),
    "neighbours": Family(
        title="nearest neighbours",
        path="sklearn.neighbors.KNeighborsRegressor",
        settings={
            "n_neighbors": Whole(1, 60),
            "weights": Choice(("uniform", "distance")),
            "p": Choice((1, 2)),
        },
        wants_scaling=True,
        cost=costs.neighbours,
    ),
    "svm": Family(
        title="support vector regression",
        path="sklearn.svm.SVR",
        settings={
            "C": Real(0.05, 300),
            "gamma": Real(5e-4, 0.5),
            "epsilon": Real(5e-3, 0.5),
            "kernel": Choice(("rbf", "rbf", "rbf", "sigmoid")),
        },
        fixed="max_iter=20_000",
        wants_scaling=True,
        most_rows=8_000,
        cost=costs.kernel,
    ),
    "kernel_ridge": Family(
        title="kernel ridge regression",
        path="sklearn.kernel_ridge.KernelRidge",
        settings={
            "alpha": Real(1e-3, 30),
            "gamma": Real(5e-4, 0.5),
            "kernel": Choice(("rbf", "laplacian", "poly")),
        },
        wants_scaling=True,
        most_rows=4_000,
        cost=costs.cubic,
    ),
    "tree": Family(
        title="a decision tree",
        path="sklearn.tree.DecisionTreeRegressor",
        settings={"max_depth": Whole(2, 14), "min_samples_leaf": Whole(1, 40)},
        fixed="random_state=SEED",
        weight=0.6,
        cost=costs.one_tree,
    ),
    "forest": Family(
        title="a random forest",
        path="sklearn.ensemble.RandomForestRegressor",
        settings={"n_estimators": Whole(25, 300), "max_features": _SHARE, "min_samples_leaf": Whole(1, 15)},
        fixed="random_state=SEED",
        cost=costs.trees,
    ),
    "extra_trees": Family(
        title="extremely randomised trees",
        path="sklearn.ensemble.ExtraTreesRegressor",
        settings={"n_estimators": Whole(25, 300), "max_features": _SHARE, "min_samples_leaf": Whole(1, 15)},
        fixed="random_state=SEED",
        cost=costs.random_trees,
    ),
    "hist_boosting": Family(
        title="histogram gradient boosting",
        path="sklearn.ensemble.HistGradientBoostingRegressor",
        settings={
            "learning_rate": Real(0.02, 0.4),
            "max_iter": Whole(30, 300),
            "max_leaf_nodes": Whole(3, 48),
            "min_samples_leaf": Whole(3, 60),
            "l2_regularization": Real(1e-3, 30),
            "max_features": _SHARE,
            "loss": Choice(("squared_error", "squared_error", "absolute_error")),
        },
        fixed="random_state=SEED",
        cost=costs.histograms,
    ),
    "gradient_boosting": Family(
        title="gradient boosting",
        path="sklearn.ensemble.GradientBoostingRegressor",
        settings={
            "learning_rate": Real(0.02, 0.4),
            "n_estimators": Whole(30, 250),
            "max_depth": Whole(1, 6),
            "subsample": Real(0.4, 1.0),
            "max_features": _SHARE,
        },
        fixed="random_state=SEED",
        cost=costs.gradient,
    ),
    "network": Family(
        title="a small neural network",
        path="sklearn.neural_network.MLPRegressor",
        settings={
            "hidden_layer_sizes": Choice(((16,), (32,), (64,), (128,), (64, 32))),
            "alpha": Real(1e-5, 3.0),
            "learning_rate_init": Real(5e-4, 2e-2),
            "activation": Choice(("relu", "tanh")),
            "max_iter": Whole(40, 200),
        },
        fixed="random_state=SEED",
        wants_scaling=True,
        cost=costs.network,
    ),
}


def families(kind: Kind) -> Mapping[str, Family]:
    """The families of a kind of task, by name."""
    return CLASSIFIERS if kind == "classification" else REGRESSORS
