"""From settings to where programs run."""

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

from openmle_gym.client import JobClient
from openmle_gym.configuration import secret_from_environment
from openmle_gym.execute import LocalExecutor
from openmle_gym.isolation.choose import strongest_runner
from openmle_gym.jobs import MIB, Executor, Limits
from openmle_gym.task import TaskPackage

from openmle_erl.sft.config import CollectConfig

SUBMIT_KEY_VARIABLE = "OPENMLE_SANDBOX_KEY"

log = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where programs run."""

    executor: Executor
    isolation: str


@contextlib.asynccontextmanager
async def open_place(config: CollectConfig, packages: Sequence[TaskPackage]) -> AsyncIterator[Place]:
    """The service, or this machine.

    Raises:
        InfrastructureError: The service cannot be reached, or no isolation can be had.
    """
    if config.service is not None:
        async with JobClient(config.service, api_key=secret_from_environment(SUBMIT_KEY_VARIABLE)) as client:
            yield Place(client, await client.isolation())
        return
    runner = await strongest_runner(config.runner, docker_image=config.docker_image, allow_process=config.allow_process)
    log.info("programs run on this machine, isolation: %s", runner.isolation)
    root = Path(os.path.commonpath([str(package.root.parent) for package in packages]))
    executor = LocalExecutor(task_root=root, runner=runner, limits=limits_of(config), parallel=config.workers)
    yield Place(executor, runner.isolation)


def limits_of(config: CollectConfig) -> Limits:
    """What one program gets, and is told that it gets."""
    return Limits(wall_seconds=config.timeout_seconds, memory_bytes=config.memory_mib * MIB)
