"""Cuts the picture of a cat into patches: which colour did the grey patch have?"""

from pathlib import Path

import numpy as np
import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, write_png

SEED = "colours/0"
SIDE, SHARE = 12, 3
TEXT = Text(
    title="Which colour did the grey patch have?",
    about="Each row is a patch of 12 × 12 pixels of a colour photograph of a cat, given in grey. Predict how far the "
    "patch's mean red, and its mean blue, were from its mean grey, from its texture and brightness.\n\nThe patches are "
    "from a fixed pattern of squares of the photograph that do not overlap.",
    evaluation="Submissions are scored by the root mean squared error (RMSE) of each difference, averaged over the two. "
    "Lower is better.",
    predict="two differences, on the scale of 0 to 255",
    columns={
        "image": "file of the patch",
        "red": "(train only) mean red minus mean grey",
        "blue": "(train only) mean blue minus mean grey",
    },
    files="- `images/`: the patches, 8-bit grey PNG files",
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/cat.npy`."""
    pixels = np.load(raw / "cat.npy").astype(float)
    grey = pixels @ [0.299, 0.587, 0.114]
    rows, patches = [], {}
    for top in range(0, grey.shape[0] - SIDE + 1, SIDE):
        for left in range(0, grey.shape[1] - SIDE + 1, SIDE):
            where = slice(top, top + SIDE), slice(left, left + SIDE)
            patches[f"{top}/{left}"] = grey[where].round().clip(0, 255)
            red, _, blue = (pixels[where].mean(axis=(0, 1)) - grey[where].mean()).round(2)
            rows.append((f"{top}/{left}", red, blue))
    table = shuffled(pd.DataFrame(rows, columns=["key", "red", "blue"]).set_index("key"), SEED)
    table.insert(0, "image", [f"images/{number:04d}.png" for number in range(1, len(table) + 1)])
    for key, name in table["image"].items():
        write_png(public / name, patches[key].astype(np.uint8))
    in_train = [place % SHARE == 0 for place in range(len(table))]
    publish(table, in_train, TEXT, public, private, id="patch_id", targets=["red", "blue"], sample="mean", digits=2)
