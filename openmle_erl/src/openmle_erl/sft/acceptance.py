"""Which judged programs are good enough to learn from. Pure; decides by validation scores alone.

Every policy needs a program that ran to a validation score; `all` takes any program that ran or failed, as long as
there is one. A policy that can never accept anything of a task is refused before any work is done.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from openmle_gym.errors import ConfigError
from openmle_gym.experience import ExperienceCard
from openmle_gym.jobs import Outcome
from openmle_gym.leaderboard import Leaderboard
from openmle_gym.manifest import Metric
from openmle_gym.scores import ValidationScore
from openmle_gym.task import TaskPackage

from openmle_erl.rewards.mapping import Bounds, power_sigmoid
from openmle_erl.sft.config import AcceptanceConfig
from openmle_erl.sft.reasons import Drop


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """What a decision needs to know of a task."""

    name: str
    metric: Metric
    leaderboard: Leaderboard | None = None
    reference: float | None = None
    """A score that examples must beat, where the policy says so."""


class Decision(NamedTuple):
    """Whether a program is accepted; `drop` says why not, and is None when it is."""

    accepted: bool
    drop: Drop | None = None


def task_facts(package: TaskPackage, references: Mapping[str, float]) -> TaskFacts:
    """Reads what there is of a package."""
    return TaskFacts(
        name=package.name,
        metric=package.manifest.metric,
        leaderboard=package.leaderboard,
        reference=references.get(package.name),
    )


def read_references(path: Path | None) -> dict[str, float]:
    """Reads reference scores: a JSON object of scores by task name, or one object with `task` and `score` a line.

    Raises:
        ConfigError: The file cannot be read, or an entry is not of this form.
    """
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"acceptance.references: {path}: {error}") from error
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None  # JSON lines, or a fault that reading by line names
    if isinstance(whole, dict) and not {"task", "score"} <= set(whole):
        return {str(task): _reference(score, f"{path}: {task}") for task, score in whole.items()}
    references: dict[str, float] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                entry = json.loads(line)
                references[str(entry["task"])] = _reference(entry["score"], f"{path}:{number}")
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f'{path}:{number}: expected {{"task": ..., "score": ...}}: {error!r}') from error
    return references


def _reference(score: object, place: str) -> float:
    """A finite number: nothing is better than NaN, so the task could never accept anything."""
    try:
        number = float(score) if isinstance(score, int | float) and not isinstance(score, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError(f"acceptance.references: {place}: must be a finite number, got {score!r:.80}")
    return number


def check_reachable(tasks: Sequence[TaskFacts], config: AcceptanceConfig) -> None:
    """Refuses settings under which some task could never accept anything, however good its programs.

    Raises:
        ConfigError: Names the tasks.
    """
    boardless = [facts.name for facts in tasks if facts.leaderboard is None]
    without_reference = [facts.name for facts in tasks if facts.reference is None]
    if config.policy == "medal" and boardless:
        raise ConfigError(f"acceptance.policy=medal can never accept tasks without a leaderboard: {_some(boardless)}")
    if config.policy == "better_than_reference" and without_reference:
        raise ConfigError(
            "acceptance.policy=better_than_reference can never accept tasks that acceptance.references does not "
            f"name: {_some(without_reference)}"
        )
    neither = [name for name in boardless if name in without_reference]
    if config.policy == "mixed" and neither:
        raise ConfigError(
            "acceptance.policy=mixed can never accept tasks that have no leaderboard and that acceptance.references "
            f"does not name: {_some(neither)}"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def accept(card: ExperienceCard, facts: TaskFacts, config: AcceptanceConfig) -> Decision:
    """Decides on one judged attempt."""
    if card.program_id is None:
        return Decision(False, Drop.NO_PROGRAM)
    if card.outcome is Outcome.REJECTED:
        return Decision(False, Drop.REJECTED_PROGRAM)
    if config.policy == "all":
        return Decision(True)
    if card.outcome is not Outcome.SUCCESS or card.validation is None:
        return Decision(False, Drop.NOT_SCORED)
    return _by_policy(card.validation, facts, config, config.policy)


def _by_policy(score: ValidationScore, facts: TaskFacts, config: AcceptanceConfig, policy: str) -> Decision:
    if policy == "mixed":
        policy = "better_than_reference" if facts.leaderboard is None else "medal"
    if policy == "medal":
        medal = facts.leaderboard.medal(score.value) if facts.leaderboard else None
        return _decision(medal is not None and medal.value in config.medals, Drop.NO_MEDAL)
    if policy == "score_threshold":
        assert config.score_threshold is not None
        least = _turned(config.score_threshold, score.higher_is_better)
        return _decision(score.utility >= least, Drop.BELOW_SCORE_THRESHOLD)
    if policy == "reward_threshold":
        assert config.reward_threshold is not None
        return _decision(static_reward(score, facts) >= config.reward_threshold, Drop.BELOW_REWARD_THRESHOLD)
    if policy == "better_than_reference":
        reference = facts.reference
        beaten = reference is not None and score.utility > _turned(reference, score.higher_is_better)
        return _decision(beaten, Drop.NOT_BETTER_THAN_REFERENCE)
    assert policy == "scored", policy
    return Decision(True)


def _decision(accepted: bool, otherwise: Drop) -> Decision:
    return Decision(True) if accepted else Decision(False, otherwise)


def static_reward(score: ValidationScore, facts: TaskFacts) -> float:
    """The published SFT reward: `power_sigmoid` of the place between the task's outermost known limits.

    The limits are the theoretical ones and the ends of the leaderboard; with fewer than two it is a plain sigmoid.
    """
    limits = [facts.metric.theoretical_min, facts.metric.theoretical_max]
    if facts.leaderboard is not None:
        limits += [facts.leaderboard.scores[0], facts.leaderboard.scores[-1]]
    turned = sorted({_turned(limit, score.higher_is_better) for limit in limits if limit is not None})
    bounds = Bounds(worst=turned[0], best=turned[-1]) if len(turned) > 1 else None
    return float(power_sigmoid([score.utility], bounds)[0])


def _turned(value: float, higher_is_better: bool) -> float:
    return value if higher_is_better else -value
