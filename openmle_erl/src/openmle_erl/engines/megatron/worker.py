"""One rank of a Megatron trainer: plain methods that every rank runs at the same time, for an actor or a script to call.

Every rank is given the same samples and takes its share; what it returns is for the trainer to put together. Shape
suffixes: _N tokens of a pack, of those this rank has under context parallelism _C; _M wanted tokens; _BT a sequence's
wanted tokens, padded; V the vocabulary, or this rank's part of it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from openmle_gym.errors import ConfigError
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from openmle_erl.engines.megatron import checkpoint
from openmle_erl.engines.megatron.config import MegatronConfig, check_world
from openmle_erl.engines.megatron.host import HostEngine
from openmle_erl.engines.megatron.model import Safetensors, build, coordinates, layer_spec, load, read_config
from openmle_erl.engines.megatron.modules import GatheredCopies
from openmle_erl.engines.megatron.packs import Pack, context_rows, joined_order, pack, pack_length
from openmle_erl.engines.megatron.replay import attach
from openmle_erl.engines.megatron.vocabulary import own_logits, token_entropy, token_logprobs
from openmle_erl.engines.megatron.weights import save_weights
from openmle_erl.engines.memory import from_hf_config
from openmle_erl.engines.packing import TokenRow, plan
from openmle_erl.engines.processes import Place
from openmle_erl.engines.protocols import FloatArray, TrainingSample
from openmle_erl.engines.settings import learning_rate_at
from openmle_erl.rl.gspo import add_sums, policy_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """What one rank has to say of an optimiser step."""

    loss: float
    """The share of its own samples."""
    sums: dict[str, Tensor]
    """As `policy_loss` gives them, of its own samples."""
    grad_norm: float
    learning_rate: float


class Said(NamedTuple):
    """What the model says of a pack's wanted tokens."""

    logprobs_M: Tensor
    entropy_M: Tensor | None
    nothing: Tensor
    """0, with a gradient of zeros for all parameters: the loss of a pack without samples."""


Consume = Callable[[Pack, Said], tuple[Tensor, Any]]
"""From what the model says of a pack to its loss and a result."""


class MegatronWorker:
    """See the module. A method that a rank does not return from keeps all others waiting."""

    def __init__(self, config: MegatronConfig, place: Place) -> None:
        check_world(config.parallel, place.processes)
        self.config = config
        self.steps = 0
        """Optimiser steps that were done."""
        self.theirs = read_config(Path(config.model))
        self.shape = from_hf_config(self.theirs)
        learning_rate_at(0, config.optimiser)  # complains now, not after the first batch
        self._cuda = config.device == "cuda"
        self._device = torch.device("cuda", place.local_rank) if self._cuda else torch.device("cpu")
        _join(config, place)
        self.at = coordinates(config)
        self._last_stage = parallel_state.is_pipeline_last_stage()
        self.model = self._built(config.model)
        self._reference = None
        if config.objective.kl_coefficient > 0.0:
            self._reference = self._built(config.reference or config.model).requires_grad_(False)
        layers = self.model.decoder.layers
        self._replays = attach(layers, recompute=config.recompute) if config.replay_routing else []
        self._first_layer = self.at.pipeline * len(layers)
        self.engine = self._engine()

    def _engine(self) -> Any:
        if not self._cuda:
            return HostEngine(self.model, self.config)
        from openmle_erl.engines.megatron.cuda import CudaEngine  # what it imports warns where there is no CUDA

        return CudaEngine(self.model, self.config)

    def _built(self, folder: str) -> Any:
        model = build(self.config, self.theirs)
        load(model, self.config, self.theirs, Safetensors(Path(folder)).__getitem__)
        return model.train()

    @property
    def reports(self) -> bool:
        """Whether what this rank returns counts: one rank of each data-parallel replica."""
        return self._last_stage and self.at.tensor == 0 and parallel_state.get_context_parallel_rank() == 0

    def logprobs(self, samples: Sequence[TrainingSample]) -> dict[int, FloatArray]:
        """[T] each: log-probabilities of the replies' tokens, by place in `samples`: of this replica's share, where this rank
        reports."""
        found = self._logprobs(self.model, [_row(sample) for sample in samples])
        return found if self.reports else {}

    def _logprobs(self, model: Any, rows: Sequence[TokenRow]) -> dict[int, FloatArray]:
        def consume(batch: Pack, said: Said) -> tuple[Tensor, Any]:
            parts = said.logprobs_M.detach().float().cpu().split(list(batch.counts))
            return said.nothing, {item: part.numpy() for item, part in zip(batch.items, parts, strict=True)}

        results = self._run(model, rows, consume, train=False, entropy=False)
        return {item: value for found in results for item, value in found.items()}

    def step(self, samples: Sequence[TrainingSample], old_logprobs: Sequence[FloatArray]) -> StepPart | None:
        """One optimiser step of the policy over all samples."""
        rows = [_row(sample) for sample in samples]
        objective = self.config.objective
        reference = {} if self._reference is None else self._logprobs(self._reference, rows)

        def consume(batch: Pack, said: Said) -> tuple[Tensor, Any]:
            if not batch.items:
                return said.nothing, (0.0, None)
            chosen = [samples[item] for item in batch.items]
            loss, sums = policy_loss(
                batch.padded(said.logprobs_M),
                self._padded([old_logprobs[item] for item in batch.items]),
                self._padded([sample.rollout_logprobs_T for sample in chosen]),
                self._padded([sample.loss_mask_T for sample in chosen]),
                torch.tensor([sample.advantage for sample in chosen], device=self._device),
                objective,
                global_batch=len(samples),
                ref_logprobs_BT=self._padded([reference[item] for item in batch.items]) if reference else None,
                entropy_BT=None if said.entropy_M is None else batch.padded(said.entropy_M),
            )
            return loss, (float(loss.detach()), sums)

        return self._update(self._run(self.model, rows, consume, train=True, entropy=True))

    def learn(self, rows: Sequence[TokenRow]) -> StepPart | None:
        """One optimiser step of supervised fine-tuning: mean negative log-likelihood of all wanted tokens."""
        tokens = sum(int(row.wanted.sum()) for row in rows)
        if not tokens:
            raise ConfigError(f"none of {len(rows)} sequences has a token that is to be learnt")

        def consume(batch: Pack, said: Said) -> tuple[Tensor, Any]:
            loss = said.nothing - said.logprobs_M.sum() / tokens
            return loss, (float(loss.detach()), None)

        return self._update(self._run(self.model, rows, consume, train=True, entropy=False))

    def _update(self, results: list[tuple[float, dict[str, Tensor] | None]]) -> StepPart | None:
        rate = learning_rate_at(self.steps, self.config.optimiser)
        norm = self.engine.update(rate)
        self.steps += 1
        if not self.reports:
            return None
        sums = add_sums(sums for _, sums in results if sums is not None)
        return StepPart(
            loss=sum(loss for loss, _ in results),
            sums={name: value.cpu() for name, value in sums.items()},
            grad_norm=norm,
            learning_rate=rate,
        )

    def _run(self, model: Any, rows: Sequence[TokenRow], consume: Consume, *, train: bool, entropy: bool) -> list[Any]:
        """Passes over this replica's share; results on the last pipeline stage, an empty list on others."""
        network = self.engine.model if model is self.model else model

        def finish(batch: Pack, output: Tensor) -> tuple[Tensor, Tensor, Any]:
            loss, result = consume(batch, self._said(batch, output[0], entropy=entropy))
            return loss, loss.new_tensor(0, dtype=torch.int), result

        def forward_step(batches: Iterator[Pack], network: Any) -> tuple[Tensor, Any]:
            batch = next(batches).to(self._device)
            if model is self.model:
                self._announce(batch, train=train)
            return self._forward(network, batch), partial(finish, batch)

        return self.engine.run(self._packs(rows), forward_step, model=network, train=train)

    def _packs(self, rows: Sequence[TokenRow]) -> list[Pack]:
        """This replica's. Those of one index are equally long on all replicas where experts gather their tokens."""
        sizes = self.config.parallel
        lengths = [len(row.ids) for row in rows]
        budget = self.config.max_tokens_per_micro_batch * sizes.context
        bins = plan(lengths, budget=budget, packing=True, processes=sizes.data)
        packs = []
        for together in zip(*bins, strict=True):
            long = [pack_length([lengths[place] for place in places], sizes) for places in together]
            own = parallel_state.get_data_parallel_rank()
            length = max(long) if sizes.expert > 1 and self.config.dispatcher == "allgather" else long[own]
            packs.append(pack(rows, together[own], sizes, length=length))
        return packs

    def _forward(self, network: Any, batch: Pack) -> Tensor:
        """[1, C, V] logits of this rank's vocabulary on the last pipeline stage, hidden states on others."""
        rows_C = self._rows(batch)
        starts = torch.tensor(batch.starts, dtype=torch.int32, device=self._device)
        return network(
            input_ids=batch.tokens_N[rows_C][None],
            position_ids=rows_C[None],  # not read: rotary positions come from the sequences' starts
            attention_mask=None,
            packed_seq_params=PackedSeqParams(
                qkv_format="thd",
                cu_seqlens_q=starts,
                cu_seqlens_kv=starts,
                cu_seqlens_q_padded=starts,
                cu_seqlens_kv_padded=starts,
                max_seqlen_q=batch.longest,
                max_seqlen_kv=batch.longest,
            ),
        )

    def _said(self, batch: Pack, logits_CV: Tensor, *, entropy: bool) -> Said:
        """Log-probabilities of the wanted tokens, computed where they are, and had on every context rank."""
        nothing = logits_CV[:1].float().sum() * 0.0
        if not batch.items:
            return Said(logits_CV.new_zeros(0).float(), None, nothing)
        rows_C = self._rows(batch)
        wanted_N = torch.zeros(len(batch.tokens_N), dtype=torch.bool, device=self._device)
        wanted_N[batch.wanted_M] = True
        here_C = wanted_N[rows_C]
        logits = own_logits(logits_CV[here_C], self.shape.vocabulary, temperature=self.config.temperature)
        entropy_M = None
        if entropy:
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.config.objective.entropy_coefficient > 0.0):
                entropy_M = self._everywhere(token_entropy(logits), here_C, batch)
        logprobs = token_logprobs(logits, batch.targets_N[rows_C][here_C])
        return Said(self._everywhere(logprobs, here_C, batch), entropy_M, nothing)

    def _everywhere(self, values: Tensor, here_C: Tensor, batch: Pack) -> Tensor:
        """[M] from the values of the wanted tokens that this rank has."""
        ranks = self.config.parallel.context
        if ranks == 1:
            return values
        own_C = torch.zeros(len(here_C), dtype=values.dtype, device=values.device).masked_scatter(here_C, values)
        joined = GatheredCopies.apply(own_C, parallel_state.get_context_parallel_group())
        return joined[joined_order(batch.starts, ranks).to(self._device)][batch.wanted_M]

    def _rows(self, batch: Pack) -> Tensor:
        rank = parallel_state.get_context_parallel_rank()
        return context_rows(batch.starts, rank=rank, ranks=self.config.parallel.context).to(self._device)

    def _announce(self, batch: Pack, *, train: bool) -> None:
        """Tells each router of this rank where the tokens it is about to see went."""
        experts = batch.experts_NLK
        if experts is not None:
            experts = experts[self._rows(batch)]
            if self.config.sequence_parallel:
                experts = experts.chunk(self.config.parallel.tensor)[self.at.tensor]
        for layer, replay in enumerate(self._replays, start=self._first_layer):
            replay.expect(None if experts is None else experts[:, layer], train=train)

    def _padded(self, arrays: Sequence[np.ndarray]) -> Tensor:
        return pad_sequence([torch.from_numpy(array) for array in arrays], batch_first=True).to(self._device)

    def save_weights(self, folder: Path) -> None:
        """Writes the model alone in Hugging Face's layout, in its own precision."""
        save_weights(
            dict(self.model.named_parameters()),
            {**self.theirs, "dtype": self.config.precision},
            self.shape,
            layer_spec(self.config),
            self.at,
            source=Path(self.config.model),
            folder=folder,
        )

    def save(self, folder: Path) -> None:
        """Writes all that `load` needs to go on; nothing in a step draws random numbers, so there is no random state."""
        checkpoint.save(folder, self._state, steps=self.steps)

    def load(self, folder: Path) -> None:
        """Goes on from what `save` wrote, with the same parallel sizes or others."""
        state, self.steps = checkpoint.load(folder, self._state)
        self.model.load_state_dict(state["model"], strict=False)
        self.engine.load_state(state["optimiser"])

    def _state(self, loading: bool) -> dict[str, Any]:
        model = self.model.sharded_state_dict()
        return {"model": model, "optimiser": self.engine.sharded_state(model, loading=loading)}

    def close(self) -> None:
        """Leaves the other ranks."""
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def _row(sample: TrainingSample) -> TokenRow:
    ids = np.array([*sample.prompt_ids, *sample.reply_ids], dtype=np.int64)
    return TokenRow(ids=ids, wanted=np.arange(len(ids)) >= len(sample.prompt_ids), experts_NLK=sample.experts_NLK)


def _join(config: MegatronConfig, place: Place) -> None:
    """Makes the process group and Megatron's groups within it."""
    if config.device == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError("device: cuda, but torch sees no GPU")
        torch.cuda.set_device(place.local_rank)
    timeout = timedelta(minutes=config.timeout_minutes)
    backend = "cpu:gloo,cuda:nccl" if config.device == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        init_method=f"tcp://{place.address}:{place.port}",
        rank=place.rank,
        world_size=place.processes,
        timeout=timeout,
    )
    sizes = config.parallel
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=sizes.tensor,
        pipeline_model_parallel_size=sizes.pipeline,
        context_parallel_size=sizes.context,
        expert_model_parallel_size=sizes.expert,
        expert_tensor_parallel_size=sizes.expert_tensor,
        distributed_timeout_minutes=config.timeout_minutes,
    )
