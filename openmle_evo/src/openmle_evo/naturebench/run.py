"""One run on a NatureBench task: the search of `openmle_evo.search`, with the evaluation service as its judge."""

import dataclasses
from pathlib import Path

from openmle_gym.bridges.naturebench import read_task
from openmle_gym.errors import ConfigError
from openmle_gym.evaluate import JobSettings
from openmle_gym.installed import installed_packages
from openmle_gym.isolation.choose import strongest_runner

from openmle_evo.config import SearchConfig
from openmle_evo.launch import Ended, limits_of, new_manifest, search_to_end
from openmle_evo.naturebench.executor import NatureExecutor
from openmle_evo.naturebench.service import EvaluationService
from openmle_evo.naturebench.settings import NatureConfig
from openmle_evo.naturebench.words import public_nature_task
from openmle_evo.run import RunDirectory, settings_of

EVALUATIONS = "evaluations"
"""In a run's folder: verdicts, and the outputs that they are about."""
LONGEST_SECONDS = 7 * 24 * 3600.0


def check_settings(config: SearchConfig, nature: NatureConfig) -> None:
    """Refuses what cannot work before anything is started.

    Raises:
        ConfigError: Names the setting.
    """
    if config.policy.kind == "recipes" or "recipes" in config.mixture.profiles.values():
        raise ConfigError("policy: the built-in recipes write programs for tables; NatureBench needs a model")
    if config.service is not None:
        raise ConfigError("service: programs of NatureBench run on this machine; the sandbox service knows other tasks")
    if config.skills is not None:
        raise ConfigError("skills: their overlap guard reads task packages, which those of NatureBench are not")
    if not nature.service:
        raise ConfigError("nature.service: give the address of NatureBench's evaluation service")


async def run_nature_task(
    root: Path, folder: Path, config: SearchConfig, nature: NatureConfig, *, suite: Path
) -> Ended:
    """Searches on one task, or goes on with it.

    Args:
        folder: The run's; inside `suite`.

    Raises:
        PackageError: The task is incomplete.
        InfrastructureError: The policy, the runner or the evaluation service is out of reach. The run can be resumed.
    """
    task = read_task(root)
    public = public_nature_task(task, config.prompt)
    runner = await strongest_runner(config.runner, docker_image=config.docker_image, allow_process=False)
    config = dataclasses.replace(config, task=str(root), run_dir=str(folder), protocol="evaluator")
    job = JobSettings(data_dir=str(task.root), timeout_seconds=config.timeout_seconds)
    async with EvaluationService(nature.service, evaluation_seconds=nature.evaluation_seconds) as service:
        await service.check()
        executor = NatureExecutor(
            task,
            runner=runner,
            service=service,
            settings=nature,
            folder=folder / EVALUATIONS,
            suite=suite,
            limits=limits_of(config),
            clock_seconds=config.budget.wall_seconds or LONGEST_SECONDS,
            parallel=config.workers,
        )
        if (folder / "manifest.json").exists():
            run = RunDirectory.resume(folder)
            config = settings_of(run.manifest, run.path)
        else:
            packages = await installed_packages(executor, job)
            manifest = new_manifest(config, public.manifest, task.root, isolation=runner.isolation, packages=packages)
            run = RunDirectory.create(folder, manifest)
        with run.closing():
            return await search_to_end(run, config, public, executor, job)
