"""A group: one operator, its parents and its prompt, sampled several times. When it is complete, and what it earns.

A group is complete when all its members are over, or when `least` of them were judged and the barrier's time has
passed since then: one lost member strands nobody. Members without a verdict are left out of the group's statistics.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from openmle_gym.errors import ConfigError
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.features import normalised_source
from openmle_gym.jobs import Outcome
from openmle_gym.leaderboard import Leaderboard
from openmle_gym.operators import Operator

from openmle_erl.rewards.advantages import group_advantages
from openmle_erl.rewards.batches import ScoreRecord
from openmle_erl.rewards.presets import RewardSettings, RewardTask, group_rewards
from openmle_erl.rewards.shaping import INFRASTRUCTURE, SUCCESS, UNCHANGED
from openmle_erl.rl.conversation import Prompt
from openmle_erl.rl.samples import Fate, Member


class GroupState(StrEnum):
    """Where a group stands."""

    IN_FLIGHT = "in_flight"
    READY = "ready"
    """Settled, and waiting for the trainer."""
    TRAINED = "trained"
    DROPPED = "dropped"
    """Settled, and of no use to the trainer; its members' fates say why."""


@dataclass
class GroupConfig:
    """When a group is complete."""

    least: int = 8
    """Members that must be judged; a group with fewer is not learnt from."""
    barrier_seconds: float = 900.0
    """How long a group that has them waits for the others."""
    tries: int = 3
    """How often a member is tried while machinery fails."""
    try_seconds: float = 9000.0
    """How long one try may take, generation, queue and execution together; longer is a failure of machinery."""
    refills: float = 2.0
    """Groups without signal that one step replaces, for each group that it trains on; further ones are trained on, where
    they change nothing. 0 replaces none."""

    def __post_init__(self) -> None:
        for name, smallest in (("least", 1), ("tries", 1)):
            if getattr(self, name) < smallest:
                raise ConfigError(f"group.{name}: must be at least {smallest}, got {getattr(self, name)}")
        for name in ("barrier_seconds", "refills"):
            if getattr(self, name) < 0:
                raise ConfigError(f"group.{name}: must be 0 or more, got {getattr(self, name)}")
        if not self.try_seconds > 0:
            raise ConfigError(f"group.try_seconds: must be more than 0, got {self.try_seconds}")


@dataclass(slots=True, kw_only=True)
class Group:
    """The samples of one prompt."""

    number: int
    task: str
    operator: Operator
    parents: tuple[int, ...]
    """Attempt numbers, in the order of the prompt."""
    selection: Selection
    prompt: Prompt
    version: int
    """Of the weights when it was begun."""
    members: list[Member]
    state: GroupState = GroupState.IN_FLIGHT
    settled: int | None = None
    """How many groups had been settled, with this one."""
    step: int | None = None
    """The optimiser's step that trained on it."""

    @property
    def judged(self) -> list[Member]:
        """The members that have a verdict."""
        return [member for member in self.members if member.card is not None]

    @property
    def oldest_version(self) -> int:
        """Of the weights that made its oldest tokens."""
        return min((member.oldest_version for member in self.members if member.rolled), default=self.version)


class Standing(NamedTuple):
    """Where a program stands on a task; NaN where the task has no such measure."""

    progress: float
    """Place between the task's fixed bounds, 0 to 1."""
    percentile: float
    """Share of the task's leaderboard that is beaten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """What turns a task's scores into rewards and into progress."""

    task: RewardTask
    leaderboard: Leaderboard | None = None

    def standing(self, score: float | None) -> Standing:
        """Where a score stands on bounds that do not move; a program without one stands at 0."""
        if score is None:
            bounded = group_rewards([self._best], task=self.task).progress[0] if self._best is not None else np.nan
            return Standing(0.0 if not np.isnan(bounded) else np.nan, 0.0 if self.leaderboard else np.nan)
        (progress,) = group_rewards([score], task=self.task).progress
        return Standing(float(progress), self.leaderboard.fraction_beaten(score) if self.leaderboard else np.nan)

    @property
    def _best(self) -> float | None:
        return self.task.static_best if self.task.progress_best is None else self.task.progress_best


class Completion(NamedTuple):
    """Whether a group is complete; if not, for how long it waits at most, None for as long as its members take."""

    complete: bool
    wait_seconds: float | None = None


def completion(group: Group, *, enough_since: float | None, now: float, config: GroupConfig) -> Completion:
    """The completion rule.

    Args:
        enough_since: When `least` members had been judged; None while they are fewer.
    """
    if all(member.is_over for member in group.members):
        return Completion(True)
    if enough_since is None:
        return Completion(False)
    left = enough_since + config.barrier_seconds - now
    return Completion(left <= 0.0, max(left, 0.0))


def settle(
    group: Group,
    scoring: Scoring,
    parents: Sequence[ExperienceCard],
    history: Sequence[ScoreRecord],
    settings: RewardSettings,
    config: GroupConfig,
) -> bool:
    """Gives the members their rewards, and the group its state; open members get the fate LATE.

    Returns:
        Whether the group is dropped for want of a signal, so that another should take its place.
    """
    for member in group.members:
        if not member.is_over:
            member.fate = Fate.LATE
    judged = group.judged
    if judged:
        _reward(judged, scoring, parents, history, settings)
    earning = [member for member in judged if not np.isnan(member.reward)]
    group.state = GroupState.READY
    if len(earning) < config.least:
        drop(group, Fate.TOO_FEW)
        return False
    for member in judged:
        if np.isnan(member.reward):
            member.fate = Fate.INFRASTRUCTURE
    advantages = group_advantages([member.reward for member in earning], [0] * len(earning), settings.advantages)
    return not np.any(advantages)


def drop(group: Group, fate: Fate) -> None:
    """Takes a group from the trainer; members that have a fate keep it."""
    group.state = GroupState.DROPPED
    for member in group.members:
        member.fate = member.fate or fate


def _reward(
    judged: Sequence[Member],
    scoring: Scoring,
    parents: Sequence[ExperienceCard],
    history: Sequence[ScoreRecord],
    settings: RewardSettings,
) -> None:
    cards = [member.card for member in judged if member.card is not None]
    scores = [card.validation.value if card.validation else None for card in cards]
    best = max((parent.validation for parent in parents if parent.validation), key=lambda s: s.utility, default=None)
    earned = group_rewards(
        scores,
        task=scoring.task,
        settings=settings,
        outcomes=[outcome_label(card, parents) for card in cards],
        programs=[card.program_id or f"none-{card.attempt}" for card in cards],
        history=[record.score for record in history],
        history_programs=[record.program or "" for record in history],
        parent_scores=[best.value if best else None] * len(cards),
        claimed=[card.self_reported.value if card.self_reported else None for card in cards],
    )
    for place, (member, score) in enumerate(zip(judged, scores, strict=True)):
        member.reward = float(earned.rewards[place])
        member.base_reward = float(earned.base_rewards[place])
        if not np.isnan(member.reward):
            member.progress, member.percentile = scoring.standing(score)


def outcome_label(card: ExperienceCard, parents: Sequence[ExperienceCard]) -> str:
    """The label that rewards go by: the outcome; `unchanged` for a parent's program again, comments and layout aside;
    `infrastructure` where the reviewer's model gave no verdict, so nothing is known of the program."""
    if card.review == "unknown" and (card.withheld is not None or card.outcome is Outcome.REJECTED):
        return INFRASTRUCTURE
    if card.outcome is Outcome.SUCCESS and any(
        normalised_source(card.source) == normalised_source(parent.source) for parent in parents
    ):
        return UNCHANGED
    return str(card.outcome)


def score_record(card: ExperienceCard) -> ScoreRecord | None:
    """What a task's bounds remember of a card; None where there is no score."""
    if card.validation is None or card.outcome not in (SUCCESS, UNCHANGED):
        return None
    return ScoreRecord(card.program_id, card.validation.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a step trains on: the members of its groups that have a reward, and their advantages."""

    members: list[Member] = field(default_factory=list)
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    """Of each member."""


def batch_of(groups: Sequence[Group]) -> Batch:
    """The members of some groups that have a reward, in the order of their attempts."""
    batch = Batch()
    for group in sorted(groups, key=lambda each: each.number):
        for member in group.members:
            if member.fate is None or member.fate is Fate.TRAINED:
                batch.members.append(member)
                batch.prompts.append(group.prompt.ids)
                batch.groups.append(group.number)
    return batch
