"""Splits the leaf data: which tree is the leaf from?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, stratified

SEED = "leaves/0"
TRAIN_ROWS = 160
TEXT = Text(
    title="Which tree is the leaf from?",
    about="Each row is the leaf of a tree of one of 32 species, by what was measured in an image of it and by what a "
    "person sees. Predict the species. There are about five training leaves of each.",
    evaluation="Submissions are scored by balanced accuracy: the mean over the species of the share of their leaves that "
    "are right. Higher is better.",
    predict="one of the species in `train.csv`",
    columns={
        "`apex`, `base`, `shape`": "forms of the tip, of the foot and of the whole, in words",
        "`denate_edge` to `undulate_edge`": "whether the edge is so: yes or no",
        "`outlying_polar` to `monotonic_polar`": "scagnostics of the outline in polar coordinates",
        "`outlying_contour` to `monotonic_contour`": "scagnostics of the outline",
        "`num_max_ponits`, `num_min_points`": "numbers of extrema of the outline",
        "`diameter` to `eccentriciry`": "size and form",
        "`contrast` and those after it": "texture",
        "species": "(train only) of the tree",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/leaves.csv`."""
    table = pd.read_csv(raw / "leaves.csv", keep_default_na=False).round(6)
    table = shuffled(table, SEED)
    in_train = stratified(table, "species", TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="leaf_id", targets=["species"], sample="mode")
