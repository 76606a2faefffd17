"""What one machine offers, by the settings: its isolation and its GPUs."""

from openmle_gym.errors import ConfigError
from openmle_gym.isolation.choose import strongest_runner
from openmle_gym.isolation.runner import Isolation, Runner
from openmle_gym.jobs import MIB

from sandbox_service.config import ServeConfig
from sandbox_service.gpu import Gpus, open_nvml


async def open_runner(config: ServeConfig) -> Runner:
    """The isolation to use here, proven.

    Raises:
        RunnerUnavailable: No isolation that the settings allow works here.
    """
    return await strongest_runner(
        Isolation.DOCKER if config.docker_runtime else config.runner,
        docker_image=config.docker_image,
        docker_runtime=config.docker_runtime,
        docker_starts=config.docker_starts,
        allow_process=config.allow_process,
    )


def open_gpus(config: ServeConfig, runner: Runner) -> Gpus | None:
    """The GPUs to hand out here; None where the settings name none.

    Raises:
        ConfigError: The isolation cannot hand a GPU to a program.
        RunnerUnavailable: No driver answers.
    """
    if config.gpus == "none":
        return None
    if runner.isolation is not Isolation.DOCKER:
        raise ConfigError(f"gpus={config.gpus}: only runner docker can hand a GPU to a program, not {runner.isolation}")
    uuids = None if config.gpus == "all" else tuple(uuid.strip() for uuid in config.gpus.split(","))
    return Gpus(open_nvml(), vram_bytes=config.vram_mib * MIB, uuids=uuids)
