"""The settings of a NatureBench suite."""

from dataclasses import dataclass
from pathlib import Path

from openmle_gym.errors import ConfigError


@dataclass
class NatureConfig:
    """With benchmark=naturebench: who scores outputs."""

    service: str = ""
    """The address of NatureBench's evaluation service, such as http://127.0.0.1:8321."""
    packages: str | None = None
    """The folder of the tasks as the service sees it; by default the same path."""
    outputs: str | None = None
    """The suite's folder as the service sees it; by default the same path."""
    clip: float = 1.0
    """Selection goes by the improvement within plus and minus this; 0 clips nothing. What is reported is never clipped."""
    evaluation_seconds: float = 3600.0
    """How long one evaluation may take."""

    def __post_init__(self) -> None:
        if self.clip < 0:
            raise ConfigError(f"nature.clip: must be at least 0, got {self.clip}")
        if self.evaluation_seconds <= 0:
            raise ConfigError(f"nature.evaluation_seconds: must be more than 0, got {self.evaluation_seconds}")

    @staticmethod
    def seen(there: str | None, path: Path, root: Path) -> str:
        """A path of ours as the service sees it.

        Args:
            there: Where the service has `root`; None for the same path.
        """
        return str(path.resolve()) if there is None else str(Path(there) / path.resolve().relative_to(root.resolve()))
