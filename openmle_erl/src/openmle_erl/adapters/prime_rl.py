"""Advantages for the traces of one group in prime-rl.

prime-rl has no hook that names user code: an algorithm is a class in its repository, whose `score_group` assigns each
trace an advantage. `trace_advantages` is what that method calls; docs/rewards.md has the class. prime-rl is not on
PyPI, so this is tested with objects that have a trace's documented attributes, not with the package itself.
"""

from collections.abc import Sequence
from typing import Protocol

from openmle_erl.rewards.advantages import AdvantageSettings, group_advantages
from openmle_erl.rewards.presets import ROBUST


class Trace(Protocol):
    """What is used of a `verifiers` trace."""

    @property
    def reward(self) -> float: ...
    @property
    def has_error(self) -> bool: ...


def trace_advantages(traces: Sequence[Trace], settings: AdvantageSettings = ROBUST.advantages) -> list[float]:
    """One advantage for each trace of a group; exactly 0.0 for one that ended in an error, which is then left out."""
    rewards = [None if trace.has_error else trace.reward for trace in traces]
    return group_advantages(rewards, [0] * len(rewards), settings).tolist()
