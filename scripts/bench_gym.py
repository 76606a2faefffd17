"""What grading a submission of a million rows costs, against pandas' own read of the file and the bare metric.

    python scripts/bench_gym.py [--rows 1000000] [--repeats 5]

The yardstick is `pandas.read_csv` of the file and one call of the metric's function. Grading is what `grade_submission`
does with a runner that adds nothing: validation in this process, the tables to a second process, the package's own
validation and metric there. Starting that second process (Python and `import pandas`) costs the same whatever the
size; it is printed by itself, and the ratio is given without it, and with it on both sides. The answers are read and
made ready once for each package; that is printed too.

Beside the wall clock stands the processor time of this process and its children, whose ratio is the same on a machine
that others use too; the wall clock is shorter where a second core is free, since parsing and checking run side by side.
"""

import argparse
import asyncio
import gc
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from openmle_gym.grading import grade_submission, hidden_answers
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.manifest import Columns, Manifest, write_manifest
from openmle_gym.metrics import METRICS, render_metric_module
from openmle_gym.submission import validate_submission
from openmle_gym.task import TaskPackage, load_package

CASES = ("rmse", "auc", "accuracy")
START = "import pandas"


class Case(NamedTuple):
    """A package and a submission to it."""

    package: TaskPackage
    submission: Path
    metric: Callable[[np.ndarray, np.ndarray], float]


def make_case(metric: str, rows: int, folder: Path) -> Case:
    """Random answers, and a submission in another order."""
    rng = np.random.default_rng(0)
    ids = rng.permutation(rows) + 1
    answers = rng.normal(size=rows) if metric == "rmse" else rng.integers(0, 2, rows)
    predicted = rng.integers(0, 2, rows) if metric == "accuracy" else rng.random(rows)
    root = folder / metric
    for name in ("data/public", "data/private", "utils"):
        (root / name).mkdir(parents=True)
    columns = Columns(id=("id",), target=("y",))
    pd.DataFrame({"id": ids, "y": answers}).to_csv(root / "data/private/test_answer.csv", index=False)
    submission = pd.DataFrame({"id": rng.permutation(ids), "y": predicted})
    submission.to_csv(root / "data/public/sample_submission.csv", index=False)
    (root / "data/public/description.txt").write_text("Predict y.")
    (root / "utils/metric.py").write_text(render_metric_module(METRICS[metric], columns))
    write_manifest(Manifest(name=metric, metric=METRICS[metric].declaration(), columns=columns), root / "task.toml")
    return Case(load_package(root), root / "data/public/sample_submission.csv", METRICS[metric].function)


class Cost(NamedTuple):
    """In seconds."""

    wall: float
    processor: float
    """Of this process and the children that it has waited for."""


def cost(call: Callable[[], object]) -> Cost:
    """Of one call."""
    gc.collect()
    began, spent = time.perf_counter(), _processor_seconds()
    call()
    return Cost(time.perf_counter() - began, _processor_seconds() - spent)


def _processor_seconds() -> float:
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def bench(case: Case, repeats: int) -> None:
    """Prints one case; the yardstick and the grading take turns, and the fastest of each counts."""
    answers = pd.read_csv(case.package.root / "data/private/test_answer.csv")["y"].to_numpy()
    predicted = pd.read_csv(case.submission)["y"].to_numpy()
    ready = cost(lambda: hidden_answers(case.package))
    key = hidden_answers(case.package).key
    runner = ProcessRunner(allow_no_isolation=True)

    def grade() -> None:
        result = asyncio.run(
            grade_submission(case.package, case.submission.read_bytes(), splits=("all",), runner=runner)
        )
        assert result.accepted, result.message

    steps = {
        "pandas.read_csv": lambda: pd.read_csv(case.submission),
        "bare metric": lambda: case.metric(answers, predicted),
        "start of a process": lambda: subprocess.run([sys.executable, "-I", "-c", START], check=True),
        "validation": lambda: validate_submission(case.submission.read_bytes(), key=key),
        "grading, all of it": grade,
    }
    costs: dict[str, list[Cost]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            costs[name].append(cost(step))
    best = {name: Cost(*map(min, zip(*found, strict=True))) for name, found in costs.items()}
    print(f"\n{case.package.name}, {len(answers):,} rows{'wall':>22}{'processor':>12}", flush=True)
    for name, (wall, processor) in {"answers, once for a package": ready, **best}.items():
        print(f"  {name:30}{wall:8.3f} s{processor:10.3f} s")
    ratios = {"ratio without process starts": (-1, 0), "ratio with one on both sides": (0, 1)}
    for name, (graded, yardstick) in ratios.items():
        print(f"  {name:30}" + "  ".join(f"{_ratio(best, kind, graded, yardstick):8.2f}" for kind in (0, 1)))


def _ratio(best: dict[str, Cost], kind: int, in_graded: int, in_yardstick: int) -> float:
    """Grading over the yardstick, with so many process starts added to each.

    Args:
        kind: 0 for the wall clock, 1 for processor time.
    """
    start = best["start of a process"][kind]
    yardstick = best["pandas.read_csv"][kind] + best["bare metric"][kind]
    return (best["grading, all of it"][kind] + in_graded * start) / (yardstick + in_yardstick * start)


def main() -> None:
    """Runs the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for metric in CASES:
            bench(make_case(metric, options.rows, Path(folder)), options.repeats)


if __name__ == "__main__":
    main()
