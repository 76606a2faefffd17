"""Which operator a group applies: drawn by shares, with fall-backs where it has no parents. Pure.

Source: the public release's `evo` search for RL: shares .50/.17/.17/.16, and its fall-backs. It lets a program parent by
the sign of its reward; here an operator says itself what it accepts (`Operator.accepts`), as in search.
"""

import random
from collections.abc import Mapping
from types import MappingProxyType

from openmle_gym.operators import Operator

FALLBACKS: Mapping[Operator, tuple[Operator, ...]] = MappingProxyType(
    {
        Operator.DRAFT: (Operator.DRAFT,),
        Operator.IMPROVE: (Operator.IMPROVE, Operator.DEBUG, Operator.DRAFT),
        Operator.DEBUG: (Operator.DEBUG, Operator.IMPROVE, Operator.DRAFT),
        Operator.CROSSOVER: (Operator.CROSSOVER, Operator.IMPROVE, Operator.DEBUG, Operator.DRAFT),
    }
)
"""What is applied in an operator's place, in this order, while there are too few parents for it."""


def choose_operator(
    shares: Mapping[Operator, float], candidates: Mapping[Operator, int], rng: random.Random
) -> Operator:
    """Draws an operator, then takes the first of its fall-backs that has enough parents.

    Args:
        shares: Not negative; they need not sum to 1. All zero: Draft, Improve and Debug alike.
        candidates: How many programs each operator could take as a parent.
    """
    if not any(shares.values()):
        shares = dict.fromkeys((Operator.DRAFT, Operator.IMPROVE, Operator.DEBUG), 1.0)
    wanted = rng.choices(list(shares), weights=list(shares.values()))[0]
    return next(each for each in FALLBACKS[wanted] if candidates.get(each, 0) >= each.parent_count)
