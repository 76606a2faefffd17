"""The released OpenMLE-Tasks: built packages, recipes that still have to be built, and the records of both.

A built task is a folder with `data/public`; a recipe has `utils/prepare.py` and no data. The inventory is a table, CSV or
JSON lines or Parquet, whose `artifact_path` is relative to it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import ValidationError, field_validator

from openmle_gym.contracts import ForeignContract, one_line
from openmle_gym.errors import ConfigError, PackageError
from openmle_gym.json_file import read_json
from openmle_gym.task import TaskPackage, load_package
from openmle_gym.text_table import read_text_table

METADATA = "info/task_metadata.json"


class _Released(ForeignContract):
    @field_validator("*", mode="before")
    @classmethod
    def _missing_is_none(cls, value: object) -> object:
        """Tables write a missing cell as an empty one or as NaN."""
        return None if value == "" or (isinstance(value, float) and value != value) else value


class TaskMetadata(_Released):
    """`info/task_metadata.json` of a released task."""

    task_name: str
    task: str | None = None
    modality: str | None = None
    source: str | None = None
    cpu_gpu: str | None = None
    higher_is_better: bool | None = None
    theoretical_min: float | None = None
    theoretical_max: float | None = None
    leaderboard_min: float | None = None
    leaderboard_max: float | None = None
    assumptions: Any = None


class InventoryRecord(_Released):
    """One record of the release's inventory."""

    task_id: str
    task_key: str | None = None
    release_type: Literal["built_task", "recipe"]
    source_type: str | None = None
    source_urls: Any = None
    source_checked_at_utc: str | None = None
    license_status: str | None = None
    license_name_or_permission: str | None = None
    training_authorization: str | None = None
    redistribution_scope: str | None = None
    additional_rights_notice: str | None = None
    conditions_or_caveats: str | None = None
    owner_refs: Any = None
    download_ref: str | None = None
    download_url: str | None = None
    raw_adapter: str | None = None
    package_bytes: int | None = None
    package_file_count: int | None = None
    artifact_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedTask:
    """A task of the release on disk."""

    root: Path
    kind: Literal["built_task", "recipe"]
    metadata: TaskMetadata | None
    """None where it has none."""

    def package(self) -> TaskPackage:
        """The task as a package.

        Raises:
            PackageError: It is a recipe, or cannot be loaded.
        """
        if self.kind == "recipe":
            raise PackageError(f"{self.root}: is a recipe; build it from its raw data first")
        return load_package(self.root)


def read_released(root: Path) -> Iterator[ReleasedTask]:
    """The tasks in a folder of the release, by name; folders that are neither kind are passed over.

    Raises:
        PackageError: There is no such folder, or a task's metadata cannot be read.
    """
    if not root.is_dir():
        raise PackageError(f"{root}: no such folder")
    for path in sorted(each for each in root.iterdir() if each.is_dir()):
        if (path / "data" / "public").is_dir():
            yield ReleasedTask(root=path, kind="built_task", metadata=read_metadata(path))
        elif (path / "utils" / "prepare.py").is_file():
            yield ReleasedTask(root=path, kind="recipe", metadata=read_metadata(path))


def read_metadata(root: Path) -> TaskMetadata | None:
    """A task's metadata; None where it has none.

    Raises:
        PackageError: The file is no JSON, or a field is wrong.
    """
    path = root / METADATA
    if not path.is_file():
        return None
    fields = read_json(path)
    if not isinstance(fields, dict):
        raise PackageError(f"{path}: is no object")
    try:
        return TaskMetadata.model_validate({"task_name": root.name, **fields})
    except ValidationError as error:
        raise PackageError(f"{path}: cannot be used: {one_line(error)}") from error


def read_inventory(path: Path) -> list[InventoryRecord]:
    """The records of an inventory.

    Raises:
        ConfigError: It is Parquet, and pyarrow is not installed.
        PackageError: The file cannot be read, or a record is wrong; names it.
    """
    try:
        if path.suffix == ".parquet":
            rows = pd.read_parquet(path).to_dict("records")
        elif path.suffix in (".jsonl", ".ndjson"):
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        else:
            rows = read_text_table(path).to_dict("records")
    except ImportError as error:
        raise ConfigError("Parquet files need pyarrow: pip install 'openmle-gym[parquet]'") from error
    except (OSError, ValueError, RecursionError) as error:
        raise PackageError(f"{path}: cannot be read: {error}") from error
    records = []
    for number, row in enumerate(rows, start=1):
        try:
            records.append(InventoryRecord.model_validate(row))
        except ValidationError as error:
            raise PackageError(f"{path}: record {number}: {one_line(error)}") from error
    return records
