"""Splits the credit data: loans that were paid back, or were not."""

import hashlib
from pathlib import Path

import pandas as pd

SEED = "credit/0"
TRAIN_ROWS = 1_454
ID, TARGET = "loan_id", "bad"

DESCRIPTION = """\
# Will the loan go bad?

## Description

Each row is a loan: what was asked for, and what was known of the applicant. Some {share:.0%} of the loans went bad.
Predict the probability that a loan goes bad.

## Evaluation

Submissions are scored by the log loss of the predicted probability, −mean(y log p + (1 − y) log(1 − p)). Lower is
better: a good probability is worth more than a good ranking, and a confident mistake is dear.

## Submission File

For every `{id}` in `test.csv`, predict a probability between 0 and 1:

```
{example}
```

## Files

- `train.csv`: {train} loans that are known to be good or bad
- `test.csv`: {test} loans without the label
- `sample_submission.csv`: a valid submission that predicts the training share of bad loans for every row

## Columns

Amounts of money are in one currency, which the source does not name. Empty fields were not known.

- `{id}`: number of the loan
- `seniority`: years at the present job
- `home`: how the applicant lives: owner, rent, parents, priv, ignore, other
- `time`: how long the loan is to run, in months
- `age`: in years
- `marital`: married, single, separated, divorced, widow
- `records`: whether there are earlier records on the applicant: yes or no
- `job`: fixed, partime, freelance, others
- `expenses`, `income`: of the household
- `assets`, `debt`: of the applicant
- `amount`: what is asked for
- `price`: of the goods to be bought
- `{target}` (train only): 1 for a loan that went bad, 0 for one that was paid back
"""


def order_of(index: int) -> str:
    """A fixed, arbitrary rank of a raw row."""
    return hashlib.sha256(f"{SEED}/{index}".encode()).hexdigest()


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/credit.csv`."""
    table = pd.read_csv(raw / "credit.csv").rename(columns=str.lower)
    table[TARGET] = (table.pop("status") == "bad").astype(int)

    # In the order of (label, hash) every k-th row is taken, so both parts have the same share of each label.
    ranked = sorted(table.index, key=lambda index: (table[TARGET][index], order_of(index)))
    share = TRAIN_ROWS / len(ranked)
    in_train = {row for n, row in enumerate(ranked) if int((n + 1) * share + 1e-9) > int(n * share + 1e-9)}
    shuffled = table.loc[sorted(table.index, key=order_of)]
    shuffled.insert(0, ID, range(1, len(shuffled) + 1))
    train = shuffled[[index in in_train for index in shuffled.index]]
    test = shuffled[[index not in in_train for index in shuffled.index]]
    assert len(train) == TRAIN_ROWS
    assert abs(train[TARGET].mean() - test[TARGET].mean()) < 0.01

    answers = test[[ID, TARGET]]
    sample = answers.assign(**{TARGET: round(train[TARGET].mean(), 4)})
    train.to_csv(public / "train.csv", index=False, lineterminator="\n")
    test.drop(columns=TARGET).to_csv(public / "test.csv", index=False, lineterminator="\n")
    sample.to_csv(public / "sample_submission.csv", index=False, lineterminator="\n")
    answers.to_csv(private / "test_answer.csv", index=False, lineterminator="\n")
    example = sample.head(3).to_csv(index=False, lineterminator="\n").strip()
    numbers = {"train": len(train), "test": len(test), "share": train[TARGET].mean()}
    text = DESCRIPTION.format(id=ID, target=TARGET, example=example, **numbers)
    (public / "description.txt").write_text(text, encoding="utf-8")
