"""The model families that recipes choose from: their settings, the ranges of these, and about what a fit costs."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol

Value = int | float | str | bool | tuple[int, ...] | None
Kind = Literal["classification", "regression"]


class Setting(Protocol):
    """One hyper-parameter."""

    def draw(self, rng: Random) -> Value:
        """Any value of the range."""
        ...

    def nudge(self, value: Value, rng: Random) -> Value:
        """Another value, most often a near one."""
        ...


@dataclass(frozen=True, slots=True)
class Real:
    """A number between two positive ends, evenly spread on a logarithmic scale, to three digits."""

    low: float
    high: float

    def draw(self, rng: Random) -> float:
        return float(f"{math.exp(rng.uniform(math.log(self.low), math.log(self.high))):.3g}")

    def nudge(self, value: Value, rng: Random) -> float:
        centre = float(value) if isinstance(value, int | float) else self.draw(rng)
        while True:
            near = float(f"{min(self.high, max(self.low, centre * math.exp(rng.gauss(0, 0.6)))):.3g}")
            if near != value:
                return near


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number between two positive ends, evenly spread on a logarithmic scale."""

    low: int
    high: int

    def draw(self, rng: Random) -> int:
        return min(self.high, max(self.low, round(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))))

    def nudge(self, value: Value, rng: Random) -> int:
        centre = int(value) if isinstance(value, int | float) else self.draw(rng)
        while True:
            near = min(self.high, max(self.low, round(centre * math.exp(rng.gauss(0, 0.5))) + rng.choice((-1, 0, 1))))
            if near != value:
                return near


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few values."""

    options: tuple[Value, ...]

    def draw(self, rng: Random) -> Value:
        return rng.choice(self.options)

    def nudge(self, value: Value, rng: Random) -> Value:
        return rng.choice([option for option in self.options if option != value])


@dataclass(frozen=True, slots=True)
class Load:
    """How much one fit has to chew."""

    rows: int
    columns: int
    classes: int


Cost = Callable[[Load, Mapping[str, Value]], float]
"""About how many seconds one fit takes on one core."""


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
    cost: Cost


def _number(settings: Mapping[str, Value], name: str, default: float) -> float:
    value = settings.get(name, default)
    return float(value) if isinstance(value, int | float) else default


def _linear(load: Load, _: Mapping[str, Value]) -> float:
    return 0.01 + 2e-7 * load.rows * load.columns * load.classes


def _kernel(load: Load, settings: Mapping[str, Value]) -> float:
    hardness = 1 + 0.25 * max(0.0, math.log10(_number(settings, "C", 1.0)))
    return 0.005 + 2.5e-8 * load.rows**2 * (1 + load.columns / 20) * hardness


def _cubic(load: Load, _: Mapping[str, Value]) -> float:
    return 0.01 + 4e-11 * load.rows**3 + 4e-8 * load.rows**2


def _neighbours(load: Load, _: Mapping[str, Value]) -> float:
    return 0.01 + 4e-9 * load.rows**2 * load.columns


def _one_tree(load: Load, settings: Mapping[str, Value]) -> float:
    share = min(1.0, _number(settings, "max_features", 1.0))
    entropy = 1.4 if settings.get("criterion") == "entropy" else 1.0
    return 0.0012 + load.rows * (2e-6 + 9.5e-8 * math.log2(load.rows + 2) * load.columns * share) * entropy


def _trees(load: Load, settings: Mapping[str, Value]) -> float:
    return _number(settings, "n_estimators", 100) * _one_tree(load, settings)


def _random_trees(load: Load, settings: Mapping[str, Value]) -> float:
    return 0.35 * _trees(load, settings)


def _histograms(load: Load, settings: Mapping[str, Value]) -> float:
    trees = _number(settings, "max_iter", 100) * (load.classes if load.classes > 2 else 1)
    leaves = min(_number(settings, "max_leaf_nodes", 31), load.rows / _number(settings, "min_samples_leaf", 20) + 1)
    return 0.02 + trees * (1.2e-3 + 3e-8 * load.rows * load.columns + leaves * (5e-5 + 1.5e-6 * load.columns))


def _gradient(load: Load, settings: Mapping[str, Value]) -> float:
    trees = _number(settings, "n_estimators", 100) * (load.classes if load.classes > 2 else 1)
    share = _number(settings, "max_features", 1.0) * _number(settings, "subsample", 1.0)
    return trees * (1.5e-3 + 1.2e-7 * load.rows * load.columns * share * _number(settings, "max_depth", 3))


def _network(load: Load, settings: Mapping[str, Value]) -> float:
    sizes = settings.get("hidden_layer_sizes", (64,))
    width = sum(sizes) if isinstance(sizes, tuple) else 64
    batches = math.ceil(load.rows / min(200, load.rows or 1))
    return _number(settings, "max_iter", 150) * (0.0006 * batches + 1.2e-9 * load.rows * width * (load.columns + width))


_WEIGHTS = Choice((None, "balanced"))
_SHARE = Real(0.1, 1.0)

CLASSIFIERS: Mapping[str, Family] = {
    "logistic": Family(
        title="logistic regression",
        path="sklearn.linear_model.LogisticRegression",
        settings={"C": Real(1e-3, 100), "class_weight": _WEIGHTS},
        fixed="max_iter=400",
        wants_scaling=True,
        cost=_linear,
    ),
    "sgd": Family(
        title="elastic-net logistic regression by stochastic gradient descent",
        path="sklearn.linear_model.SGDClassifier",
        settings={"alpha": Real(1e-5, 1e-1), "l1_ratio": _SHARE, "class_weight": _WEIGHTS},
        fixed='loss="log_loss", penalty="elasticnet", random_state=SEED',
        wants_scaling=True,
        weight=0.5,
        cost=_linear,
    ),
    "lda": Family(
        title="linear discriminant analysis",
        path="sklearn.discriminant_analysis.LinearDiscriminantAnalysis",
        settings={"shrinkage": Real(1e-3, 1.0)},
        fixed='solver="lsqr"',
        weight=0.7,
        cost=_linear,
    ),
    "qda": Family(
        title="quadratic discriminant analysis",
        path="sklearn.discriminant_analysis.QuadraticDiscriminantAnalysis",
        settings={"reg_param": Real(1e-2, 0.9)},
        wants_scaling=True,
        full_rank=True,
        weight=0.5,
        cost=_linear,
    ),
    "naive_bayes": Family(
        title="Gaussian naive Bayes",
        path="sklearn.naive_bayes.GaussianNB",
        settings={"var_smoothing": Real(1e-9, 1.0)},
        weight=0.5,
        cost=_linear,
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
        cost=_neighbours,
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
        cost=_kernel,
    ),
    "tree": Family(
        title="a decision tree",
        path="sklearn.tree.DecisionTreeClassifier",
        settings={"max_depth": Whole(2, 14), "min_samples_leaf": Whole(1, 40), "class_weight": _WEIGHTS},
        fixed="random_state=SEED",
        weight=0.6,
        cost=_one_tree,
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
        cost=_trees,
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
        cost=_random_trees,
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
        cost=_histograms,
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
        cost=_gradient,
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
        cost=_network,
    ),
}

REGRESSORS: Mapping[str, Family] = {
    "ridge": Family(
        title="ridge regression",
        path="sklearn.linear_model.Ridge",
        settings={"alpha": Real(1e-3, 1e3)},
        wants_scaling=True,
        cost=_linear,
    ),
    "lasso": Family(
        title="the lasso",
        path="sklearn.linear_model.Lasso",
        settings={"alpha": Real(1e-4, 10)},
        fixed="max_iter=3000",
        wants_scaling=True,
        weight=0.7,
        cost=_linear,
    ),
    "elastic_net": Family(
        title="the elastic net",
        path="sklearn.linear_model.ElasticNet",
        settings={"alpha": Real(1e-4, 3), "l1_ratio": _SHARE},
        fixed="max_iter=3000",
        wants_scaling=True,
        cost=_linear,
    ),
    "bayesian_ridge": Family(
        title="Bayesian ridge regression",
        path="sklearn.linear_model.BayesianRidge",
        settings={"alpha_1": Real(1e-7, 1e-2), "lambda_1": Real(1e-7, 1e-2)},
        wants_scaling=True,
        weight=0.5,
        cost=_linear,
    ),
    "huber": Family(
        title="Huber regression",
        path="sklearn.linear_model.HuberRegressor",
        settings={"epsilon": Real(1.05, 3.0), "alpha": Real(1e-5, 10)},
        fixed="max_iter=300",
        wants_scaling=True,
        weight=0.5,
        cost=_linear,
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
        cost=_neighbours,
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
        cost=_kernel,
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
        cost=_cubic,
    ),
    "tree": Family(
        title="a decision tree",
        path="sklearn.tree.DecisionTreeRegressor",
        settings={"max_depth": Whole(2, 14), "min_samples_leaf": Whole(1, 40)},
        fixed="random_state=SEED",
        weight=0.6,
        cost=_one_tree,
    ),
    "forest": Family(
        title="a random forest",
        path="sklearn.ensemble.RandomForestRegressor",
        settings={"n_estimators": Whole(25, 300), "max_features": _SHARE, "min_samples_leaf": Whole(1, 15)},
        fixed="random_state=SEED",
        cost=_trees,
    ),
    "extra_trees": Family(
        title="extremely randomised trees",
        path="sklearn.ensemble.ExtraTreesRegressor",
        settings={"n_estimators": Whole(25, 300), "max_features": _SHARE, "min_samples_leaf": Whole(1, 15)},
        fixed="random_state=SEED",
        cost=_random_trees,
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
        cost=_histograms,
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
        cost=_gradient,
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
        cost=_network,
    ),
}


def families(kind: Kind) -> Mapping[str, Family]:
    """The families of a kind of task, by name."""
    return CLASSIFIERS if kind == "classification" else REGRESSORS
