"""Task packages: manifests, inference, and the split of the hidden answers."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openmle_gym.errors import ConfigError, PackageError
from openmle_gym.execute import resolve_package
from openmle_gym.manifest import Columns, HiddenSplit, Manifest, Metric, read_manifest, write_manifest
from openmle_gym.task import load_package, split_rows

COLUMNS = Columns(id=("id",), target=("y",))
METRIC = """
class ToyMetrics:
    def __init__(self, value="y", higher_is_better={direction}):
        self.value = value
"""


def write_package(root: Path, *, metric: str = METRIC.format(direction=True)) -> Path:
    for folder in ("data/public", "data/private", "utils", "info"):
        (root / folder).mkdir(parents=True)
    (root / "data/public/description.txt").write_text("Predict y.")
    (root / "data/public/test.csv").write_text("id,x\n1,5\n2,6\n")
    (root / "data/public/sample_submission.csv").write_text("id,y\n1,0\n2,0\n")
    (root / "data/private/test_answer.csv").write_text("id,y\n1,0\n2,1\n")
    (root / "utils/metric.py").write_text(metric)
    return root


def test_a_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    manifest = Manifest(
        name="a-task@1",
        task_type="regression",
        metric=Metric(name="rmse", higher_is_better=False, theoretical_min=0.0),
        columns=Columns(id=("id", "day"), target=("y",)),
        files={"data/public/train.csv": "ab" * 32},
    )
    write_manifest(manifest, tmp_path / "task.toml")
    assert read_manifest(tmp_path / "task.toml") == manifest


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("name = ", "not valid TOML"),
        ("name = 'x'\n[columns]\nid=['a']\ntarget=['b']", "metric: Field required"),
        ("name = '../x'\n[metric]\nname='m'\nhigher_is_better=true\n[columns]\nid=['a']\ntarget=['b']", "name:"),
        ("name = 'x'\n[metric]\nname='m'\nhigher_is_better=true\n[columns]\nid=['a']\ntarget=['a']", "both id and"),
        (
            "name = 'x'\nnames='y'\n[metric]\nname='m'\nhigher_is_better=true\n[columns]\nid=['a']\ntarget=['b']",
            "names:",
        ),
    ],
)
def test_a_wrong_manifest_is_refused_by_file_and_field(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "task.toml").write_text(text)
    with pytest.raises(PackageError) as error:
        read_manifest(tmp_path / "task.toml")
    assert str(tmp_path) in str(error.value)
    assert named in str(error.value)


@pytest.mark.parametrize("direction", [True, False])
def test_a_package_without_a_manifest_is_inferred_and_says_so(tmp_path: Path, direction: bool) -> None:
    package = load_package(write_package(tmp_path / "toy", metric=METRIC.format(direction=direction)))
    assert package.inferred
    assert package.manifest.name == "toy"
    assert package.manifest.columns == COLUMNS
    assert package.manifest.metric.higher_is_better is direction


def test_released_metadata_decides_the_direction(tmp_path: Path) -> None:
    root = write_package(tmp_path / "toy", metric="class ToyMetrics:\n    pass\n")
    with pytest.raises(PackageError, match="cannot tell whether a higher score is better"):
        load_package(root)
    (root / "info/task_metadata.json").write_text(json.dumps({"higher_is_better": False, "theoretical_min": 0}))
    package = load_package(root)
    assert package.manifest.metric.higher_is_better is False
    assert package.manifest.metric.theoretical_min == 0.0


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("task.toml", b"name = 'caf\xe9'\n", "not valid TOML"),
        ("task.toml", b"schema_version = " + b"9" * 5000, "not valid TOML"),
        ("info/task_metadata.json", b'{"higher_is_better": true, "task": "caf\xe9"}', "not valid JSON"),
        ("info/task_metadata.json", b"[" * 100_000, "not valid JSON"),
        ("utils/metric.py", b"x = 1\0", "cannot be parsed"),
        ("utils/metric.py", b"(" * 1000 + b")" * 1000, "cannot be parsed"),
        ("data/public/sample_submission.csv", b"", "is empty"),
        ("data/public/sample_submission.csv", b"caf\xe9,y\n1,0\n", "line 1 is not text in UTF-8"),
        ("data/public/sample_submission.csv", b"id,y,y\n1,0,0\n", "two columns 'y'"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    root = write_package(tmp_path / "damaged")
    (root / name).write_bytes(content)
    with pytest.raises(PackageError, match=words) as caught:
        load_package(root)
    assert str(caught.value).startswith(str(root / name))


def test_a_bound_beyond_floats_is_none(tmp_path: Path) -> None:
    root = write_package(tmp_path / "old")
    facts = {"higher_is_better": True, "theoretical_min": -(10**400), "theoretical_max": 1}
    (root / "info/task_metadata.json").write_text(json.dumps(facts))
    metric = load_package(root).manifest.metric
    assert (metric.theoretical_min, metric.theoretical_max) == (None, 1.0)


def test_a_manifest_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    manifest = Manifest(name="a", metric=Metric(name="rmse", higher_is_better=False), columns=COLUMNS)
    write_manifest(manifest, tmp_path / "task.toml")
    (tmp_path / "task.toml").write_text((tmp_path / "task.toml").read_text(), encoding="utf-8-sig")
    assert read_manifest(tmp_path / "task.toml") == manifest


def test_the_metric_module_is_never_run_to_infer(tmp_path: Path) -> None:
    bomb = METRIC.format(direction=True) + f"\nopen({str(tmp_path / 'ran')!r}, 'w')\n"
    load_package(write_package(tmp_path / "toy", metric=bomb))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("missing", ["data/public/description.txt", "data/private/test_answer.csv", "utils/metric.py"])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    root = write_package(tmp_path / "toy")
    (root / missing).unlink()
    with pytest.raises(PackageError, match=f"no {missing}"):
        load_package(root)


def answers(values: list[object]) -> pd.DataFrame:
    return pd.DataFrame({"id": [str(index) for index in range(len(values))], "y": [str(value) for value in values]})


def test_the_halves_are_stratified_by_the_target() -> None:
    frame = answers([1] * 20 + [0] * 80)
    rows = split_rows(frame, COLUMNS, HiddenSplit())
    assert rows.sum() == 50
    assert (frame["y"][rows] == "1").sum() == 10


def test_numbers_are_ordered_as_numbers() -> None:
    rows = split_rows(answers(list(range(100))), COLUMNS, HiddenSplit())
    assert rows.sum() == 50
    assert all(rows[start : start + 2].sum() == 1 for start in range(0, 100, 2))


@given(st.integers(2, 60), st.integers(0, 1000), st.floats(0.1, 0.9), st.randoms())
def test_a_rows_half_does_not_depend_on_the_files_order(count: int, seed: int, fraction: float, rng) -> None:
    frame = answers([rng.choice(["a", "b", "c"]) for _ in range(count)])
    split = HiddenSplit(seed=seed, validation_fraction=fraction)
    shuffled = frame.sample(frac=1, random_state=rng.randrange(1000))
    one = dict(zip(frame["id"], split_rows(frame, COLUMNS, split), strict=True))
    other = dict(zip(shuffled["id"], split_rows(shuffled, COLUMNS, split), strict=True))
    assert one == other
    assert sum(one.values()) == int(np.floor(count * fraction))


def test_a_data_dir_stays_inside_the_roots(tmp_path: Path) -> None:
    root = tmp_path / "tasks"
    (root / "toy").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (root / "link").symlink_to(tmp_path / "secret")
    assert resolve_package("toy", [root]) == root / "toy"
    assert resolve_package(str(root / "toy"), [root]) == root / "toy"
    for outside in ("../secret", "link", str(tmp_path / "secret"), "/etc", "nothing"):
        with pytest.raises(ConfigError, match="data_dir"):
            resolve_package(outside, [root])
