"""Splits the watch data: which exercise is it?"""

from pathlib import Path

import numpy as np
import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled

SEED = "watch/0"
TRAIN_PEOPLE = 4
WINDOW, WINDOWS = 25, 4
CHANNELS = ["ax", "ay", "az", "wx", "wy", "wz"]
TEXT = Text(
    title="Which exercise is it?",
    about="Ten people did seven exercises for the shoulder with a smart watch on the wrist. Each row is a window of four "
    "seconds of what its sensors said, 25 samples of each of six channels. Predict the exercise.\n\nNo person of the "
    "test data is among those of the training data.",
    evaluation="Submissions are scored by accuracy: the share of windows whose exercise is right. Higher is better.",
    predict="one of the exercises in `train.csv`",
    columns={
        "person": "number of the person",
        "side": "the arm: left or right",
        "`ax_0` to `az_24`": "acceleration along three axes, in g, 25 samples at 6.25 per second",
        "`wx_0` to `wz_24`": "angular velocity about three axes, in radians a second, at the same times",
        "exercise": "(train only) PEN, ABD, FEL, IR, ER, TRAP or ROW: pendulum, abduction, forward elevation, internal "
        "rotation, external rotation, lower trapezius row, bent-over row",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/watch.csv` and `raw/signals.npy`."""
    series = pd.read_csv(raw / "watch.csv")
    signals = np.load(raw / "signals.npy")
    rows = []
    for place, (person, side, exercise, start, count) in enumerate(series.itertuples(index=False, name=None)):
        signal = signals[start : start + count]
        for number in range(WINDOWS):
            first = (count - WINDOW) * (2 * number + 1) // (2 * WINDOWS)
            window = signal[first : first + WINDOW].astype(float)
            rows.append([f"{place}/{number}", person, side, exercise, *window.T.round(3).ravel()])
    names = [f"{channel}_{sample}" for channel in CHANNELS for sample in range(WINDOW)]
    table = pd.DataFrame(rows, columns=["window", "person", "side", "exercise", *names]).set_index("window")
    table = shuffled(table, SEED)
    in_train = list(table["person"] <= TRAIN_PEOPLE)
    publish(table, in_train, TEXT, public, private, id="window_id", targets=["exercise"], sample="mode")
