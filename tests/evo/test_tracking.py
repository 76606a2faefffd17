"""Curves in other tools: what they are told, and that they never stand in a run's way."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from evo.make import card, toy_manifest
from openmle_evo.budget import Spending
from openmle_evo.run import RunDirectory
from openmle_evo.tracking import Tracking, metrics_of, open_tracking
from openmle_gym.errors import ConfigError
from openmle_gym.scores import TestScore


def _tell(tracking: Tracking, values: list[float | None]) -> None:
    cards = [card(number, value) for number, value in enumerate(values)]
    spending = Spending()
    for each in cards:
        spending.settle(each)
        tracking.attempt(each, cards[0], spending.ledger(0.0))


def test_tensorboard_reads_the_scores_back_at_their_steps(tmp_path: Path) -> None:
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    run = RunDirectory.create(tmp_path, toy_manifest())
    tracking = open_tracking(["tensorboard"], run)
    _tell(tracking, [0.5, None, 0.75])
    tracking.close()
    run.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    scores = [
        (event.step, round(value.tensor.float_val[0], 6))
        for event in loading.EventFileLoader(str(file)).Load()
        for value in event.summary.value
        if value.tag == "attempt/score"
    ]
    assert scores == [(1, 0.5), (3, 0.75)]


class Recorder(ModuleType):
    """Stands for a package that is not installed; keeps every call."""

    def __init__(self) -> None:
        super().__init__("recorder")
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            return self

        return call


def test_weights_and_biases_is_offline_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = Recorder()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run = RunDirectory.create(tmp_path, toy_manifest())
    tracking = open_tracking(["wandb"], run)
    _tell(tracking, [0.5])
    tracking.close()
    run.close()
    (init, told, finish) = wandb.calls
    assert (init[0], init[2]["mode"], init[2]["id"], init[2]["resume"]) == ("init", "offline", "run", "allow")
    assert (told[0], told[2]["step"], told[1][0]["attempt/score"]) == ("log", 1, 0.5)
    assert finish[0] == "finish"


def test_mlflow_is_kept_in_the_run_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = Recorder()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(mlflow, "info", mlflow, raising=False)
    monkeypatch.setattr(mlflow, "run_id", "7", raising=False)
    monkeypatch.setattr(mlflow, "experiment_id", "1", raising=False)
    run = RunDirectory.create(tmp_path, toy_manifest())
    tracking = open_tracking(["mlflow"], run)
    _tell(tracking, [0.5])
    tracking.close()
    run.close()
    calls = {name: (args, kwargs) for name, args, kwargs in mlflow.calls}
    assert calls["MlflowClient"][1]["tracking_uri"] == (tmp_path / "mlruns").as_uri()
    told = [(args[1], args[2]) for name, args, _ in mlflow.calls if name == "log_metric"]
    assert ("attempt/score", 0.5) in told
    assert calls["set_terminated"][0] == ("7",)


def test_a_package_that_is_not_there_is_a_wrong_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    run = RunDirectory.create(tmp_path, toy_manifest())
    with pytest.raises(ConfigError, match=r"pip install openmle-evo\[wandb\]"):
        open_tracking(["wandb"], run)
    run.close()


def test_a_sink_that_fails_is_warned_of_once_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def attempt(self, step: int, metrics: Mapping[str, float]) -> None:
            raise OSError("disk full")

        def close(self) -> None:
            raise AssertionError("it was given up")

    class Good:
        def __init__(self) -> None:
            self.steps: list[int] = []

        def attempt(self, step: int, metrics: Mapping[str, float]) -> None:
            self.steps.append(step)

        def close(self) -> None:
            self.steps.append(-1)

    good = Good()
    tracking = Tracking({"broken": Broken(), "good": good})
    with caplog.at_level(logging.WARNING):
        _tell(tracking, [0.5, 0.6])
        tracking.close()
    assert good.steps == [1, 2, -1]
    assert [record.getMessage() for record in caplog.records] == ["track: broken failed and gets no more of this run"]


def test_no_test_score_is_told() -> None:
    scored = card(0, 0.5).model_copy(update={"test": TestScore(value=0.123456, higher_is_better=True)})
    assert 0.123456 not in metrics_of(scored, scored, Spending([scored]).ledger(0.0)).values()
