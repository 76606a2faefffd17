"""Splits the tweets data: which telephone was it sent from?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, stratified

SEED = "tweets/0"
TRAIN_ROWS, ALL_ROWS = 700, 2_500
TEXT = Text(
    title="Which telephone was it sent from?",
    about="Each row is a message of 2015 or 2016 from one public account that more than one person wrote for, on more "
    "than one telephone. Predict whether it was sent from an Android telephone or an iPhone.",
    evaluation="Submissions are scored by Matthews' correlation coefficient (MCC): 1 is perfect, 0 is chance. Higher is "
    "better.",
    predict="`android` or `iphone`",
    columns={
        "text": "of the message",
        "hour": "in which it was sent, UTC",
        "weekday": "0 for Monday to 6 for Sunday",
        "telephone": "(train only) android or iphone",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/tweets.csv`."""
    table = pd.read_csv(raw / "tweets.csv", keep_default_na=False)
    kinds = {"Twitter for Android": "android", "Twitter for iPhone": "iphone"}
    table["telephone"] = table["source"].map(kinds)
    sent = pd.to_datetime(table["created_at"])
    table["hour"], table["weekday"] = sent.dt.hour, sent.dt.weekday
    table["text"] = table["text"].str.replace(r"\s+", " ", regex=True)
    kept = table["telephone"].notna() & sent.dt.year.between(2015, 2016) & (table["is_retweet"].astype(str) == "False")
    table = table.loc[kept, [*TEXT.columns]].drop_duplicates("text")
    table = shuffled(table, SEED, ALL_ROWS)
    in_train = stratified(table, "telephone", TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="message_id", targets=["telephone"], sample="mode")
