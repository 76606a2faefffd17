"""Greedy ensemble selection over submissions, and the programs that a blend is run as.

A blend is how often each submission is taken: (2, 0, 1) weighs the first one 2/3 and the third 1/3. Selection starts
with the best submission, or the best few, and takes, round by round and with replacement, the one that improves the
blend most. When none does, all counts are doubled, so that one more weighs half as much; after two doublings it ends.

Source: Caruana et al., Ensemble Selection from Libraries of Models, ICML 2004, sections 2.1 and 2.2 (with replacement,
sorted initialisation). Departures: the initial number is whichever scores best; the doubling, since a weak model may
help with little weight only; an end where nothing improves; no bagging of the library.
"""

import asyncio
import base64
import zlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from openmle_gym.task import TaskPackage

from openmle_evo.choice_record import Method

RANKING_METRICS = ("auc", "average_precision")
"""Of a single column they see nothing but the order."""
MOST_HALVINGS = 2
SHARE_OF_TIME = 0.9
"""How much of a program's time limit the parts of a blend may take, as their earlier runs took it."""

Counts = tuple[int, ...]


class Fitted(NamedTuple):
    """The best blend that was found."""

    counts: Counts
    utility: float
    jobs: int
    """How many blends were scored."""


async def fit_counts(
    first: float,
    seconds: Sequence[float],
    score: Callable[[Counts], Awaitable[float | None]],
    *,
    jobs: int,
    limit_seconds: float,
) -> Fitted:
    """Selects submissions greedily.

    Args:
        first: The utility of the first submission, which is the best.
        seconds: How long each one's program took.
        score: The utility of a blend; None when it could not be scored.
        jobs: The most blends that are scored.
        limit_seconds: How long the programs of one blend may take together.
    """
    best = Fitted((1, *(0 for _ in seconds[1:])), first, 0)
    start, halvings = best.counts, 0
    wanted = _one_more(start) + _first_few(len(seconds))
    while True:
        tried = [counts for counts in wanted if taken_seconds(counts, seconds) <= limit_seconds]
        tried = tried[: jobs - best.jobs]
        utilities = await asyncio.gather(*(score(counts) for counts in tried))
        found = [(utility, counts) for utility, counts in zip(utilities, tried, strict=True) if utility is not None]
        utility, counts = max(found, key=lambda pair: pair[0], default=(best.utility, best.counts))
        scored = best.jobs + len(tried)
        if utility > best.utility:
            best = Fitted(counts, utility, scored)
            start = counts
        elif halvings == MOST_HALVINGS or scored >= jobs:
            return best._replace(jobs=scored)
        else:
            best = best._replace(jobs=scored)
            start, halvings = tuple(2 * count for count in start), halvings + 1
        wanted = _one_more(start)


def _one_more(counts: Counts) -> list[Counts]:
    """The blends with one submission more; a single one taken twice is no new blend."""
    more = [tuple(count + (place == taken) for place, count in enumerate(counts)) for taken in range(len(counts))]
    return [each for each in more if sum(map(bool, each)) > 1]


def _first_few(submissions: int) -> list[Counts]:
    """The best three each once, the best four, and so on: two cannot outvote one, so votes need a start of three."""
    return [(1,) * few + (0,) * (submissions - few) for few in range(3, submissions + 1)]


def taken_seconds(counts: Counts, seconds: Sequence[float]) -> float:
    """How long the programs of a blend take, each run once."""
    return sum(each for count, each in zip(counts, seconds, strict=True) if count)


def blend_method(package: TaskPackage) -> Method:
    """How submissions of a task are combined."""
    metric = package.manifest.metric
    if package.inferred:
        return "auto"
    if metric.prediction == "label":
        return "vote"
    return "rank" if metric.name in RANKING_METRICS and len(package.manifest.columns.target) == 1 else "mean"


def stored_blend(submissions: Sequence[bytes], counts: Counts, package: TaskPackage) -> str:
    """A program that writes the blend of submissions that it holds itself."""
    parts = [
        f"    ({count}, {base64.b85encode(zlib.compress(content, 9)).decode()!r}),"
        for count, content in zip(counts, submissions, strict=True)
        if count
    ]
    return _program(["PARTS = [", *parts, "]", '"""Weight and submission."""'], package, _WRITE_STORED)


def blend_program(sources: Sequence[str], counts: Counts, package: TaskPackage, *, limit_seconds: float) -> str:
    """One program that runs others one after another, and writes the blend of their submissions.

    A part that fails, or for which no time is left, is left out, and the program says so.
    """
    parts = [
        line
        for count, source in zip(counts, sources, strict=True)
        if count
        for line in (f"    ({count}, (", *(f"        {row!r}" for row in source.splitlines(keepends=True)), "    )),")
    ]
    head = ["PARTS = [", *parts, "]", '"""Weight and program."""', f"LIMIT_SECONDS = {limit_seconds!r}"]
    return _program(head, package, _RUN_PARTS)


def _program(head: Sequence[str], package: TaskPackage, main: str) -> str:
    combine = (Path(__file__).parent / "combine.py").read_text(encoding="utf-8")
    columns = package.manifest.columns
    settings = [f"IDS = {columns.id!r}", f"TARGETS = {columns.target!r}", f"METHOD = {blend_method(package)!r}"]
    return "\n".join([combine, "", *head, *settings, main])


_WRITE_STORED = """
import base64
import zlib

contents = [zlib.decompress(base64.b85decode(content)) for _, content in PARTS]
blend = combine(contents, [weight for weight, _ in PARTS], IDS, TARGETS, METHOD)
with open("submission.csv", "w", encoding="utf-8", newline="") as file:
    file.write(blend)
"""

_RUN_PARTS = '''
import os
import subprocess
import time

STARTED = time.monotonic()


def run_part(number, source):
    """The part's submission as bytes; None when there is none."""
    folder = os.path.abspath(f"part_{number}")
    os.makedirs(folder, exist_ok=True)
    program = os.path.join(folder, "program.py")
    with open(program, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(source)
    environment = dict(os.environ)
    if "DATA_DIR" in environment:
        environment["DATA_DIR"] = os.path.abspath(environment["DATA_DIR"])
    left = 0.95 * LIMIT_SECONDS - (time.monotonic() - STARTED)
    try:
        done = subprocess.run(
            [sys.executable, "-u", program],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=max(left, 0.001),
        )
    except subprocess.TimeoutExpired:
        print(f"part {number} is left out: no time is left")
        return None
    path = os.path.join(folder, "submission.csv")
    if done.returncode != 0 or not os.path.isfile(path):
        print(f"part {number} is left out: exit code {done.returncode}")
        for line in done.stdout.decode(errors="replace").splitlines()[-20:]:
            print("    " + line)
        return None
    with open(path, "rb") as file:
        return file.read()


def main():
    written = [(weight, run_part(number, source)) for number, (weight, source) in enumerate(PARTS)]
    ready = [(weight, content) for weight, content in written if content is not None]
    if not ready:
        sys.exit("no part wrote a submission")
    blend = combine([content for _, content in ready], [weight for weight, _ in ready], IDS, TARGETS, METHOD)
    with open("submission.csv", "w", encoding="utf-8", newline="") as file:
        file.write(blend)


if __name__ == "__main__":
    main()
'''
