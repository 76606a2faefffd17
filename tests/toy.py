"""A task small enough to reason about: y is 2x, scored by RMSE; and programs that do well and badly on it."""

from pathlib import Path

from openmle_gym.manifest import Columns, HiddenSplit, Manifest, Metric, write_manifest
from openmle_gym.task import TaskPackage, load_package

METRIC = """
import math


class ToyMetrics:
    def __init__(self, value="y", higher_is_better=False):
        self.value = value
        self.higher_is_better = higher_is_better

    def validate_submission(self, submission, ground_truth):
        assert len(submission) == len(ground_truth)

    def evaluate(self, y_true, y_pred):
        joined = y_true.merge(y_pred, on="id", suffixes=("_true", "_pred"))
        errors = joined[self.value + "_true"] - joined[self.value + "_pred"]
        return math.sqrt((errors**2).mean())
"""

READ = """
import csv, os, time
folder = os.environ["DATA_DIR"]
rows = list(csv.DictReader(open(os.path.join(folder, "test.csv"))))
train = list(csv.DictReader(open(os.path.join(folder, "train.csv"))))
slope = sum(float(r["y"]) for r in train) / sum(float(r["x"]) for r in train)

def write(predict):
    with open("submission.csv", "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["id", "y"])
        out.writerows([row["id"], predict(float(row["x"]))] for row in rows)
"""

GOOD = READ + 'write(lambda x: slope * x)\nprint("Final Validation Score: 0.0")\n'
"""Exactly right: RMSE 0."""
WORSE = READ + 'write(lambda x: slope * x + 3)\nprint("Final Validation Score: 3.0")\n'
"""Off by three everywhere: RMSE 3 on every split."""
WRITES_NAN = READ + 'write(lambda x: float("nan"))\n'
NEVER_ENDS = READ + "while True:\n    time.sleep(0.01)\n"
READS_ANSWERS = READ + 'open(os.path.join(folder, "../private/test_answer.csv"))\n'
CRASHES = READ + "def fit():\n    return {}['missing']\n\nfit()\n"
PROSE = "I would first look at the data, and then choose a model."


def reply(source: str) -> str:
    """A model's reply that holds a program."""
    return f"I predict from the slope.\n\n```python\n{source.strip()}\n```\n"


def write_toy_package(root: Path, rows: int = 40) -> TaskPackage:
    """Writes the package; half of its hidden rows are for validation."""
    for folder in ("data/public", "data/private", "utils", "info"):
        (root / folder).mkdir(parents=True)
    public = root / "data" / "public"
    hidden = range(100, 100 + rows)
    (public / "description.txt").write_text("Predict y from x.\n")
    (public / "train.csv").write_text("id,x,y\n" + "".join(f"{n},{n},{2 * n}\n" for n in range(1, 30)))
    (public / "test.csv").write_text("id,x\n" + "".join(f"{n},{n}\n" for n in hidden))
    (public / "sample_submission.csv").write_text("id,y\n" + "".join(f"{n},0\n" for n in hidden))
    (root / "data/private/test_answer.csv").write_text("id,y\n" + "".join(f"{n},{2 * n}\n" for n in hidden))
    (root / "utils/metric.py").write_text(METRIC)
    (root / "info/leaderboard.csv").write_text("rank,score\n" + "".join(f"{n},{n / 2}\n" for n in range(1, 21)))
    manifest = Manifest(
        name="toy",
        title="Toy slope",
        task_type="regression",
        metric=Metric(name="rmse", higher_is_better=False, theoretical_min=0.0),
        columns=Columns(id=("id",), target=("y",)),
        hidden_split=HiddenSplit(seed=1),
    )
    write_manifest(manifest, root / "task.toml")
    return load_package(root)
