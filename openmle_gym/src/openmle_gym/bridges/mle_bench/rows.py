"""Which rows a search package hides, by the protocols of the 22 competitions; pure.

A stratified choice takes rows systematically, ordered by stratum and shuffled within it, so that each stratum gives its
share to within one row. The published protocols name seeds of other generators: strata, groups and fractions are
theirs, the rows within them are ours. Of protocols with five folds the first fold is hidden.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import pandas as pd

from openmle_gym.bridges.mle_bench.facts import Split

RARE = 0.02
"""Labels on fewer rows are rare."""


def hidden_rows(table: pd.DataFrame, split: Split, names: Sequence[str] = ()) -> np.ndarray:
    """[rows] bool, True where a row is hidden.

    Args:
        table: The train rows.
        names: Their files' names, where the split goes by them.
    """
    if split.kind == "digest":
        return np.array([int(hashlib.md5(name.encode()).hexdigest(), 16) % split.bins == 0 for name in names])
    rng = np.random.default_rng(split.seed)
    if split.kind == "modulo":
        return (pd.to_numeric(table[split.by[0]]) % split.bins == 0).to_numpy()
    if split.kind == "groups":
        groups = table[split.by[0]].astype(str)
        found = np.sort(groups.unique())
        chosen = rng.permutation(found)[: max(1, round(split.fraction * len(found)))]
        return groups.isin(chosen).to_numpy()
    strata = _strata(table, split)
    order = pd.DataFrame({"stratum": strata, "chance": rng.random(len(strata))})
    order = order.sort_values(["stratum", "chance"], kind="stable").index.to_numpy()
    hidden = np.zeros(len(strata), dtype=bool)
    hidden[order] = np.diff(np.floor((np.arange(len(strata)) + 0.5) * split.fraction + 0.5), prepend=0.0) > 0
    return hidden


def _strata(table: pd.DataFrame, split: Split) -> pd.Series:
    """[rows] The stratum of each row, as text."""
    if split.kind == "draw":
        return pd.Series(["" for _ in range(len(table))], index=range(len(table)))
    columns = table[list(split.by)].reset_index(drop=True)
    if split.kind == "labels":
        return columns.astype(str).agg("\x1f".join, axis=1) if len(split.by) > 1 else columns.iloc[:, 0].astype(str)
    numbers = columns.apply(pd.to_numeric)
    if split.kind == "largest":
        return numbers.idxmax(axis=1).astype(str)
    if split.kind == "several_labels":
        count = (numbers > 0).sum(axis=1)
        rare = (numbers.loc[:, (numbers > 0).mean() < RARE] > 0).any(axis=1)
        return count.clip(upper=2).astype(str) + rare.map({True: " rare", False: ""})
    bins = [
        pd.qcut(numbers[name], split.bins, labels=False, duplicates="drop").astype(int).astype(str) for name in numbers
    ]
    return pd.Series(["\x1f".join(each) for each in zip(*bins, strict=True)])
