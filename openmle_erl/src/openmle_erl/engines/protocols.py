"""The two narrow protocols between the learning loop and its engines: one generates, one trains.

The loop knows token ids, log-probabilities and folders of weights in Hugging Face's layout, and nothing of either side's
processes, devices or frameworks. This module needs numpy alone.

Shape suffixes: _T the tokens of one reply, _N those of prompt and reply, _L layers with experts, _K experts a token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from openmle_gym.errors import OpenMLEError

FloatArray: TypeAlias = NDArray[np.float32]


class Finish(StrEnum):
    """Why a generation ended; the values are SGLang's."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class PauseMode(StrEnum):
    """What a pause does to requests that are being generated; the values are SGLang's."""

    ABORT = "abort"
    """They end at once, with what they have."""
    RETRACT = "retract"
    """They wait, and begin their attention anew, under the new weights, from the tokens they have."""
    IN_PLACE = "in_place"
    """They wait, and go on under the new weights with the old attention cache."""


class VersionSpan(NamedTuple):
    """Which weights made the tokens [start, end) of a reply."""

    version: int
    start: int
    end: int


class RoutingShape(NamedTuple):
    """What a mixture chooses for each token."""

    layers: int
    """Layers with experts."""
    experts: int
    """Of a token, in each layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. The defaults are the paper's for training (spec of RL, 4.1)."""

    max_new_tokens: int = 24_576
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    """-1: all."""
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One prompt, to be continued once."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int | None = None
    routing: RoutingShape | None = None
    """Where it is given, the experts that tokens went through are wanted, of so many layers and experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A continuation."""

    request_id: str
    token_ids: tuple[int, ...]
    """With the token that ended it, where one did."""
    logprobs_T: FloatArray
    """The engine's own log-probabilities of `token_ids`."""
    finish: Finish
    spans: tuple[VersionSpan, ...]
    """They cover all tokens in order; more than one where weights were replaced on the way."""
    experts_NLK: NDArray[np.int16] | None = None
    """Where they were wanted: the experts of each token of prompt and reply but the last, which no pass has read. Of a
    token that was read again (after a pause that retracts), those of the last time. None also where an abort came first."""


class RolloutEngine(Protocol):
    """Generates. A failing engine raises `openmle_gym.errors.InfrastructureError`."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Continues a prompt; aborted is an answer, not an error."""
        ...

    async def pause(self, mode: PauseMode) -> None:
        """Stops generating and treats what is in flight by `mode`. Requests that arrive wait."""
        ...

    async def load_weights(self, folder: Path, version: int) -> None:
        """Replaces the weights by those of a folder in Hugging Face's layout."""
        ...

    async def resume(self) -> None:
        """Goes on generating."""
        ...

    async def version(self) -> int:
        """Of the weights that it has; 0 for those it started with. Raises when the engine is not healthy."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One reply to be learnt from."""

    sample_id: str
    prompt_ids: tuple[int, ...]
    reply_ids: tuple[int, ...]
    loss_mask_T: NDArray[np.bool_]
    """Which of the reply's tokens are learnt."""
    rollout_logprobs_T: FloatArray
    """As the engine that generated them reported."""
    advantage: float
    """Of the whole reply."""
    experts_NLK: NDArray[np.int16] | None = None
    """The experts that the rollout engine sent each token of prompt and reply through, by layer, as `routing` describes;
    None: not recorded."""


def check_step(samples: Sequence[TrainingSample], old_logprobs: Sequence[FloatArray]) -> None:
    """Looks at what an optimiser step is given, before anything is computed.

    Raises:
        ValueError: There is no sample, one has nothing to learn, or its arrays do not fit; names the sample.
        OpenMLEError: A log-probability is not finite; names sample and token.
    """
    if not samples:
        raise ValueError("a step needs at least one sample")
    for sample, old in zip(samples, old_logprobs, strict=True):
        length = len(sample.reply_ids)
        arrays = {
            "loss_mask_T": sample.loss_mask_T,
            "rollout_logprobs_T": sample.rollout_logprobs_T,
            "old_logprobs": old,
        }
        for name, values in arrays.items():
            if len(values) != length:
                raise ValueError(f"sample {sample.sample_id}: {name} has {len(values)} entries for {length} tokens")
            if not np.isfinite(values).all():
                place = int(np.flatnonzero(~np.isfinite(values))[0])
                raise OpenMLEError(f"sample {sample.sample_id}: {name} is {values[place]} at token {place}")
        if not sample.prompt_ids:
            raise ValueError(f"sample {sample.sample_id}: an empty prompt")
        if not sample.loss_mask_T.any():
            raise ValueError(f"sample {sample.sample_id}: no token is learnt")


class StepReport(NamedTuple):
    """What an optimiser step did."""

    loss: float
    metrics: Mapping[str, float]
    """By name: grad_norm, learning_rate, clip_fraction, entropy, effective_sample_size, kl, tokens, seconds, ..."""


class Trainer(Protocol):
    """Trains. All methods may take long and are run to their end before the next is called."""

    async def logprobs(self, samples: Sequence[TrainingSample]) -> list[FloatArray]:
        """[T] each: log-probabilities of the replies' tokens under the weights as they are now."""
        ...

    async def step(self, samples: Sequence[TrainingSample], old_logprobs: Sequence[FloatArray]) -> StepReport:
        """One optimiser step over all samples (micro-batches are the trainer's affair).

        Args:
            old_logprobs: [T] each, of the policy that the ratio is taken against.
        """
        ...

    async def save_weights(self, folder: Path) -> None:
        """Writes the model alone, in Hugging Face's layout, for an engine to load; the folder appears whole or not at all."""
        ...

    async def save(self, folder: Path) -> None:
        """Writes all that is needed to go on: model, optimiser, schedule, random state. Whole or not at all."""
        ...

    async def load(self, folder: Path) -> None:
        """Goes on from what `save` wrote, bit for bit."""
        ...

    async def close(self) -> None:
        """Ends processes and frees memory."""
        ...
