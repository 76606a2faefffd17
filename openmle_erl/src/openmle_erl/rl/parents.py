"""Which programs become parents: by reward, by how much their children differed, and by how rarely they were chosen.

    exploit   the program's reward, scaled to [0, 1] over the task's programs
    explore   the population variance of its children's rewards, scaled over the programs that have children
    cool      1 - visits / most visits, scaled over the task's programs
    fitness   their sum, 0 to 3; a parent is drawn with a probability proportional to it

Where all are equal, and for the variance of a program without children, the scaled value is 0.5.

Source: the public release's program database. It recomputes all of a task at each insert; here an insert costs the
same however many programs there are. What departs from it unless `published` is set, since a group of sixteen is one
decision: visits count groups and not children, and a program with one child is as unknown as one with none, where the
published variance of one child is 0.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

EQUAL = 1e-12
"""Values that differ by no more are equal: the same variance, computed in another order."""
NEUTRAL = 0.5


class Fitness(NamedTuple):
    """The three parts, each in [0, 1]."""

    exploit: float
    explore: float
    cool: float

    @property
    def total(self) -> float:
        """What a parent's probability is proportional to."""
        return self.exploit + self.explore + self.cool


class Population:
    """The programs of one task. Rewards are base rewards: without a bonus for beating the parent."""

    def __init__(self, *, published: bool = False) -> None:
        self._published = published
        self._places: dict[int, int] = {}
        self._rewards: list[float] = []
        self._children: list[int] = []
        self._means: list[float] = []  # of the children's rewards
        self._squares: list[float] = []  # sum of squared distances from that mean
        self._visitors: list[set[int]] = []  # the groups that chose it

    def __len__(self) -> int:
        return len(self._rewards)

    def add(self, attempt: int, reward: float, parents: Sequence[int], *, group: int) -> None:
        """Adds a program; its parents are there already.

        Args:
            group: Whose member it is; members of one group are one choice of their parents.
        """
        self._places[attempt] = len(self._rewards)
        self._rewards.append(reward)
        self._children.append(0)
        self._means.append(0.0)
        self._squares.append(0.0)
        self._visitors.append(set())
        for parent in dict.fromkeys(parents):
            place = self._places[parent]
            self._children[place] += 1
            distance = reward - self._means[place]
            self._means[place] += distance / self._children[place]
            self._squares[place] += distance * (reward - self._means[place])
            self._visitors[place].add(group)

    def fitness(self, attempts: Sequence[int]) -> list[Fitness]:
        """Of some of the programs, in their order; scaled over all of them."""
        parts = self._parts()
        places = [self._places[attempt] for attempt in attempts]
        return [Fitness(*map(float, row)) for row in parts[places]]

    def draw(self, candidates: Sequence[int], count: int, rng: random.Random) -> tuple[int, ...]:
        """Draws so many different candidates, one after the other; all alike where no fitness is left."""
        parts = self._parts().sum(axis=1)
        left = list(candidates)
        weights = [float(parts[self._places[attempt]]) for attempt in left]
        drawn: list[int] = []
        for _ in range(count):
            (place,) = rng.choices(range(len(left)), weights=weights if any(weights) else None)
            drawn.append(left.pop(place))
            del weights[place]
        return tuple(drawn)

    def _parts(self) -> NDArray[np.float64]:
        """[N, 3] the fitness of every program."""
        children = np.array(self._children)
        known = children >= (1 if self._published else 2)
        explore = np.full(len(self), NEUTRAL)
        explore[known] = _scaled(np.array(self._squares)[known] / children[known])
        visits = children if self._published else np.array([len(groups) for groups in self._visitors])
        most = max(int(visits.max(initial=0)), 1)
        return np.stack([_scaled(np.array(self._rewards)), explore, _scaled(1.0 - visits / most)], axis=1)


def _scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """To [0, 1]; 0.5 where all are equal."""
    low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
    if not high - low > EQUAL:
        return np.full(len(values), NEUTRAL)
    return (values - low) / (high - low)
