"""Supervised fine-tuning: from a corpus to weights.

    corpus -> checked, rendered, masked -> an epoch's order -> global batches -> the trainer's step -> metrics
                                                            `-> evaluation loss, checkpoints -> weights

<out>/run.json           what the run follows from; the same command goes on with it, another is refused
<out>/base/              the new model and its tokenizer, where training starts from scratch
<out>/checkpoints/step-* what is needed to go on
<out>/metrics.jsonl      loss, gradient, rate and speed of each step; evaluation losses
<out>/model/             the weights at the end; where it is, the run is done

The order of rows follows from the seed and the step alone, so that a run goes on bit for bit from its last checkpoint.
"""

import asyncio
import dataclasses
import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from openmle_gym.chat import Message
from openmle_gym.contracts import Contract, read_record
from openmle_gym.errors import ConfigError
from pydantic import JsonValue

from openmle_erl.engines.checkpoint import MANIFEST
from openmle_erl.engines.packing import TokenRow
from openmle_erl.engines.processes import WorkerProcesses
from openmle_erl.engines.protocols import StepReport, Trainer, TrainingSample
from openmle_erl.engines.settings import TorchTrainerConfig
from openmle_erl.engines.torch_trainer import TorchTrainer
from openmle_erl.sft.batches import Corpus, batch_of_step, read_conversations, steps_of_epoch, tokenise
from openmle_erl.sft.files import sha256_of, write_whole
from openmle_erl.sft.tokens import load_tokenizer
from openmle_erl.sft.train_config import SftConfig
from openmle_erl.tracking import FILE, Tracker, open_tracker

log = logging.getLogger(__name__)
MAY_DIFFER = ("out", "processes", "eval_every", "save_every", "keep", "tracking")
"""Settings that another start of the same run may change."""
EVALUATION_ROWS = 256
"""Conversations whose log-probabilities are asked for at once."""


class Learner(Trainer, Protocol):
    """A trainer that can also be taught by examples."""

    async def learn(self, rows: Sequence[TokenRow]) -> StepReport:
        """One optimiser step: the mean negative log-likelihood of all wanted tokens of the batch."""
        ...


class SftResult(NamedTuple):
    """What a run came to."""

    out: str
    model: str
    steps: int
    conversations: int
    too_long: int
    learnt_tokens: int
    """Of one epoch, the remainder included."""
    loss: float
    """Of the last step."""
    evaluation_loss: float | None
    """After the last step; None without rows to evaluate on."""


class SftRun(Contract):
    """What a run follows from."""

    corpus_sha256: str
    validation_sha256: str | None
    settings: dict[str, JsonValue]


async def run_sft(config: SftConfig) -> SftResult:
    """Trains from the beginning, or from the last checkpoint in `out`, to the end.

    Raises:
        ConfigError: A setting or a row of the corpus cannot be used, or `out` holds another run.
    """
    out = Path(config.out)
    conversations = read_conversations(Path(config.corpus))
    held_out = read_conversations(Path(config.validation)) if config.validation else []
    _claim(out, config)
    model = Path(config.engine.model) if config.engine.model else _scratch(out, config, conversations)
    tokenizer = load_tokenizer(model)
    corpus = tokenise(conversations, tokenizer, max_tokens=config.max_tokens, path=Path(config.corpus))
    if config.validation:
        evaluation = tokenise(held_out, tokenizer, max_tokens=config.max_tokens, path=Path(config.validation)).rows
    else:
        corpus, evaluation = _hold_out(corpus, config)
    steps = config.epochs * steps_of_epoch(len(corpus.rows), config.global_batch)
    log.info("%d conversations, %d tokens to learn, %d steps", len(corpus.rows), corpus.learnt, steps)
    learner = await open_learner(_settled(config, model, steps))
    try:
        with open_tracker(out, config.tracking) as tracker:
            return await _train(config, corpus, evaluation, learner, tracker, steps)
    finally:
        await learner.close()


async def _train(
    config: SftConfig, corpus: Corpus, evaluation: Sequence[TokenRow], learner: Learner, tracker: Tracker, steps: int
) -> SftResult:
    out = Path(config.out)
    done = await _go_on(out, learner)
    report = StepReport(float("nan"), {})
    evaluated = await _evaluate(learner, evaluation, tracker, step=0) if done == 0 else None
    for step in range(done, steps):
        places = batch_of_step(step, len(corpus.rows), config.global_batch, config.seed)
        report = await learner.learn([corpus.rows[place] for place in places])
        epoch = (step + 1) * config.epochs / steps
        tracker.log({"loss": report.loss, **report.metrics, "epoch": epoch}, step=step + 1)
        last = step + 1 == steps
        if last or (config.eval_every and (step + 1) % config.eval_every == 0):
            evaluated = await _evaluate(learner, evaluation, tracker, step=step + 1)
        if config.save_every and (step + 1) % config.save_every == 0 and not last:
            await learner.save(out / "checkpoints" / f"step-{step + 1:07d}")
            _prune(out / "checkpoints", config.keep)
    if done == steps:
        evaluated = await _evaluate(learner, evaluation, tracker, step=steps)
    await learner.save_weights(out / "model")
    return SftResult(
        out=config.out,
        model=str(out / "model"),
        steps=steps,
        conversations=len(corpus.rows),
        too_long=corpus.too_long,
        learnt_tokens=corpus.learnt,
        loss=report.loss,
        evaluation_loss=evaluated,
    )


async def _evaluate(learner: Learner, rows: Sequence[TokenRow], tracker: Tracker, *, step: int) -> float | None:
    """The mean negative log-likelihood of the tokens that are to be learnt."""
    if not rows:
        return None
    total, tokens = 0.0, 0
    for start in range(0, len(rows), EVALUATION_ROWS):
        samples = [_as_sample(row) for row in rows[start : start + EVALUATION_ROWS]]
        for sample, logprobs in zip(samples, await learner.logprobs(samples), strict=True):
            total -= float(logprobs[sample.loss_mask_T].sum(dtype=np.float64))
            tokens += int(sample.loss_mask_T.sum())
    tracker.log({"evaluation_loss": total / tokens}, step=step)
    return total / tokens


def _as_sample(row: TokenRow) -> TrainingSample:
    ids = tuple(row.ids.tolist())
    return TrainingSample(
        sample_id="evaluation",
        prompt_ids=ids[:1],
        reply_ids=ids[1:],
        loss_mask_T=row.wanted[1:],
        rollout_logprobs_T=np.zeros(len(ids) - 1, dtype=np.float32),
        advantage=0.0,
    )


async def open_learner(config: SftConfig) -> Learner:
    """The trainer that the settings name, with its model loaded."""
    engine = config.engine
    if config.trainer == "torch":
        trainer = TorchTrainerConfig(engine=engine, optimiser=config.optimiser)
        return await TorchTrainer.start(trainer, processes=config.processes)
    try:
        from openmle_erl.engines.megatron.config import MegatronConfig
        from openmle_erl.engines.megatron.trainer import MegatronTrainer
        from openmle_erl.engines.megatron.worker import MegatronWorker
    except ImportError as error:
        raise ConfigError(f"trainer: megatron needs megatron-core: pip install megatron-core ({error})") from error
    layout = config.megatron
    cuda = engine.device == "cuda" or (engine.device == "auto" and torch.cuda.is_available())
    automatic = "bfloat16" if cuda else "float32"
    megatron = MegatronConfig(
        model=engine.model,
        parallel=layout.parallel,
        optimiser=config.optimiser,
        device="cuda" if cuda else "cpu",
        precision=automatic if engine.precision == "auto" else engine.precision,
        sequence_parallel=layout.sequence_parallel,
        max_tokens_per_micro_batch=engine.max_tokens_per_micro_batch,
        recompute=engine.gradient_checkpointing,
        dispatcher=layout.dispatcher if cuda else "allgather",
        optimiser_offload=layout.optimiser_offload,
    )
    group = await asyncio.to_thread(WorkerProcesses, MegatronWorker, (megatron,), config.processes)
    return MegatronTrainer(_ProcessRanks(group))


class _ProcessRanks:
    """Megatron's ranks as processes of this machine."""

    def __init__(self, group: WorkerProcesses) -> None:
        self._group = group

    async def call(self, method: str, *arguments: object) -> list[object]:
        found = await asyncio.to_thread(self._group.call, method, *arguments)
        if method == "close":
            await asyncio.to_thread(self._group.close)
        return found


def _settled(config: SftConfig, model: Path, steps: int) -> SftConfig:
    """The settings with what was found out: the model's folder and the number of steps."""
    engine = dataclasses.replace(config.engine, model=str(model))
    optimiser = dataclasses.replace(config.optimiser, total_steps=steps)
    scratch = dataclasses.replace(config.scratch, layers=0)
    return dataclasses.replace(config, engine=engine, optimiser=optimiser, scratch=scratch)


def _scratch(out: Path, config: SftConfig, conversations: Sequence[Sequence[Message]]) -> Path:
    """Makes the new model, unless an earlier start of the run did."""
    from openmle_erl.engines.models import partial_folder, publish
    from openmle_erl.engines.tiny import save_tiny

    base = out / "base"
    if not base.exists():
        texts = [message.content for messages in conversations for message in messages]
        partial = partial_folder(base)
        save_tiny(
            partial,
            texts,
            vocab_size=config.scratch.vocab_size,
            tokenizer=Path(config.scratch.tokenizer) if config.scratch.tokenizer else None,
            layers=config.scratch.layers,
            hidden=config.scratch.hidden,
            experts=config.scratch.experts,
            context=config.scratch.context,
            seed=config.seed,
        )
        publish(partial, base)
    return base


def _hold_out(corpus: Corpus, config: SftConfig) -> tuple[Corpus, list[TokenRow]]:
    if config.holdout == 0:
        return corpus, []
    if config.holdout >= len(corpus.rows):
        raise ConfigError(f"holdout: {config.holdout}, but the corpus has {len(corpus.rows)} conversations")
    chosen = set(np.random.default_rng(config.seed).permutation(len(corpus.rows))[: config.holdout].tolist())
    kept = [row for place, row in enumerate(corpus.rows) if place not in chosen]
    return Corpus(kept, corpus.too_long), [corpus.rows[place] for place in sorted(chosen)]


def _claim(out: Path, config: SftConfig) -> None:
    """Writes what the run follows from, or sees that it is what the folder's run follows from."""
    settings = {key: value for key, value in dataclasses.asdict(config).items() if key not in MAY_DIFFER}
    run = SftRun(
        corpus_sha256=sha256_of(Path(config.corpus)),
        validation_sha256=sha256_of(Path(config.validation)) if config.validation else None,
        settings=json.loads(json.dumps(settings)),
    )
    path = out / "run.json"
    if path.exists() and not (out / FILE).exists():  # nothing was trained: the run never got past its checks
        shutil.rmtree(out / "base", ignore_errors=True)
        path.unlink()
    if not path.exists():
        if out.exists() and any(out.iterdir()):
            raise ConfigError(f"out: {out} holds something that is no run of sft")
        out.mkdir(parents=True, exist_ok=True)
        write_whole(path, run.model_dump_json(indent=2))
        return
    before = read_record(path, SftRun)
    if before != run:
        old, new = (
            {"corpus": each.corpus_sha256, "validation": each.validation_sha256} | each.settings
            for each in (before, run)
        )
        changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        raise ConfigError(f"out: {out} holds a run with other settings: {', '.join(changed)}")


def _checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, the oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / MANIFEST).is_file()) if folder.is_dir() else []


async def _go_on(out: Path, learner: Learner) -> int:
    """Loads the last checkpoint; the steps that were done."""
    found = _checkpoints(out / "checkpoints")
    if not found:
        return 0
    await learner.load(found[-1])
    steps = int(found[-1].name.removeprefix("step-"))
    log.info("going on after step %d", steps)
    return steps


def _prune(folder: Path, keep: int) -> None:
    for path in _checkpoints(folder)[:-keep]:
        shutil.rmtree(path)
