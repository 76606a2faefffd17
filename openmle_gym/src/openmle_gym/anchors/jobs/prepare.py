"""Splits the computing data: how long will the job run?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, stratified

SEED = "jobs/0"
TRAIN_ROWS = 900
SPEEDS = {"VF": 0, "F": 1, "M": 2, "L": 3}
TEXT = Text(
    title="How long will the job run?",
    about="Each row is a job that was sent to a high-performance computing cluster. Predict how long it will run, on a "
    "scale of four steps: 0 very fast (under a minute), 1 fast (1 to 5 minutes), 2 moderate (5 to 30 minutes), 3 long.",
    evaluation="Submissions are scored by the quadratic weighted kappa (QWK): 1 is perfect, 0 is chance. A mistake of two "
    "steps costs four times as much as one of one step. Higher is better; numbers are rounded to a step.",
    predict="0, 1, 2 or 3",
    columns={
        "protocol": "code of the analysis that was run",
        "compounds": "number of compounds in it",
        "input_fields": "number of inputs for each",
        "iterations": "number of iterations",
        "num_pending": "jobs that were waiting",
        "hour": "of the day, as a decimal",
        "day": "of the week, Mon to Sun",
        "speed": "(train only) 0 very fast, 1 fast, 2 moderate, 3 long",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/jobs.csv`."""
    table = pd.read_csv(raw / "jobs.csv").drop_duplicates()
    table["speed"] = table.pop("class").map(SPEEDS)
    table = shuffled(table.round(4), SEED)
    in_train = stratified(table, "speed", TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="job_id", targets=["speed"], sample="mode")
