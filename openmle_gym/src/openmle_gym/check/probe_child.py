"""The script inside the isolated process that probes a package's metric. Nothing of ours but `grading_child`, beside it.

    python probe_child.py METRIC RESULT

reads `answers.npy` and, where the sample submission is valid, `submission.npy`, makes submissions from them, and writes
what the metric said of each as JSON: `{"higher_is_better": ..., "outcomes": {probe: {"score" | "refused" | "failed": ...}}}`.
"""

import json
import os
import sys
import traceback
from typing import Any

import numpy as np
import pandas as pd
from grading_child import (  # pyright: ignore[reportMissingImports]
    described,
    load_metric,
    plain,
    read_columns,
)

SHUFFLES = 3


def main() -> None:
    """Probes, and writes what came of it."""
    metric_path, result_path = sys.argv[1:]
    with open("answers.npy", "rb") as file:
        header, columns = read_columns(file)
    answers = pd.DataFrame(columns)
    ids, targets = header["ids"], header["targets"]
    submissions = valid_submissions(answers, ids, targets, header["labels"])
    if os.path.exists("submission.npy"):
        with open("submission.npy", "rb") as file:
            _, predicted = read_columns(file)
        submissions["sample"] = answers[ids].assign(**predicted)
    outcomes = {name: judge(metric_path, answers, frame) for name, frame in submissions.items()}
    outcomes["again"] = judge(metric_path, answers, submissions["shuffled_0"])
    for name, frame in invalid_submissions(submissions["perfect"], ids, targets).items():
        outcomes[name] = judge(metric_path, answers, frame)
    try:
        attribute = plain(getattr(load_metric(metric_path), "higher_is_better", None))
    except (Exception, SystemExit):  # the outcomes say it already
        attribute = None
    result = {"higher_is_better": attribute if isinstance(attribute, bool) else None, "outcomes": outcomes}
    with open(result_path, "w", encoding="utf-8") as file:
        json.dump(result, file)


def valid_submissions(answers: pd.DataFrame, ids: list, targets: list, labels: list) -> dict:
    """Submissions that a metric has to score."""
    perfect = answers[ids + targets].copy()
    made = {
        "perfect": perfect,
        "perfect_rows_reversed": perfect[::-1].reset_index(drop=True),
        "perfect_columns_reversed": perfect[targets[::-1] + ids[::-1]],
        "constant": perfect.assign(**{name: [usual(perfect[name], name in labels)] * len(perfect) for name in targets}),
        "opposite": perfect.assign(**{name: opposite(perfect[name], name in labels) for name in targets}),
    }
    for number in range(SHUFFLES):
        order = np.random.default_rng(number).permutation(len(perfect))
        made[f"shuffled_{number}"] = perfect.assign(**{name: perfect[name].to_numpy()[order] for name in targets})
    shuffled = made["shuffled_0"]
    made["shuffled_rows_reversed"] = shuffled[::-1].reset_index(drop=True)
    made["shuffled_columns_reversed"] = shuffled[targets[::-1] + ids[::-1]]
    return made


def usual(values: pd.Series, is_label: bool) -> Any:
    """The most frequent label, or the middle number."""
    return values.mode(dropna=True).iloc[0] if is_label or values.dtype.kind not in "iuf" else plain(values.median())


def opposite(values: pd.Series, is_label: bool) -> np.ndarray:
    """Numbers mirrored in their middle; each label turned into the next."""
    if not is_label and values.dtype.kind in "iuf":
        return values.max() + values.min() - values.to_numpy()
    codes, forms = pd.factorize(values, sort=False, use_na_sentinel=False)
    return np.asarray(forms)[(codes + 1) % len(forms)]


def invalid_submissions(perfect: pd.DataFrame, ids: list, targets: list) -> dict:
    """Submissions that a metric has to refuse."""
    hollow = perfect.copy()
    hollow[targets[0]] = hollow[targets[0]].astype(object)
    hollow.loc[0, targets[0]] = np.nan
    if perfect[targets[0]].dtype.kind in "iuf":
        hollow[targets[0]] = hollow[targets[0]].astype(float)
    twice = pd.concat([perfect.iloc[:1], perfect.iloc[:-1]], ignore_index=True)
    stranger = perfect.iloc[:1].copy()
    name = ids[0]
    whole = perfect[name].dtype.kind in "iu"
    stranger[name] = [perfect[name].max() + 1 if whole else "no such id"]
    return {
        "with_nan": hollow,
        "with_duplicate": twice,
        "with_missing": perfect.iloc[:-1].copy(),
        "with_extra": pd.concat([perfect, stranger], ignore_index=True),
    }


def judge(metric_path: str, answers: pd.DataFrame, submission: pd.DataFrame) -> dict:
    """What a fresh metric does with a submission."""
    try:
        metric = load_metric(metric_path)
        if hasattr(metric, "validate_submission"):
            try:
                verdict = metric.validate_submission(submission.copy(), answers.copy())
            except Exception as error:
                return {"refused": described(error)[:300]}
            accepted = verdict[0] if isinstance(verdict, tuple) and verdict else verdict
            if isinstance(plain(accepted), bool) and not accepted:
                return {"refused": str(verdict)[:300]}
        score = plain(metric.evaluate(y_true=answers.copy(), y_pred=submission.copy()))
    except (Exception, SystemExit) as error:  # whatever a package's code does, it becomes a value here
        traceback.print_exc()
        return {"failed": described(error)[:300]}
    if isinstance(score, bool) or not isinstance(score, (int, float)):
        return {"failed": f"evaluate() returned {score!r}, not a number"[:300]}
    return {"score": float(score)} if np.isfinite(score) else {"not_finite": repr(score)}


if __name__ == "__main__":
    main()
