"""From settings to where programs run."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from openmle_gym.jobs import MIB, Limits
from openmle_gym.place import SUBMIT_KEY_VARIABLE, Place
from openmle_gym.place import open_place as open_any_place
from openmle_gym.task import TaskPackage

from openmle_erl.sft.config import CollectConfig

__all__ = ["SUBMIT_KEY_VARIABLE", "limits_of", "open_place"]


def open_place(config: CollectConfig, packages: Sequence[TaskPackage]) -> AbstractAsyncContextManager[Place]:
    """The service, or this machine; raises InfrastructureError when neither can run programs."""
    return open_any_place(
        packages,
        service=config.service,
        runner=config.runner,
        docker_image=config.docker_image,
        allow_process=config.allow_process,
        limits=limits_of(config),
        parallel=config.workers,
    )


def limits_of(config: CollectConfig) -> Limits:
    """What one program gets, and is told that it gets."""
    return Limits(wall_seconds=config.timeout_seconds, memory_bytes=config.memory_mib * MIB)
