"""Splits the concrete data: how strong is the concrete?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, whole_groups

SEED = "concrete/0"
TRAIN_ROWS = 320
TEXT = Text(
    title="How strong is the concrete?",
    about="Each row is a concrete by what went into a cubic metre of it and by its age. Predict the pressure that it "
    "bears. No mixture of the test data is in the training data, at any age.",
    evaluation="Submissions are scored by the root mean squared error (RMSE) in megapascals. Lower is better.",
    predict="the compressive strength in megapascals",
    columns={
        "`cement` to `fine_aggregate`": "kilograms of it in a cubic metre",
        "age": "in days",
        "compressive_strength": "(train only) in megapascals",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/concrete.csv`."""
    table = pd.read_csv(raw / "concrete.csv").drop_duplicates()
    table = table.drop_duplicates([*table.columns[:-1]])
    table = shuffled(table, SEED)
    mixture = table.iloc[:, :7].astype(str).agg("/".join, axis=1)
    in_train = whole_groups(mixture, SEED, TRAIN_ROWS)
    targets = ["compressive_strength"]
    publish(table, in_train, TEXT, public, private, id="concrete_id", targets=targets, sample="mean", digits=2)
