"""`task.toml`: what a task package says of itself."""

import tomllib
from pathlib import Path
from typing import Literal

import tomli_w
from pydantic import Field, ValidationError, model_validator

from openmle_gym.contracts import Contract, one_line
from openmle_gym.errors import PackageError

MANIFEST_NAME = "task.toml"

TaskType = Literal["classification", "regression", "other"]


class Metric(Contract):
    """How a submission is scored."""

    name: str
    higher_is_better: bool
    """Always stated; never inferred from a leaderboard's order."""
    theoretical_min: float | None = None
    theoretical_max: float | None = None
    prediction: Literal["number", "probability", "label", "text"] = "number"
    """What the target columns of a submission hold: any finite number, a number in [0, 1], a label as in train, or free
    text, where any cell is a prediction, an empty one too."""


class Columns(Contract):
    """The columns of a submission."""

    id: tuple[str, ...] = Field(min_length=1)
    """Together they name a row; rows are aligned by them."""
    target: tuple[str, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _disjoint(self) -> "Columns":
        both = set(self.id) & set(self.target)
        if both:
            raise ValueError(f"columns {sorted(both)} are both id and target")
        return self


class HiddenSplit(Contract):
    """How the hidden answers fall into a validation and a test half."""

    seed: int = 0
    validation_fraction: float = Field(default=0.5, ge=0, le=1)
    """0 where the whole is for the final test, 1 where all of it is for search (see `openmle_gym.bridges.mle_bench`)."""


class Provenance(Contract):
    """Where the data come from."""

    source: str = ""
    licence: str = ""
    train_test_split: str = ""
    """How the package's own train and test rows were divided, in words: strategy, ratio, seed."""
    leaderboard: str = ""
    """Who made `info/leaderboard.csv`; `machine` for one made by running baselines."""


class Manifest(Contract):
    """The whole of `task.toml`."""

    schema_version: Literal[1] = 1
    name: str = Field(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9._@-]*[A-Za-z0-9])?$")
    title: str = ""
    task_type: TaskType = "other"
    modality: tuple[str, ...] = ("tabular",)
    compute: Literal["cpu", "gpu"] = "cpu"
    metric: Metric
    columns: Columns
    hidden_split: HiddenSplit = HiddenSplit()
    provenance: Provenance = Provenance()
    known_issues: tuple[str, ...] = ()
    """What is known to be wrong with the task and yet is part of it, such as a leak in its official data."""
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256, in hex, of each file of the package by its relative path; empty when nothing was hashed."""


def read_manifest(path: Path) -> Manifest:
    """Reads a `task.toml`.

    Raises:
        PackageError: The file is not TOML, or a field is missing, unknown or wrong; names the path and the field.
    """
    try:
        return Manifest.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except ValidationError as error:
        raise PackageError(f"{path}: {one_line(error)}") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, an integer of thousands of digits
        raise PackageError(f"{path}: not valid TOML: {error}") from error


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Writes a `task.toml` that `read_manifest` reads back equal."""
    path.write_text(tomli_w.dumps(manifest.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
