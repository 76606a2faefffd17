"""Continuous batching over a Hugging Face model: requests of different lengths join and leave between two steps.

Keys and values lie in one tensor per layer, a row for each running request, each row from its position 0; so a row that
joins is written, a row that leaves is overwritten by the last one, and nothing is padded on the left. Needs torch.

All of `Generator` belongs to one thread. Its numbers do not depend on who shares the batch, up to rounding: each request
draws from random numbers of its own.

Shape suffixes: _B running requests, _V the vocabulary, _P positions, _L layers with experts, _K experts of a token.
"""

import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from openmle_gym.errors import ConfigError
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, Cache, PreTrainedModel

from openmle_erl.engines import routing
from openmle_erl.engines.protocols import Finish, GenerateRequest, Generation, PauseMode, VersionSpan
from openmle_erl.engines.sampling import Choice, choose_tokens

PREFILL_TOKENS = 16_384
"""How many prompt tokens, padding included, are read in one pass; a longer prompt is read alone."""
PREFILL_ROWS = 16
BLOCK = 64
"""Rows grow by multiples of it, and attention looks at multiples of it."""

Report = Callable[[Generation], None]


class RowCache(Cache):
    """Keys and values of all running requests, [rows, heads, positions, head size] for each layer."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._rows = slice(0, 0)
        self._positions_B: torch.Tensor | None = None
        self._width = 0
        self._last_row = 0

    def write_prompts(self, start: int, count: int, width: int, *, copies: int) -> None:
        """The next pass writes positions 0 to `width` of `count` rows; as many more will be copied from them."""
        self._rows, self._width, self._positions_B = slice(start, start + count), width, None
        self._last_row = start + count + copies

    def write_tokens(self, positions_B: torch.Tensor, width: int) -> None:
        """The next pass writes one position of each row, and looks at `width` of them."""
        self._rows, self._width, self._positions_B = slice(0, len(positions_B)), width, positions_B
        self._last_row = len(positions_B)

    def update(  # pyright: ignore[reportIncompatibleMethodOverride]  (layers pass more by name than is declared)
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What a layer of the model calls: keeps its new keys and values, returns those to be looked at."""
        stores = self._room(layer_idx, key_states, value_states)
        for store, new in zip(stores, (key_states, value_states), strict=True):
            if self._positions_B is None:
                store[self._rows, :, : new.shape[2]] = new
            else:
                store[torch.arange(len(new), device=new.device), :, self._positions_B] = new[:, :, 0]
        keys, values = (store[self._rows, :, : self._width] for store in stores)
        return keys, values

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copies the first positions of a row."""
        for stores in self._layers.values():
            for store in stores:
                store[target, :, :length] = store[source, :, :length]

    def _room(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's stores, large enough for the next pass."""
        stores = self._layers.get(layer)
        rows, width = (stores[0].shape[0], stores[0].shape[2]) if stores else (0, 0)
        if stores is None or rows < self._last_row or width < self._width:
            rows = max(rows, -(-self._last_row // 16) * 16)
            width = max(width, -(-self._width * 5 // 4 // BLOCK) * BLOCK) if width < self._width else width
            larger = tuple(new.new_zeros((rows, new.shape[1], width, new.shape[3])) for new in (key, value))
            for old, new in zip(stores or (), larger, strict=False):
                new[: old.shape[0], :, : old.shape[2]] = old
            stores = self._layers[layer] = (larger[0], larger[1])
        return stores


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request that is being answered."""

    request: GenerateRequest
    stop_ids: frozenset[int]
    report: Report
    random: random.Random
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    experts: list[np.ndarray] = field(default_factory=list)
    """[tokens, layers, experts of a token] each, where they are wanted: of the tokens that were read, in order."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and reply so far."""
        return (*self.request.prompt_ids, *self.ids)

    @property
    def position(self) -> int:
        """Of the last token."""
        return len(self.request.prompt_ids) + len(self.ids) - 1

    def add(self, token: int, logprob: float, version: int) -> None:
        end = len(self.ids) + 1
        if self.spans and self.spans[-1].version == version:
            self.spans[-1] = self.spans[-1]._replace(end=end)
        else:
            self.spans.append(VersionSpan(version, end - 1, end))
        self.ids.append(token)
        self.logprobs.append(logprob)

    def finish(self) -> Finish | None:
        if self.ids and self.ids[-1] in self.stop_ids:
            return Finish.STOP
        return Finish.LENGTH if len(self.ids) >= self.request.sampling.max_new_tokens else None

    def end(self, finish: Finish) -> None:
        self.report(
            Generation(
                request_id=self.request.request_id,
                token_ids=tuple(self.ids),
                logprobs_T=np.asarray(self.logprobs, dtype=np.float32),
                finish=finish,
                spans=tuple(self.spans),
                experts_NLK=np.concatenate(self.experts) if self.experts else None,
            )
        )


class Generator:
    """Answers requests with a model, all at once."""

    def __init__(self, model: PreTrainedModel, *, max_running: int = 64) -> None:
        self.model = model
        self.version = 0
        self.paused = False
        self._max_running = max_running
        self._cache = RowCache()
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []  # by row

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return self.paused or not (self._waiting or self._running)

    @property
    def open_requests(self) -> int:
        """Waiting and running."""
        return len(self._waiting) + len(self._running)

    @property
    def running(self) -> int:
        """Requests whose prompt was read."""
        return len(self._running)

    def add(self, request: GenerateRequest, report: Report, *, stop_ids: Iterable[int]) -> None:
        """Takes a request on; `report` gets its generation."""
        source = random.Random(request.seed if request.seed is not None else random.getrandbits(62))
        self._waiting.append(_Sequence(request, frozenset(stop_ids), report, source))

    def abort(self, request_id: str | None) -> None:
        """Ends one request with what it has, or all for None."""
        ended = [each for each in (*self._running, *self._waiting) if request_id in (None, each.request.request_id)]
        self._waiting = deque(each for each in self._waiting if each not in ended)
        for row in reversed(range(len(self._running))):
            if self._running[row] in ended:
                self._drop(row)
        for each in ended:
            each.end(Finish.ABORT)

    def pause(self, mode: PauseMode) -> None:
        """Stops, and treats open requests by the mode."""
        self.paused = True
        if mode is PauseMode.ABORT:
            self.abort(None)
        elif mode is PauseMode.RETRACT:
            self._waiting.extendleft(reversed(self._running))
            self._running.clear()

    def resume(self) -> None:
        """Goes on."""
        self.paused = False

    def replace_model(self, model: PreTrainedModel, version: int) -> None:
        """Goes on with another model of the same shapes.

        Raises:
            ValueError: It has others.
        """
        shapes, others = (
            {name: tuple(parameter.shape) for name, parameter in each.named_parameters()}
            for each in (self.model, model)
        )
        if shapes != others:
            raise ValueError(f"other weights: {sorted(set(shapes.items()) ^ set(others.items()))[:3]}")
        self.model, self.version = model, version

    def replace_tensors(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """Replaces these weights; all or none.

        Raises:
            ValueError: The model has none of such a name or shape.
        """
        own = self.model.state_dict()
        for name, tensor in tensors.items():
            if name not in own or own[name].shape != tensor.shape:
                raise ValueError(f"{name} {list(tensor.shape)}: the model has no such weight")
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
        self.version = version

    @torch.no_grad()
    def step(self) -> None:
        """Reads the prompts of as many waiting requests as there is room for, and adds a token to all running ones."""
        if self.idle:
            return
        if self._running:
            self._decode()
        while self._waiting and len(self._running) < self._max_running:
            self._prefill()

    def _prefill(self) -> None:
        """Reads prompts that arrived together; those that are equal, once."""
        rows: dict[tuple[int, ...], list[_Sequence]] = {}
        taken = longest = 0
        while self._waiting and len(self._running) + taken < self._max_running:
            tokens = self._waiting[0].tokens
            if tokens not in rows:
                longest = max(longest, len(tokens))
                if rows and (len(rows) == PREFILL_ROWS or (len(rows) + 1) * longest > PREFILL_TOKENS):
                    break
            rows.setdefault(tokens, []).append(self._waiting.popleft())
            taken += 1
        start = len(self._running)
        record = any(each.request.routing for group in rows.values() for each in group)
        logits_BV, experts_BPLK = self._read(list(rows), start, copies=taken - len(rows), record=record)
        if experts_BPLK is not None:
            for experts_PLK, (tokens, group) in zip(experts_BPLK, rows.items(), strict=True):
                for each in group:
                    each.experts = [experts_PLK[: len(tokens)]] if each.request.routing else []
        repeated = [(place, each) for place, group in enumerate(rows.values()) for each in group[1:]]
        for number, (place, each) in enumerate(repeated):
            self._cache.copy_row(start + place, start + len(rows) + number, each.position + 1)
        self._running += [group[0] for group in rows.values()] + [each for _, each in repeated]
        self._append(torch.cat([logits_BV, logits_BV[[place for place, _ in repeated]]]), start)

    def _read(
        self, prompts: Sequence[tuple[int, ...]], start: int, *, copies: int, record: bool
    ) -> tuple[torch.Tensor, np.ndarray | None]:
        """[B, V]: logits after each prompt, which is put into a row from `start` on; and the experts of its tokens."""
        width = max(map(len, prompts))
        device = self.model.device
        ids = torch.tensor([(*each, *[0] * (width - len(each))) for each in prompts], device=device)
        last = torch.tensor([len(each) - 1 for each in prompts], device=device)
        places, inverse = torch.unique(last, return_inverse=True)
        self._cache.write_prompts(start, len(prompts), width, copies=copies)
        # What follows a short prompt in its row is not looked at: it is causal, and overwritten before its turn.
        mask = torch.ones((width, width), dtype=torch.bool, device=device).tril()[None, None]
        positions = torch.arange(width, device=device)[None]
        logits, experts = self._forward(ids, mask.expand(len(prompts), 1, -1, -1), positions, places, record=record)
        return logits[torch.arange(len(prompts), device=device), inverse], experts

    def _decode(self) -> None:
        device = self.model.device
        positions_B = torch.tensor([each.position for each in self._running], device=device)
        ids = torch.tensor([[each.ids[-1]] for each in self._running], device=device)
        width = -(-(max(each.position for each in self._running) + 1) // BLOCK) * BLOCK
        self._cache.write_tokens(positions_B, width)
        mask = (torch.arange(width, device=device)[None] <= positions_B[:, None])[:, None, None]
        keep = torch.zeros(1, dtype=torch.long, device=device)
        record = any(each.request.routing for each in self._running)
        logits, experts_BPLK = self._forward(ids, mask, positions_B[:, None], keep, record=record)
        if experts_BPLK is not None:
            for experts_PLK, each in zip(experts_BPLK, self._running, strict=True):
                if each.request.routing:
                    each.experts.append(experts_PLK)
        self._append(logits[:, 0], 0)

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor, *, record: bool
    ) -> tuple[torch.Tensor, np.ndarray | None]:
        """Logits; with `record` the experts of each token, [B, P, L, K]."""
        call: Any = self.model
        with routing.recorded(self.model) if record else contextlib.nullcontext([]) as seen:
            output = call(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                cache=self._cache,
                use_cache=True,
                logits_to_keep=keep,
            )
        experts = None
        if seen:
            experts = torch.stack(seen, dim=1).reshape(*ids.shape, len(seen), -1).to(torch.int16).cpu().numpy()
        return output.logits.float(), experts

    def _append(self, logits_BV: torch.Tensor, start: int) -> None:
        """Draws a token for each row from `start` on, and lets go of those that ended."""
        rows = self._running[start:]
        choices = [Choice(each.request.sampling, each.random.random()) for each in rows]
        ids, logprobs = choose_tokens(logits_BV, choices)
        ended: list[tuple[int, Finish]] = []
        for row, (each, token, logprob) in enumerate(zip(rows, ids, logprobs, strict=True), start=start):
            each.add(token, logprob, self.version)
            if finish := each.finish():
                ended.append((row, finish))
        for row, finish in reversed(ended):
            self._drop(row).end(finish)

    def _drop(self, row: int) -> _Sequence:
        """Takes a row out; the last one moves into its place."""
        gone, last = self._running[row], self._running.pop()
        if last is not gone:
            self._cache.copy_row(len(self._running), row, last.position)  # the last token is yet to be read
            self._running[row] = last
        return gone


def load_model(folder: Path, *, device: str = "cpu") -> PreTrainedModel:
    """A model from a folder in Hugging Face's layout, to generate with.

    Raises:
        ConfigError: There is none, or it has layers that look at a part of the past only.
    """
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder}: no config.json; not a model in Hugging Face's layout")
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype="auto", local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ConfigError(f"{folder}: {error}") from error
    model, report = loaded
    wrong = {kind: sorted(map(str, names))[:3] for kind, names in report.items() if names}
    if wrong:  # the library would fill such weights with random numbers
        raise ConfigError(f"{folder}: the weights are not the model's: {wrong}")
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ConfigError(f"{folder}: layers of {sorted(kinds)}; only full attention is served here")
    return model.to(torch.device(device)).eval()
