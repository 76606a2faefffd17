"""Runs inside the isolation, never in our processes: scores a submission with a package's `metric.py`.

    python grading_child.py SPLIT...

Beside this file: metric.py, <split>_answers.csv and <split>_submission.csv. Writes result.json into the working
directory. The metric protocol is the released packages': the first class by name that ends in `Metrics` and is the
module's own, made without arguments, with `evaluate(y_true=, y_pred=)` and, optionally, `validate_submission`.
"""

import importlib.util
import inspect
import json
import math
import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).resolve().parent


class Refused(Exception):
    """The package's own validator does not take the submission."""


def load_metric():
    spec = importlib.util.spec_from_file_location("metric", HERE / "metric.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["metric"] = module
    spec.loader.exec_module(module)
    for name, member in sorted(vars(module).items()):
        if inspect.isclass(member) and name.endswith("Metrics") and member.__module__ == "metric":
            return member()
    raise LookupError("metric.py defines no class whose name ends in Metrics")


def check(metric, submission, answers):
    """A validator refuses by raising, and also by returning False or (False, why)."""
    if not hasattr(metric, "validate_submission"):
        return
    try:
        said = metric.validate_submission(submission.copy(), answers.copy())
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    flag, why = said if isinstance(said, tuple) and len(said) == 2 else (said, "")
    if flag is False:
        raise Refused(str(why) or "the package's validator returned False")


def number(score):
    score = score.item() if hasattr(score, "item") else score
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score):
        raise ValueError(f"evaluate() returned {score!r}, which is not a finite number")
    return float(score)


def read(name):
    return pd.read_csv(HERE / name, float_precision="round_trip")


def main(splits):
    try:
        metric, scores = load_metric(), {}
        for split in splits:
            answers, submission = read(f"{split}_answers.csv"), read(f"{split}_submission.csv")
            check(metric, submission, answers)
            scores[split] = number(metric.evaluate(y_true=answers, y_pred=submission))
        result = {"scores": scores}
    except Refused as error:
        result = {"code": "refused_by_package", "message": str(error)[:2000]}
    except Exception as error:
        result = {"code": "metric_failed", "message": f"{type(error).__name__}: {error}"[:2000]}
    Path("result.json").write_text(json.dumps(result), encoding="utf-8")


main(sys.argv[1:])
