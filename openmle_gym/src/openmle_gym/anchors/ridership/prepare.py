"""Splits the Chicago data: how many people ride the train?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish

FIRST, BOUNDARY = "2012-07-01", "2015-01-01"
TEXT = Text(
    title="How many people ride the train?",
    about="Each row is a day. Forecast how many people enter the elevated train at the station Clark/Lake in Chicago, "
    "from the calendar, the weather, the home and away games of the city's teams, and how many entered at other "
    "stations 14 days before. Training days run to the end of 2014; test days come after.",
    evaluation="Submissions are scored by the mean absolute error (MAE) in thousands of people. Lower is better.",
    predict="the number of people, in thousands",
    columns={
        "`year`, `month`, `day`": "the date",
        "weekday": "0 for Monday to 6 for Sunday",
        "`Austin` to `California`": "people who entered at that station 14 days before, in thousands",
        "`temp_min`, `temp`, `temp_max`, `temp_change`": "temperature of the day, in degrees Fahrenheit",
        "dew": "dew point, in degrees Fahrenheit",
        "humidity": "in percent",
        "`pressure`, `pressure_change`": "of the air, in inches of mercury",
        "`wind`, `wind_max`, `gust`, `gust_max`": "speeds in miles an hour",
        "`percip`, `percip_max`": "precipitation, in inches",
        "`weather_rain`, `weather_snow`, `weather_cloud`, `weather_storm`": "share of the day with such weather",
        "`Blackhawks_Away` to `Cubs_Home`": "1 on a day when that team plays there",
        "ridership": "(train only) people who entered at Clark/Lake, in thousands",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/ridership.csv`."""
    table = pd.read_csv(raw / "ridership.csv")
    # The station's own past would tell the answers of the days 14 days earlier.
    date = pd.to_datetime(table.pop("date"))
    table = table.drop(columns="Clark_Lake").round(4)
    for place, (name, values) in enumerate(
        {"year": date.dt.year, "month": date.dt.month, "day": date.dt.day, "weekday": date.dt.weekday}.items()
    ):
        table.insert(place, name, values)
    kept = date >= pd.Timestamp(FIRST)
    table, date = table[kept], date[kept]
    publish(
        table,
        list(date < pd.Timestamp(BOUNDARY)),
        TEXT,
        public,
        private,
        id="day_id",
        targets=["ridership"],
        sample="median",
    )
