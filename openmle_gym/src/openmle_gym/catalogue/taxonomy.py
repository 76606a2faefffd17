"""The words for what a task is about and what it asks: one list each, and nothing outside of them."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from openmle_gym.errors import PackageError
from openmle_gym.manifest import Manifest

MODALITIES = ("Image", "Text", "Tabular", "Audio", "Video", "Time-Series", "Graph")
TASK_TYPES = (
    "Classification",
    "Regression",
    "Clustering",
    "Segmentation",
    "Object-Detection",
    "Generation",
    "Ranking",
    "Forecasting",
    "Other",
)
COMPUTE = ("CPU", "GPU")
_ALIASES = {
    "signal": "Audio",
    "series": "Time-Series",
    "detection": "Object-Detection",
    "nlp": "Text",
    "multi-output": "Regression",
}


class Category(NamedTuple):
    """What a task is."""

    modalities: tuple[str, ...]
    task_type: str

    @property
    def text(self) -> str:
        """As `Image,Tabular@Classification`."""
        return f"{','.join(self.modalities)}@{self.task_type}"


def category(modalities: Sequence[str], task_type: str) -> Category:
    """The words of the lists for these words, whatever their case and hyphens; each modality once, in the list's order.

    Raises:
        PackageError: One of them is no such word.
    """
    found = {_canonical(word, MODALITIES, "modality") for word in modalities}
    if not found:
        raise PackageError("a task needs a modality")
    ordered = tuple(word for word in MODALITIES if word in found)
    return Category(ordered, _canonical(task_type, TASK_TYPES, "task type"))


def read_category(text: str) -> Category:
    """Reads `Image,Tabular@Classification`, as model or table wrote it.

    Raises:
        PackageError: It is not of that form, or has other words.
    """
    modalities, at, task_type = text.strip().partition("@")
    if not at:
        raise PackageError(f"{text[:80]!r} is not of the form Modality[,Modality]@TaskType")
    return category([word for word in modalities.split(",") if word.strip()], task_type)


def category_of(manifest: Manifest) -> Category:
    """The category that a manifest states."""
    return category(manifest.modality, manifest.task_type)


def read_compute(text: str) -> str:
    """`CPU` or `GPU`.

    Raises:
        PackageError: It is neither.
    """
    return _canonical(text, COMPUTE, "compute")


def _canonical(word: str, known: Sequence[str], kind: str) -> str:
    def plain(text: str) -> str:
        return re.sub(r"[^a-z]", "", text.casefold())

    given = _ALIASES.get(word.strip().casefold(), word)
    for each in known:
        if plain(each) == plain(given):
            return each
    raise PackageError(f"{kind} {word.strip()[:40]!r} is none of {', '.join(known)}")
