"""Splits the synthetic data of Friedman's first formula."""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, stratified

TRAIN_ROWS = 300
TEXT = Text(
    title="Friedman's first formula",
    about="Synthetic data: each row has twelve numbers between 0 and 1, and a target that some of them make by a formula, "
    "with noise. Predict the target.",
    evaluation="Submissions are scored by the root mean squared error (RMSE). Lower is better.",
    predict="a number",
    columns={
        "`x_0` to `x_11`": "numbers between 0 and 1",
        "y": "(train only) the target",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/friedman.csv`."""
    table = pd.read_csv(raw / "friedman.csv")
    in_train = stratified(table, "y", TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="row_id", targets=["y"], sample="mean", digits=3)
