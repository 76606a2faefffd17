"""Splits the Tate data: which work is the later one?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, stratified

SEED = "artworks/0"
TRAIN_ROWS, ALL_ROWS = 1_000, 3_000
TEXT = Text(
    title="Which work is the later one?",
    about="Each row is a work of art of 1990 to 2012 in the Tate's collection, by artist, title and medium, in words. "
    "Rank the works by the year in which they were made: predict a number that is higher for a later work.",
    evaluation="Submissions are scored by Spearman's rank correlation between the predicted number and the year. Higher "
    "is better; 0 is chance and 1 is the right order.",
    predict="a number; only the order counts",
    columns={
        "artist": "surname and first names",
        "title": "of the work",
        "medium": "of what it is made, in words",
        "year": "(train only) when it was made",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/artworks.csv`."""
    table = pd.read_csv(raw / "artworks.csv", keep_default_na=False)
    table = table[[*TEXT.columns]].drop_duplicates(["artist", "title", "medium"])
    table = shuffled(table, SEED, ALL_ROWS)
    in_train = stratified(table, "year", TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="work_id", targets=["year"], sample="median", digits=0)
