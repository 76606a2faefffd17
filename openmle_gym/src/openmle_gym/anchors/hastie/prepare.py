"""Splits the synthetic data of Hastie's sphere."""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, stratified

TRAIN_ROWS = 400
TEXT = Text(
    title="Inside the sphere or outside?",
    about="Synthetic data: each row has ten numbers drawn from a normal distribution, and a label that says whether a "
    "quantity made from them is large. Predict the label.",
    evaluation="Submissions are scored by accuracy: the share of rows whose label is right. Higher is better.",
    predict="0 or 1",
    columns={
        "`x_0` to `x_9`": "numbers",
        "label": "(train only) 0 or 1",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/hastie.csv`."""
    table = pd.read_csv(raw / "hastie.csv")
    in_train = stratified(table, "label", TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="row_id", targets=["label"], sample="mode")
