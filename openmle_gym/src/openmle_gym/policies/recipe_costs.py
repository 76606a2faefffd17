"""About how long a fit of each kind of model takes, measured once; good to a factor of two or so."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from openmle_gym.policies.recipe_settings import Value


@dataclass(frozen=True, slots=True)
class Load:
    """How much one fit has to chew."""

    rows: int
    columns: int
    classes: int


Cost = Callable[[Load, Mapping[str, Value]], float]
"""About how many seconds one fit takes on one core."""


def _number(settings: Mapping[str, Value], name: str, default: float) -> float:
    value = settings.get(name, default)
    return float(value) if isinstance(value, int | float) else default


def linear(load: Load, _: Mapping[str, Value]) -> float:
    return 0.01 + 2e-7 * load.rows * load.columns * load.classes


def kernel(load: Load, settings: Mapping[str, Value]) -> float:
    hardness = 1 + 0.25 * max(0.0, math.log10(_number(settings, "C", 1.0)))
    return 0.005 + 2.5e-8 * load.rows**2 * (1 + load.columns / 20) * hardness


def cubic(load: Load, _: Mapping[str, Value]) -> float:
    return 0.01 + 4e-11 * load.rows**3 + 4e-8 * load.rows**2


def neighbours(load: Load, _: Mapping[str, Value]) -> float:
    return 0.01 + 4e-9 * load.rows**2 * load.columns


def one_tree(load: Load, settings: Mapping[str, Value]) -> float:
    share = min(1.0, _number(settings, "max_features", 1.0))
    entropy = 1.4 if settings.get("criterion") == "entropy" else 1.0
    return 0.0012 + load.rows * (2e-6 + 9.5e-8 * math.log2(load.rows + 2) * load.columns * share) * entropy


def trees(load: Load, settings: Mapping[str, Value]) -> float:
    return _number(settings, "n_estimators", 100) * one_tree(load, settings)


def random_trees(load: Load, settings: Mapping[str, Value]) -> float:
    return 0.35 * trees(load, settings)


def histograms(load: Load, settings: Mapping[str, Value]) -> float:
    trees = _number(settings, "max_iter", 100) * (load.classes if load.classes > 2 else 1)
    leaves = min(_number(settings, "max_leaf_nodes", 31), load.rows / _number(settings, "min_samples_leaf", 20) + 1)
    return 0.02 + trees * (1.2e-3 + 3e-8 * load.rows * load.columns + leaves * (5e-5 + 1.5e-6 * load.columns))


def gradient(load: Load, settings: Mapping[str, Value]) -> float:
    trees = _number(settings, "n_estimators", 100) * (load.classes if load.classes > 2 else 1)
    share = _number(settings, "max_features", 1.0) * _number(settings, "subsample", 1.0)
    return trees * (1.5e-3 + 1.2e-7 * load.rows * load.columns * share * _number(settings, "max_depth", 3))


def network(load: Load, settings: Mapping[str, Value]) -> float:
    sizes = settings.get("hidden_layer_sizes", (64,))
    width = sum(sizes) if isinstance(sizes, tuple) else 64
    batches = math.ceil(load.rows / min(200, load.rows or 1))
    return _number(settings, "max_iter", 150) * (0.0006 * batches + 1.2e-9 * load.rows * width * (load.columns + width))
