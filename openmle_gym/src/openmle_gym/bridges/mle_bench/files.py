"""Hidden rows of the competitions whose answers are not columns of a train table."""

import importlib.util
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from openmle_gym.bridges.mle_bench.facts import Carving, Split
from openmle_gym.bridges.mle_bench.rows import hidden_rows
from openmle_gym.errors import ConfigError, PackageError
from openmle_gym.text_table import read_text_table

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
        PackageError: An image has no answer, or one that is no image.
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
        try:
            grey = np.asarray(Image.open(path).convert("L")) / 255.0
        except (OSError, ValueError, SyntaxError) as error:  # Pillow's own errors among them
            raise PackageError(f"{path}: no image that can be read: {error}") from error
        stem = Path(name).stem
        rows, columns = np.indices(grey.shape) + 1
        ids += [f"{stem}_{row}_{column}" for row, column in zip(rows.ravel(), columns.ravel(), strict=True)]
        values += grey.ravel().tolist()
    moved = {f"{media.train}/{name}": f"{media.test}/{name}" for name in names}
    return HiddenFiles(ids=ids, values=values, moved=moved, left_out=frozenset(f"{answers}/{name}" for name in names))


def recorded_rows(public: Path, split: Split) -> HiddenFiles:
    """Recordings with species by number: hidden ones have the fold 1 and the label `?`, as official test ones have.

    Rows are pairs of a recording and one of the species, with the id 100 * recording + species.

    Raises:
        PackageError: A file is missing, is not what it should be, or says nothing of a recording.
    """
    folds, names = _recordings(public / FOLDS, "fold"), _recordings(public / FILE_NAMES)
    ours = folds[folds["fold"] == 0].reset_index(drop=True)
    hidden = set(ours["rec_id"][hidden_rows(ours, split)].tolist())
    header, labels = _species(public / LABELS, set(ours["rec_id"]))
    if missing := sorted(hidden - labels.keys()):
        raise PackageError(f"{public / LABELS}: has no line for the recordings {missing[:5]}")
    count = 1 + max((each for found in labels.values() for each in found), default=0)
    shown = {recording: ["?"] if recording in hidden else map(str, found) for recording, found in labels.items()}
    lines = [",".join([str(recording), *species]) for recording, species in shown.items()]
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


def _recordings(path: Path, *numbers: str) -> pd.DataFrame:
    """A table of recordings; `rec_id` and the other columns named are integers."""
    table = read_text_table(path)
    for name in ("rec_id", *numbers):
        if name not in table.columns:
            raise PackageError(f"{path}: has no column {name!r}")
        try:
            table[name] = table[name].astype(int)
        except (ValueError, OverflowError) as error:
            raise PackageError(f"{path}: column {name!r}: {error}") from error
    return table


def _species(path: Path, recordings: Set[int]) -> tuple[str, dict[int, list[int]]]:
    """The header, and the numbers of the species of each recording; a line of each has its number, then theirs."""
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
    except (OSError, UnicodeDecodeError) as error:
        raise PackageError(f"{path}: cannot be read: {error}") from error
    found: dict[int, list[int]] = {}
    for number, line in enumerate(lines, start=2):
        recording, *species = line.split(",")
        try:
            if int(recording) in recordings:
                found[int(recording)] = [int(each) for each in species]
        except ValueError as error:
            raise PackageError(f"{path}: line {number}: {error}") from error
    return header, found
