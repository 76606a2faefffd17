"""The settings of `openmle-sandbox conformance`."""

import math
from dataclasses import dataclass, field

from openmle_gym.errors import ConfigError


@dataclass
class ConformanceConfig:
    """Which service is checked, and what it is known to be set to."""

    url: str = ""
    """Base URL of the service, such as http://127.0.0.1:6580."""
    data_dir: str = "conformance"
    """The check's own task package, as the service sees it; make_package writes it."""
    make_package: str | None = None
    """Writes the task package into this new folder, and does nothing else. Put it below one of the service's task
    roots."""
    key_variable: str = "OPENMLE_SANDBOX_KEY"
    """Environment variable that holds the API key to submit with; unset for a service without keys."""
    second_key_variable: str = ""
    """Environment variable that holds another user's key of the same scope; empty skips what needs two."""
    grade_key_variable: str = ""
    """Environment variable that holds a key that may ask for test scores; empty skips what needs one."""
    restart_command: str = ""
    """Shell command that ends the service by kill -9 and starts it again at the same URL; empty skips recovery."""
    only: list[str] = field(default_factory=list)
    """Ids or groups of checks to make; empty is all."""
    skip: list[str] = field(default_factory=list)
    """Ids or groups of checks to leave out."""
    parallel: int = 4
    """Checks made at once."""
    grace_seconds: float = 15.0
    """How long after its time limit a program may be reported ended."""
    patience_seconds: float = 120.0
    """How long a job may wait in the queue, or the service not answer, before a check gives up."""
    memory_mib: int = 2048
    """The service's limit on one program's memory, in MiB."""
    processes: int = 256
    """The service's limit on one program's processes and threads."""
    disk_mib: int = 1024
    """The service's limit on what one program may write, in MiB."""
    log_kib: int = 64
    """How much of a program's output the service keeps, in KiB."""
    max_body_mib: float = 8.0
    """The service's limit on a request's body, in MiB."""
    flood_mib: int = 1024
    """How much output the program that floods the log writes, in MiB."""
    metric_timeout_seconds: float = 0.0
    """The service's time limit on a metric; 0 skips the check that waits for it."""
    max_queued: int = 0
    """How many jobs may wait at the service; 0, or more than 2000, skips the check that fills the queue."""

    def __post_init__(self) -> None:
        if bool(self.url) == bool(self.make_package):
            raise ConfigError("url: give the service's base URL as url=http://..., or make_package=FOLDER")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"url={self.url}: must begin with http:// or https://")
        for name in ("parallel", "memory_mib", "processes", "disk_mib", "log_kib", "flood_mib"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("grace_seconds", "patience_seconds", "max_body_mib"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name}={value}: must be more than 0")
