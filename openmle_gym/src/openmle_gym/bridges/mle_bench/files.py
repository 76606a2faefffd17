"""Hidden rows of the competitions whose answers are not columns of a train table."""

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from openmle_gym.bridges.mle_bench.facts import Carving, Split
from openmle_gym.bridges.mle_bench.rows import hidden_rows
from openmle_gym.errors import ConfigError, PackageError

FOLDS = "essential_data/CVfolds_2.txt"
LABELS = "essential_data/rec_labels_test_hidden.txt"
FILE_NAMES = "essential_data/rec_id2filename.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenFiles:
    """Hidden rows with one target."""

    ids: list[str]
    values: Sequence[str | float]
    moved: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()


def named_rows(names: Sequence[str], labels: Sequence[str], chosen: np.ndarray, carving: Carving) -> HiddenFiles:
    """Files whose names tell their label; hidden ones get a number in its place, in shuffled order."""
    media = carving.media[0]
    hidden = np.random.default_rng(carving.split.seed).permutation(np.flatnonzero(chosen))
    ids: list[str] = []
    moved: dict[str, str] = {}
    for number, place in enumerate(map(int, hidden), start=1):
        before = re.search(carving.before, names[place]) if carving.before else None
        words = {"number": number, "before": before[1] if before else ""}
        ids.append(carving.row.format(**words))
        moved[f"{media.train}/{names[place]}"] = f"{media.test}/{carving.renamed.format(**words)}"
    return HiddenFiles(ids=ids, values=[labels[int(place)] for place in hidden], moved=moved)


def pixel_rows(public: Path, names: Sequence[str], carving: Carving) -> HiddenFiles:
    """Images whose answer is another image: one row for each pixel, its grey value in [0, 1].

    Raises:
        ConfigError: Pillow is not installed.
        PackageError: An image has no answer.
    """
    if importlib.util.find_spec("PIL") is None:
        raise ConfigError("this competition's answers are images: install pillow")
    from PIL import Image  # an extra

    media, answers = carving.media[0], carving.side[0]
    ids: list[str] = []
    values: list[float] = []
    for name in names:
        path = public / answers / name
        if not path.is_file():
            raise PackageError(f"{path}: no such file, and {media.train}/{name} needs it")
        grey = np.asarray(Image.open(path).convert("L")) / 255.0
        stem = Path(name).stem
        rows, columns = np.indices(grey.shape) + 1
        ids += [f"{stem}_{row}_{column}" for row, column in zip(rows.ravel(), columns.ravel(), strict=True)]
        values += grey.ravel().tolist()
    moved = {f"{media.train}/{name}": f"{media.test}/{name}" for name in names}
    return HiddenFiles(ids=ids, values=values, moved=moved, left_out=frozenset(f"{answers}/{name}" for name in names))


def recorded_rows(public: Path, split: Split) -> HiddenFiles:
    """Recordings with species by number: hidden ones have the fold 1 and the label `?`, as official test ones have.

    Rows are pairs of a recording and one of the species, with the id 100 * recording + species.
    """
    folds = pd.read_csv(public / FOLDS)
    ours = folds[folds["fold"] == 0].reset_index(drop=True)
    hidden = set(ours["rec_id"][hidden_rows(ours, split)].tolist())
    labels: dict[int, list[int]] = {}
    header, *lines = (public / LABELS).read_text(encoding="utf-8").splitlines()
    for line in lines:
        recording, *species = line.split(",")
        if int(recording) in set(ours["rec_id"]):
            labels[int(recording)] = [int(each) for each in species]
    count = 1 + max(each for found in labels.values() for each in found)
    shown = {recording: ["?"] if recording in hidden else map(str, found) for recording, found in labels.items()}
    lines = [",".join([str(recording), *species]) for recording, species in shown.items()]
    names = pd.read_csv(public / FILE_NAMES)
    pairs = [(recording, species) for recording in sorted(hidden) for species in range(count)]
    return HiddenFiles(
        ids=[str(100 * recording + species) for recording, species in pairs],
        values=[float(species in labels[recording]) for recording, species in pairs],
        replaced={
            FOLDS: ours.assign(fold=ours["rec_id"].isin(hidden).astype(int)).to_csv(index=False),
            LABELS: "\n".join([header, *lines]) + "\n",
            FILE_NAMES: names[names["rec_id"].isin(ours["rec_id"])].to_csv(index=False),
        },
    )
