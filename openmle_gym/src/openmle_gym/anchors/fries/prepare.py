"""Splits the French fries data: how do they taste?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, whole_groups

SEED = "fries/0"
TRAIN_ROWS = 300
TARGETS = ["potato", "rancid", "painty"]
TEXT = Text(
    title="How do the fries taste?",
    about="For ten weeks twelve people tasted fries that were fried in three oils, twice each time, and gave marks for "
    "several flavours. Predict three of the marks together. Both tastings of a person, an oil and a week are on one "
    "side of the split.",
    evaluation="Submissions are scored by the mean absolute error (MAE) of each mark, averaged over the three. Lower is "
    "better.",
    predict="three marks",
    columns={
        "time": "the week, 1 to 10",
        "treatment": "the oil: 1, 2 or 3",
        "subject": "number of the person",
        "rep": "1 or 2: which of the two tastings",
        "buttery": "mark for a buttery flavour",
        "grassy": "mark for a grassy flavour",
        "`potato`, `rancid`, `painty`": "(train only) marks for these flavours, 0 to 15",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/fries.csv`."""
    table = pd.read_csv(raw / "fries.csv").dropna(subset=TARGETS)
    table = shuffled(table, SEED)
    tasting = table["time"].astype(str) + "/" + table["treatment"].astype(str) + "/" + table["subject"].astype(str)
    in_train = whole_groups(tasting, SEED, TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="tasting_id", targets=TARGETS, sample="median", digits=2)
