"""The task that programs are graded on: y is 2x + 1, scored by RMSE, the same on every part of the rows.

Its metric takes orders from the submission: predictions that are all one of `ORDERS` make it hang, die or lie, so that
how the service bears a bad metric can be seen from outside.
"""

from pathlib import Path

from openmle_gym.errors import ConfigError
from openmle_gym.manifest import Columns, HiddenSplit, Manifest, Metric, write_manifest

from sandbox_service.conformance.programs import CANARY

ROWS = 40
HANG, NOT_A_NUMBER, A_WORD, RAISE, EXIT, TALK, DIE = range(-7007, -7000)
"""What the metric may be ordered to do."""

METRIC = f"""\
# {CANARY}
import math
import os
import time


class ConformanceMetrics:
    def __init__(self, value="y", higher_is_better=False):
        self.value = value
        self.higher_is_better = higher_is_better

    def evaluate(self, y_true, y_pred):
        order = y_pred[self.value].iloc[0]
        if order == {HANG}:
            time.sleep(86400)
        if order == {NOT_A_NUMBER}:
            return math.nan
        if order == {A_WORD}:
            return "0.0"
        if order == {RAISE}:
            raise RuntimeError("ordered to")
        if order == {EXIT}:
            os._exit(0)
        if order == {TALK}:
            print("{CANARY}", flush=True)
        if order == {DIE}:
            os.kill(os.getpid(), 9)
        return math.sqrt(((y_true[self.value] - y_pred[self.value]) ** 2).mean())
"""


def write_package(folder: Path) -> None:
    """Writes the task package.

    Raises:
        ConfigError: The folder holds something already, or cannot be made.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"make_package={folder}: the folder is not empty")
    public, private = folder / "data" / "public", folder / "data" / "private"
    hidden = range(100, 100 + ROWS)
    try:
        for place in (public, private, folder / "utils"):
            place.mkdir(parents=True, exist_ok=True)
        (public / "description.txt").write_text("Predict y from x.\n")
        (public / "train.csv").write_text("id,x,y\n" + "".join(f"{n},{n},{2 * n + 1}\n" for n in range(1, 30)))
        (public / "test.csv").write_text("id,x\n" + "".join(f"{n},{n}\n" for n in hidden))
        (public / "sample_submission.csv").write_text("id,y\n" + "".join(f"{n},0\n" for n in hidden))
        (private / "test_answer.csv").write_text("id,y\n" + "".join(f"{n},{2 * n + 1}\n" for n in hidden))
        (private / "canary.txt").write_text(CANARY + "\n")
        (folder / "utils" / "metric.py").write_text(METRIC)
    except OSError as error:
        raise ConfigError(f"make_package={folder}: {error}") from error
    manifest = Manifest(
        name="conformance",
        title="A straight line",
        task_type="regression",
        metric=Metric(name="rmse", higher_is_better=False, theoretical_min=0.0),
        columns=Columns(id=("id",), target=("y",)),
        hidden_split=HiddenSplit(seed=1),
    )
    write_manifest(manifest, folder / "task.toml")
