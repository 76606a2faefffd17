"""Tasks of NatureBench: read a package and its metadata, and measure a gap to the state of the art.

<task>/metadata.json              instances, each with metrics of which one is primary
<task>/problem/README.md          the statement, beside data_description.md and data/
<task>/evaluation/                how outputs are scored; hidden from programs
<task>/environment/
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from openmle_gym.contracts import ForeignContract, one_line
from openmle_gym.errors import PackageError
from openmle_gym.json_file import read_json

LITE_V2 = (
    "s41587-025-02688-8",
    "s42256-025-01016-8",
    "s42256-023-00627-3",
    "s41592-025-02776-2",
    "s41467-025-63412-3",
    "s43588-024-00703-7",
    "s43588-025-00842-5",
    "s41467-025-65557-7",
    "s42256-022-00447-x",
    "s42256-023-00611-x",
)
MISSING_GAP = -1.0
"""Of an instance without a finite score."""
SURPASS_GAP = 0.1
_HIGHER = ("higher", "higher_is_better", "higher_better", "max", "maximize", "up")
_LOWER = ("lower", "lower_is_better", "lower_better", "min", "minimize", "down")


class MetricEntry(ForeignContract):
    """One metric of an instance."""

    name: str
    is_primary: bool = False
    metric_direction: str
    sota_score: float | None = None

    @property
    def sign(self) -> Literal[1, -1]:
        """1 where higher is better, else -1.

        Raises:
            PackageError: The direction is neither.
        """
        said = self.metric_direction.strip().casefold().replace(" ", "_").replace("-", "_")
        if said in _HIGHER:
            return 1
        if said in _LOWER:
            return -1
        raise PackageError(f"metric {self.name!r}: direction {self.metric_direction!r} is neither higher nor lower")


class PerformanceEntry(ForeignContract):
    """One instance of a task: a data set with its metrics."""

    dataset_name: str
    metrics: tuple[MetricEntry, ...] = Field(min_length=1)

    @property
    def primary(self) -> MetricEntry:
        """The metric that the gap is measured on; the only one, where none is marked.

        Raises:
            PackageError: None of several is marked, or more than one.
        """
        marked = [metric for metric in self.metrics if metric.is_primary] or list(self.metrics)
        if len(marked) > 1:
            raise PackageError(f"instance {self.dataset_name!r}: its primary metric is not settled")
        return marked[0]


class NatureMetadata(ForeignContract):
    """`metadata.json`, as far as it is needed."""

    performance_entries: tuple[PerformanceEntry, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NatureTask:
    """A package on disk."""

    root: Path
    metadata: NatureMetadata

    @property
    def problem_dir(self) -> Path:
        """The only folder that a program is given; its data are in `data/`."""
        return self.root / "problem"

    @property
    def description(self) -> str:
        """The statement, and what is said of the data.

        Raises:
            PackageError: It is not text.
        """
        texts = [self.problem_dir / name for name in ("README.md", "data_description.md")]
        try:
            return "\n\n".join(path.read_text(encoding="utf-8").strip() for path in texts if path.is_file())
        except UnicodeDecodeError as error:
            raise PackageError(f"{self.problem_dir}: the statement is not text in UTF-8: {error}") from error


class Gap(NamedTuple):
    """How outputs compare with the state of the art."""

    per_instance: dict[str, float]
    """Of instances whose state of the art is known and not zero."""
    aggregate: float
    """The mean."""

    @property
    def matches(self) -> bool:
        """As good as the state of the art."""
        return self.aggregate >= 0

    @property
    def surpasses(self) -> bool:
        """Better by more than a tenth."""
        return self.aggregate > SURPASS_GAP

    def selection_score(self, clip: float = 1.0) -> float:
        """The aggregate within plus and minus `clip`; unclipped where that is not positive."""
        return max(-clip, min(clip, self.aggregate)) if clip > 0 else self.aggregate


def read_task(root: Path) -> NatureTask:
    """Reads a package.

    Raises:
        PackageError: A part is missing, or the metadata are incomplete.
    """
    root = root.resolve()
    for name in ("metadata.json", "problem/README.md", "problem/data", "evaluation"):
        if not (root / name).exists():
            raise PackageError(f"{root}: no {name}")
    path = root / "metadata.json"
    try:
        metadata = NatureMetadata.model_validate(read_json(path))
    except ValidationError as error:
        raise PackageError(f"{path}: cannot be used: {one_line(error)}") from error
    for entry in metadata.performance_entries:
        _ = entry.primary.sign  # raises where the primary metric or its direction is not settled
    return NatureTask(root=root, metadata=metadata)


def measure_gap(metadata: NatureMetadata, scores: Mapping[str, float | None]) -> Gap:
    """The relative gap on each instance's primary metric: `sign * (score - sota) / |sota|`.

    Args:
        scores: By instance; one that is missing or not finite counts as a gap of -1.

    Raises:
        PackageError: No instance has a state of the art to compare with.
    """
    gaps: dict[str, float] = {}
    for entry in metadata.performance_entries:
        metric = entry.primary
        if not metric.sota_score or not math.isfinite(metric.sota_score):
            continue
        score = scores.get(entry.dataset_name)
        if score is None or not math.isfinite(score):
            gaps[entry.dataset_name] = MISSING_GAP
        else:
            gaps[entry.dataset_name] = metric.sign * (score - metric.sota_score) / abs(metric.sota_score)
    if not gaps:
        raise PackageError("no instance has a state of the art other than zero")
    return Gap(per_instance=gaps, aggregate=sum(gaps.values()) / len(gaps))


def best_gap(attempts: Sequence[Gap]) -> Gap | None:
    """The best of several attempts, which is what counts; None without any."""
    return max(attempts, key=lambda gap: gap.aggregate, default=None)
