"""Cuts the textures into patches: brick, grass or gravel?"""

from pathlib import Path

import numpy as np
import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, write_png

SEED = "textures/0"
SIDE, TRAIN_BANDS = 16, 10
KINDS = ["brick", "grass", "gravel"]
TEXT = Text(
    title="Brick, grass or gravel?",
    about="Each row is a patch of 16 × 16 pixels from a photograph of a brick wall, of grass or of gravel, in grey, "
    "without its brightness and contrast: every patch has the same mean and the same spread. Predict which it is. The "
    "patches of the test data are from other parts of the photographs.",
    evaluation="Submissions are scored by accuracy: the share of patches whose kind is right. Higher is better; 1/3 is "
    "chance.",
    predict="`brick`, `grass` or `gravel`",
    columns={
        "image": "file of the patch",
        "kind": "(train only) brick, grass or gravel",
    },
    files="- `images/`: the patches, 8-bit grey PNG files",
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/<kind>.npy`."""
    rows, patches = [], {}
    for kind in KINDS:
        pixels = np.load(raw / f"{kind}.npy").astype(float)
        for band in range(pixels.shape[0] // SIDE):
            for place in range(band % 2, pixels.shape[1] // SIDE, 2):
                patch = pixels[band * SIDE : (band + 1) * SIDE, place * SIDE : (place + 1) * SIDE]
                key = f"{kind}/{band}/{place}"
                patches[key] = ((patch - patch.mean()) / (patch.std() + 1e-9) * 40 + 128).round().clip(0, 255)
                rows.append((key, band, kind))
    table = shuffled(pd.DataFrame(rows, columns=["key", "band", "kind"]).set_index("key"), SEED)
    table.insert(0, "image", [f"images/{number:04d}.png" for number in range(1, len(table) + 1)])
    for key, name in table["image"].items():
        write_png(public / name, patches[key].astype(np.uint8))
    in_train = list(table.pop("band") < TRAIN_BANDS)
    publish(table, in_train, TEXT, public, private, id="patch_id", targets=["kind"], sample="mode")
