"""What must hold before anything is started: batches, parallel sizes, memory, context lengths, versions."""

import importlib.metadata
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openmle_gym.errors import ConfigError

from openmle_erl.cluster.config import LaunchConfig
from openmle_erl.engines.memory import MemoryEstimate, ModelShape, ParallelSizes, estimate_memory, from_hf_config
from openmle_erl.rl.config import RLConfig

GIB = 1 << 30
USABLE = 0.9
"""The share of a GPU that the estimate may fill; the rest is for contexts, buffers and fragmentation."""
SHAPES = Path(__file__).parent / "shapes"
PUBLISHED_SHAPE = "qwen3_30b_a3b"
"""Of the model that the topologies' sizes were published for."""
REQUIREMENTS = Path(__file__).parent / "requirements"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is known of the model without loading it."""

    shape: ModelShape
    context_tokens: int
    """The longest sequence that its positions are made for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMemory:
    """Bytes on one GPU of an engine."""

    weights_bytes: int
    cache_bytes: int
    """What memory_fraction leaves for keys and values."""
    token_bytes: int
    """Keys and values of one token."""
    sequences: int
    """Sequences of full length that the engine holds at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the checks worked out."""

    parallel: ParallelSizes
    global_batch: int
    trainer: MemoryEstimate | None
    """None on the CPU."""
    rollout: RolloutMemory | None
    """None on the CPU."""
    warnings: tuple[str, ...]
    """What differs from the versions that this was made with."""


def read_model(config: LaunchConfig) -> Model:
    """The model's facts: from its folder; in a dry run from the named shape, or without either from the published one.

    Raises:
        ConfigError: Neither is there, or it is none that can be estimated.
    """
    shape = config.shape if config.model else config.shape or PUBLISHED_SHAPE
    path = Path(config.model) / "config.json"
    if shape is not None:
        path = SHAPES / f"{shape}.json"
        if not path.is_file():
            known = ", ".join(sorted(each.stem for each in SHAPES.glob("*.json")))
            raise ConfigError(f"shape: no file for {shape!r}; there are {known}")
    if not path.is_file():
        raise ConfigError(f"model: {path} is not there; for a dry run without the model, give shape=...")
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        context_tokens = int(facts.get("text_config", facts)["max_position_embeddings"])
        return Model(shape=from_hf_config(facts), context_tokens=context_tokens)
    except (ValueError, TypeError, AttributeError, KeyError, ConfigError) as error:
        raise ConfigError(f"model: {path}: {type(error).__name__}: {error}") from error


def check(config: LaunchConfig, training: RLConfig, model: Model) -> Checked:
    """Checks all, and reports all that is wrong at once.

    Raises:
        ConfigError: Something does not fit; one line for each.
    """
    problems: list[str] = []

    def held(holds: bool, problem: str) -> None:
        if not holds:
            problems.append(problem)

    parallel = _parallel(config, held)
    _check_model_sizes(config, model.shape, parallel, held)
    held(
        training.global_batch % parallel.data == 0,
        f"schedule: {training.global_batch} samples of an optimiser step do not divide by {parallel.data} replicas "
        f"(trainer.processes={config.trainer.processes} over the other parallel sizes)",
    )
    longest = training.context_tokens
    held(
        longest <= model.context_tokens,
        f"context_tokens: {longest} is beyond the {model.context_tokens} positions of the model",
    )
    held(
        longest % (2 * parallel.context) == 0 or parallel.context == 1,
        f"context_tokens: {longest} does not divide by 2 x trainer.parallel.context={parallel.context}",
    )
    held(
        training.asynchronous != config.colocated,
        f"colocated={config.colocated}: engines that share the trainer's GPUs cannot generate while it trains, and others "
        f"should; the profile has asynchronous={training.asynchronous}",
    )
    held(
        training.trainer_processes == 1 and not training.rollout.engines,
        "trainer_processes, rollout.engines: processes and engines are placed by the launch, not by the profile",
    )
    held(
        not (config.colocated and config.nodes.gpus and config.rollout.engine == "local"),
        "colocated: the local server does not give its GPU away; use rollout.engine=sglang",
    )
    engine = training.trainer.engine
    held(
        config.trainer.engine != "megatron" or not (engine.lora.rank or engine.async_save),
        f"trainer.engine.lora.rank={engine.lora.rank}, trainer.engine.async_save={engine.async_save}: megatron trains all "
        "parameters, and saves in the foreground",
    )
    held(
        not training.trainer.replay_routing or model.shape.experts > 0,
        "trainer.replay_routing: a dense model routes nothing",
    )
    trainer = rollout = None
    if config.nodes.gpus:
        trainer = _check_trainer_memory(config, training, model, parallel, held)
        rollout = _check_rollout_memory(config, training, model, held)
    if problems:
        raise ConfigError("the launch does not fit:\n  " + "\n  ".join(problems))
    return Checked(
        parallel=parallel,
        global_batch=training.global_batch,
        trainer=trainer,
        rollout=rollout,
        warnings=tuple(version_differences("trainer")),
    )


def version_differences(role: str) -> Iterable[str]:
    """How this environment differs from a role's requirement file."""
    for line in (REQUIREMENTS / f"{role}.txt").read_text(encoding="utf-8").splitlines():
        name, pinned, wanted = line.partition("==")
        if not pinned or line.startswith("#"):
            continue
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = "not installed"
        if found.split("+")[0] != wanted:
            yield f"{role}: {name} is {found}; made with {wanted}"


Held = Callable[[bool, str], None]


def _parallel(config: LaunchConfig, held: Held) -> ParallelSizes:
    """The trainer's sizes with as many replicas as the processes make."""
    sizes, processes = config.trainer.parallel, config.trainer.processes
    split = sizes.tensor * sizes.pipeline * sizes.context
    held(
        processes % split == 0,
        f"trainer.processes: {processes} do not divide by tensor x pipeline x context = {sizes.tensor} x {sizes.pipeline} x "
        f"{sizes.context}",
    )
    data = processes // split or 1
    held(
        sizes.data in (1, data), f"trainer.parallel.data: {sizes.data}, but {processes} processes make {data} replicas"
    )
    if config.trainer.engine == "torch":
        ones = (sizes.tensor, sizes.pipeline, sizes.context, sizes.expert, sizes.expert_tensor)
        held(ones == (1,) * 5, "trainer.parallel: the torch engine shards by FSDP; all sizes but data must be 1")
    sizes = replace(sizes, data=data)
    try:
        sizes.check_experts()
    except ConfigError as error:
        held(False, f"trainer.{error}")
        return replace(sizes, expert=1, expert_tensor=1)
    return sizes


def _check_model_sizes(config: LaunchConfig, shape: ModelShape, parallel: ParallelSizes, held: Held) -> None:
    rollout = config.rollout
    splits = rollout.gpus_per_engine // rollout.attention_replicas or 1
    for setting, ways, name, count in (
        ("trainer.parallel.tensor", parallel.tensor, "attention heads", shape.heads),
        ("trainer.parallel.tensor", parallel.tensor, "key-value heads", shape.key_value_heads),
        ("trainer.parallel.pipeline", parallel.pipeline, "layers", shape.layers),
        ("trainer.parallel.expert", parallel.expert, "experts", shape.experts),
        ("rollout.gpus_per_engine", splits, "attention heads", shape.heads),
        ("rollout.expert_parallel", rollout.expert_parallel, "experts", shape.experts),
    ):
        held(count % ways == 0 and (count > 0 or ways == 1), f"{setting}: {count} {name} do not divide by {ways}")
    for setting, ways in (
        ("attention_replicas", rollout.attention_replicas),
        ("expert_parallel", rollout.expert_parallel),
    ):
        held(
            rollout.gpus_per_engine % ways == 0,
            f"rollout.{setting}: {ways} does not divide rollout.gpus_per_engine={rollout.gpus_per_engine}",
        )
    nodes = config.nodes
    if nodes.gpus:
        held(
            nodes.gpus % rollout.gpus_per_engine == 0,
            f"rollout.gpus_per_engine: {rollout.gpus_per_engine} does not divide a node's {nodes.gpus} GPUs",
        )
        used = config.trainer.processes, rollout.engines * rollout.gpus_per_engine
        needed = max(used) if config.colocated else sum(used)
        held(
            needed <= nodes.count * nodes.gpus,
            f"nodes: trainer and engines need {needed} GPUs; there are {nodes.count} x {nodes.gpus}",
        )


def _check_trainer_memory(
    config: LaunchConfig, training: RLConfig, model: Model, parallel: ParallelSizes, held: Held
) -> MemoryEstimate:
    engine = training.trainer.engine

    def estimated(sizes: ParallelSizes) -> MemoryEstimate:
        return estimate_memory(
            model.shape,
            sizes,
            micro_batch_tokens=engine.max_tokens_per_micro_batch,
            recompute=engine.gradient_checkpointing,
            optimizer_offload=config.trainer.optimiser_offload,
        )

    estimate = estimated(parallel)
    if config.trainer.engine == "torch":
        # FSDP splits weights and gradients as tensor parallelism would, and no activations.
        split = estimated(replace(parallel, data=1, tensor=config.trainer.processes))
        estimate = replace(split, activations_bytes=estimate.activations_bytes, logits_bytes=estimate.logits_bytes)
    room = config.nodes.gpu_memory_gib * USABLE * GIB
    held(
        estimate.total_bytes <= room,
        f"trainer: needs {estimate.total_bytes / GIB:.1f} GiB of a GPU; {room / GIB:.1f} GiB can be used (more processes, "
        "larger parallel sizes, optimiser_offload, gradient checkpointing or smaller micro-batches need less)",
    )
    if config.colocated:
        kept = estimate.weights_bytes + estimate.gradients_bytes + estimate.optimizer_bytes
        share = config.rollout.memory_fraction * config.nodes.gpu_memory_gib * GIB
        held(
            kept + share <= config.nodes.gpu_memory_gib * GIB * 0.97,
            f"colocated: the trainer keeps {kept / GIB:.1f} GiB while engines generate with rollout.memory_fraction="
            f"{config.rollout.memory_fraction:g} of {config.nodes.gpu_memory_gib:g} GiB",
        )
    return estimate


def _check_rollout_memory(config: LaunchConfig, training: RLConfig, model: Model, held: Held) -> RolloutMemory:
    shape, rollout = model.shape, config.rollout
    splits = rollout.gpus_per_engine // rollout.attention_replicas or 1
    weights = 2 * shape.parameters // rollout.gpus_per_engine
    cache = int(rollout.memory_fraction * config.nodes.gpu_memory_gib * GIB) - weights
    heads = max(1, shape.key_value_heads // splits)
    token = 2 * 2 * shape.layers * heads * shape.head_size
    sequences = max(0, cache) // (token * training.context_tokens) * rollout.attention_replicas
    held(
        sequences >= 1,
        f"rollout.memory_fraction: {rollout.memory_fraction:g} of {config.nodes.gpu_memory_gib:g} GiB holds weights of "
        f"{weights / GIB:.1f} GiB and not one sequence of {training.context_tokens} tokens ({token} bytes each)",
    )
    return RolloutMemory(weights_bytes=weights, cache_bytes=cache, token_bytes=token, sequences=sequences)


def table(checked: Checked) -> Mapping[str, object]:
    """The figures, for people."""

    def gib(value: int) -> float:
        return round(value / GIB, 1)

    figures: dict[str, object] = {"global_batch": checked.global_batch, "replicas": checked.parallel.data}
    if checked.trainer:
        one = checked.trainer
        figures["trainer_gib_per_gpu"] = {
            "weights": gib(one.weights_bytes),
            "gradients": gib(one.gradients_bytes),
            "optimiser": gib(one.optimizer_bytes),
            "activations": gib(one.activations_bytes),
            "logits": gib(one.logits_bytes),
            "all": gib(one.total_bytes),
            "host": gib(one.host_bytes),
        }
    if checked.rollout:
        figures["rollout_gib_per_gpu"] = {
            "weights": gib(checked.rollout.weights_bytes),
            "attention_cache": gib(checked.rollout.cache_bytes),
            "full_sequences_per_engine": checked.rollout.sequences,
        }
    return figures
