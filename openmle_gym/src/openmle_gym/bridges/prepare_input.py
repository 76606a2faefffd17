"""The table of prompts and task metadata that the published search runtime and trainers read; needs the extra `parquet`.

One row for each task: `prompt`, a list of one system and one user message, and `metadata`, a struct.
"""

import uuid
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from openmle_gym.contracts import Contract
from openmle_gym.errors import ConfigError
from openmle_gym.prompts import SYSTEM, PublicTask, public_task
from openmle_gym.task import TaskPackage

TASK_NAMESPACE = uuid.UUID("6f0f2c1e-5d0a-4a53-9a3c-0d5a1f1f7a10")
OUTPUT_RULES = """\
Answer with one complete Python program in one fenced block. It reads the files in the folder that the environment
variable DATA_DIR names, and writes submission.csv into its working directory with the columns and ids of
sample_submission.csv, every prediction present and finite. It holds out rows of its own for validation and prints, as a
line of its own, `Final Validation Score: <number>`."""


class TaskRow(Contract):
    """The `metadata` of one row; a bound that is not known is None."""

    task_name: str
    uuid: str
    task: str
    cpu_gpu: str
    data_dir: str
    higher_is_better: bool
    source: str
    modality: str
    theoretical_min: float | None
    theoretical_max: float | None
    leaderboard_min: float | None
    leaderboard_max: float | None
    task_description: str
    data_description: str


def input_row(package: TaskPackage, *, data_dir: str, task_uuid: str | None = None) -> dict[str, Any]:
    """One row.

    Args:
        data_dir: The package as the sandbox sees it.
        task_uuid: By default one that follows from the name.
    """
    task = public_task(package)
    manifest, board = package.manifest, package.leaderboard
    row = TaskRow(
        task_name=manifest.name,
        uuid=task_uuid or str(uuid.uuid5(TASK_NAMESPACE, manifest.name)),
        task=manifest.task_type.capitalize(),
        cpu_gpu=manifest.compute,
        data_dir=data_dir,
        higher_is_better=manifest.metric.higher_is_better,
        source=manifest.provenance.source or "OpenMLE",
        modality=",".join(each.title() for each in manifest.modality),
        theoretical_min=manifest.metric.theoretical_min,
        theoretical_max=manifest.metric.theoretical_max,
        leaderboard_min=min(board.scores) if board else None,
        leaderboard_max=max(board.scores) if board else None,
        task_description=task.description.strip(),
        data_description=task.data,
    )
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": _user_message(task)}]
    return {"prompt": messages, "metadata": row.model_dump()}


def _user_message(task: PublicTask) -> str:
    """With the three markers, in order, at which the published runtime divides it."""
    metric = task.manifest.metric
    better = "higher" if metric.higher_is_better else "lower"
    return (
        f"Task Description:\n{task.description.strip()}\n\nMetric: {metric.name}; {better} is better.\n\n"
        f"Data Preview:\n{task.data}\n\nOutput Instructions:\n{OUTPUT_RULES}\n"
    )


def write_input(
    packages: Sequence[TaskPackage], output: Path, *, sandbox_root: str | None, task_uuid: str | None = None
) -> None:
    """Writes the table.

    Args:
        sandbox_root: The folder of packages as the sandbox sees it; None where it sees them where they are.
        task_uuid: Of the only task.

    Raises:
        ConfigError: pyarrow is not installed, two tasks have one name, or a uuid is given for several.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError("Parquet files need pyarrow: pip install 'openmle-gym[parquet]'") from error
    names = [package.name for package in packages]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"two packages are called {sorted(doubled)[0]!r}")
    if task_uuid is not None and len(packages) != 1:
        raise ConfigError(f"task_uuid: is for one task, got {len(packages)}")
    rows = [
        input_row(
            package,
            data_dir=str(PurePosixPath(sandbox_root) / package.root.name) if sandbox_root else str(package.root),
            task_uuid=task_uuid,
        )
        for package in packages
    ]
    kinds = {str: pa.string(), bool: pa.bool_()}
    metadata = pa.struct(
        [(name, kinds.get(field.annotation, pa.float64())) for name, field in TaskRow.model_fields.items()]  # pyright: ignore[reportArgumentType]
    )
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    schema = pa.schema([("prompt", pa.list_(message)), ("metadata", metadata)])
    output.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), output)
