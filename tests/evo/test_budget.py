"""Ledgers, and which budget is spent first."""

from evo.make import card
from openmle_evo.budget import (
    Ledger,
    ModelCall,
    Spending,
    affordable,
    clamped_timeout,
    exhausted,
    most_dollars,
    remaining,
)
from openmle_evo.config import BudgetConfig
from openmle_gym.chat import Usage
from openmle_gym.prompts import Remaining


def call(purpose: str = "draft", tokens: int = 10, seconds: float = 2.0, **changes: object) -> ModelCall:
    fields = {
        "attempt": 0,
        "purpose": purpose,
        "usage": Usage(prompt_tokens=tokens),
        "seconds": seconds,
        "finished_at": "2026-01-01T00:00:00Z",
    }
    return ModelCall(**{**fields, **changes})  # pyright: ignore


def ledger(**changes: object) -> Ledger:
    cards = [card(0, 0.5).model_copy(update={"sandbox_seconds": 10.0, "queue_seconds": 100.0})]
    made = Spending(cards, [call(), call("note", failure="down", cost_usd=0.25)]).ledger(50.0)
    return made if not changes else Ledger(**{**{f: getattr(made, f) for f in made.__slots__}, **changes})  # pyright: ignore


def test_a_ledger_keeps_each_kind_of_expense_apart() -> None:
    made = ledger()
    assert (made.attempts, made.sandbox_seconds, made.queue_seconds) == (1, 10.0, 100.0)
    assert (made.model_seconds, made.wall_seconds, made.tokens.prompt_tokens) == (4.0, 50.0, 20)
    assert (made.calls, made.failed_calls, made.dollars) == (2, 1, 0.25)


def test_each_budget_is_spent_at_its_limit_and_not_before() -> None:
    limits = {
        "sandbox_seconds": 10.0,
        "model_seconds": 4.0,
        "total_seconds": 14.0,
        "wall_seconds": 50.0,
        "tokens": 20,
        "dollars": 0.25,
    }
    for name, amount in limits.items():
        assert exhausted(ledger(), BudgetConfig(**{name: amount})) == name  # pyright: ignore
        assert exhausted(ledger(), BudgetConfig(**{name: type(amount)(amount + 1)})) is None  # pyright: ignore


def test_waiting_for_a_slot_is_not_charged() -> None:
    assert exhausted(ledger(), BudgetConfig(total_seconds=60.0)) is None


def test_what_remains_is_the_least_that_any_budget_leaves() -> None:
    left = remaining(ledger(), BudgetConfig(attempts=10, sandbox_seconds=100.0, total_seconds=50.0), under_way=3)
    assert left == Remaining(attempts=6, sandbox_seconds=36.0, wall_seconds=None)


def test_a_programs_time_is_clamped_to_what_is_left() -> None:
    assert clamped_timeout(60.0, Remaining()) == 60.0
    assert clamped_timeout(60.0, Remaining(sandbox_seconds=36.0, wall_seconds=90.0)) == 36.0
    assert clamped_timeout(60.0, Remaining(wall_seconds=0.0)) == 1.0


def test_the_estimate_before_a_run_is_an_upper_bound_by_hand() -> None:
    dollars = most_dollars(BudgetConfig(attempts=100), prompt_tokens=18_000, reply_tokens=32_000, prices=(0.5, 2.0))
    assert dollars == 100 * (18_000 * 0.5 + 32_000 * 2.0) / 1e6


def test_what_attempts_under_way_may_take_is_reserved_until_they_are_settled() -> None:
    budget, spending = BudgetConfig(sandbox_seconds=100.0), Spending()
    spending.reserve(0, 60.0)
    assert remaining(spending.ledger(0.0), budget, under_way=2).sandbox_seconds == 40.0
    assert not affordable(spending.ledger(0.0), budget, 60.0)
    assert affordable(spending.ledger(0.0), budget, 40.0)
    spending.settle(card(0, 0.5).model_copy(update={"sandbox_seconds": 70.0}))
    assert remaining(spending.ledger(0.0), budget, under_way=1).sandbox_seconds == 30.0
    assert affordable(spending.ledger(0.0), budget, 60.0)  # nobody else is under way: it gets what is left


def test_a_final_choice_is_charged_as_attempts_are() -> None:
    assert Spending(final_seconds=12.5).ledger(0.0).sandbox_seconds == 12.5
