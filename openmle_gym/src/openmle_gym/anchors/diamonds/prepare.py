"""Splits the diamonds data: prices of round cut diamonds."""

import hashlib
from pathlib import Path

import pandas as pd

SEED = "diamonds/0"
TRAIN_ROWS, TEST_ROWS = 2_400, 3_600
ID, TARGET = "diamond_id", "price"

DESCRIPTION = """\
# What does the diamond cost?

## Description

Each row is a round cut diamond that was on sale: its weight, quality and size. Predict its price.

## Evaluation

Submissions are scored by the root mean squared logarithmic error (RMSLE), the root of the mean of
(log(1 + predicted) − log(1 + true))². Lower is better. A mistake of a tenth of the price costs the same for a cheap
diamond as for a dear one.

## Submission File

For every `{id}` in `test.csv`, predict a price in US dollars, not negative:

```
{example}
```

## Files

- `train.csv`: {train} diamonds with their price
- `test.csv`: {test} diamonds without it
- `sample_submission.csv`: a valid submission that predicts the mean training price for every row

## Columns

- `{id}`: number of the diamond
- `carat`: weight
- `cut`: quality of the cut, from worst to best: Fair, Good, Very Good, Premium, Ideal
- `color`: from D (best) to J (worst)
- `clarity`: from worst to best: I1, SI2, SI1, VS2, VS1, VVS2, VVS1, IF
- `depth`: total depth in percent, 2 z / (x + y)
- `table`: width of the top relative to the widest point, in percent
- `x`, `y`, `z`: length, width and depth in millimetres; empty where it was not measured
- `{target}` (train only): in US dollars
"""


def order_of(index: int) -> str:
    """A fixed, arbitrary rank of a raw row."""
    return hashlib.sha256(f"{SEED}/{index}".encode()).hexdigest()


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/diamonds.csv`."""
    table = pd.read_csv(raw / "diamonds.csv", keep_default_na=False)
    table = table.drop_duplicates(ignore_index=True)  # the same stone must not be in both parts
    sizes = ["x", "y", "z"]
    table[sizes] = table[sizes].mask(table[sizes] == 0)
    rows = sorted(table.index, key=order_of)[: TRAIN_ROWS + TEST_ROWS]
    table = table.loc[rows]

    # In the order of (price, hash) every k-th row is taken, so both parts have the same spread of prices.
    ranked = sorted(rows, key=lambda index: (table[TARGET][index], order_of(index)))
    share = TRAIN_ROWS / len(ranked)
    in_train = {row for n, row in enumerate(ranked) if int((n + 1) * share + 1e-9) > int(n * share + 1e-9)}
    table = table[[*[column for column in table.columns if column != TARGET], TARGET]]
    table.insert(0, ID, range(1, len(table) + 1))
    train = table[[index in in_train for index in rows]]
    test = table[[index not in in_train for index in rows]]
    assert (len(train), len(test)) == (TRAIN_ROWS, TEST_ROWS)

    answers = test[[ID, TARGET]]
    sample = answers.assign(**{TARGET: round(train[TARGET].mean(), 2)})
    train.to_csv(public / "train.csv", index=False, lineterminator="\n")
    test.drop(columns=TARGET).to_csv(public / "test.csv", index=False, lineterminator="\n")
    sample.to_csv(public / "sample_submission.csv", index=False, lineterminator="\n")
    answers.to_csv(private / "test_answer.csv", index=False, lineterminator="\n")
    example = sample.head(3).to_csv(index=False, lineterminator="\n").strip()
    text = DESCRIPTION.format(id=ID, target=TARGET, train=len(train), test=len(test), example=example)
    (public / "description.txt").write_text(text, encoding="utf-8")
