"""Where metrics go."""

import json
from pathlib import Path

import pytest
from openmle_erl.tracking import TrackingConfig, open_tracker, read_metrics
from openmle_gym.errors import ConfigError


def test_records_are_lines_by_step_and_what_was_done_again_counts_once(tmp_path: Path) -> None:
    quiet = TrackingConfig(tensorboard=False)
    with open_tracker(tmp_path, quiet) as tracker:
        tracker.log({"loss": 2.0, "note": "first"}, step=1)
        tracker.log({"loss": float("nan")}, step=2)
        tracker.log({"evaluation_loss": 1.0}, step=2)
    with open_tracker(tmp_path, quiet) as tracker:
        tracker.log({"loss": 1.5}, step=2)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    found = read_metrics(tmp_path)
    assert [(record["step"], record["loss"]) for record in found] == [(1, 2.0), (2, 1.5)]
    assert (found[0]["note"], found[1]["evaluation_loss"]) == ("first", 1.0)
    second = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1])
    assert second["loss"] is None
    with open_tracker(tmp_path, quiet) as tracker:  # a line that a kill tore does not take the next with it
        tracker.log({"loss": 1.25}, step=3)
    assert [(record["step"], record["loss"]) for record in read_metrics(tmp_path)] == [(1, 2.0), (2, 1.5), (3, 1.25)]


def test_nothing_is_printed_where_no_terminal_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_tracker(tmp_path, TrackingConfig(tensorboard=False)) as tracker:
        tracker.log({"loss": 2.0}, step=1)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_tensorboard_gets_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("torch.utils.tensorboard")
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with open_tracker(tmp_path) as tracker:
        tracker.log({"loss": 2.0, "note": "text"}, step=3)
    events = loading.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(3, 2.0)]
    assert events.Tags()["scalars"] == ["loss"]


def test_weights_and_biases_is_missed_only_where_it_is_asked_for(tmp_path: Path) -> None:
    try:
        import wandb  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        with pytest.raises(ConfigError, match=r"tracking\.wandb: project: needs wandb"):
            open_tracker(tmp_path, TrackingConfig(wandb="project")).__enter__()
    else:
        pytest.skip("wandb is installed")
