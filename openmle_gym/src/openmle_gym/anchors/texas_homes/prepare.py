"""Splits the Texas housing data: what will a home cost?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish

FIRST, BOUNDARY = 2011, 2014
TEXT = Text(
    title="What will a home cost?",
    about="Each row is a month of the housing market in one of 46 cities in Texas. Forecast the median price of the "
    "homes sold. Training rows are of 2011 to 2013, test rows of 2014 and 2015. Some numbers are missing.",
    evaluation="Submissions are scored by the mean absolute percentage error (MAPE), the mean of |predicted − true| / "
    "true. Lower is better.",
    predict="the median price in US dollars",
    columns={
        "city": "where the homes are",
        "year": "of the month",
        "month": "1 to 12",
        "sales": "number of homes sold",
        "listings": "number of homes on offer",
        "inventory": "months it would take to sell all homes on offer",
        "median": "(train only) median price of the homes sold, in US dollars",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/texas_homes.csv`."""
    table = pd.read_csv(raw / "texas_homes.csv")
    table = table[(table["year"] >= FIRST) & table["median"].notna()]
    table = table[[*TEXT.columns]].sort_values(["year", "month", "city"], kind="stable")
    in_train = list(table["year"] < BOUNDARY)
    publish(table, in_train, TEXT, public, private, id="market_id", targets=["median"], sample="median", digits=0)
