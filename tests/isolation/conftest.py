"""The runners, each skipped with its reason where the machine cannot have it."""

import asyncio
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from openmle_gym.errors import RunnerUnavailable
from openmle_gym.isolation.bubblewrap import BubblewrapRunner
from openmle_gym.isolation.disk import unmount_below
from openmle_gym.isolation.docker import DockerRunner
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.isolation.runner import Runner
from openmle_gym.isolation.zygote import ZygoteRunner

IMAGE = "openmle/sandbox:cpu"


def _runner(name: str) -> Runner:
    if name == "docker":
        return DockerRunner(image=IMAGE)
    if name == "zygote":
        return _zygote()
    if name == "bubblewrap":
        return BubblewrapRunner()
    return ProcessRunner(allow_no_isolation=True)


@functools.cache
def _zygote() -> ZygoteRunner:
    """One for all tests, as its parents take a second to start; each of which must find them as the last one left them."""
    return ZygoteRunner(parents=1)


@functools.cache
def _why_not(name: str) -> str | None:
    try:
        asyncio.run(_runner(name).check())
    except RunnerUnavailable as error:
        return str(error)
    return None


def _available(name: str) -> Runner:
    if reason := _why_not(name):
        pytest.skip(reason)
    return _runner(name)


@pytest.fixture(params=[pytest.param("docker", marks=pytest.mark.docker), "zygote", "bubblewrap", "process"])
def runner(request: pytest.FixtureRequest) -> Runner:
    """Each of them."""
    return _available(request.param)


@pytest.fixture(params=[pytest.param("docker", marks=pytest.mark.docker), "zygote", "bubblewrap"])
def isolating_runner(request: pytest.FixtureRequest) -> Runner:
    """Each that isolates."""
    return _available(request.param)


@pytest.fixture(params=["zygote", "bubblewrap"])
def namespaced_runner(request: pytest.FixtureRequest) -> Runner:
    """Each that needs no engine and isolates."""
    return _available(request.param)


@pytest.fixture
def zygote() -> Runner:
    """The runner that forks."""
    return _available("zygote")


@pytest.fixture
def docker_image() -> str:
    """The sandbox image, on an engine that runs."""
    if reason := _why_not("docker"):
        pytest.skip(reason)
    return IMAGE


@pytest.fixture
def temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where runners make their workspaces during a test: a folder with nothing else in it, which any user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)
        unmount_below(Path(folder))  # a service that was killed leaves what it mounted
