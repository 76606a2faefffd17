"""Metrics of a run: to its metrics.jsonl always; to the console, TensorBoard and Weights & Biases where wanted.

TensorBoard is written where it is installed. Weights & Biases is asked for by settings, reads its own key from the
environment, and is an error when it is asked for and not installed.
"""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openmle_gym.errors import ConfigError

FILE = "metrics.jsonl"
SHOWN = 6
"""Numbers in a line of the console."""


@dataclass
class TrackingConfig:
    """Where metrics go beside the run's metrics.jsonl."""

    console: bool = True
    """A line a step on stderr, where that is a terminal."""
    tensorboard: bool = True
    """Files for TensorBoard in the run's folder, where its package is installed."""
    wandb: str | None = None
    """A project of Weights & Biases; null: none."""
    wandb_mode: str = "online"
    """online or offline."""

    def __post_init__(self) -> None:
        if self.wandb_mode not in ("online", "offline"):
            raise ConfigError(f"tracking.wandb_mode: must be online or offline, got {self.wandb_mode!r}")


class Tracker:
    """Writes records: numbers by name, and whatever else the file alone keeps."""

    def __init__(self, folder: Path, config: TrackingConfig, *, name: str | None = None) -> None:
        """Args:
        folder: The run's.
        name: The run's name; None: the folder's.

        Raises:
            ConfigError: Weights & Biases is wanted and not installed.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE
        torn = _torn(path)
        self._file = path.open("a", encoding="utf-8")
        if torn:  # by a kill; what comes next is a line of its own
            self._file.write("\n")
        self._console = _console() if config.console else None
        self._tensorboard = _tensorboard(folder) if config.tensorboard else None
        self._wandb = _wandb(folder, config, name or folder.name) if config.wandb else None

    def log(self, metrics: Mapping[str, object], *, step: int) -> None:
        """Adds what was measured at a step. A number that is not finite is null in the file and nowhere else."""
        line = {"step": step, "time": round(time.time(), 3)} | {key: _plain(value) for key, value in metrics.items()}
        self._file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
        self._file.flush()
        numbers = {
            key: float(value)
            for key, value in line.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and key not in ("step", "time")
        }
        if self._console is not None:
            shown = "  ".join(f"{key} {value:.4g}" for key, value in list(numbers.items())[:SHOWN])
            self._console.print(f"[bold]step {step}[/bold]  {shown}", highlight=False)
        if self._tensorboard is not None:
            for key, value in numbers.items():
                self._tensorboard.add_scalar(key, value, step)
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def close(self) -> None:
        """Writes out what is held back."""
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


@contextmanager
def open_tracker(folder: Path, config: TrackingConfig | None = None, *, name: str | None = None) -> Iterator[Tracker]:
    """A tracker that is closed at the end."""
    tracker = Tracker(folder, config or TrackingConfig(), name=name)
    try:
        yield tracker
    finally:
        tracker.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """A run's records by step; of a step that a restart did again, the last for each key. A torn last line is left out."""
    steps: dict[int, dict[str, Any]] = {}
    for line in (folder / FILE).read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        steps.setdefault(record["step"], {}).update(record)
    return [steps[step] for step in sorted(steps)]


def _torn(path: Path) -> bool:
    """Whether the last line has no end."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _plain(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _console() -> Any:
    """None where stderr is no terminal, or rich is not installed."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(stderr=True)
    return console if console.is_terminal else None


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"))


def _wandb(folder: Path, config: TrackingConfig, name: str) -> Any:
    try:
        import wandb  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(f"tracking.wandb: {config.wandb}: needs wandb: pip install wandb") from error
    return wandb.init(project=config.wandb, name=name, dir=str(folder), mode=config.wandb_mode, resume="allow")
