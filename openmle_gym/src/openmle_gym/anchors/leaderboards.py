"""Makes the anchors' reference leaderboards: a fixed grid of ordinary models, graded on all hidden rows.

    python -m openmle_gym.anchors.leaderboards NAME [FOLDER]

builds the anchor, runs the grid and writes `leaderboard.csv` into the anchor's folder of this package, or into FOLDER.
The standings are machine-made: they place a score among plain baselines, not among people. What a package holds is the
committed file; nothing here runs when an anchor is built.
"""

import argparse
import asyncio
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from openmle_gym.anchors import ANCHORS, build_anchor
from openmle_gym.anchors.baselines import Baseline, grid_baselines
from openmle_gym.anchors.baselines_plain import plain_baselines
from openmle_gym.anchors.definition import Anchor
from openmle_gym.anchors.views import Inputs, read_inputs
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.metrics import METRICS
from openmle_gym.task import TaskPackage

LOGGED = ("rmsle", "mape")
"""Metrics of logarithms or ratios."""


def baselines(anchor: Anchor) -> list[Baseline]:
    """The grid for an anchor."""
    classification, logged = anchor.task_type == "classification", anchor.metric in LOGGED
    if anchor.grid == "plain":
        return list(plain_baselines(classification=classification, logged=logged))
    probability = METRICS[anchor.metric].prediction == "probability"
    return list(grid_baselines(anchor.grid, classification=classification, probability=probability, logged=logged))


def score_baseline(baseline: Baseline, anchor: Anchor, package: TaskPackage, inputs: Inputs) -> float:
    """The baseline's score on all hidden rows: the mean over the targets, each learned by itself.

    A prediction of a number is kept within the training targets' range, but for the plain grid.
    """
    from sklearn.base import clone

    spec = METRICS[anchor.metric]
    known = pd.read_csv(package.public_dir / "train.csv", usecols=list(anchor.target))
    features = inputs.view(baseline.view)
    scores = []
    for target in anchor.target:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = clone(baseline.model).fit(features.train, known[target])  # pyright: ignore[reportAttributeAccessIssue]
            if spec.prediction == "probability":
                predicted = model.predict_proba(features.test)[:, 1]
            else:
                predicted = np.asarray(model.predict(features.test))
        if anchor.task_type == "regression" and anchor.grid != "plain":
            predicted = predicted.clip(known[target].min(), known[target].max())
        answers = package.answers[target]
        numeric = pd.api.types.is_numeric_dtype(known[target])
        truth = pd.to_numeric(answers).to_numpy() if numeric else answers.to_numpy(dtype=str)
        scores.append(spec.function(truth, predicted if numeric else predicted.astype(str)))
    return float(np.mean(scores))


def make_leaderboard(
    anchor: Anchor, package: TaskPackage, *, wanted: Callable[[Baseline], bool] = lambda _: True
) -> pd.DataFrame:
    """The grid, or what is wanted of it, with its scores, the best first: columns rank, entry, score."""
    inputs = read_inputs(package.public_dir, package.manifest.columns)
    rows = []
    for baseline in filter(wanted, baselines(anchor)):
        rows.append((baseline.entry, round(score_baseline(baseline, anchor, package, inputs), 8)))
        print(f"{rows[-1][1]:.6f}  {baseline.entry}", file=sys.stderr)
    table = pd.DataFrame(rows, columns=["entry", "score"])
    better = METRICS[anchor.metric].higher_is_better
    table = table.sort_values(["score", "entry"], ascending=[not better, True], ignore_index=True)
    table.insert(0, "rank", table["score"].rank(method="min", ascending=not better).astype(int))
    return table


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m openmle_gym.anchors.leaderboards", description=__doc__)
    parser.add_argument("name", choices=list(ANCHORS))
    parser.add_argument("folder", nargs="?", type=Path, help="where to write; by default the anchor's own folder")
    options = parser.parse_args()
    anchor = ANCHORS[options.name]
    folder = options.folder or Path(__file__).parent / anchor.folder
    with tempfile.TemporaryDirectory() as scratch:
        runner = ProcessRunner(allow_no_isolation=True)  # prepare.py is our own
        package = asyncio.run(build_anchor(anchor.name, Path(scratch) / anchor.name, runner=runner))
        table = make_leaderboard(anchor, package)
    table.to_csv(folder / "leaderboard.csv", index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
