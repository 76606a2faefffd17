"""Splits the fine-foods reviews: was the customer delighted?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, stratified

SEED = "reviews/0"
TRAIN_ROWS, ALL_ROWS = 600, 2_400
TEXT = Text(
    title="Was the customer delighted?",
    about="Each row is a review of something to eat or drink that was bought over the internet, of at most 600 "
    "characters here. Predict the probability that the customer gave five stars.",
    evaluation="Submissions are scored by the area under the ROC curve (AUC). Higher is better; 0.5 is chance.",
    predict="a probability between 0 and 1",
    columns={
        "review": "the text, in English",
        "great": "(train only) 1 for five stars, 0 for fewer",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/reviews.csv`."""
    table = pd.read_csv(raw / "reviews.csv", keep_default_na=False)
    table["review"] = table["review"].str.replace("<br />", " ").str.replace(r"\s+", " ", regex=True).str[:600]
    table["great"] = (table["score"] == "great").astype(int)
    table = shuffled(table[["review", "great"]].drop_duplicates("review"), SEED, ALL_ROWS)
    in_train = stratified(table, "great", TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="review_id", targets=["great"], sample="mean")
