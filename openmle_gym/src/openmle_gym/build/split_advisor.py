"""How a table's rows should be divided into train and test: at random, stratified, in groups, or by time.

Two probes decide, both on the rows and the target alone. A *group* leaks when, with rows divided at random, most test
rows have relatives in train, and a row's relatives tell its target better than strangers do. *Time* leaks when a row's
neighbours in time tell its target better than strangers do. How well a set of rows tells a target is the share of its
variance (of numbers) or of its impurity (of labels) that is gone when each row is guessed by the others of its set;
what shuffled targets reach is taken off.
"""

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from openmle_gym.build.columns import as_numbers, as_times
from openmle_gym.build.numerals import MISSING
from openmle_gym.build.profile import TableProfile
from openmle_gym.contracts import Contract

SplitStrategy = Literal["random", "stratified", "grouped", "time"]

SHARED = 0.2
"""From this share of test rows with relatives in train, a group can leak."""
TELLS_GROUP = 0.05
"""From this gain the relatives tell the target."""
TELLS_TIME = 0.1
TEST_FRACTION = 0.2
MOST_CLASSES = 50
_NEIGHBOURS = 5
_PREFIX = re.compile(r"(.*[^_\-./ ])[_\-./][^_\-./ ]+")
PREFIX = "prefix of "
"""Before a column's name: the group is the part of its values before the last `_`, `-`, `/` or `.`."""


class LeakProbe(Contract):
    """What one column was found to give away."""

    column: str
    kind: Literal["group", "time"]
    shared: float
    """Of groups: the share of test rows with a relative in train, were rows divided at random."""
    gain: float
    """How well relatives, or neighbours in time, tell the target; 0 is like strangers, 1 is for certain."""
    leaks: bool


class SplitAdvice(Contract):
    """How to divide the rows."""

    strategy: SplitStrategy
    column: str = ""
    """The group or the time; empty for the others. See `PREFIX`."""
    test_fraction: float = TEST_FRACTION
    reasons: tuple[str, ...] = ()
    probes: tuple[LeakProbe, ...] = ()

    def text(self) -> str:
        """The advice in a sentence, for a prompt and a manifest."""
        share = f"{self.test_fraction:.0%} test rows"
        if self.strategy == "grouped":
            how = (
                " (the part of its values before the last `_`, `-`, `/` or `.`)"
                if self.column.startswith(PREFIX)
                else ""
            )
            return f"{share}, whole groups by {self.column}{how}: no group is in both train and test"
        if self.strategy == "time":
            return f"{share}, the latest by {self.column}: every test row is later than every train row"
        if self.strategy == "stratified":
            return f"{share}, stratified by the target"
        return f"{share}, at random"


def advise_split(profile: TableProfile, table: pd.DataFrame, targets: Sequence[str]) -> SplitAdvice:
    """Looks for groups and times that leak; a pure function of its arguments.

    Args:
        table: The table's rows, or a sample of them, as text.
        targets: The columns to predict; the first one decides. Without one in the table, the split is at random.
    """
    target = next((name for name in targets if name in table.columns), "")
    if not target:
        return SplitAdvice(strategy="random", reasons=("the table does not hold the target",))
    table = table[~table[target].str.strip().isin(MISSING)].reset_index(drop=True)
    if len(table) < 10:
        return SplitAdvice(strategy="random", reasons=(f"only {len(table)} labelled rows",))
    labels = _labels(table[target])
    probes = [
        probe
        for column, groups in _groups(profile, table, set(targets)).items()
        if (probe := probe_group(column, groups, labels)) is not None
    ]
    probes += [
        probe
        for column in profile.candidates.times
        if column in table and column not in targets and (probe := probe_time(column, table[column], labels))
    ]
    leaking = sorted((probe for probe in probes if probe.leaks), key=lambda probe: -probe.gain)
    by_time = next((probe for probe in leaking if probe.kind == "time"), None)
    by_group = next((probe for probe in leaking if probe.kind == "group"), None)
    if by_group is not None and (by_time is None or by_group.gain >= by_time.gain):
        why = (
            f"at random, {by_group.shared:.0%} of the test rows would share their {by_group.column} with train, "
            f"and a shared {by_group.column} tells the target (gain {by_group.gain:.2f})"
        )
        return SplitAdvice(strategy="grouped", column=by_group.column, reasons=(why,), probes=tuple(probes))
    if by_time is not None:
        why = f"rows that are close by {by_time.column} have like targets (gain {by_time.gain:.2f})"
        return SplitAdvice(strategy="time", column=by_time.column, reasons=(why,), probes=tuple(probes))
    few = pd.Series(labels.ravel()).nunique() <= MOST_CLASSES if labels.dtype.kind in "iu" else True
    return SplitAdvice(
        strategy="stratified" if few else "random",
        reasons=("no group and no time was found to leak",),
        probes=tuple(probes),
    )


def _labels(cells: pd.Series) -> np.ndarray:
    """[rows] floats of a number with many values, else [rows] codes of classes."""
    cells = cells.str.strip()
    numbers = as_numbers(cells)
    if numbers is not None and numbers.nunique() > 20:
        ranks = numbers.rank().to_numpy(dtype=float)
        return ranks / len(ranks)
    return pd.factorize(cells)[0]


def _groups(profile: TableProfile, table: pd.DataFrame, targets: set[str]) -> dict[str, pd.Series]:
    """Columns that may name groups, and the prefixes of ids such as `0013_02`."""
    found = {
        name: table[name].str.strip() for name in profile.candidates.groups if name in table and name not in targets
    }
    for name in profile.candidates.ids:
        column = profile.column(name)
        if name in table and name not in targets and column is not None and column.kind != "date":
            prefixes = table[name].str.strip().str.extract(_PREFIX, expand=False)
            if prefixes.notna().all() and prefixes.nunique() >= 10:
                found[f"{PREFIX}{name}"] = prefixes
    return found


def group_keys(column: str, table: pd.DataFrame) -> pd.Series | None:
    """[rows] the groups that an advice's column names; None where the table has not that column."""
    name = column.removeprefix(PREFIX)
    if name not in table:
        return None
    cells = table[name].astype(str).str.strip()
    return cells if name == column else cells.str.extract(_PREFIX, expand=False).fillna(cells)


def probe_group(column: str, groups: pd.Series, labels: np.ndarray) -> LeakProbe | None:
    """Whether rows of one group tell each other's target; None where too few rows have relatives."""
    known = ~groups.isin(MISSING).to_numpy()
    codes, forms = pd.factorize(groups[known])
    if len(forms) < 10:
        return None
    in_test = np.random.default_rng(0).random(len(codes)) < TEST_FRACTION
    shared = float(np.isin(codes[in_test], codes[~in_test]).mean()) if in_test.any() else 0.0
    related = np.bincount(codes)[codes] > 1
    if related.sum() < 10:
        return None
    gain = _gain(labels[known][related], lambda values: _leave_one_out(pd.factorize(codes[related])[0], values))
    return LeakProbe(
        column=column,
        kind="group",
        shared=round(shared, 4),
        gain=round(gain, 4),
        leaks=shared >= SHARED and gain >= TELLS_GROUP,
    )


def probe_time(column: str, cells: pd.Series, labels: np.ndarray) -> LeakProbe | None:
    """Whether neighbours in time tell each other's target; None where the column holds no times."""
    cells = cells.str.strip()
    known = ~cells.isin(MISSING)
    numbers = as_numbers(cells[known])
    times = numbers if numbers is not None else as_times(cells[known])
    if times is None or times.nunique() < 10:
        return None
    order = np.argsort(times.to_numpy(), kind="stable")
    gain = _gain(labels[known.to_numpy()][order], _neighbours)
    return LeakProbe(column=column, kind="time", shared=0.0, gain=round(gain, 4), leaks=gain >= TELLS_TIME)


def _gain(labels: np.ndarray, guess) -> float:
    """How much of the spread of the labels a guess takes away, beyond what it takes from shuffled ones."""
    values = np.eye(labels.max() + 1)[labels] if labels.dtype.kind in "iu" else labels[:, None]
    spread = np.mean((values - values.mean(axis=0)) ** 2)
    if spread == 0 or values.shape[1] > MOST_CLASSES:
        return 0.0
    shuffled = values[np.random.default_rng(0).permutation(len(values))]
    errors = [np.mean((each - guess(each)) ** 2) for each in (values, shuffled)]
    return float(np.clip((errors[1] - errors[0]) / spread, 0.0, 1.0))


def _leave_one_out(codes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[rows, classes] the mean of the others of each row's group, drawn towards that of all rows."""
    counts = np.bincount(codes)[codes][:, None]
    sums = np.stack([np.bincount(codes, weights=column) for column in values.T], axis=1)[codes]
    return (sums - values + values.mean(axis=0)) / counts


def _neighbours(values: np.ndarray) -> np.ndarray:
    """[rows, classes] the mean of the rows just before and just after each row."""
    width = min(_NEIGHBOURS, max(1, len(values) // 10))
    padded = np.pad(values, ((width, width), (0, 0)), mode="reflect")
    sums = np.cumsum(np.vstack([np.zeros((1, values.shape[1])), padded]), axis=0)
    window = 2 * width + 1
    return (sums[window:] - sums[:-window] - values) / (window - 1)


def check_split(advice: SplitAdvice, train: pd.DataFrame, test: pd.DataFrame) -> str:
    """What is wrong with a split, in a sentence; empty where it keeps to the advice, or nothing can be told.

    Args:
        train: The package's own rows, as text; so `test`.
    """
    if advice.strategy == "grouped":
        groups = [group_keys(advice.column, table) for table in (train, test)]
        if groups[0] is None or groups[1] is None:
            return ""
        shared = groups[1].isin(set(groups[0]) - MISSING)
        if shared.any():
            example = groups[1][shared].iloc[0]
            return f"{shared.mean():.1%} of the test rows share their {advice.column} with train, such as {example!r}"
    if advice.strategy == "time" and advice.column in train and advice.column in test:
        sides = [table[advice.column].str.strip() for table in (train, test)]
        sides = [cells[~cells.isin(MISSING)] for cells in sides]
        numbers = [as_numbers(cells) for cells in sides]
        train_times, test_times = numbers if all(each is not None for each in numbers) else map(as_times, sides)
        if train_times is not None and test_times is not None and test_times.min() < train_times.max():
            early = float((test_times < train_times.max()).mean())
            return f"{early:.1%} of the test rows are before the last train row by {advice.column}"
    return ""
