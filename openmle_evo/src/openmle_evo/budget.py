"""What a run has spent, and what is left: one ledger for each kind of expense. Pure.

Waiting in the sandbox's queue is told but never charged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from openmle_gym.chat import Usage
from openmle_gym.contracts import Contract
from openmle_gym.experience import ExperienceCard
from openmle_gym.operators import Operator
from openmle_gym.prompts import Remaining

from openmle_evo.config import BudgetConfig

SHORTEST_JOB_SECONDS = 1.0
"""Less than this is not worth starting a program for."""

Purpose = Operator | Literal["note", "review"]
"""What a model was called for: an operator, a note for memory, the reviewer's judgement."""


class ModelCall(Contract):
    """One call of a model, answered or not."""

    attempt: int
    """The attempt that it was made for, or, of a note, about."""
    purpose: Purpose
    model: str = ""
    usage: Usage = Usage()
    seconds: float
    cost_usd: float | None = None
    """None when no price is known."""
    failure: str | None = None
    """Why there was no answer."""
    finished_at: str
    """ISO 8601 with Z."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What was spent so far, over all lives of a run."""

    attempts: int
    sandbox_seconds: float
    queue_seconds: float
    model_seconds: float
    wall_seconds: float
    tokens: Usage
    dollars: float | None
    """None when no call had a known price."""
    calls: int
    failed_calls: int


def spent(cards: Sequence[ExperienceCard], calls: Sequence[ModelCall], wall_seconds: float) -> Ledger:
    """Adds up a run."""
    costs = [call.cost_usd for call in calls if call.cost_usd is not None]
    return Ledger(
        attempts=len(cards),
        sandbox_seconds=sum(card.sandbox_seconds for card in cards),
        queue_seconds=sum(card.queue_seconds for card in cards),
        model_seconds=sum(call.seconds for call in calls),
        wall_seconds=wall_seconds,
        tokens=Usage(
            prompt_tokens=sum(call.usage.prompt_tokens for call in calls),
            completion_tokens=sum(call.usage.completion_tokens for call in calls),
            estimated=any(call.usage.estimated for call in calls),
        ),
        dollars=sum(costs) if costs else None,
        calls=len(calls),
        failed_calls=sum(call.failure is not None for call in calls),
    )


def exhausted(ledger: Ledger, budget: BudgetConfig) -> str | None:
    """The budget that is spent, by the name of its setting; None while there is something left of each.

    Attempts are counted by whoever starts them.
    """
    sandbox, model = ledger.sandbox_seconds, ledger.model_seconds
    used = {
        "sandbox_seconds": sandbox,
        "model_seconds": model,
        "total_seconds": sandbox + model,
        "wall_seconds": ledger.wall_seconds,
        "tokens": ledger.tokens.prompt_tokens + ledger.tokens.completion_tokens,
        "dollars": ledger.dollars or 0.0,
    }
    limits = {name: getattr(budget, name) for name in used}
    return next((name for name, limit in limits.items() if limit is not None and used[name] >= limit), None)


def remaining(ledger: Ledger, budget: BudgetConfig, *, under_way: int) -> Remaining:
    """What an operator is told: attempts after the one that is being chosen, and seconds.

    Args:
        under_way: Attempts that were begun and have no card yet, this one included.
    """
    sandbox = [
        limit - used
        for limit, used in (
            (budget.sandbox_seconds, ledger.sandbox_seconds),
            (budget.total_seconds, ledger.sandbox_seconds + ledger.model_seconds),
        )
        if limit is not None
    ]
    return Remaining(
        attempts=max(budget.attempts - ledger.attempts - under_way, 0),
        sandbox_seconds=max(min(sandbox), 0.0) if sandbox else None,
        wall_seconds=None if budget.wall_seconds is None else max(budget.wall_seconds - ledger.wall_seconds, 0.0),
    )


def clamped_timeout(timeout_seconds: float, left: Remaining) -> float:
    """What a program may take: its time limit, or what is left of the run where that is less."""
    limits = [limit for limit in (left.sandbox_seconds, left.wall_seconds) if limit is not None]
    return max(SHORTEST_JOB_SECONDS, min([timeout_seconds, *limits]))


def most_dollars(budget: BudgetConfig, *, prompt_tokens: int, reply_tokens: int, prices: tuple[float, float]) -> float:
    """An upper estimate before a run: every attempt with the longest prompt and the longest reply.

    Args:
        prices: US dollars for a million prompt and completion tokens.
    """
    return budget.attempts * (prompt_tokens * prices[0] + reply_tokens * prices[1]) / 1e6
