"""Splits the developers data: who works from elsewhere?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, stratified

SEED = "developers/0"
TRAIN_ROWS, ALL_ROWS = 1_200, 4_500
TEXT = Text(
    title="Who works from elsewhere?",
    about="Each row is a software developer who answered a survey in 2017. One in ten works remotely, full time or almost. "
    "Predict the probability of that.",
    evaluation="Submissions are scored by the log loss of the predicted probability, −mean(y log p + (1 − y) log(1 − p)). "
    "Lower is better.",
    predict="a probability between 0 and 1",
    columns={
        "Country": "Canada, Germany, India, United Kingdom or United States",
        "Salary": "in US dollars a year",
        "YearsCodedJob": "years of coding as a job",
        "`OpenSource`, `Hobby`": "1 for one who contributes to open source, or codes as a hobby",
        "CompanySizeNumber": "people in the company",
        "CareerSatisfaction": "0 to 10",
        "`Data_scientist` to `Web_developer`": "1 for one who is that",
        "remote": "(train only) 1 for one who works remotely, 0 for another",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/developers.csv`."""
    table = pd.read_csv(raw / "developers.csv").drop_duplicates()
    table["remote"] = (table.pop("Remote") == "Remote").astype(int)
    table = shuffled(table.round({"Salary": 0}), SEED, ALL_ROWS)
    in_train = stratified(table, "remote", TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="person_id", targets=["remote"], sample="mean")
