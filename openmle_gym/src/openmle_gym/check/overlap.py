"""Whether a task is one of MLE-Bench's, by its name or by its data."""

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path

from openmle_gym.check.finding import Finding, error
from openmle_gym.check.subject import Subject, file_sha256
from openmle_gym.check.tables import common_range, hash_rows, sketch

SMALL_BYTES = 512
"""Smaller files may be equal by chance."""
SHARED_ROWS = 0.05
FEWEST_ROWS = 20


@cache
def mle_bench_ids() -> frozenset[str]:
    """The 75 competitions of MLE-Bench, in lower case."""
    text = resources.files(__name__.rpartition(".")[0]).joinpath("mle_bench_ids.txt").read_text(encoding="utf-8")
    return frozenset(line.casefold() for line in text.split())


def by_name(subject: Subject) -> Iterator[Finding]:
    """Neither the task nor its source goes by the name of a competition of MLE-Bench, in any case."""
    names = {subject.root.name}
    if subject.package is not None:
        manifest = subject.package.manifest
        names |= {manifest.name, manifest.title, *re.split(r"[\s,;/?#()\"'<>]+", manifest.provenance.source)}
    for name in sorted(names):
        slug = re.sub(r"[^a-z0-9]+", "-", name.casefold().partition("@")[0]).strip("-")
        if slug in mle_bench_ids():
            yield error("mle_bench_slug", f"{name!r} is a competition of MLE-Bench", slug=slug)
            return


def by_content(subject: Subject) -> Iterator[Finding]:
    """No file, and no more than chance of the rows, is in one of the given folders of benchmarks."""
    ours = _contents(subject.root)
    for folder in subject.against:
        shared = {digest: path for digest, path in _contents(folder).items() if digest in ours}
        if shared:
            digest, path = next(iter(shared.items()))
            name = ours[digest].relative_to(subject.root).as_posix()
            yield error(
                "benchmark_content", f"{name} is also {path.relative_to(folder)} of {folder.name}", files=len(shared)
            )
            continue
        yield from _shared_rows(subject, folder)


def _contents(folder: Path) -> dict[str, Path]:
    data = (
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".py", ".toml", ".txt", ".md")
    )
    return {file_sha256(path): path for path in data if path.stat().st_size >= SMALL_BYTES}


def _shared_rows(subject: Subject, folder: Path) -> Iterator[Finding]:
    """Rows with the same cells, whatever their ids and the order of the columns."""
    ids = set(subject.columns.id) if subject.columns else set()
    for name in ("train.csv", "test.csv"):
        if name not in subject.tables or subject.tables[name].ragged:
            continue
        columns = sorted(set(subject.features))
        if len(columns) < 2 or ids & set(columns):
            continue
        ours = sketch(subject.path(name), lambda frame, columns=columns: hash_rows(frame[columns]), [])
        for path in sorted(folder.rglob("*.csv")):
            try:
                theirs = sketch(path, lambda frame, columns=columns: hash_rows(frame[columns]), [])
            except (KeyError, ValueError):
                continue  # it has other columns, or is no CSV
            left, right = common_range(ours, theirs)
            share = float(left.index.isin(right.index).mean()) if len(left) >= FEWEST_ROWS else 0.0
            if share >= SHARED_ROWS:
                yield error(
                    "benchmark_content",
                    f"{share:.1%} of the rows of {name} are in {path.relative_to(folder)} of {folder.name}",
                    share=share,
                )
                break
