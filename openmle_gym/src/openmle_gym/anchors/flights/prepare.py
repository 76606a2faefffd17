"""Splits the flights data: how long is the plane in the air?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, stratified

SEED = "flights/0"
TRAIN_ROWS = 1_500
TEXT = Text(
    title="How long is the plane in the air?",
    about="Each row is a flight that left New York City in 2013. Predict the minutes it spent in the air from what the "
    "timetable says. The distance is not given; the destination is, and the plane's tail number, each of which takes "
    "many values.",
    evaluation="Submissions are scored by the root mean squared error (RMSE) in minutes. Lower is better.",
    predict="minutes in the air",
    columns={
        "month": "of the departure",
        "day": "of the departure",
        "sched_dep_time": "scheduled departure, local time as HHMM",
        "sched_arr_time": "scheduled arrival, local time as HHMM",
        "carrier": "two-letter code of the airline",
        "tailnum": "the plane's tail number",
        "origin": "airport in New York City: EWR, JFK or LGA",
        "dest": "three-letter code of the destination",
        "air_time": "(train only) minutes in the air",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/flights.csv`."""
    table = pd.read_csv(raw / "flights.csv")
    table = shuffled(table[[*TEXT.columns]], SEED)
    table["air_time"] = table["air_time"].astype(int)
    in_train = stratified(table, "air_time", TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="flight_id", targets=["air_time"], sample="mean", digits=2)
