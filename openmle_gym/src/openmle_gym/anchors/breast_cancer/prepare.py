"""Splits the breast-cancer data: texture and shape of a tumour's cell nuclei, malignant or benign."""

import hashlib
from pathlib import Path

import pandas as pd

SEED = "breast-cancer/0"
TRAIN_ROWS = 149
ID, TARGET = "sample_id", "malignant"
MEASURED = ["texture", "smoothness", "compactness", "symmetry", "fractal_dimension"]

DESCRIPTION = """\
# Malignant or benign?

## Description

Each row describes the cell nuclei in a digitised image of a fine-needle aspirate of a breast mass. Predict the
probability that the mass is malignant.

The size of the nuclei, which alone tells much, is not given; their texture and shape are. The labelled sample is
deliberately small: a good solution generalises from {train} examples.

## Evaluation

Submissions are scored by the area under the ROC curve (AUC) between the predicted probability and the true label.
Higher is better; 0.5 is chance.

## Submission File

For every `{id}` in `test.csv`, predict a probability between 0 and 1:

```
{example}
```

## Files

- `train.csv`: {train} labelled rows
- `test.csv`: {test} rows without the label
- `sample_submission.csv`: a valid submission that predicts the training share of malignant masses for every row

## Columns

- `{id}`: number of the row
- `texture`: spread of the grey values, mean over the nuclei of the image, as are all that follow
- `smoothness`: local variation of the radius
- `compactness`: perimeter² / area − 1
- `symmetry`: of the nuclei
- `fractal_dimension`: the "coastline approximation" of their contour − 1
- `{target}` (train only): 1 for a malignant mass, 0 for a benign one
"""


def order_of(index: int) -> str:
    """A fixed, arbitrary rank of a raw row."""
    return hashlib.sha256(f"{SEED}/{index}".encode()).hexdigest()


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/breast_cancer.csv`."""
    frame = pd.read_csv(raw / "breast_cancer.csv")
    table = frame[[f"mean {name.replace('_', ' ')}" for name in MEASURED]].set_axis(MEASURED, axis=1)
    table[TARGET] = (frame["target"] == 0).astype(int)

    # In the order of (label, hash) every k-th row is taken, so both parts have the same share of each label.
    ranked = sorted(table.index, key=lambda index: (table[TARGET][index], order_of(index)))
    share = TRAIN_ROWS / len(ranked)
    in_train = {row for n, row in enumerate(ranked) if int((n + 1) * share + 1e-9) > int(n * share + 1e-9)}
    shuffled = table.loc[sorted(table.index, key=order_of)]
    shuffled.insert(0, ID, range(1, len(shuffled) + 1))
    train = shuffled[[index in in_train for index in shuffled.index]]
    test = shuffled[[index not in in_train for index in shuffled.index]]
    assert len(train) == TRAIN_ROWS
    assert abs(train[TARGET].mean() - test[TARGET].mean()) < 0.02

    answers = test[[ID, TARGET]]
    sample = answers.assign(**{TARGET: round(train[TARGET].mean(), 4)})
    train.to_csv(public / "train.csv", index=False, lineterminator="\n")
    test.drop(columns=TARGET).to_csv(public / "test.csv", index=False, lineterminator="\n")
    sample.to_csv(public / "sample_submission.csv", index=False, lineterminator="\n")
    answers.to_csv(private / "test_answer.csv", index=False, lineterminator="\n")
    example = sample.head(3).to_csv(index=False, lineterminator="\n").strip()
    text = DESCRIPTION.format(id=ID, target=TARGET, train=len(train), test=len(test), example=example)
    (public / "description.txt").write_text(text, encoding="utf-8")
