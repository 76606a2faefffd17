"""What holds for the whole suite."""

import functools
import os
from pathlib import Path

import pytest
from hypothesis import settings

# Property tests draw the same examples each time, and no example fails for being slow.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")

# More threads than free cores make torch slower, several times over.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ONE_AT_A_TIME = ("isolation", "sandbox")
"""Folders whose tests look at the whole machine: its processes, mounts and containers."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For `-n`: a file's tests share a process, and those that look at the whole machine share one too."""
    here = Path(__file__).parent
    for item in items:
        file = item.path.relative_to(here)
        item.add_marker(pytest.mark.xdist_group("machine" if file.parts[0] in ONE_AT_A_TIME else str(file)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that are marked `docker` are skipped where there is no engine with our image."""
    if item.get_closest_marker("docker") and (reason := no_engine()):
        pytest.skip(reason)


@functools.cache
def no_engine() -> str | None:
    """Why tests cannot use Docker; None where they can."""
    try:
        import docker
        from docker.errors import DockerException
        from requests.exceptions import RequestException
    except ImportError:
        return "the package docker is not installed"
    try:
        client = docker.from_env()
        client.images.get("openmle/sandbox:cpu")
        client.close()
    except (DockerException, RequestException) as error:
        return f"docker: {error}"
    return None
