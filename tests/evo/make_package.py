"""A small task package on disk."""

from pathlib import Path

from openmle_gym.manifest import Columns, Manifest, Metric, write_manifest
from openmle_gym.task import TaskPackage, load_package

DESCRIPTION = (
    "A harbour keeps a log of every ship that it has seen: length, draught, flag, cargo and the hour of its arrival. "
    "From the ships of earlier years, predict for how many hours each ship of the last year lay at the pier."
)


def make_package(
    folder: Path,
    name: str = "harbour-hours",
    *,
    description: str = DESCRIPTION,
    task_type: str = "regression",
    metric: Metric | None = None,
    modality: tuple[str, ...] = ("tabular",),
    train: str = "id,length,hours\n1,30,4\n2,50,9\n",
    files: dict[str, str] | None = None,
    columns: Columns | None = None,
) -> TaskPackage:
    """Writes a package and loads it; `train` is the content of its train.csv."""
    root = folder / name
    for place in ("data/public", "data/private", "utils"):
        (root / place).mkdir(parents=True)
    (root / "data/public/description.txt").write_text(description)
    (root / "data/public/train.csv").write_text(train)
    (root / "data/public/sample_submission.csv").write_text("id,hours\n3,0\n4,0\n")
    (root / "data/private/test_answer.csv").write_text("id,hours\n3,5\n4,7\n")
    (root / "utils/metric.py").write_text("")
    manifest = Manifest(
        name=name,
        task_type=task_type,  # pyright: ignore[reportArgumentType]
        modality=modality,
        metric=metric or Metric(name="rmse", higher_is_better=False),
        columns=columns or Columns(id=("id",), target=("hours",)),
        files=files or {},
    )
    write_manifest(manifest, root / "task.toml")
    return load_package(root)
