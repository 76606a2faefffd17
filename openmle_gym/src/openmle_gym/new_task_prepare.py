"""Splits `raw/train.csv` into a task's public and private files; `openmle_gym.new_task` fills in the settings."""

import hashlib
from pathlib import Path

import pandas as pd

NAME = "task"
ID = "row_id"
ID_IS_NEW = True
TARGETS = ["target"]
TEST_FRACTION = 0.2
SEED = 0
BASELINE = "mean"
DESCRIPTION = ""


def order_of(index: int) -> str:
    """A fixed, arbitrary rank of a raw row."""
    return hashlib.sha256(f"{NAME}/{SEED}/{index}".encode()).hexdigest()


def labelled(raw: Path) -> pd.DataFrame:
    """The rows that have every target, each cell's text as it was."""
    table = pd.read_csv(raw / "train.csv", dtype=str, keep_default_na=False)
    missing = pd.read_csv(raw / "train.csv", usecols=TARGETS)[TARGETS].isna().any(axis=1)
    return table[~missing].reset_index(drop=True)


def baseline(values: pd.Series) -> str:
    """What a submission says that knows nothing of a row."""
    if BASELINE == "most frequent":
        return str(values.mode().iloc[0])
    if BASELINE == "share":
        numbers = pd.to_numeric(values, errors="coerce")
        ordered = numbers if numbers.notna().all() else values
        return f"{(ordered == ordered.max()).mean():.6g}"
    return f"{values.astype(float).mean():.6g}"


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files."""
    table = labelled(raw)

    # In the order of (target, hash) rows are taken at even distances, so both parts have the same spread of the target.
    target = pd.to_numeric(table[TARGETS[0]], errors="coerce")
    target = target if target.notna().all() else table[TARGETS[0]]
    ranked = sorted(table.index, key=lambda index: (target[index], order_of(index)))
    in_test = {row for n, row in enumerate(ranked) if int((n + 1) * TEST_FRACTION) > int(n * TEST_FRACTION)}
    order = sorted(table.index, key=order_of)
    table = table.loc[order]
    if ID_IS_NEW:
        table.insert(0, ID, [str(number) for number in range(1, len(table) + 1)])
    train = table[[index not in in_test for index in order]]
    test = table[[index in in_test for index in order]]

    answers = test[[ID, *TARGETS]]
    sample = answers.assign(**{name: baseline(train[name]) for name in TARGETS})
    train.to_csv(public / "train.csv", index=False, lineterminator="\n")
    test.drop(columns=TARGETS).to_csv(public / "test.csv", index=False, lineterminator="\n")
    sample.to_csv(public / "sample_submission.csv", index=False, lineterminator="\n")
    answers.to_csv(private / "test_answer.csv", index=False, lineterminator="\n")
    example = sample.head(3).to_csv(index=False, lineterminator="\n").strip()
    text = DESCRIPTION.replace("<train rows>", str(len(train))).replace("<test rows>", str(len(test)))
    (public / "description.txt").write_text(text.replace("<example>", example), encoding="utf-8")
