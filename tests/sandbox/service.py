"""A service as a process of its own, for tests that drive it from outside.

Programs are held by nothing here (runner=process), so that tests can hold them up by a file.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from pydantic import SecretStr
from sandbox.make import make_task

HELD = """\
import os, time
print("begun", flush=True)
while not os.path.exists({gate!r}):
    time.sleep(0.01)
print("let go", flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service that answers."""

    process: subprocess.Popen[bytes]
    url: str
    folder: Path

    def held(self, name: str = "gate", *, first: str = "", last: str = "") -> str:
        """A program that goes on when `open_gate` has been called."""
        return first + HELD.format(gate=str(self.folder / name)) + last

    def open_gate(self, name: str = "gate") -> None:
        (self.folder / name).touch()

    def client(self, key: str | None = None) -> httpx.Client:
        headers = {"X-API-Key": key} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=70)

    def log(self) -> str:
        return (self.folder / "log").read_text()


@contextmanager
def running_service(folder: Path, *overrides: str, keys: SecretStr | None = None) -> Iterator[Service]:
    """A service on `folder`; stopped in the end, whatever happens."""
    if not (folder / "tasks").exists():
        make_task(folder / "tasks" / "tiny")
    ready_file = folder / "ready"
    ready_file.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENMLE_SANDBOX_KEYS")}
    if keys:
        environment["OPENMLE_SANDBOX_KEYS"] = keys.get_secret_value()
    settings = ["port=0", "runner=process", "allow_process=true", "workers=2", f"ready_file={ready_file}"]
    settings += [f"state_dir={folder}/state", f"task_roots=[{folder}/tasks]", *overrides]
    command = [sys.executable, "-m", "sandbox_service", "serve", *settings]
    with (folder / "log").open("ab") as stderr:
        process = subprocess.Popen(command, stderr=stderr, env=environment)
    try:
        until(lambda: ready_file.exists() or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text()
        yield Service(process=process, url=ready_file.read_text(), folder=folder)
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(reached: Callable[[], bool], seconds: float = 60) -> None:
    """Looks until a condition outside this process holds."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)
