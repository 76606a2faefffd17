"""Raw data that tests build from, and the programs that a model may write for them, good and bad."""

import json
import random
from pathlib import Path

from openmle_gym.build.drafts import Draft
from openmle_gym.build.source import Source
from openmle_gym.build.spec import TaskSpec
from openmle_gym.build.split_advisor import SplitAdvice
from openmle_gym.build.wording import About

ROWS = 120


def house_rows(rows: int = ROWS) -> list[list[str]]:
    """Id, area, town, price; the price follows the area."""
    chance = random.Random(5)
    made = []
    for number in range(rows):
        area = round(chance.uniform(20, 200), 2)
        price = round(3 * area + chance.uniform(-40, 40))
        made.append([f"h{number}", str(area), chance.choice(["Aa", "Bee"]), str(price)])
    return made


def csv_text(header: str, rows: list[list[str]]) -> str:
    """Comma-separated."""
    return "\n".join([header, *(",".join(row) for row in rows)]) + "\n"


def houses(rows: int = ROWS) -> str:
    """A labelled table."""
    return csv_text("Id,area,town,price", house_rows(rows))


SPEC_FIELDS = {
    "name": "houses",
    "title": "What does a house cost?",
    "statement": "Each row is a house with its area and its town. Predict `price`, what it was sold for, from the rest.",
    "table": "train.csv",
    "id": ["Id"],
    "target": ["price"],
    "metric": "rmse",
    "higher_is_better": False,
    "task_type": "regression",
}


def spec(**changes: object) -> TaskSpec:
    """The task on houses."""
    return TaskSpec.model_validate({**SPEC_FIELDS, **changes})


def draft(folder: Path, advice: SplitAdvice | None = None, **changes: object) -> Draft:
    """A draft of its package, whose data are in `folder / "data"`."""
    return Draft(
        spec=spec(**changes),
        advice=advice or SplitAdvice(strategy="random"),
        source=Source(kind="local", name=str(folder)),
        about=About(licence="CC0-1.0"),
        data=folder / "data",
        prepare="",
    )


def json_reply(fields: object) -> str:
    """A reply with an object."""
    return f"Here it is.\n\n```json\n{json.dumps(fields)}\n```\n"


def code_reply(source: str, before: str = "", after: str = "") -> str:
    """A reply with a program."""
    return f"{before}\n```python\n{source.strip()}\n```\n{after}"


PREPARE = """
import pandas as pd


def prepare(raw, public, private):
    table = pd.read_csv(raw / "train.csv").sample(frac=1, random_state=1)
    cut = len(table) * 4 // 5
    train, test = table[:cut], table[cut:]
    answers = test[["Id", "price"]]
    train.to_csv(public / "train.csv", index=False)
    test.drop(columns="price").to_csv(public / "test.csv", index=False)
    answers.assign(price=train["price"].mean()).to_csv(public / "sample_submission.csv", index=False)
    answers.to_csv(private / "test_answer.csv", index=False)
"""
"""Does what it should."""


def with_end(*lines: str) -> str:
    """The good program, and then some."""
    return PREPARE + "".join(f"    {line}\n" for line in lines)


BAD_PREPARES = {
    "wrote_outside": with_end('(public.parent / "notes.csv").write_text("a")'),
    "raw_modified": with_end('(raw / "train.csv").write_text("gone")'),
    "not_deterministic": with_end('(public / "extra.txt").write_text(str(set("abcdefgh")))'),
    "answers_in_public": with_end('answers.to_csv(public / "key.csv", index=False)'),
    "column_equals_target": PREPARE.replace("    cut =", '    table["worth"] = table["price"]\n    cut ='),
    "target_columns_in_test": PREPARE.replace('test.drop(columns="price")', "test"),
    "wrong_header": PREPARE.replace(
        'answers.to_csv(private / "test_answer.csv", index=False)',
        'answers.rename(columns={"price": "y"}).to_csv(private / "test_answer.csv", index=False)',
    ),
    "missing_outputs": PREPARE.replace('answers.to_csv(private / "test_answer.csv", index=False)', "pass"),
    "sample_submission_refused": PREPARE.replace('train["price"].mean()', 'float("nan")'),
    "sample_equals_answers": PREPARE.replace(
        'answers.assign(price=train["price"].mean())', "answers.assign(price=answers.price * 1.0)"
    ),
    "KeyError": PREPARE.replace('test[["Id", "price"]]', 'test[["Id", "worth"]]'),
    "AssertionError": with_end("assert len(train) < 0"),
    "links": with_end('(public / "more.csv").symlink_to(raw / "train.csv")'),
    "syntax_error": "def prepare(raw, public, private)\n    pass",
}

METRIC = """
import numpy as np


class HouseMetrics:
    def __init__(self, value="price", higher_is_better=False):
        self.value = value
        self.higher_is_better = higher_is_better

    def validate_submission(self, submission, ground_truth):
        for column in ("Id", "price"):
            if column not in submission.columns:
                raise ValueError(f"no column {column}")
        if submission["Id"].duplicated().any() or set(submission["Id"]) != set(ground_truth["Id"]):
            raise ValueError("the ids are not those of the test data")
        if submission["price"].isna().any():
            raise ValueError("a prediction is missing")

    def evaluate(self, y_true, y_pred):
        both = y_true.merge(y_pred, on="Id", suffixes=("_true", "_pred"))
        gaps = both["price_true"] - both["price_pred"]
        return float(np.sqrt(np.mean(gaps**2)))
"""

_NAN_CHECK = """        if submission["price"].isna().any():
            raise ValueError("a prediction is missing")
"""
_BY_PLACE = """        gaps = y_true["price"].to_numpy() - y_pred["price"].to_numpy()
"""
_BY_ID = METRIC[METRIC.index("        both =") : METRIC.index("        return")]
BAD_METRICS = {
    "direction_disagrees": METRIC.replace("higher_is_better=False", "higher_is_better=True"),
    "metric_accepts_nan": METRIC.replace(_NAN_CHECK, "").replace("np.mean(gaps**2)", "np.nanmean(gaps**2)"),
    "metric_depends_on_row_order": METRIC.replace(_BY_ID, _BY_PLACE),
    "metric_constant": METRIC.replace("return float(np.sqrt(np.mean(gaps**2)))", "return 0.0"),
    "not_that_metric": METRIC.replace("np.sqrt(np.mean(gaps**2))", "np.mean(abs(gaps))"),
    "metric_execution_failed": METRIC.replace('both["price_pred"]', 'both["prediction"]'),
    "syntax_error": "class HouseMetrics:\n    pass\n",
}
