"""`overview.csv`: one row for each package below a folder, in the columns and markers of the published tables."""

import asyncio
import csv
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path

from openmle_gym.catalogue.taxonomy import Category, category_of, read_category
from openmle_gym.chat import ChatModel, Message
from openmle_gym.contracts import Contract
from openmle_gym.errors import ModelUnavailable, PackageError
from openmle_gym.grading import grade_submission
from openmle_gym.isolation.runner import Runner
from openmle_gym.manifest import MANIFEST_NAME
from openmle_gym.task import TaskPackage, load_package

COLUMNS = (
    *("Name", "Modality", "Task", "Raw Size", "Final Size"),
    *("CPU/GPU", "Source", "Metric", "NOTE", "Server Location"),
)
SOURCE = "OpenMLE"
SKIPPED = "#SKIPPED_LLM"
NO_DESCRIPTION = "#DESCRIPTION_NOT_FOUND"
DESCRIPTION_CHARACTERS = 12_000
_QUESTION = """\
Below is a machine-learning task. Name the kinds of data that it is about and the one kind of answer that it asks for.
Kinds of data: Image, Text, Tabular, Audio, Video, Time-Series, Graph. Kinds of answer: Classification, Regression,
Clustering, Segmentation, Object-Detection, Generation, Ranking, Forecasting, Other. Use these words only. Several kinds
of data are separated by commas; name one only when programs have to read it. Answer with one line and nothing else, of
the form <out>Image,Tabular@Classification</out>.
"""


class OverviewRow(Contract):
    """One row."""

    name: str
    modality: str
    task: str
    raw_bytes: int
    final_bytes: int
    compute: str
    metric: str
    """The sample submission's score, or a marker of why there is none."""
    note: str
    """Empty, or a marker of what is wrong."""
    location: str

    @property
    def failed(self) -> bool:
        """Whether something is wrong with the package: with its files, its metric, or the model's answer."""
        return bool(self.note) or self.metric.startswith("#") or self.modality.startswith("#LLM_API_ERROR")

    def cells(self) -> list[str]:
        """In the order of `COLUMNS`."""
        sizes = [size_text(self.raw_bytes), size_text(self.final_bytes)]
        facts = [self.compute, SOURCE, self.metric, self.note, self.location]
        return [self.name, self.modality, self.task, *sizes, *facts]


def find_packages(root: Path) -> list[Path]:
    """The packages in a folder, or the folder itself where it is one, by name.

    A folder is a package when it has a manifest, or a folder `data/public`. A batch of builds has a folder `data` too, of
    packages, and is none.

    Raises:
        PackageError: There are none.
    """
    if _is_package(root):
        return [root]
    folders = [root / "data"] if (root / "data").is_dir() else [root]
    found = sorted(path for folder in folders if folder.is_dir() for path in folder.iterdir() if _is_package(path))
    if not found:
        raise PackageError(f"{root}: no task packages there")
    return found


def _is_package(path: Path) -> bool:
    return (path / MANIFEST_NAME).is_file() or (path / "data" / "public").is_dir()


async def overview(root: Path, *, runner: Runner, chat: ChatModel | None = None) -> list[OverviewRow]:
    """Looks at every package; one that fails has a row that says so, and the others are not the worse for it.

    Args:
        chat: Names the modality and type of packages without a manifest; without it they are marked as skipped.

    Raises:
        PackageError: There is no package.
        RunnerUnavailable: A metric could not be started.
    """
    return [await _row(path, root, runner, chat) for path in find_packages(root)]


async def _row(path: Path, root: Path, runner: Runner, chat: ChatModel | None) -> OverviewRow:
    found = await asyncio.to_thread(_looked_at, path, root)
    if isinstance(found, OverviewRow):
        return found
    row, package = found
    modality, task = await _category(package, chat)
    metric = await _metric(package, runner)
    return row.model_copy(update={"modality": modality, "task": task, "metric": metric})


def _looked_at(path: Path, root: Path) -> OverviewRow | tuple[OverviewRow, TaskPackage]:
    """What the files say: a row with a note where the package cannot be used, else one that lacks what must be asked."""
    raw = path / "raw"
    row = OverviewRow(
        name=path.name,
        modality="",
        task="",
        raw_bytes=tree_bytes(raw) if raw.is_dir() else tree_bytes(path / "raw.txt"),
        final_bytes=tree_bytes(path / "data"),
        compute="",
        metric="",
        note="",
        location=str(path.absolute()),
    )
    if not path.resolve().is_relative_to(root.resolve()):
        return row.model_copy(update={"note": "#TASK_RUNTIME_ERROR: is a link out of the folder"})
    if not (path / "data" / "public" / "description.txt").is_file():
        return row.model_copy(update={"note": NO_DESCRIPTION})
    try:
        package = load_package(path)
    except PackageError as error:
        return row.model_copy(update={"note": f"#TASK_RUNTIME_ERROR: {error}"})
    return row.model_copy(update={"compute": package.manifest.compute.upper()}), package


async def _category(package: TaskPackage, chat: ChatModel | None) -> tuple[str, str]:
    try:
        if not package.inferred:
            known = category_of(package.manifest)
        elif chat is None:
            return SKIPPED, SKIPPED
        else:
            known = await ask_category(package.description, chat)
    except (PackageError, ModelUnavailable) as error:
        marker = f"#LLM_API_ERROR: {error}"
        return marker, marker
    return ",".join(known.modalities), known.task_type


async def ask_category(description: str, chat: ChatModel) -> Category:
    """What a model takes a task to be, by its description.

    Raises:
        ModelUnavailable: There is no answer.
        PackageError: The answer has words outside of the lists.
    """
    text = f"{_QUESTION}\n# Task\n\n{description[:DESCRIPTION_CHARACTERS]}"
    reply = (await chat.complete([Message(role="user", content=text)], seed=0)).text
    found = re.findall(r"<out>(.*?)</out>", reply, re.DOTALL)
    return read_category(found[-1] if found else reply)


async def _metric(package: TaskPackage, runner: Runner) -> str:
    try:
        sample = await asyncio.to_thread((package.public_dir / "sample_submission.csv").read_bytes)
        grade = await grade_submission(package, sample, splits=("all",), runner=runner)
    except PackageError as error:
        return f"#MEVA_RUNTIME_ERROR: PackageError: {error}"
    if not grade.accepted:
        return f"#MEVA_RUNTIME_ERROR: {grade.code}: {grade.message}"
    return f"@Evaluation result: {{'score': {grade.scores['all']!r}}}"


def overview_csv(rows: Sequence[OverviewRow]) -> bytes:
    """The table as the published one is written: UTF-8 with a byte order mark, CRLF, by name."""
    file = io.StringIO(newline="")
    out = csv.writer(file)
    out.writerow(COLUMNS)
    out.writerows(row.cells() for row in sorted(rows, key=lambda row: row.name))
    return file.getvalue().encode("utf-8-sig")


def size_text(size_bytes: int) -> str:
    """As `1.18 MB`: two decimals, in steps of 1024, at most GB."""
    size, units = float(size_bytes), ["B", "KB", "MB", "GB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.2f} {units[0]}"


def tree_bytes(path: Path) -> int:
    """The size of a file, or of all files below a folder; 0 where there is nothing."""
    if path.is_file():
        return path.stat().st_size
    return sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(path) for name in names)
