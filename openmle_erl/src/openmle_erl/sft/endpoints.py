"""From settings to what does the work: who answers prompts, and where programs run."""

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

from openmle_gym.chat import ChatModel, OpenAIChat
from openmle_gym.client import JobClient
from openmle_gym.configuration import secret_from_environment
from openmle_gym.errors import ConfigError
from openmle_gym.execute import LocalExecutor
from openmle_gym.isolation.choose import strongest_runner
from openmle_gym.jobs import MIB, Executor, Limits
from openmle_gym.policies.recipes import RecipePolicy
from openmle_gym.task import TaskPackage

from openmle_erl.sft.config import CollectConfig, PolicyConfig

SUBMIT_KEY_VARIABLE = "OPENMLE_SANDBOX_KEY"

log = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where programs run."""

    executor: Executor
    isolation: str


@contextlib.asynccontextmanager
async def open_policy(config: PolicyConfig) -> AsyncIterator[ChatModel]:
    """The policy that the settings name.

    Raises:
        ConfigError: No endpoint is named.
    """
    if config.kind == "recipes":
        yield RecipePolicy()
        return
    base_url = config.base_url or os.environ.get("OPENAI_BASE_URL", "")
    model = config.model or os.environ.get("OPENMLE_MODEL", "")
    if not base_url or not model:
        raise ConfigError("policy: set policy.base_url and policy.model, or OPENAI_BASE_URL and OPENMLE_MODEL")
    async with OpenAIChat(
        base_url,
        model=model,
        api_key=secret_from_environment(config.api_key_variable),
        temperature=config.temperature,
        top_p=config.top_p,
        max_tokens=config.max_tokens,
        timeout_seconds=config.timeout_seconds,
    ) as endpoint:
        yield endpoint


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
