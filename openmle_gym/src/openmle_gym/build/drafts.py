"""A package as it will be, in a folder that nobody uses yet: what the checks look at, and what is put in place."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from openmle_gym.assemble import hash_files
from openmle_gym.build.source import Source
from openmle_gym.build.spec import TaskSpec
from openmle_gym.build.split_advisor import SplitAdvice
from openmle_gym.build.state import fresh
from openmle_gym.build.unpack import copy_tree
from openmle_gym.build.wording import About
from openmle_gym.contracts import Contract
from openmle_gym.manifest import MANIFEST_NAME, Columns, Manifest, Metric, Provenance, write_manifest
from openmle_gym.metrics import METRICS, render_metric_module

_ANY_METRIC = "class DraftMetrics:\n    def evaluate(self, y_true, y_pred):\n        return 0.0\n"
"""Stands in a draft until there is a metric; nothing runs it."""


class BuiltBy(Contract):
    """`info/build.json`: how the package came about."""

    source: str
    model: str
    """The name of the model that wrote it; empty without one."""
    prepare_attempts: int = 0
    metric_attempts: int = 0
    prompt_sha256: dict[str, str] = Field(default_factory=dict)
    """Of the accepted reply of each stage."""
    spec: TaskSpec
    advice: SplitAdvice


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a package is made of."""

    spec: TaskSpec
    advice: SplitAdvice
    source: Source
    about: About
    data: Path
    """Holds `public` and `private`, the description with them."""
    prepare: str
    metric: str = ""
    """Empty until there is one."""

    def manifest(self) -> Manifest:
        """Without the hashes of its files."""
        spec = self.spec
        return Manifest(
            name=spec.name,
            title=spec.title,
            task_type=spec.task_type,
            modality=spec.modality,
            compute="gpu" if {"image", "audio", "video"} & set(spec.modality) else "cpu",
            metric=Metric(
                name=spec.metric,
                higher_is_better=spec.higher_is_better,
                theoretical_min=spec.theoretical_min,
                theoretical_max=spec.theoretical_max,
                prediction=spec.prediction,
            ),
            columns=Columns(id=spec.id, target=spec.target),
            provenance=Provenance(
                source=self.source.provenance,
                licence=self.about.licence or "not stated",
                train_test_split=f"{self.advice.strategy}: {self.advice.text()}",
            ),
        )

    def metric_source(self) -> str:
        """The metric, or the library's where the draft has none yet."""
        if self.metric:
            return self.metric
        if self.spec.metric in METRICS:
            return render_metric_module(METRICS[self.spec.metric], Columns(id=self.spec.id, target=self.spec.target))
        return _ANY_METRIC

    def write(
        self,
        root: Path,
        *,
        raw: Path | None = None,
        raw_text: str = "",
        leaderboard: str = "",
        built: BuiltBy | None = None,
    ) -> Path:
        """Writes the whole package; large files are hard links of those in `data` and `raw`."""
        fresh(root)
        copy_tree(self.data, root / "data")
        (root / "utils").mkdir()
        (root / "utils" / "prepare.py").write_text(self.prepare, encoding="utf-8")
        (root / "utils" / "metric.py").write_text(self.metric_source(), encoding="utf-8")
        if raw is not None:
            copy_tree(raw, root / "raw")
        elif raw_text:
            (root / "raw.txt").write_text(raw_text, encoding="utf-8")
        manifest = self.manifest()
        if leaderboard or built is not None:
            (root / "info").mkdir()
        if leaderboard:
            (root / "info" / "leaderboard.csv").write_text(leaderboard, encoding="utf-8")
            provenance = manifest.provenance.model_copy(
                update={"leaderboard": "the source's public leaderboard, which was scored on other hidden rows"}
            )
            manifest = manifest.model_copy(update={"provenance": provenance})
        if built is not None:
            text = json.dumps(built.model_dump(mode="json"), indent=2, ensure_ascii=False)
            (root / "info" / "build.json").write_text(text + "\n", encoding="utf-8")
            manifest = manifest.model_copy(update={"files": hash_files(root)})
        write_manifest(manifest, root / MANIFEST_NAME)
        return root


def put_in_place(draft: Path, destination: Path) -> None:
    """Moves a package to where it belongs, in the place of one that is there."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    old = destination.with_name(f".{destination.name}.replaced")
    shutil.rmtree(old, ignore_errors=True)
    if destination.exists():
        destination.rename(old)
    draft.rename(destination)
    shutil.rmtree(old, ignore_errors=True)
