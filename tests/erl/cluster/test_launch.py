"""What a launch would start, and what it refuses, without starting anything."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from openmle_erl.cli import main
from openmle_erl.cluster.commands import Prepared, prepare
from openmle_erl.cluster.validation import GIB
from openmle_gym.errors import ConfigError

MODEL = ["model=/models/qwen", "shape=qwen3_30b_a3b", "dry_run=true"]
PUBLISHED = ["async_1node", "async_2node", "sync_1node", "sync_2node"]


@functools.cache
def prepared(topology: str, *changes: str, training: Sequence[str] = ()) -> Prepared:
    return prepare([f"topology={topology}", *MODEL, *changes], training)


def places(found: Prepared, role: str) -> list[tuple[int, tuple[int, ...]]]:
    return [(process.node, process.gpus) for process in found.placement.of(role)]


def test_asynchronous_on_one_node_has_four_gpus_each():
    found = prepared("async_1node")
    assert places(found, "trainer") == [(0, (gpu,)) for gpu in range(4)]
    assert places(found, "rollout") == [(0, (gpu,)) for gpu in range(4, 8)]
    assert found.placement.bundles == ({"CPU": 64.0, "GPU": 8.0},)
    assert (found.checked.parallel.data, found.checked.global_batch) == (2, 16 * 16 // 2)


def test_synchronous_on_one_node_shares_all_gpus():
    found = prepared("sync_1node")
    assert places(found, "trainer") == [(0, (gpu,)) for gpu in range(8)]
    assert places(found, "rollout") == [(0, (0, 1, 2, 3)), (0, (4, 5, 6, 7))]
    assert all("--enable-memory-saver" in process.command for process in found.placement.of("rollout"))


def test_engines_record_their_routing_where_the_trainer_replays_it():
    replaying = prepared("async_1node", training=("trainer.replay_routing=true",))
    assert all("--enable-return-routed-experts" in process.command for process in replaying.placement.of("rollout"))
    plain = prepared("async_1node")
    assert not any("--enable-return-routed-experts" in process.command for process in plain.placement.of("rollout"))


def test_asynchronous_on_two_nodes_has_a_node_each():
    found = prepared("async_2node")
    assert places(found, "trainer") == [(0, (gpu,)) for gpu in range(8)]
    assert places(found, "rollout") == [(1, (0, 1, 2, 3)), (1, (4, 5, 6, 7))]
    assert len(found.placement.bundles) == 2


def test_synchronous_on_two_nodes_shares_all_sixteen():
    found = prepared("sync_2node")
    assert [node for node, _ in places(found, "trainer")] == [0] * 8 + [1] * 8
    assert [node for node, _ in places(found, "rollout")] == [0, 0, 1, 1]
    assert found.checked.parallel.data == 4


@pytest.mark.parametrize("topology", PUBLISHED)
def test_every_engine_of_a_node_has_a_port_of_its_own_and_both_keys(topology):
    seen = set()
    for process in prepared(topology).placement.of("rollout"):
        command = process.command
        assert command[command.index("--admin-api-key") + 1] == "$OPENMLE_ROLLOUT_ADMIN_KEY"
        assert command[command.index("--api-key") + 1] == "$OPENMLE_ROLLOUT_KEY"
        assert int(command[command.index("--tp-size") + 1]) == len(process.gpus)
        assert command[command.index("--context-length") + 1] == "32768"
        seen.add((process.node, command[command.index("--port") + 1]))
    assert len(seen) == len(prepared(topology).placement.of("rollout"))


@pytest.mark.parametrize("topology", [*PUBLISHED, "laptop"])
def test_ray_asks_for_a_token_always(topology):
    environment = prepared(topology).placement.ray_environment
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_AUTH_TOKEN"] == "$RAY_AUTH_TOKEN"


def test_the_cache_of_an_engine_is_what_the_fraction_leaves():
    found = prepared("async_1node").checked.rollout
    assert found
    # 2 bytes x 30.5e9 parameters on one GPU; keys and values of 48 layers, 4 heads of 128, 2 bytes
    assert found.token_bytes == 2 * 2 * 48 * 4 * 128
    assert found.weights_bytes == pytest.approx(61.06e9, rel=0.005)
    assert found.cache_bytes == int(0.7 * 141 * GIB) - found.weights_bytes
    assert found.sequences == found.cache_bytes // (found.token_bytes * 32768)


def refused(topology: str, *changes: str, training: Sequence[str] = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        prepared(topology, *changes, training=tuple(training))
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "training", "complaint"),
    [
        (
            ["trainer.parallel.tensor=4", "trainer.processes=6"],
            [],
            "6 do not divide by tensor x pipeline x context = 4",
        ),
        (["trainer.parallel.pipeline=5", "trainer.processes=10"], [], "48 layers do not divide by 5"),
        (
            ["trainer.parallel.expert=3", "trainer.parallel.data=3", "trainer.processes=6"],
            [],
            "128 experts do not divide",
        ),
        (
            [],
            ["schedule.groups_per_step=3", "schedule.optimiser_steps=16"],
            "3 samples of an optimiser step do not divide",
        ),
        (["rollout.engines=5"], [], "trainer and engines need 9 GPUs; there are 1 x 8"),
        (["rollout.gpus_per_engine=3"], [], "rollout.gpus_per_engine: 3 does not divide a node's 8 GPUs"),
        (["nodes.gpu_memory_gib=80"], [], "GiB of a GPU; 72.0 GiB can be used"),
        (["rollout.memory_fraction=0.4"], [], "not one sequence of 32768 tokens"),
        ([], ["context_tokens=300000"], "300000 is beyond the 262144 positions of the model"),
        (["colocated=true"], [], "cannot generate while it trains"),
        (["trainer.engine=torch"], [], "the torch engine shards by FSDP"),
        ([], ["trainer_processes=2"], "placed by the launch"),
        (
            ["trainer.parallel.expert=8"],
            [],
            "trainer.parallel.expert: pipeline x expert x expert_tensor = 1 x 8 x 1 must",
        ),
        ([], ["trainer.engine.lora.rank=8"], "lora.rank=8, trainer.engine.async_save=False: megatron trains all"),
        ([], ["sampling.temperature=0.7"], "trainer.engine.temperature: must be that of sampling.temperature=0.7"),
        ([], ["trainer.engine.lora.dropout=0.1"], "trainer.engine.lora.dropout: must be 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused_by_name(changes, training, complaint):
    assert complaint in refused("async_1node", *changes, training=training)


def test_experts_are_split_over_the_ranks_that_the_processes_make():
    found = prepared("async_1node", "trainer.parallel.expert=4").checked.parallel
    assert (found.tensor, found.expert, found.data, found.expert_data) == (2, 4, 2, 1)


def test_everything_that_is_wrong_is_said_at_once():
    said = refused("async_1node", "trainer.parallel.pipeline=5", "trainer.processes=10", "rollout.memory_fraction=0.4")
    assert "48 layers" in said
    assert "not one sequence" in said


def test_a_model_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"/models/qwen/config\.json"):
        prepare(["topology=async_1node", "model=/models/qwen", "dry_run=true"], [])


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "AttributeError"),
        ('{"model_type": "qwen3"}', "KeyError: 'max_position_embeddings'"),
        ('{"model_type": "llama", "max_position_embeddings": 8}', "no memory estimate for 'llama'"),
    ],
)
def test_a_folder_that_holds_no_such_model_is_named(tmp_path, written, complaint):
    (tmp_path / "config.json").write_text(written)
    with pytest.raises(ConfigError) as caught:
        prepare(["topology=async_1node", f"model={tmp_path}", "dry_run=true"], [])
    assert str(caught.value).startswith(f"model: {tmp_path}/config.json: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize("topology", [*PUBLISHED, "laptop"])
def test_a_dry_run_needs_a_topology_alone(topology, capsys):
    assert main(["launch", f"topology={topology}", "dry_run=true"]) == 0
    assert "$MODEL" in capsys.readouterr().err


def test_a_run_without_a_model_is_refused(capsys):
    assert main(["launch", "topology=laptop", "--", "tasks=[]", "run_dir=/nowhere"]) == 2
    assert "model: missing" in capsys.readouterr().err


def test_a_dry_run_prints_everything_but_secrets(capsys, monkeypatch):
    for name in ("RAY_AUTH_TOKEN", "OPENMLE_ROLLOUT_KEY", "OPENMLE_ROLLOUT_ADMIN_KEY"):
        monkeypatch.setenv(name, f"hush-{name}")
    extra = "rollout.extra=[--api-key,hush-OPENMLE_ROLLOUT_KEY]"
    assert main(["launch", "topology=async_2node", *MODEL, extra]) == 0
    printed = capsys.readouterr()
    assert "hush" not in printed.out + printed.err
    assert "ray start --head --block --port=16380" in printed.err
    assert "sglang.launch_server --model-path /models/qwen --host $NODE_ADDRESS --port 30000" in printed.err
    said = json.loads(printed.out)
    assert [process["name"] for process in said["processes"]][:2] == ["trainer-0", "trainer-1"]
    assert said["rollout_gib_per_gpu"]["full_sequences_per_engine"] > 0


def test_a_run_without_its_model_is_refused_before_anything_starts(capsys):
    changes = ["topology=async_1node", "model=/models/qwen", "shape=qwen3_30b_a3b"]
    assert main(["launch", *changes, "--", "tasks=[]", "run_dir=/nowhere"]) == 2
    assert "shape" in capsys.readouterr().err


class Engines:
    """Notes the turns."""

    def __init__(self, turns: list[str]) -> None:
        self.turns = turns

    async def release_memory(self) -> None:
        self.turns.append("release")

    async def reclaim_memory(self) -> None:
        self.turns.append("reclaim")


class Trainer:
    """Notes the work."""

    def __init__(self, turns: list[str]) -> None:
        self.turns = turns

    def __getattr__(self, name: str):
        async def work(*_: object) -> None:
            self.turns.append(name)

        return work


async def test_trainer_and_engines_take_turns_with_the_memory():
    from openmle_erl.cluster.colocated import TakingTurns

    turns: list[str] = []
    both = TakingTurns(Trainer(turns), Engines(turns))  # pyright: ignore[reportArgumentType]
    for _ in range(2):
        await both.logprobs([])
        await both.step([], [])
        await both.save_weights(Path("w"))
    await both.save_weights(Path("w"))
    step = ["release", "logprobs", "step", "save_weights", "reclaim"]
    assert turns == [*step, *step, "save_weights"]


async def test_a_trainer_that_dies_in_its_turn_leaves_the_memory_to_the_engines():
    from openmle_erl.cluster.colocated import TakingTurns

    turns: list[str] = []
    both = TakingTurns(Trainer(turns), Engines(turns))  # pyright: ignore[reportArgumentType]
    await both.logprobs([])
    await both.close()
    await both.close()
    assert turns == ["release", "logprobs", "close", "reclaim", "close"]
