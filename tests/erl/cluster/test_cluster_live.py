"""A real Ray cluster on this machine: two trainer processes, two rollout servers, whole steps, a server that is killed."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from openmle_erl.cluster.commands import prepare
from openmle_erl.cluster.ranks import TrainerGroup
from openmle_erl.cluster.rollouts import RolloutGroup
from openmle_erl.cluster.running import ray_cluster, reserved, rollout_keys, start_trainer
from openmle_erl.engines.protocols import (
    GenerateRequest,
    Generation,
    PauseMode,
    RolloutEngine,
    Sampling,
    TrainingSample,
)
from openmle_erl.engines.router import synchronise_weights
from openmle_erl.engines.tiny import save_tiny
from openmle_gym.errors import InfrastructureError

pytestmark = pytest.mark.slow

TEXTS = ["import numpy as np\nprint(np.mean([1, 2, 3]))\n", "for row in range(10):\n    print(row)\n"] * 4
STRANGER = """
import ray
try:
    ray.init(address={address!r}, log_to_driver=False)
except Exception as error:
    print("refused", type(error).__name__)
else:
    print("let in")
"""


def group_of(prompt: int, *, new_tokens: int, members: int = 4) -> list[GenerateRequest]:
    ids = tuple(range(5 + prompt, 15 + prompt))
    return [
        GenerateRequest(
            request_id=f"{prompt}-{member}-{new_tokens}",
            prompt_ids=ids,
            sampling=Sampling(max_new_tokens=new_tokens),
            seed=100 * prompt + member,
        )
        for member in range(members)
    ]


async def until_done(engine: RolloutEngine, request: GenerateRequest, lost: list[str]) -> Generation:
    """Asks again when an engine was lost, as the learning loop's queue does."""
    while True:
        try:
            return await engine.generate(request)
        except InfrastructureError:
            lost.append(request.request_id)


def samples_of(requests: Sequence[GenerateRequest], generations: Sequence[Generation]) -> list[TrainingSample]:
    return [
        TrainingSample(
            sample_id=request.request_id,
            prompt_ids=request.prompt_ids,
            reply_ids=generation.token_ids,
            loss_mask_T=np.ones(len(generation.token_ids), dtype=bool),
            rollout_logprobs_T=generation.logprobs_T,
            advantage=1.0 if number % 2 else -1.0,
        )
        for number, (request, generation) in enumerate(zip(requests, generations, strict=True))
    ]


def test_whole_steps_with_new_weights_and_a_server_that_is_killed_on_the_way(tmp_path: Path):
    """In a process of its own: Ray reads the token's mode when it is imported, which other tests may have done."""
    ray = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {**os.environ, **ray, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__, str(tmp_path)], env=environment, timeout=300, check=False)
    assert done.returncode == 0


async def whole_steps(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "model", TEXTS, vocab_size=300, context=4096)
    config, training, checked, placement = prepare(
        [f"model={model}", "topology=laptop", "nodes.cpus=4"],
        [
            "tasks=[]",
            f"run_dir={tmp_path}/run",
            "context_tokens=4096",
            "sampling.max_new_tokens=1500",
            "prompt.length=1000",
            "trainer.engine.device=cpu",
            "trainer.optimiser.learning_rate=1.0e-2",
        ],
    )
    api_key, admin_key = rollout_keys()
    async with ray_cluster(config), reserved(placement) as group:
        import ray

        stranger = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            STRANGER.format(address=ray.get_runtime_context().gcs_address),
            env={**os.environ, "RAY_AUTH_TOKEN": "0" * 64},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        rollouts = RolloutGroup(
            config.rollout,
            processes=placement.of("rollout"),
            group=group,
            api_key=api_key,
            admin_key=admin_key,
            logs=tmp_path / "engines",
            local_only=True,
        )
        async with rollouts:
            trainer = await start_trainer(config, training, checked, placement, group)
            assert isinstance(trainer, TrainerGroup)
            said, _ = await stranger.communicate()
            assert said.startswith(b"refused")
            router = rollouts.router
            assert router.live() == ["rollout-0", "rollout-1"]
            lost: list[str] = []
            for step in (1, 2):
                requests = [*group_of(0, new_tokens=24), *group_of(20, new_tokens=24)]
                generations = await asyncio.gather(*(until_done(router, each, lost) for each in requests))
                samples = samples_of(requests, generations)
                assert {span.version for each in generations for span in each.spans} == {step - 1}
                old = await trainer.logprobs(samples)
                for ours, generation in zip(old, generations, strict=True):
                    np.testing.assert_allclose(ours, generation.logprobs_T, atol=2e-4)
                report = await trainer.step(samples, old)
                assert report.metrics["grad_norm"] > 0.0
                folder = tmp_path / f"weights-{step}"
                await trainer.save_weights(folder)
                synchronised = await synchronise_weights([router], folder, step, PauseMode.ABORT)
                assert synchronised.failed == {}
                print(f"weights of step {step} in force after {synchronised.seconds:.2f} s")
            assert lost == []

            requests = [*group_of(0, new_tokens=1500), *group_of(20, new_tokens=1500)]
            work = [asyncio.create_task(until_done(router, each, lost)) for each in requests]
            victim = await rollouts.server_pid("rollout-1")
            async with asyncio.timeout(30):
                while not any(member.open_requests for member in router._members.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            os.kill(victim, signal.SIGKILL)
            again = await asyncio.gather(*work)
            assert {each.request_id for each in again} == {each.request_id for each in requests}
            assert {span.version for each in again for span in each.spans} == {2}
            assert len({name.split("-")[0] for name in lost}) == 1  # the group that was on the engine that was killed
            async with asyncio.timeout(60):
                while rollouts.replaced != ["rollout-1"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert router.live() == ["rollout-0", "rollout-1"]
            assert await rollouts.server_pid("rollout-1") != victim
            assert await rollouts._engines["rollout-1"].version() == 2  # it was given the current weights
            fresh = [replace(each, request_id=f"new-{each.request_id}") for each in group_of(0, new_tokens=8)]
            await asyncio.gather(*(router.generate(each) for each in fresh))
            await trainer.close()
    printed = "".join(path.read_text(errors="replace") for path in (tmp_path / "engines").glob("*.log"))
    for secret in (api_key.get_secret_value(), admin_key.get_secret_value(), os.environ["RAY_AUTH_TOKEN"]):
        assert secret not in printed


if __name__ == "__main__":
    asyncio.run(whole_steps(Path(sys.argv[1])))
