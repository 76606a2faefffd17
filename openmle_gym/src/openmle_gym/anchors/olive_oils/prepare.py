"""Splits the olive oil data: where is the oil from?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, stratified

SEED = "olive-oils/0"
TRAIN_ROWS = 120
TEXT = Text(
    title="Where is the oil from?",
    about="Each row is an Italian olive oil by the shares of eight fatty acids in it. Predict the area it is from, one of "
    "nine. Some areas have many oils and some few.",
    evaluation="Submissions are scored by the weighted F1: the F1 of each area, averaged with the numbers of its oils as "
    "weights. Higher is better.",
    predict="one of the areas in `train.csv`",
    columns={
        "`palmitic` to `eicosenoic`": "share of that fatty acid, in percent",
        "area": "(train only) where the oil is from",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/olive_oils.csv`."""
    table = pd.read_csv(raw / "olive_oils.csv").drop(columns="region").drop_duplicates()
    table = shuffled(table, SEED)
    in_train = stratified(table, "area", TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="oil_id", targets=["area"], sample="mode")
