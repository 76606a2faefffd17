"""Which process goes where, and what it is started with: worked out from the settings, before anything is started.

A node is used whole. Where trainer and engines take turns, both lie over all GPUs from the first node on; otherwise the
trainer has the first GPUs and the engines those after them. An engine never spans two nodes.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from openmle_gym.errors import ConfigError

from openmle_erl.cluster.config import LaunchConfig
from openmle_erl.engines.serve import ADMIN_KEY, API_KEY

TOKEN = "RAY_AUTH_TOKEN"
RAY_ENVIRONMENT: Mapping[str, str] = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
"""Of all that talks to the cluster, with the token beside it. Without them everybody who reaches the head's ports could
run code there."""
SECRETS = (TOKEN, API_KEY, ADMIN_KEY)
"""Environment variables whose values are never shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of the run."""

    role: Literal["trainer", "rollout"]
    number: int
    """The trainer's rank, or the engine's number."""
    node: int
    gpus: tuple[int, ...]
    """Of the node; empty on the CPU."""
    command: tuple[str, ...]
    """What is run; for a trainer, the actor that Ray starts. Secrets stand as `$NAME`."""
    environment: Mapping[str, str]

    @property
    def name(self) -> str:
        """Such as rollout-3."""
        return f"{self.role}-{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The whole run."""

    bundles: tuple[Mapping[str, float], ...]
    """What is reserved of each node."""
    processes: tuple[Process, ...]
    ray_commands: tuple[str, ...]
    """How the cluster is started by hand: on the head, then on each other node."""
    ray_environment: Mapping[str, str]

    def of(self, role: str) -> tuple[Process, ...]:
        """The processes of a role, by number."""
        return tuple(process for process in self.processes if process.role == role)


def place(config: LaunchConfig, *, context_tokens: int, replay_routing: bool = False) -> Placement:
    """Places all processes.

    Args:
        replay_routing: Whether the engines are to record their routing.

    Raises:
        ConfigError: They do not fit the nodes.
    """
    nodes, rollout = config.nodes, config.rollout
    trainers = [
        (rank // nodes.gpus, (rank % nodes.gpus,)) if nodes.gpus else (0, ()) for rank in range(_trainers(config))
    ]
    engines = [_engine_place(config, number) for number in range(rollout.engines)]
    for name, places in (("trainer.processes", trainers), ("rollout.engines", engines)):
        if any(node >= nodes.count for node, _ in places):
            raise ConfigError(
                f"{name}: {len(places)} do not fit {nodes.count} nodes of {nodes.gpus} GPUs"
                + ("" if config.colocated or name.startswith("trainer") else f" beside {len(trainers)} trainers")
            )
    own = {f"trainer-{rank}" for rank in range(len(trainers))}
    processes = [
        Process(
            role="trainer",
            number=rank,
            node=node,
            gpus=gpus,
            command=("ray", "actor", "TrainerActor", config.trainer.engine, f"rank={rank}", f"of={len(own)}"),
            environment=_trainer_environment(gpus),
        )
        for rank, (node, gpus) in enumerate(trainers)
    ]
    first_of_node: dict[int, int] = {}
    for number, (node, gpus) in enumerate(engines):
        port = rollout.first_port + (number - first_of_node.setdefault(node, number) if rollout.first_port else 0)
        processes.append(
            Process(
                role="rollout",
                number=number,
                node=node,
                gpus=gpus,
                command=_engine_command(config, port, context_tokens, replay_routing),
                environment=_engine_environment(gpus),
            )
        )
    bundle = {"CPU": float(nodes.cpus), **({"GPU": float(nodes.gpus)} if nodes.gpus else {})}
    return Placement(
        bundles=(bundle,) * nodes.count,
        processes=tuple(processes),
        ray_commands=_ray_commands(config),
        ray_environment={**RAY_ENVIRONMENT, TOKEN: f"${TOKEN}"},
    )


def ray_environment(config: LaunchConfig, environment: Mapping[str, str]) -> dict[str, str]:
    """What must stand in this process's environment before Ray is imported, which reads it then: the token's mode, and for a
    cluster of this machine alone a token drawn for it where there is none, and that it stays on the loopback interface."""
    if config.ray.address is not None:
        return dict(RAY_ENVIRONMENT)
    token = environment.get(TOKEN) or secrets.token_hex(32)
    return {**RAY_ENVIRONMENT, TOKEN: token, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def shown(text: str, environment: Mapping[str, str]) -> str:
    """A text in which no secret of the environment stands any more."""
    for name in SECRETS:
        if value := environment.get(name):
            text = text.replace(value, f"${name}")
    return text


def _trainers(config: LaunchConfig) -> int:
    return config.trainer.processes


def _engine_place(config: LaunchConfig, number: int) -> tuple[int, tuple[int, ...]]:
    nodes, size = config.nodes, config.rollout.gpus_per_engine
    if not nodes.gpus:
        return 0, ()
    before = 0 if config.colocated else config.trainer.processes
    first = -(-before // size) * size + number * size
    node, offset = divmod(first, nodes.gpus)
    if offset + size > nodes.gpus:
        raise ConfigError(f"rollout.gpus_per_engine: {size} does not divide a node's {nodes.gpus} GPUs")
    return node, tuple(range(offset, offset + size))


def _trainer_environment(gpus: Sequence[int]) -> dict[str, str]:
    if not gpus:
        return {"OMP_NUM_THREADS": "1"}
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # Megatron's overlap of communication relies on it
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",  # ours stays in force
    }


def _engine_environment(gpus: Sequence[int]) -> dict[str, str]:
    keys = {API_KEY: f"${API_KEY}", ADMIN_KEY: f"${ADMIN_KEY}"}
    if not gpus:
        return {**keys, "OMP_NUM_THREADS": "1"}
    return {**keys, "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}


def _engine_command(config: LaunchConfig, port: int, context_tokens: int, replay_routing: bool) -> tuple[str, ...]:
    rollout = config.rollout
    if rollout.engine == "local":
        device = "cuda" if config.nodes.gpus else "cpu"
        running = f"max_running={rollout.max_running or 64}"
        threads = ("threads=1",) if device == "cpu" else ()
        return ("openmle-erl", "serve", config.model, f"port={port}", f"device={device}", running, *threads)
    optional: list[str] = []
    for flag, value, default in (
        ("--attn-dp-size", rollout.attention_replicas, 1),
        ("--ep-size", rollout.expert_parallel, 1),
        ("--max-running-requests", rollout.max_running, None),
    ):
        if value != default:
            optional += [flag, str(value)]
    if rollout.graph_batches:
        optional += ["--cuda-graph-bs-decode", *map(str, rollout.graph_batches)]
    if config.colocated:
        optional.append("--enable-memory-saver")
    if replay_routing:
        optional.append("--enable-return-routed-experts")
    return (
        *(rollout.python, "-m", "sglang.launch_server"),
        *("--model-path", config.model),
        *("--host", "$NODE_ADDRESS", "--port", str(port)),
        *("--tp-size", str(rollout.gpus_per_engine)),
        *("--mem-fraction-static", f"{rollout.memory_fraction:g}"),
        *("--context-length", str(context_tokens)),
        *("--api-key", f"${API_KEY}", "--admin-api-key", f"${ADMIN_KEY}"),
        *optional,
        *rollout.extra,
    )


def _ray_commands(config: LaunchConfig) -> tuple[str, ...]:
    if config.ray.address:
        return ()
    if config.nodes.count == 1:
        return ("(a cluster of this machine alone is started with the run, and ended with it)",)
    gpus = f" --num-gpus={config.nodes.gpus}"
    head = f"ray start --head --block --port={config.ray.port} --dashboard-host=127.0.0.1{gpus}"
    worker = f"ray start --block --address=$HEAD_ADDRESS:{config.ray.port}{gpus}"
    return (head, *(worker for _ in range(config.nodes.count - 1)))
