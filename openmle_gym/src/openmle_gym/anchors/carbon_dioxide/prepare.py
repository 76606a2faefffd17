"""Splits the CO2 data: how far is carbon dioxide from its year's mean?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish

FIRST, BOUNDARY = 1976, 1993
TEXT = Text(
    title="How far is carbon dioxide from its year's mean?",
    about="Each row is a week. The carbon dioxide in the air on Mauna Loa, Hawaii, falls and rises with the seasons. "
    "Forecast how far it is above the mean of its calendar year, negative where it is below. Training weeks are of 1976 "
    "to 1992; test weeks come after. A week without a measurement is left out.",
    evaluation="Submissions are scored by the root mean squared error (RMSE) in parts per million. Lower is better.",
    predict="parts per million above the year's mean",
    columns={
        "year": "of the week's Saturday",
        "month": "of the week's Saturday, 1 to 12",
        "day_of_year": "of the week's Saturday, 1 to 366",
        "week": "weeks since the first week",
        "above": "(train only) carbon dioxide minus the mean of the year, in parts per million by volume",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/carbon_dioxide.csv`."""
    source = pd.read_csv(raw / "carbon_dioxide.csv").dropna()
    date = pd.to_datetime(source["date"])
    table = pd.DataFrame({"year": date.dt.year, "month": date.dt.month, "day_of_year": date.dt.dayofyear})
    table["week"] = (date - date.min()).dt.days // 7
    table["above"] = (source["co2"] - source["co2"].groupby(table["year"]).transform("mean")).round(3)
    table = table[table["year"] >= FIRST]
    table["week"] -= table["week"].min()
    in_train = list(table["year"] < BOUNDARY)
    publish(table, in_train, TEXT, public, private, id="week_id", targets=["above"], sample="mean", digits=2)
