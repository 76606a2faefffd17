"""Splits the cells data: is the cell well segmented?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, stratified

SEED = "cells/0"
TRAIN_ROWS = 400
TEXT = Text(
    title="Is the cell well segmented?",
    about="A program found {all} cells in microscope images and outlined each; people judged the outlines. Each row is a "
    "cell by 56 measurements of the outlined area in up to four colour channels. Predict the probability that it was "
    "poorly segmented.",
    evaluation="Submissions are scored by the area under the ROC curve (AUC). Higher is better; 0.5 is chance.",
    predict="a probability between 0 and 1",
    columns={
        "`angle_ch_1` to `width_ch_1`": "measurements of shape, intensity and texture; the number after `ch` is the "
        "colour channel",
        "poor": "(train only) 1 for a poorly segmented cell, 0 for a well segmented one",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/cells.csv`."""
    table = pd.read_csv(raw / "cells.csv").drop(columns="case")
    table["poor"] = (table.pop("class") == "PS").astype(int)
    table = shuffled(table.round(5), SEED)
    in_train = stratified(table, "poor", TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="cell_id", targets=["poor"], sample="mean")
