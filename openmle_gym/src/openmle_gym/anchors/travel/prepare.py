"""Splits the travel data: how does the traveller go?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, stratified

SEED = "travel/0"
TRAIN_ROWS = 90
MODES = {1: "air", 2: "train", 3: "bus", 4: "car"}
TEXT = Text(
    title="How does the traveller go?",
    about="Each row is a person who travelled between Sydney, Canberra and Melbourne and could go by air, train, bus or "
    "car, with the terms that each offered. Predict which way the person went.",
    evaluation="Submissions are scored by the macro F1: the F1 of each of the four ways, averaged. Higher is better.",
    predict="`air`, `train`, `bus` or `car`",
    columns={
        "`ttme_air` to `ttme_car`": "minutes of waiting at the terminal, by that way; 0 for the car",
        "`invc_air` to `invc_car`": "cost in the vehicle",
        "`invt_air` to `invt_car`": "minutes in the vehicle",
        "`gc_air` to `gc_car`": "generalised cost, of money and time",
        "hinc": "income of the household, in thousands",
        "psize": "number of people who travel together",
        "way": "(train only) how the person went",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/travel.csv`."""
    choices = pd.read_csv(raw / "travel.csv").astype(int)
    choices["mode"] = choices["mode"].map(MODES)
    wide = choices.pivot(index="individual", columns="mode", values=["ttme", "invc", "invt", "gc"])
    table = pd.DataFrame(
        {f"{term}_{mode}": wide[term, mode] for term in ("ttme", "invc", "invt", "gc") for mode in MODES.values()}
    )
    people = choices.groupby("individual")
    table["hinc"], table["psize"] = people["hinc"].first(), people["psize"].first()
    table["way"] = choices[choices["choice"] == 1].set_index("individual")["mode"]
    table = shuffled(table, SEED)
    in_train = stratified(table, "way", TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="person_id", targets=["way"], sample="mode")
