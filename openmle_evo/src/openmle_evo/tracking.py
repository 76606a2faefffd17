"""A run's curves in TensorBoard, Weights & Biases or MLflow, as they come; never in the way of the run.

A sink that fails is warned of once and gets no more. Everything that it is told is in the run's own directory too.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Protocol

from openmle_gym.errors import ConfigError
from openmle_gym.experience import ExperienceCard
from openmle_gym.operators import Operator

from openmle_evo.budget import Ledger
from openmle_evo.run import RunDirectory

log = logging.getLogger("openmle_evo")


class Sink(Protocol):
    """Where metrics go. Any exception of it ends it, and nothing else."""

    def attempt(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of the run after its `step`-th judged attempt."""
        ...

    def close(self) -> None:
        """Writes out what is held back."""
        ...


class Tracking:
    """All sinks of a run."""

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self._sinks = dict(sinks)

    def attempt(self, card: ExperienceCard, best: ExperienceCard | None, ledger: Ledger) -> None:
        """Tells every sink of a judged attempt."""
        metrics = metrics_of(card, best, ledger)
        for name, sink in list(self._sinks.items()):
            self._guarded(name, lambda sink=sink: sink.attempt(ledger.attempts, metrics))

    def close(self) -> None:
        """Closes every sink."""
        for name, sink in list(self._sinks.items()):
            self._guarded(name, sink.close)

    def _guarded(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # a sink is others' code, and may fail in any way
            log.warning("track: %s failed and gets no more of this run", name, exc_info=True)
            del self._sinks[name]


def metrics_of(card: ExperienceCard, best: ExperienceCard | None, ledger: Ledger) -> dict[str, float]:
    """What sinks are told of an attempt: its own facts, and the run's totals. No test score is among them."""
    metrics = {
        "attempt/number": float(card.attempt),
        "attempt/valid": float(card.valid),
        "attempt/operator": float(list(Operator).index(card.operator)),
        "attempt/sandbox_seconds": card.sandbox_seconds,
        "attempt/model_seconds": card.model_seconds,
        "attempt/prompt_tokens": float(card.usage.prompt_tokens),
        "attempt/completion_tokens": float(card.usage.completion_tokens),
        "run/sandbox_seconds": ledger.sandbox_seconds,
        "run/queue_seconds": ledger.queue_seconds,
        "run/model_seconds": ledger.model_seconds,
        "run/tokens": float(ledger.tokens.prompt_tokens + ledger.tokens.completion_tokens),
    }
    if card.validation is not None:
        metrics["attempt/score"] = card.validation.value
    if best is not None and best.validation is not None:
        metrics["run/best"] = best.validation.value
    if ledger.dollars is not None:
        metrics["run/dollars"] = ledger.dollars
    return metrics


class TensorBoardSink:
    """Event files in the run's folder `tensorboard`."""

    def __init__(self, folder: Path) -> None:
        self._protos = _module("tensorboard", "tensorboard.compat.proto.event_pb2")
        self._summary = _module("tensorboard", "tensorboard.compat.proto.summary_pb2")
        writers = _module("tensorboard", "tensorboard.summary.writer.event_file_writer")
        self._writer = writers.EventFileWriter(str(folder))

    def attempt(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Sink`."""
        values = [self._summary.Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
        event = self._protos.Event(wall_time=time.time(), step=step, summary=self._summary.Summary(value=values))
        self._writer.add_event(event)

    def close(self) -> None:
        """See `Sink`."""
        self._writer.close()


class WandbSink:
    """A run of Weights & Biases under the run's own id; offline unless WANDB_MODE says otherwise."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = _module("wandb").init(
            project="openmle",
            id=run.manifest.run_id,
            name=run.manifest.run_id,
            resume="allow",
            dir=str(run.path),
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=dict(run.manifest.settings),
        )

    def attempt(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Sink`."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """See `Sink`."""
        self._run.finish()


class MlflowSink:
    """A run of MLflow, in the run's folder `mlruns` unless MLFLOW_TRACKING_URI says otherwise."""

    def __init__(self, run: RunDirectory) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (run.path / "mlruns").absolute().as_uri()
        self._client = _module("mlflow").MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name("openmle")
        number = experiment.experiment_id if experiment else self._client.create_experiment("openmle")
        self._id = self._client.create_run(number, run_name=run.manifest.run_id).info.run_id

    def attempt(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Sink`."""
        for name, value in metrics.items():
            self._client.log_metric(self._id, name, value, step=step)

    def close(self) -> None:
        """See `Sink`."""
        self._client.set_terminated(self._id)


def check_tracking(names: Sequence[str]) -> None:
    """Refuses sinks whose packages are missing.

    Raises:
        ConfigError: Names the package.
    """
    for name in names:
        _module(name)


def open_tracking(names: Sequence[str], run: RunDirectory) -> Tracking:
    """Opens the sinks that settings name.

    Raises:
        ConfigError: A sink's package is not installed.
    """
    makers: Mapping[str, Callable[[], Sink]] = {
        "tensorboard": lambda: TensorBoardSink(run.path / "tensorboard"),
        "wandb": lambda: WandbSink(run),
        "mlflow": lambda: MlflowSink(run),
    }
    return Tracking({name: makers[name]() for name in names})


def _module(package: str, name: str | None = None) -> ModuleType:
    try:
        return import_module(name or package)
    except ImportError as error:
        raise ConfigError(f"track: {package} is not installed: pip install openmle-evo[{package}]") from error
