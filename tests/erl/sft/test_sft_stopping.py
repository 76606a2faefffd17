"""Budget-adaptive stopping: the stated counts, and that it always ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openmle_erl.sft.stopping import Budget, Standing, standing

BUDGET = Budget(batch=4, quota=4, limit=32)


def attempts_used(accepts, budget: Budget = BUDGET) -> int:
    """Judges batch after batch, as a sampler does."""
    verdicts: dict[int, bool] = {}
    while not (stands := standing(verdicts, budget)).done:
        assert stands.target > len(verdicts)
        for number in range(stands.target):
            verdicts.setdefault(number, accepts(number))
    return len(verdicts)


@pytest.mark.parametrize(
    ("accepts", "attempts"),
    [
        (lambda number: True, 4),
        (lambda number: number % 2 == 1, 8),
        (lambda number: number % 4 == 3, 16),
        (lambda number: False, 32),
    ],
    ids=["always", "every second", "every fourth", "never"],
)
def test_the_stated_counts_for_batch_4_quota_4_limit_32(accepts, attempts: int) -> None:
    assert attempts_used(accepts) == attempts


def test_the_quota_is_looked_at_between_batches_only_so_a_surplus_is_kept() -> None:
    assert attempts_used(lambda number: True, Budget(batch=8, quota=1, limit=32)) == 8


def test_a_limit_that_is_no_multiple_of_the_batch_is_kept() -> None:
    assert attempts_used(lambda number: False, Budget(batch=4, quota=4, limit=10)) == 10
    assert attempts_used(lambda number: False, Budget(batch=8, quota=4, limit=3)) == 3


def test_a_batch_is_not_over_while_one_of_its_attempts_is_not_judged() -> None:
    assert standing({0: True, 1: True, 3: True, 4: True, 5: True}, BUDGET) == Standing(4, done=False)


def test_an_attempt_judged_after_the_last_look_counts_because_nothing_but_verdicts_is_looked_at() -> None:
    """The release kept counters in a snapshot of every 30 seconds; a verdict after it was never counted: a hang."""
    before = dict.fromkeys(range(3), True)
    assert not standing(before, BUDGET).done
    assert standing(before | {3: True}, BUDGET) == Standing(4, done=True)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40), st.lists(st.booleans(), min_size=40, max_size=40))
def test_sampling_always_ends_within_its_limit(batch: int, quota: int, limit: int, accepted: list[bool]) -> None:
    budget = Budget(batch=batch, quota=quota, limit=limit)
    used = attempts_used(lambda number: accepted[number], budget)
    assert used == limit or sum(accepted[:used]) >= quota
    assert used <= limit
    if used > batch:
        previous = used - batch if used % batch == 0 else used - used % batch
        assert sum(accepted[:previous]) < quota  # it did not go on for nothing


@pytest.mark.parametrize("name", ["batch", "quota", "limit"])
def test_a_budget_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        Budget(**{name: 0})
