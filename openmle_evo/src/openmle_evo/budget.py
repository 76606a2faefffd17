"""What a run has spent, and what is left: one ledger for each kind of expense. Pure.

Waiting in the sandbox's queue is told but never charged.

Sandbox seconds are reserved when an attempt begins, as many as its program may take, and settled when its card is there;
so attempts that run side by side cannot take more together than is left. Grading is charged as it comes.
"""

import math
from collections.abc import Iterable
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
    reserved_seconds: float = 0.0
    """What the programs of the attempts under way may take in the sandbox, at most."""
    queue_seconds: float
    model_seconds: float
    wall_seconds: float
    tokens: Usage
    dollars: float | None
    """None when no call had a known price."""
    calls: int
    failed_calls: int


class Spending:
    """A run's expenses, added up as they come."""

    def __init__(
        self, cards: Iterable[ExperienceCard] = (), calls: Iterable[ModelCall] = (), *, final_seconds: float = 0.0
    ) -> None:
        """Args:
        final_seconds: What final choices and gradings took in the sandbox, in earlier lives of the run.
        """
        self._attempts = self._calls = self._failed_calls = 0
        self._queue_seconds = self._model_seconds = 0.0
        self._sandbox_seconds = final_seconds
        self._reserved: dict[int, float] = {}
        self._tokens = Usage()
        self._dollars: float | None = None
        for card in cards:
            self.settle(card)
        for call in calls:
            self.called(call)

    def reserve(self, attempt: int, seconds: float) -> None:
        """Sets sandbox seconds aside for an attempt that begins."""
        self._reserved[attempt] = seconds

    def settle(self, card: ExperienceCard) -> None:
        """Charges a judged attempt, in place of what was reserved for it."""
        self._reserved.pop(card.attempt, None)
        self._attempts += 1
        self._sandbox_seconds += card.sandbox_seconds
        self._queue_seconds += card.queue_seconds

    def called(self, call: ModelCall) -> None:
        """Charges a model call, answered or not."""
        self._calls += 1
        self._failed_calls += call.failure is not None
        self._model_seconds += call.seconds
        self._tokens += call.usage
        if call.cost_usd is not None:
            self._dollars = (self._dollars or 0.0) + call.cost_usd

    def ledger(self, wall_seconds: float) -> Ledger:
        """What was spent so far.

        Args:
            wall_seconds: For how long the run has been open.
        """
        return Ledger(
            attempts=self._attempts,
            sandbox_seconds=self._sandbox_seconds,
            reserved_seconds=math.fsum(self._reserved.values()),
            queue_seconds=self._queue_seconds,
            model_seconds=self._model_seconds,
            wall_seconds=wall_seconds,
            tokens=self._tokens,
            dollars=self._dollars,
            calls=self._calls,
            failed_calls=self._failed_calls,
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
    """What an operator is told: attempts after the one that is being chosen, and seconds that nobody has reserved.

    Args:
        under_way: Attempts that were begun and have no card yet, this one included.
    """
    sandbox = [
        limit - used
        for limit, used in (
            (budget.sandbox_seconds, ledger.sandbox_seconds + ledger.reserved_seconds),
            (budget.total_seconds, ledger.sandbox_seconds + ledger.reserved_seconds + ledger.model_seconds),
        )
        if limit is not None
    ]
    return Remaining(
        attempts=max(budget.attempts - ledger.attempts - under_way, 0),
        sandbox_seconds=max(min(sandbox), 0.0) if sandbox else None,
        wall_seconds=None if budget.wall_seconds is None else max(budget.wall_seconds - ledger.wall_seconds, 0.0),
    )


def affordable(ledger: Ledger, budget: BudgetConfig, timeout_seconds: float) -> bool:
    """Whether another attempt may begin now: what is not reserved pays for a whole program, or nothing is reserved.

    Where it may not, it may once an attempt under way is settled.
    """
    left = remaining(ledger, budget, under_way=1).sandbox_seconds
    return left is None or left >= timeout_seconds or ledger.reserved_seconds == 0.0


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
