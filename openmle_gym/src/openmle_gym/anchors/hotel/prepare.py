"""Splits the hotel data: what will the room cost?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled

SEED = "hotel/0"
TRAIN_ROWS, TEST_ROWS, BOUNDARY = 1_500, 2_500, "2017-05-01"
TEXT = Text(
    title="What will the room cost?",
    about="Each row is a stay at a resort hotel in Portugal. Predict the average price of a night. Training stays "
    "began before May 2017; test stays began in May to August 2017. Countries, agents and companies take many values.",
    evaluation="Submissions are scored by the mean absolute error (MAE) in euros. Lower is better.",
    predict="the average price of a night in euros",
    columns={
        "lead_time": "days from the booking to the arrival",
        "`stays_in_weekend_nights`, `stays_in_week_nights`": "numbers of nights",
        "`adults`, `children`, `babies`": "numbers of guests",
        "meal": "what is included",
        "country": "of the guest, a three-letter code; empty where it is not known",
        "`market_segment`, `distribution_channel`": "how the booking came about",
        "`is_repeated_guest`, `previous_cancellations`, `previous_bookings_not_canceled`": "what is known of the guest",
        "`reserved_room_type`, `assigned_room_type`": "codes",
        "booking_changes": "number of changes",
        "`agent`, `company`": "who booked, under another name",
        "days_in_waiting_list": "days until the booking was confirmed",
        "customer_type": "kind of booking",
        "`required_car_parking_spaces`, `total_of_special_requests`": "numbers of them",
        "`month`, `day_of_year`, `weekday`": "of the arrival; 0 is Monday",
        "`near_christmas`, `near_new_years`": "1 for an arrival in those days",
        "historical_adr": "average price of a night around that day in the years before",
        "avg_price_per_room": "(train only) average price of a night, in euros",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/hotel.csv`."""
    table = pd.read_csv(raw / "hotel.csv").drop_duplicates()
    arrival = pd.to_datetime(table.pop("arrival_date"))
    table = table.drop(columns="arrival_date_num").round(3)
    table["month"], table["day_of_year"], table["weekday"] = (
        arrival.dt.month,
        arrival.dt.dayofyear,
        arrival.dt.weekday,
    )
    before = arrival < pd.Timestamp(BOUNDARY)
    table = pd.concat([shuffled(table[before], SEED, TRAIN_ROWS), shuffled(table[~before], SEED, TEST_ROWS)])
    in_train = [place < TRAIN_ROWS for place in range(len(table))]
    targets = ["avg_price_per_room"]
    publish(table, in_train, TEXT, public, private, id="stay_id", targets=targets, sample="median", digits=2)
