"""How many Drafts a task gets: batch by batch until enough were accepted, or the budget ends. Pure.

Where a task stands follows from its judged attempts alone, so a resumed run cannot miscount.

Source: arXiv:2607.28568, section 4.2, and the release's settings (batch 4, quota 4, limit 32).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A task's attempts."""

    batch: int = 4
    """Attempts between two looks at the quota; what a batch accepts beyond the quota is kept."""
    quota: int = 4
    """Accepted attempts after which no new batch starts."""
    limit: int = 32
    """The most attempts in all."""

    def __post_init__(self) -> None:
        for name in ("batch", "quota", "limit"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


class Standing(NamedTuple):
    """Where a task stands."""

    target: int
    """Attempts 0 to target - 1 are wanted by now."""
    done: bool
    """All of them are judged, and no more are wanted."""


def standing(verdicts: Mapping[int, bool], budget: Budget) -> Standing:
    """Where a task stands.

    Args:
        verdicts: Whether an attempt was accepted, by its number; attempts that are not judged yet are left out.
    """
    target = min(budget.batch, budget.limit)
    while all(number in verdicts for number in range(target)):
        accepted = sum(verdicts[number] for number in range(target))
        if accepted >= budget.quota or target >= budget.limit:
            return Standing(target, done=True)
        target = min(target + budget.batch, budget.limit)
    return Standing(target, done=False)
