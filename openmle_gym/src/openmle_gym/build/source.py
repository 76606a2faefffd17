"""Where a build's data come from: a Kaggle competition, a Kaggle data set, or a place on this machine."""

import re
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from openmle_gym.check.overlap import mle_bench_ids
from openmle_gym.contracts import Contract
from openmle_gym.errors import ConfigError

SourceKind = Literal["competition", "dataset", "local"]

_SLUG = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?")


class Source(Contract):
    """One place to build from."""

    kind: SourceKind
    name: str
    """A competition's slug, a data set's `owner/name`, or a path of this machine, absolute."""

    @property
    def path(self) -> Path:
        """The place on this machine; of a local source only."""
        return Path(self.name)

    @property
    def task_name(self) -> str:
        """A name for the package, where nobody gave one."""
        text = self.path.name.split(".")[0] if self.kind == "local" else self.name.rpartition("/")[2]
        return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-") or "task"

    @property
    def provenance(self) -> str:
        """How a manifest names it."""
        return self.path.name if self.kind == "local" else f"https://www.kaggle.com/{self.kind}s/{self.name}"


def parse_source(text: str) -> Source:
    """Reads `competition:SLUG`, `dataset:OWNER/NAME`, a Kaggle address, or a path.

    Without a prefix a path that exists wins, then `owner/name` is a data set, and a bare word a competition.

    Raises:
        ConfigError: It is none of these.
    """
    text = text.strip()
    kind, _, rest = text.partition(":")
    if kind in ("competition", "dataset"):
        return _kaggle(kind, rest)
    if urlsplit(text).scheme in ("http", "https"):
        return _address(text)
    path = Path(text).expanduser()
    if text and path.exists():
        return Source(kind="local", name=str(path.resolve()))
    if path.is_absolute() or text.startswith(".") or text.count("/") > 1 or path.suffix:
        raise ConfigError(f"source {text!r}: there is no such file or folder")
    return _kaggle("dataset" if "/" in text else "competition", text)


def _address(text: str) -> Source:
    """A page of Kaggle's, its query and fragment aside."""
    parts = urlsplit(text)
    words = [word for word in parts.path.split("/") if word]
    if not (parts.hostname or "").endswith("kaggle.com") or len(words) < 2:
        raise ConfigError(f"source {text!r}: not the address of a Kaggle competition or data set")
    if words[0] in ("c", "competitions"):
        return _kaggle("competition", words[1])
    if words[0] == "datasets" and len(words) > 2:
        return _kaggle("dataset", f"{words[1]}/{words[2]}")
    raise ConfigError(f"source {text!r}: not the address of a Kaggle competition or data set")


def _kaggle(kind: Literal["competition", "dataset"], name: str) -> Source:
    words = name.split("/")
    if len(words) != (1 if kind == "competition" else 2) or not all(map(_SLUG.fullmatch, words)):
        form = "a slug such as titanic" if kind == "competition" else "OWNER/NAME"
        raise ConfigError(f"source {name!r}: a {kind} is named by {form}")
    return Source(kind=kind, name=name)


def refuse_benchmark(source: Source) -> None:
    """Keeps MLE-Bench's competitions out, whatever their case.

    Raises:
        ConfigError: It is one of them.
    """
    slug = source.name.rpartition("/")[2].casefold()
    if source.kind != "local" and slug in mle_bench_ids():
        raise ConfigError(f"source {source.name!r}: a competition of MLE-Bench; set allow_mle_bench=true to build it")
