"""The script inside the isolated grading process: runs a package's metric. Standard library, NumPy and pandas, nothing of ours.

    python grading_child.py METRIC RESULT

reads `answers.npy` and `submission.npy` (rows in the same order; see `openmle_gym.grading_tables`) from the working
directory and writes RESULT as JSON: `{"scores": {split: number}}`, or `{"fault": ..., "message": ...}`.
"""

import importlib.util
import inspect
import json
import math
import sys
import traceback
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

MESSAGE_CHARACTERS = 500


def main() -> None:
    """Grades, and writes what came of it."""
    metric_path, result_path = sys.argv[1:]
    try:
        result = grade(metric_path)
    except (Exception, SystemExit) as error:  # whatever a package's code does, it becomes a value here
        traceback.print_exc()
        result = fault("metric_failed", described(error))
    with open(result_path, "w", encoding="utf-8") as file:
        json.dump(result, file)


def grade(metric_path: str) -> dict:
    """Validates the whole submission by the package's own rules, then scores each split."""
    metric = load_metric(metric_path)
    answers, submission, splits = read_tables()
    if hasattr(metric, "validate_submission"):
        try:
            verdict = metric.validate_submission(copied(submission), copied(answers))
        except Exception as error:
            traceback.print_exc()
            return fault("refused_by_package", described(error))
        accepted, *words = verdict if isinstance(verdict, tuple) and verdict else (verdict,)
        if isinstance(plain(accepted), bool) and not accepted:
            return fault("refused_by_package", str(words[0]) if words else "no reason given")
    scores = {}
    for split, rows in splits.items():
        y_true, y_pred = (taken(frame, rows) for frame in (answers, submission))
        score = plain(metric.evaluate(y_true=y_true, y_pred=y_pred))
        if isinstance(score, bool) or not isinstance(score, (int, float)):
            return fault("metric_failed", f"evaluate() returned {score!r}, not a number")
        if not math.isfinite(score):
            return fault("score_not_finite", f"evaluate() returned {score!r} on the {split} rows")
        scores[split] = float(score)
    return {"scores": scores}


def load_metric(path: str) -> Any:
    """An instance of the first class, by name, that is defined in the module and whose name ends with `Metrics`."""
    spec = importlib.util.spec_from_file_location("metric", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["metric"] = module
    spec.loader.exec_module(module)
    for name, member in inspect.getmembers(module, inspect.isclass):
        if name.endswith("Metrics") and member.__module__ == "metric":
            return member()
    raise LookupError("metric.py defines no class whose name ends with Metrics")


def read_tables() -> tuple[pd.DataFrame, pd.DataFrame, dict[str, np.ndarray]]:
    """The answers, the submission with the answers' ids, and the splits: by name [rows] bool."""
    with open("answers.npy", "rb") as file:
        _, columns = read_columns(file)
    answers = pd.DataFrame(columns, copy=False)
    with open("submission.npy", "rb") as file:
        header, targets = read_columns(file)
        splits = {split: np.load(file, allow_pickle=False) for split in header["splits"]}
    order = {name: targets.get(name, answers[name]) for name in header["order"]}
    return answers, pd.DataFrame(order, copy=False), splits


def read_columns(file: BinaryIO) -> tuple[dict, dict[str, Any]]:
    """The header and the columns of a table."""
    header = json.loads(np.load(file, allow_pickle=False).tobytes())
    columns = {}
    for column in header["columns"]:
        values = np.load(file, allow_pickle=False)
        if column["texts"] is not None:
            texts = [float("nan") if text is None else text for text in column["texts"]]
            kind = object if any(isinstance(text, bool) for text in texts) else None
            values = pd.Series(texts, dtype=kind).take(values).reset_index(drop=True)
        columns[column["name"]] = values
    return header, columns


def copied(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame that a metric may write to; where pandas copies on writing, that is soon enough."""
    return frame.copy(deep=int(pd.__version__.split(".")[0]) < 3)


def taken(frame: pd.DataFrame, rows: np.ndarray) -> pd.DataFrame:
    """Some rows of a frame, or all of them, numbered anew."""
    return copied(frame) if rows.all() else frame[rows].reset_index(drop=True)


def plain(value: Any) -> Any:
    """A NumPy scalar as a Python number."""
    return value.item() if hasattr(value, "item") else value


def described(error: BaseException) -> str:
    """The exception's type and message."""
    return f"{type(error).__name__}: {error}"


def fault(code: str, message: str) -> dict:
    """A result without scores."""
    return {"fault": code, "message": message[:MESSAGE_CHARACTERS]}


if __name__ == "__main__":
    main()
