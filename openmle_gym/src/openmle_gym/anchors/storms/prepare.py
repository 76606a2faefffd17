"""Splits the storms data: how strong is the wind?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, order_of, publish, shuffled, whole_groups

SEED = "storms/0"
TRAIN_ROWS, ALL_ROWS = 1_000, 3_000
TEXT = Text(
    title="How strong is the wind?",
    about="Each row is an observation of an Atlantic tropical cyclone, taken every few hours of its life. Predict the "
    "greatest sustained wind near its centre.\n\nNo storm of the test data is among those of the training data: all "
    "observations of a storm are on one side.",
    evaluation="Submissions are scored by the mean absolute error (MAE) in knots. Lower is better.",
    predict="the wind speed in knots",
    columns={
        "storm": "number of the storm",
        "year": "of the observation",
        "month": "of the observation",
        "day": "of the observation",
        "hour": "of the observation, in UTC",
        "lat": "latitude of the centre, in degrees north",
        "long": "longitude of the centre, in degrees east, so negative",
        "pressure": "air pressure at the centre, in millibars",
        "wind": "(train only) greatest sustained wind speed, in knots",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/storms.csv`."""
    table = pd.read_csv(raw / "storms.csv")
    names = table["name"] + " " + table["year"].astype(str)
    ranked = sorted(names.unique(), key=lambda name: order_of(SEED, name))
    table["storm"] = names.map({name: number for number, name in enumerate(ranked, start=1)})
    table = table[["storm", "year", "month", "day", "hour", "lat", "long", "pressure", "wind"]].dropna()
    table = table[table["storm"].isin(table["storm"].sort_values()[:ALL_ROWS])]
    table = shuffled(table, SEED)
    in_train = whole_groups(table["storm"], SEED, TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="observation", targets=["wind"], sample="median")
