"""The advantages of a prime-rl group, with objects that have a trace's documented attributes."""

from dataclasses import dataclass

import numpy as np
from openmle_erl.adapters.prime_rl import trace_advantages
from openmle_erl.rewards import PAPER, entropic_advantages


@dataclass
class Trace:
    reward: float
    has_error: bool = False


def test_a_groups_traces_get_our_advantages_and_those_with_an_error_none() -> None:
    traces = [Trace(0.1), Trace(0.0, has_error=True), Trace(0.4), Trace(0.9)]
    best = entropic_advantages([0.1, 0.4, 0.9], [0] * 3)
    np.testing.assert_allclose(trace_advantages(traces, PAPER.advantages), [best[0], 0.0, best[1], best[2]], rtol=1e-12)


def test_the_default_is_capped() -> None:
    assert trace_advantages([Trace(0.0), Trace(1.0)])[1] == 20.0
