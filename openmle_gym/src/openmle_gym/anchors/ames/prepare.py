"""Splits the Ames data: what did the house cost?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, stratified

SEED = "ames/0"
TRAIN_ROWS = 600
TEXT = Text(
    title="What did the house cost?",
    about="Each row is a house sold in Ames, Iowa, in 2006 to 2010, as the assessor described it in 73 columns. Predict "
    "the price.",
    evaluation="Submissions are scored by the root mean squared logarithmic error (RMSLE), the root of the mean of (log(1 "
    "+ predicted) − log(1 + true))². Lower is better.",
    predict="the price in US dollars, not negative",
    columns={
        "`MS_SubClass`, `MS_Zoning`": "kind of dwelling, and of the zone",
        "`Lot_Frontage` to `Land_Slope`": "the lot; areas in square feet",
        "`Neighborhood` to `Condition_2`": "where the house is",
        "`Bldg_Type` to `Foundation`": "the house: form, condition, years, roof, walls",
        "`Bsmt_Cond` to `Total_Bsmt_SF`": "the basement",
        "`Heating` to `Electrical`": "the technical fittings",
        "`First_Flr_SF` to `Fireplaces`": "the rooms",
        "`Garage_Type` to `Paved_Drive`": "the garage",
        "`Wood_Deck_SF` to `Misc_Val`": "what is outside",
        "`Mo_Sold`, `Year_Sold`, `Sale_Type`, `Sale_Condition`": "the sale",
        "`Longitude`, `Latitude`": "of the house",
        "Sale_Price": "(train only) in US dollars",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/ames.csv`."""
    table = pd.read_csv(raw / "ames.csv", keep_default_na=False, na_values=["NA", ""])
    table = shuffled(table.round(6), SEED)
    in_train = stratified(table, "Sale_Price", TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="house_id", targets=["Sale_Price"], sample="mean", digits=0)
