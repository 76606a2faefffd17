"""One member of a group, from its number to its fate.

Every member that was ever begun is open or has one fate, so the fates and the open ones add up to all that were begun.
"""

import json
import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from openmle_gym.experience import ExperienceCard

from openmle_erl.engines.protocols import Finish, FloatArray, TrainingSample, VersionSpan


class Fate(StrEnum):
    """What became of a sample in the end."""

    TRAINED = "trained"
    """It was in an optimiser step."""
    INFRASTRUCTURE = "infrastructure"
    """Machinery failed, so nothing is known of its program; it is in no statistics and in no loss."""
    LATE = "late"
    """Its group was complete enough and did not wait for it any longer."""
    NO_SIGNAL = "no_signal"
    """All rewards of its group were equal; another group was begun instead."""
    TOO_FEW = "too_few"
    """Too few members of its group were judged."""
    STALE = "stale"
    """Weights had moved on too far since its group was generated."""


Duplicate: TypeAlias = Literal["group", "task"]
"""Whose verdict a program got without being run: another member's, or an earlier one's on the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """A reply as the engine gave it. Shape suffixes: _T its tokens; _NLK as in `engines.protocols`."""

    reply_ids: tuple[int, ...]
    logprobs_T: FloatArray
    spans: tuple[VersionSpan, ...]
    finish: Finish
    seconds: float = 0.0
    """From asking to the last token, restarts included."""
    restarts: int = 0
    """How often a weight update threw it back to its beginning."""
    experts_NLK: NDArray[np.int16] | None = None
    """As `TrainingSample` has them."""

    def packed(self) -> bytes:
        """For the queue's file; `unpacked` reads it back equal."""
        experts = self.experts_NLK if self.experts_NLK is not None else np.zeros((0, 0, 0), np.int16)
        length = len(self.reply_ids)
        head = json.dumps([length, self.spans, self.finish, self.seconds, self.restarts, experts.shape]).encode()
        ids = np.array(self.reply_ids, dtype=np.int32).tobytes()
        logprobs = self.logprobs_T.astype(np.float32).tobytes()
        return zlib.compress(head + b"\n" + ids + logprobs + experts.astype(np.int16).tobytes(), 1)


def unpacked(packed: bytes) -> Rolled:
    """Reads what `Rolled.packed` wrote."""
    head, _, body = zlib.decompress(packed).partition(b"\n")
    length, spans, finish, seconds, restarts, *shape = json.loads(head)
    experts = np.frombuffer(body, dtype=np.int16, offset=8 * length)
    return Rolled(
        reply_ids=tuple(np.frombuffer(body, dtype=np.int32, count=length).tolist()),
        logprobs_T=np.frombuffer(body, dtype=np.float32, offset=4 * length, count=length).copy(),
        spans=tuple(VersionSpan(*span) for span in spans),
        finish=Finish(finish),
        seconds=seconds,
        restarts=restarts,
        experts_NLK=experts.reshape(shape[0]).copy() if len(experts) else None,  # runs of before have no shape
    )


@dataclass(slots=True, kw_only=True)
class Member:
    """One sample of a group. Rewards are NaN until the group is settled, and where machinery failed."""

    attempt: int
    """Its number in the run, and its card's."""
    rolled: Rolled | None = None
    card: ExperienceCard | None = None
    duplicate: Duplicate | None = None
    fate: Fate | None = None
    """None while it is open."""
    reward: float = np.nan
    base_reward: float = np.nan
    """Without a bonus for beating the parent."""
    progress: float = np.nan
    """Place between the task's fixed bounds."""
    percentile: float = np.nan
    """Share of the task's leaderboard that is beaten."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be known of it."""
        return self.card is not None or self.fate is not None

    @property
    def oldest_version(self) -> int:
        """Of the weights that made its first tokens; 0 where there are none."""
        return min((span.version for span in self.rolled.spans), default=0) if self.rolled else 0


def training_sample(member: Member, prompt_ids: tuple[int, ...], advantage: float) -> TrainingSample:
    """What the trainer learns from; every token of a reply is learnt, with that which ended it."""
    assert member.rolled is not None
    return TrainingSample(
        sample_id=str(member.attempt),
        prompt_ids=prompt_ids,
        reply_ids=member.rolled.reply_ids,
        loss_mask_T=np.ones(len(member.rolled.reply_ids), dtype=np.bool_),
        rollout_logprobs_T=member.rolled.logprobs_T,
        advantage=advantage,
        experts_NLK=member.rolled.experts_NLK,
    )
