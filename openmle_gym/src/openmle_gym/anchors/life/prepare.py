"""Splits the Gapminder data: how long will people live?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish

BOUNDARY = 1992
TEXT = Text(
    title="How long will people live?",
    about="Each row is a country in a year, every five years from 1952 on. Forecast the life expectancy at birth. Training "
    "rows go up to 1987, test rows are of 1992 to 2007.",
    evaluation="Submissions are scored by the mean absolute error (MAE) in years. Lower is better.",
    predict="the life expectancy in years",
    columns={
        "country": "its name",
        "continent": "Africa, Americas, Asia, Europe or Oceania",
        "year": "of the row",
        "population": "number of people",
        "gdp_per_head": "gross domestic product for each person, in inflation-adjusted US dollars",
        "life": "(train only) life expectancy at birth, in years",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/life.csv`."""
    table = pd.read_csv(raw / "life.csv")
    names = {"pop": "population", "gdpPercap": "gdp_per_head", "lifeExp": "life"}
    table = table.rename(columns=names)[[*TEXT.columns]].round(2)
    table = table.sort_values(["year", "country"], kind="stable")
    in_train = list(table["year"] < BOUNDARY)
    publish(table, in_train, TEXT, public, private, id="row_id", targets=["life"], sample="median", digits=2)
