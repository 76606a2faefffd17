"""Splits the penguins data: how heavy is the penguin?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, stratified

SEED = "penguins/0"
TRAIN_ROWS = 100
TEXT = Text(
    title="How heavy is the penguin?",
    about="Each row is a penguin on one of three islands near Palmer Station, Antarctica. Predict its body mass. A few "
    "numbers were not taken.",
    evaluation="Submissions are scored by the coefficient of determination, R². Higher is better; 1 is perfect, and 0 is "
    "what the mean of the answers would score.",
    predict="the body mass in grams",
    columns={
        "species": "Adelie, Chinstrap or Gentoo",
        "island": "Biscoe, Dream or Torgersen",
        "`bill_length_mm`, `bill_depth_mm`, `flipper_length_mm`": "sizes, in millimetres",
        "sex": "female or male; empty where it is not known",
        "year": "of the study",
        "body_mass_g": "(train only) in grams",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/penguins.csv`."""
    table = pd.read_csv(raw / "penguins.csv").dropna(subset="body_mass_g")
    table = shuffled(table, SEED)
    in_train = stratified(table, "body_mass_g", TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="penguin_id", targets=["body_mass_g"], sample="mean", digits=1)
