"""Splits the digits data: 8 × 8 grey images of handwritten digits."""

import hashlib
from pathlib import Path

import pandas as pd

SEED = "digits/0"
TRAIN_ROWS = 300
ID, TARGET = "image_id", "digit"

DESCRIPTION = """\
# Which digit is it?

## Description

Each row is a handwritten digit, scanned and reduced to an image of 8 × 8 pixels. Predict which digit it shows.

The labelled sample is deliberately small: about {per_class} images of each digit.

## Evaluation

Submissions are scored by accuracy: the share of images whose digit is right. Higher is better.

## Submission File

For every `{id}` in `test.csv`, predict a digit from 0 to 9:

```
{example}
```

## Files

- `train.csv`: {train} labelled images
- `test.csv`: {test} images without the label
- `sample_submission.csv`: a valid submission that predicts the most frequent digit of the training images for every row

## Columns

- `{id}`: number of the image
- `pixel_0_0` to `pixel_7_7`: ink in the pixel at row and column, from 0 (none) to 16 (full); rows run from top to
  bottom, columns from left to right
- `{target}` (train only): the digit, 0 to 9
"""


def order_of(index: int) -> str:
    """A fixed, arbitrary rank of a raw row."""
    return hashlib.sha256(f"{SEED}/{index}".encode()).hexdigest()


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/digits.csv`."""
    table = pd.read_csv(raw / "digits.csv").astype(int).rename(columns={"target": TARGET})
    assert table.shape[1] == 65

    # In the order of (label, hash) every k-th row is taken, so both parts have the same share of each label.
    ranked = sorted(table.index, key=lambda index: (table[TARGET][index], order_of(index)))
    share = TRAIN_ROWS / len(ranked)
    in_train = {row for n, row in enumerate(ranked) if int((n + 1) * share + 1e-9) > int(n * share + 1e-9)}
    shuffled = table.loc[sorted(table.index, key=order_of)]
    shuffled.insert(0, ID, range(1, len(shuffled) + 1))
    train = shuffled[[index in in_train for index in shuffled.index]]
    test = shuffled[[index not in in_train for index in shuffled.index]]
    assert len(train) == TRAIN_ROWS
    assert train[TARGET].nunique() == test[TARGET].nunique() == 10

    answers = test[[ID, TARGET]]
    sample = answers.assign(**{TARGET: train[TARGET].mode().iloc[0]})
    train.to_csv(public / "train.csv", index=False, lineterminator="\n")
    test.drop(columns=TARGET).to_csv(public / "test.csv", index=False, lineterminator="\n")
    sample.to_csv(public / "sample_submission.csv", index=False, lineterminator="\n")
    answers.to_csv(private / "test_answer.csv", index=False, lineterminator="\n")
    example = sample.head(3).to_csv(index=False, lineterminator="\n").strip()
    numbers = {"train": len(train), "test": len(test), "per_class": len(train) // 10}
    text = DESCRIPTION.format(id=ID, target=TARGET, example=example, **numbers)
    (public / "description.txt").write_text(text, encoding="utf-8")
