"""A healthy task package, and the many ways in which one is ill."""

import random
from collections.abc import Callable
from pathlib import Path

from openmle_gym.manifest import Columns, Manifest, Metric, Provenance, write_manifest
from openmle_gym.metrics import METRICS, render_metric_module

Rows = list[list[str]]

DESCRIPTION = """Predict `price` of the houses in `test.csv`, having learned from `train.csv`.

Submissions such as `sample_submission.csv` are scored by RMSE; lower is better. Write `submission.csv`.
"""

METRIC = """
import numpy as np


class PriceMetrics:
    def __init__(self, value="price", higher_is_better=False):
        self.higher_is_better = higher_is_better

    def validate_submission(self, submission, ground_truth):
        pass

    def evaluate(self, y_true, y_pred):
        true, pred = y_true["price"].to_numpy(), y_pred["price"].to_numpy()
        {body}
"""
"""A metric that trusts its caller."""
RMSE_BODY = "return float(np.sqrt(np.mean((true - pred) ** 2)))"


def house(number: int) -> list[str]:
    """id, area, town, built, price; the price depends on the others and on chance."""
    chance = random.Random(number)
    area, town = round(chance.uniform(40, 200), 1), chance.choice(["Aa", "Bee", "Cee"])
    price = round(area * 3 + chance.gauss(0, 60), 2)
    return [str(number), str(area), town, str(chance.randint(1900, 2020)), str(price)]


HEADER = ["id", "area", "town", "built", "price"]


def write_table(path: Path, rows: Rows) -> None:
    """Cells without commas."""
    path.write_text("".join(",".join(row) + "\n" for row in rows), encoding="utf-8")


def read_table(path: Path) -> Rows:
    """The header first."""
    return [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()]


def write_healthy(root: Path) -> Path:
    """Writes a package in which nothing is to be found."""
    for folder in ("data/public", "data/private", "utils"):
        (root / folder).mkdir(parents=True)
    train, test = ([house(number) for number in numbers] for numbers in (range(1, 201), range(201, 301)))
    write_table(root / "data/public/train.csv", [HEADER, *train])
    write_table(root / "data/public/test.csv", [row[:4] for row in [HEADER, *test]])
    write_table(root / "data/public/sample_submission.csv", [["id", "price"], *([row[0], "360"] for row in test)])
    write_table(root / "data/private/test_answer.csv", [["id", "price"], *([row[0], row[4]] for row in test)])
    (root / "data/public/description.txt").write_text(DESCRIPTION)
    columns = Columns(id=("id",), target=("price",))
    (root / "utils/metric.py").write_text(render_metric_module(METRICS["rmse"], columns))
    (root / "utils/prepare.py").write_text("def prepare(raw, public, private):\n    pass\n")
    manifest = Manifest(
        name="houses",
        metric=METRICS["rmse"].declaration(),
        columns=columns,
        provenance=Provenance(source="made up", licence="CC0-1.0"),
    )
    write_manifest(manifest, root / "task.toml")
    return root


def edit_table(name: str, change: Callable[[Rows], Rows]) -> Callable[[Path], None]:
    """Rewrites a table of the package; `change` gets and gives rows, the header first."""

    def edit(root: Path) -> None:
        path = root / "data" / ("private" if name == "test_answer.csv" else "public") / name
        write_table(path, change(read_table(path)))

    return edit


def edit_text(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    """Rewrites a text file of the package."""

    def edit(root: Path) -> None:
        (root / name).write_text(change((root / name).read_text()))

    return edit


def both(*edits: Callable[[Path], None]) -> Callable[[Path], None]:
    """One after another."""

    def edit(root: Path) -> None:
        for each in edits:
            each(root)

    return edit


def metric_body(body: str) -> Callable[[Path], None]:
    """Replaces the metric by one that trusts its caller and computes `body`."""
    return edit_text("utils/metric.py", lambda _: METRIC.format(body=body))


def declare(root: Path, **changes: object) -> None:
    """Writes a manifest with other fields."""
    from openmle_gym.manifest import read_manifest

    manifest = read_manifest(root / "task.toml")
    write_manifest(Manifest.model_validate({**manifest.model_dump(), **changes}), root / "task.toml")


def answers_of(root: Path) -> dict[str, str]:
    """The target by id."""
    return dict(read_table(root / "data/private/test_answer.csv")[1:])  # type: ignore[arg-type]


def new_column(name: str, value: Callable[[list[str], str], str]) -> Callable[[Path], None]:
    """Adds a column to train and test, made of each row and its target."""

    def edit(root: Path) -> None:
        known = answers_of(root)
        for table in ("train.csv", "test.csv"):
            path = root / "data/public" / table
            header, *rows = read_table(path)
            made = [[*row[:4], value(row, row[4] if table == "train.csv" else known[row[0]]), *row[4:]] for row in rows]
            write_table(path, [[*header[:4], name, *header[4:]], *made])

    return edit


def write_binary(root: Path) -> Path:
    """The healthy package, with a yes or no for its target, scored by accuracy."""
    write_healthy(root)

    def halved(rows: Rows) -> Rows:
        return [rows[0], *([*row[:-1], "yes" if float(row[-1]) > 360 else "no"] for row in rows[1:])]

    for name in ("train.csv", "test_answer.csv", "sample_submission.csv"):
        edit_table(name, halved)(root)
    declare(root, metric=METRICS["accuracy"].declaration())
    columns = Columns(id=("id",), target=("price",))
    (root / "utils/metric.py").write_text(render_metric_module(METRICS["accuracy"], columns))
    return root


WORDS = ("NA", "1", "1.0", "null", "zwei", "True")


def write_words(root: Path) -> Path:
    """The healthy package, with words for its target that are what they are spelt, scored by the share that is right."""
    write_healthy(root)

    def spelt(rows: Rows) -> Rows:
        return [rows[0], *([*row[:-1], random.Random(f"word {row[0]}").choice(WORDS)] for row in rows[1:])]

    for name in ("train.csv", "test_answer.csv"):
        edit_table(name, spelt)(root)
    edit_table("sample_submission.csv", lambda rows: [rows[0], *([row[0], "1"] for row in rows[1:])])(root)
    share = Metric(name="share", higher_is_better=True, theoretical_min=0.0, theoretical_max=1.0, prediction="text")
    declare(root, metric=share)
    metric_body("return float((true == pred).mean())")(root)
    edit_text("utils/metric.py", lambda text: text.replace("higher_is_better=False", "higher_is_better=True"))(root)
    return root


def write_pictures(root: Path) -> Path:
    """The healthy package, in which each row names a picture."""
    write_healthy(root)
    new_column("picture", lambda row, _: f"{row[0]}.png")(root)
    for table in ("train", "test"):
        folder = root / "data/public" / table
        folder.mkdir()
        for row in read_table(root / f"data/public/{table}.csv")[1:]:
            (folder / f"{row[0]}.png").write_bytes(b"picture " + row[0].encode())
    declare(root, modality=("image",))
    return root


def metric(**changes: object) -> Callable[[Path], None]:
    """Declares another metric."""

    def edit(root: Path) -> None:
        declare(root, metric=Metric.model_validate({**METRICS["rmse"].declaration().model_dump(), **changes}))

    return edit
