"""Splits the meats data: what is in the meat?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, stratified

SEED = "meats/0"
TRAIN_ROWS = 90
TARGETS = ["water", "fat", "protein"]
TEXT = Text(
    title="What is in the meat?",
    about="Each row is a sample of meat by its near-infrared spectrum. Predict the shares of water, fat and protein in "
    "it, together.",
    evaluation="Submissions are scored by the root mean squared error (RMSE) of each share, averaged over the three. Lower "
    "is better.",
    predict="three shares in percent",
    columns={
        "`x_001` to `x_100`": "absorbance at 100 wavelengths from 850 to 1,050 nanometres",
        "`water`, `fat`, `protein`": "(train only) shares, in percent",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/meats.csv`."""
    table = shuffled(pd.read_csv(raw / "meats.csv").drop_duplicates(), SEED)
    in_train = stratified(table, "fat", TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="sample_id", targets=TARGETS, sample="mean", digits=2)
