"""A package as the checks see it: what could be read of it, each file once."""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from openmle_gym.check.probe_result import ProbeResult
from openmle_gym.check.tables import Table, scan
from openmle_gym.errors import PackageError
from openmle_gym.manifest import Columns
from openmle_gym.task import TaskPackage, load_package

TABLES = ("train.csv", "test.csv", "sample_submission.csv", "test_answer.csv")


@dataclass(kw_only=True)
class Subject:
    """What checks look at."""

    root: Path
    package: TaskPackage | None
    """None when it cannot be loaded."""
    refusal: str
    """Why not; else empty."""
    tables: dict[str, Table]
    """Of `TABLES` those that are there and can be read."""
    unreadable: dict[str, str]
    """Of `TABLES` those that are there and cannot, and why."""
    probes: ProbeResult | None = None
    """What the metric did with the probes' submissions; None when it was not run."""
    against: tuple[Path, ...] = field(default_factory=tuple)
    """Folders of benchmarks that the package must share nothing with."""

    @property
    def public(self) -> Path:
        """The public folder."""
        return self.root / "data" / "public"

    @property
    def columns(self) -> Columns | None:
        """The columns of a submission."""
        return self.package.manifest.columns if self.package else None

    @cached_property
    def public_files(self) -> list[Path]:
        """Every file below the public folder, in order."""
        return sorted(path for path in self.public.rglob("*") if path.is_file())

    def path(self, name: str) -> Path:
        """Where one of `TABLES` lies."""
        return self.root / "data" / ("private" if name == "test_answer.csv" else "public") / name

    @property
    def features(self) -> list[str]:
        """The columns that train and test share, ids and targets aside; none without both files and a manifest."""
        if self.columns is None or not {"train.csv", "test.csv"} <= set(self.tables):
            return []
        others = {*self.columns.id, *self.columns.target}
        return [
            name
            for name in self.tables["test.csv"].columns
            if name in self.tables["train.csv"].columns and name not in others
        ]


def load_subject(root: Path, against: tuple[Path, ...] = ()) -> Subject:
    """Reads what can be read of a package."""
    root = root.resolve()
    package, refusal = None, ""
    try:
        package = load_package(root)
    except PackageError as error:
        refusal = str(error)
    subject = Subject(root=root, package=package, refusal=refusal, tables={}, unreadable={}, against=against)
    for name in TABLES:
        if not subject.path(name).is_file():
            continue
        try:
            subject.tables[name] = scan(subject.path(name), subject.columns.id if subject.columns else ())
        except ValueError as error:
            subject.unreadable[name] = str(error)
    return subject


def file_sha256(path: Path) -> str:
    """In hex; reads a piece at a time."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
