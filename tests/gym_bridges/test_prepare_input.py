from pathlib import Path

import pandas as pd
import pytest
from openmle_gym.bridges.prepare_input import input_row, write_input
from openmle_gym.errors import ConfigError
from openmle_gym.task import load_package
from toy import write_toy_package


def test_a_row_has_what_the_published_runtime_reads(tmp_path: Path) -> None:
    package = write_toy_package(tmp_path / "toy")
    write_input([package], tmp_path / "in" / "tasks.parquet", sandbox_root="/data/tasks")
    (row,) = pd.read_parquet(tmp_path / "in" / "tasks.parquet").to_dict("records")
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    metadata = row["metadata"]
    assert (metadata["task_name"], metadata["cpu_gpu"], metadata["data_dir"]) == ("toy", "cpu", "/data/tasks/toy")
    assert metadata["higher_is_better"] is False
    assert (metadata["theoretical_min"], metadata["theoretical_max"]) == (0.0, None)
    assert (metadata["leaderboard_min"], metadata["leaderboard_max"]) == (0.5, 10.0)
    assert metadata["task_description"] == "Predict y from x."
    assert {"uuid", "task", "source", "modality", "data_description"} <= set(metadata)


def test_the_user_message_divides_at_its_three_markers(tmp_path: Path) -> None:
    package = write_toy_package(tmp_path / "toy")
    text = input_row(package, data_dir="x")["prompt"][1]["content"]
    places = [text.index(marker) for marker in ("Task Description:", "Data Preview:", "Output Instructions:")]
    assert places == sorted(places)
    assert "Predict y from x." in text[: places[1]]
    assert "train.csv" in text[places[1] : places[2]]
    assert "Final Validation Score:" in text[places[2] :]


def test_nothing_private_is_in_a_row(tmp_path: Path) -> None:
    package = write_toy_package(tmp_path / "toy")
    (package.root / "data/private/test_answer.csv").write_text("id,y\n100,987654\n")
    assert "987654" not in str(input_row(load_package(package.root), data_dir="x"))


def test_a_task_keeps_its_uuid_unless_told(tmp_path: Path) -> None:
    package = write_toy_package(tmp_path / "toy")
    one, two = (input_row(package, data_dir=d)["metadata"]["uuid"] for d in ("a", "b"))
    assert one == two
    assert input_row(package, data_dir="a", task_uuid="mine")["metadata"]["uuid"] == "mine"
    with pytest.raises(ConfigError, match="two packages are called 'toy'"):
        write_input([package, package], tmp_path / "x.parquet", sandbox_root=None)
    other = write_toy_package(tmp_path / "other")
    with pytest.raises(ConfigError, match="for one task"):
        write_input([package, _renamed(other.root)], tmp_path / "x.parquet", sandbox_root=None, task_uuid="u")


def _renamed(root: Path):
    path = root / "task.toml"
    path.write_text(path.read_text().replace('name = "toy"', 'name = "other"'))
    return load_package(root)
