"""Splits the diabetes data: progression of the disease one year after ten measurements."""

import hashlib
from pathlib import Path

import pandas as pd

SEED = "diabetes/0"
TRAIN_ROWS = 192
ID, TARGET = "patient_id", "progression"

DESCRIPTION = """\
# How far will the disease progress?

## Description

Ten baseline measurements were taken from each of {all} diabetes patients, and a year later the progression of the
disease was measured as a number. Predict the progression.

## Evaluation

Submissions are scored by the root mean squared error (RMSE) of the predicted progression. Lower is better.

## Submission File

For every `{id}` in `test.csv`, predict a number:

```
{example}
```

## Files

- `train.csv`: {train} rows with the progression
- `test.csv`: {test} rows without it
- `sample_submission.csv`: a valid submission that predicts the training mean for every row

## Columns

- `{id}`: number of the patient
- `age`: in years
- `sex`: one of two codes, 1 and 2
- `bmi`: body mass index
- `bp`: average blood pressure
- `s1`, `s2`, `s3`: blood serum: total cholesterol, low-density lipoproteins, high-density lipoproteins
- `s4`: total cholesterol / high-density lipoproteins
- `s5`: possibly the logarithm of triglycerides
- `s6`: blood sugar
- `{target}` (train only): progression of the disease after one year, 25 to 346
"""


def order_of(index: int) -> str:
    """A fixed, arbitrary rank of a raw row."""
    return hashlib.sha256(f"{SEED}/{index}".encode()).hexdigest()


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/diabetes.csv`."""
    table = pd.read_csv(raw / "diabetes.csv").rename(columns={"target": TARGET})
    table[["age", "sex", TARGET]] = table[["age", "sex", TARGET]].astype(int)

    # In the order of (target, hash) every k-th row is taken, so both parts have the same spread of the target.
    ranked = sorted(table.index, key=lambda index: (table[TARGET][index], order_of(index)))
    share = TRAIN_ROWS / len(ranked)
    in_train = {row for n, row in enumerate(ranked) if int((n + 1) * share + 1e-9) > int(n * share + 1e-9)}
    shuffled = table.loc[sorted(table.index, key=order_of)]
    shuffled.insert(0, ID, range(1, len(shuffled) + 1))
    train = shuffled[[index in in_train for index in shuffled.index]]
    test = shuffled[[index not in in_train for index in shuffled.index]]
    assert len(train) == TRAIN_ROWS
    assert abs(train[TARGET].mean() - test[TARGET].mean()) < 2

    answers = test[[ID, TARGET]]
    sample = answers.assign(**{TARGET: round(train[TARGET].mean(), 2)})
    train.to_csv(public / "train.csv", index=False, lineterminator="\n")
    test.drop(columns=TARGET).to_csv(public / "test.csv", index=False, lineterminator="\n")
    sample.to_csv(public / "sample_submission.csv", index=False, lineterminator="\n")
    answers.to_csv(private / "test_answer.csv", index=False, lineterminator="\n")
    example = sample.head(3).to_csv(index=False, lineterminator="\n").strip()
    numbers = {"train": len(train), "test": len(test), "all": len(table)}
    text = DESCRIPTION.format(id=ID, target=TARGET, example=example, **numbers)
    (public / "description.txt").write_text(text, encoding="utf-8")
