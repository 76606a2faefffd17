"""Causal inheritance by code: how much of what a step changed is still so in the endpoint. Pure.

What a step contributed is what it added to its parents and what it took away from them. An added unit survives where
the endpoint has it; a removed one where the endpoint still does without. A Draft contributes all of itself, and a
Crossover all that is not in both of its parents.

Source: the causal-inheritance criterion of arXiv:2607.28568, appendix B.1, which the release leaves to a prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from openmle_erl.sft.units import Units, units_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Inheritance:
    """Counts of units: statements and calls, each as often as it stands there."""

    added: int
    surviving: int
    """Of those added: in the endpoint."""
    removed: int
    returned: int
    """Of those removed: back in the endpoint."""

    @property
    def share(self) -> float:
        """The part of the contribution that survives, 0 to 1; 0 for a step that contributed nothing."""
        total = self.added + self.removed
        return (self.surviving + self.removed - self.returned) / total if total else 0.0

    @property
    def reverted(self) -> bool:
        """Whether most of what the step removed is back, and most of what it added is gone."""
        return self.removed > 0 and 2 * self.returned > self.removed and 2 * self.surviving <= self.added


def inheritance(step: str, parents: Sequence[str], endpoint: str) -> Inheritance:
    """What of a step survives into an endpoint that descends from it.

    Args:
        parents: The sources of none, one or two parents.
    """
    own, last, *before = units_of([step, endpoint, *parents])
    if len(before) == 2:
        added, removed = own - (before[0] & before[1]), Units()
    elif before:
        added, removed = own - before[0], before[0] - own
    else:
        added, removed = own, Units()
    returned = removed & (last - own)
    return Inheritance(
        added=added.total(),
        surviving=(added & last).total(),
        removed=removed.total(),
        returned=returned.total(),
    )
