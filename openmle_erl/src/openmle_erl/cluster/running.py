"""Starts what a placement says, and runs the learning loop over it."""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import ray
from openmle_gym.configuration import secret_from_environment
from openmle_gym.errors import ConfigError, InfrastructureError
from pydantic import SecretStr
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from openmle_erl.cluster.colocated import TakingTurns
from openmle_erl.cluster.config import LaunchConfig
from openmle_erl.cluster.placement import TOKEN, Placement, shown
from openmle_erl.cluster.ranks import RayRanks, TrainerGroup
from openmle_erl.cluster.rollouts import RolloutGroup
from openmle_erl.cluster.validation import Checked
from openmle_erl.engines.protocols import Trainer
from openmle_erl.engines.serve import ADMIN_KEY, API_KEY
from openmle_erl.rl.config import RLConfig
from openmle_erl.rl.opening import open_training
from openmle_erl.tracking import open_tracker

RESERVE_SECONDS = 120.0
"""How long the nodes may take to be there and free."""

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def ray_cluster(config: LaunchConfig) -> AsyncIterator[None]:
    """Joins the cluster, or starts one on this machine; all its members have the token.

    Raises:
        ConfigError: The cluster's token is not in the environment.
        InfrastructureError: It cannot be reached.
    """
    address = config.ray.address
    if address is not None and not os.environ.get(TOKEN):
        raise ConfigError(f"ray.address={address}: set {TOKEN}, the token that its head was started with")
    if address is None and config.nodes.count > 1:
        raise ConfigError("ray.address: missing; several nodes need a cluster that runs (see a dry run's Ray commands)")
    if not os.environ.get(TOKEN) or os.environ.get("RAY_AUTH_MODE") != "token":
        raise ConfigError(f"RAY_AUTH_MODE=token and {TOKEN} must be set before Ray is imported (ray_environment)")
    here = {"num_cpus": config.nodes.cpus, "num_gpus": config.nodes.gpus, "include_dashboard": False}
    try:
        await asyncio.to_thread(
            ray.init,
            address=address or "local",
            log_to_driver=False,
            logging_level=logging.WARNING,
            **({} if address else here),
        )
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise InfrastructureError(f"ray.address={address}: {shown(str(error), os.environ)}") from error
    try:
        yield
    finally:
        await asyncio.to_thread(ray.shutdown)


@contextlib.asynccontextmanager
async def reserved(placement: Placement) -> AsyncIterator[PlacementGroup]:
    """A bundle on each node, held while the context lasts.

    Raises:
        InfrastructureError: The nodes are not there, or not free.
    """
    spread = "STRICT_SPREAD" if len(placement.bundles) > 1 else "PACK"
    group = placement_group([dict(bundle) for bundle in placement.bundles], strategy=spread)
    try:
        if not await asyncio.to_thread(group.wait, RESERVE_SECONDS):
            raise InfrastructureError(f"the cluster has not got {placement.bundles} free within {RESERVE_SECONDS:g} s")
        yield group
    finally:
        await asyncio.to_thread(remove_placement_group, group)


def rollout_keys() -> tuple[SecretStr, SecretStr]:
    """The key for requests and the one for steering: from the environment, or drawn for this run."""
    drawn = (SecretStr(secrets.token_urlsafe(32)) for _ in range(2))
    api_key, admin_key = (secret_from_environment(name) or next(drawn) for name in (API_KEY, ADMIN_KEY))
    return api_key, admin_key


async def start_trainer(
    config: LaunchConfig, training: RLConfig, checked: Checked, placement: Placement, group: PlacementGroup
) -> Trainer:
    """The trainer's ranks, with the model loaded.

    Raises:
        InfrastructureError: One died.
    """
    processes = placement.of("trainer")
    if config.trainer.engine == "torch":
        from openmle_erl.engines.torch_trainer import TorchTrainerWorker

        return TrainerGroup(
            await RayRanks.start(TorchTrainerWorker, (training.trainer,), processes=processes, group=group)
        )
    from openmle_erl.engines.megatron.config import MegatronConfig
    from openmle_erl.engines.megatron.trainer import MegatronTrainer
    from openmle_erl.engines.megatron.worker import MegatronWorker

    torch = training.trainer
    megatron = MegatronConfig(
        model=config.model,
        parallel=checked.parallel,
        optimiser=torch.optimiser,
        objective=torch.objective,
        reference=torch.reference,
        device="cuda" if config.nodes.gpus else "cpu",
        precision="bfloat16" if config.nodes.gpus else "float32",
        sequence_parallel=checked.parallel.tensor > 1,
        max_tokens_per_micro_batch=torch.engine.max_tokens_per_micro_batch,
        recompute=torch.engine.gradient_checkpointing,
        dispatcher=config.trainer.dispatcher if config.nodes.gpus else "allgather",
        replay_routing=torch.replay_routing,
        optimiser_offload=config.trainer.optimiser_offload,
        temperature=torch.engine.temperature,
    )
    return MegatronTrainer(await RayRanks.start(MegatronWorker, (megatron,), processes=processes, group=group))


async def run(config: LaunchConfig, training: RLConfig, checked: Checked, placement: Placement) -> int:
    """Trains to the end; after a trainer's process died, from the last checkpoint. Returns the steps done.

    Raises:
        InfrastructureError: It died too often.
    """
    api_key, admin_key = rollout_keys()
    folder = Path(training.run_dir)
    async with ray_cluster(config), reserved(placement) as group:
        rollouts = RolloutGroup(
            config.rollout,
            processes=placement.of("rollout"),
            group=group,
            api_key=api_key,
            admin_key=admin_key,
            logs=folder / "engines",
            local_only=config.ray.address is None,
        )
        async with rollouts:
            for left in reversed(range(config.trainer.restarts + 1)):
                trainer = await start_trainer(config, training, checked, placement, group)
                if config.colocated and config.nodes.gpus:
                    trainer = TakingTurns(trainer, rollouts)
                try:
                    with open_tracker(folder, training.tracking) as tracker:
                        async with open_training(
                            training,
                            trainer=trainer,
                            engine=rollouts.router,
                            sink=tracker,
                        ) as loop:
                            loop.publish_first = left < config.trainer.restarts
                            return await loop.run()
                except InfrastructureError as error:
                    if not left:
                        raise
                    logger.warning("goes on from the last checkpoint, %d restarts left: %s", left, error)
                finally:
                    with contextlib.suppress(InfrastructureError):
                        await trainer.close()
    raise AssertionError("unreachable")
