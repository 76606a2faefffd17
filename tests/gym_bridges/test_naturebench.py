import json
from pathlib import Path

import pytest
from openmle_gym.bridges.naturebench import LITE_V2, best_gap, measure_gap, read_task
from openmle_gym.errors import PackageError


def entry(name: str, direction: str, sota: float | None, **more: object) -> dict[str, object]:
    metric = {"name": "m", "is_primary": True, "metric_direction": direction, "sota_score": sota, **more}
    return {"dataset_name": name, "metrics": [{"name": "other", "metric_direction": "higher"}, metric]}


def package(root: Path, *entries: dict[str, object]) -> Path:
    (root / "problem" / "data").mkdir(parents=True)
    (root / "evaluation").mkdir()
    (root / "problem" / "README.md").write_text("What to do.\n")
    (root / "problem" / "data_description.md").write_text("What is there.\n")
    (root / "metadata.json").write_text(json.dumps({"performance_entries": entries, "domain": "biology"}))
    return root


def test_the_gap_is_relative_signed_and_averaged(tmp_path: Path) -> None:
    task = read_task(
        package(tmp_path, entry("a", "higher", 0.8), entry("b", "Lower is better", 2.0), entry("c", "higher", 0.0))
    )
    assert task.description == "What to do.\n\nWhat is there."
    gap = measure_gap(task.metadata, {"a": 0.9, "b": 1.5, "c": 7.0})
    assert gap.per_instance == {"a": pytest.approx(0.125), "b": pytest.approx(0.25)}
    assert gap.aggregate == pytest.approx(0.1875)
    assert gap.matches
    assert gap.surpasses


def test_match_and_surpass_have_their_thresholds(tmp_path: Path) -> None:
    metadata = read_task(package(tmp_path, entry("a", "higher", -1.0))).metadata
    same = measure_gap(metadata, {"a": -1.0})
    assert (same.aggregate, same.matches, same.surpasses) == (0.0, True, False)
    tenth = measure_gap(metadata, {"a": -0.9})
    assert tenth.aggregate == pytest.approx(0.1)
    assert measure_gap(metadata, {"a": -0.5}).surpasses
    assert not measure_gap(metadata, {"a": -1.1}).matches
    best = best_gap([same, tenth])
    assert best is tenth
    assert best_gap([]) is None


def test_a_missing_or_infinite_score_is_a_gap_of_minus_one(tmp_path: Path) -> None:
    metadata = read_task(package(tmp_path, entry("a", "higher", 0.5), entry("b", "higher", 0.5))).metadata
    gap = measure_gap(metadata, {"a": float("nan")})
    assert gap.per_instance == {"a": -1.0, "b": -1.0}
    assert gap.selection_score() == -1.0
    far = measure_gap(metadata, {"a": 5.0, "b": 5.0})
    assert (far.selection_score(), far.selection_score(clip=0)) == (1.0, pytest.approx(9.0))


def test_metadata_that_settle_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="neither higher nor lower"):
        read_task(package(tmp_path / "one", entry("a", "sideways", 1.0)))
    two = entry("a", "higher", 1.0)
    two["metrics"] = [{"name": n, "metric_direction": "higher"} for n in ("x", "y")]
    with pytest.raises(PackageError, match="primary metric is not settled"):
        read_task(package(tmp_path / "two", two))
    with pytest.raises(PackageError, match=r"no metadata\.json"):
        read_task(tmp_path)
    with pytest.raises(PackageError, match="no instance has a state of the art"):
        measure_gap(read_task(package(tmp_path / "three", entry("a", "higher", None))).metadata, {"a": 1.0})


def test_the_lite_tasks_are_ten() -> None:
    assert len(set(LITE_V2)) == 10
