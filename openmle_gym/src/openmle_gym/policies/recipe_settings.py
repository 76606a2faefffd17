"""The ranges that recipes draw their hyper-parameters from."""

import math
from dataclasses import dataclass
from random import Random
from typing import Protocol

Value = int | float | str | bool | tuple[int, ...] | None


class Setting(Protocol):
    """One hyper-parameter."""

    def draw(self, rng: Random) -> Value:
        """Any value of the range."""
        ...

    def nudge(self, value: Value, rng: Random) -> Value:
        """Another value, most often a near one."""
        ...


@dataclass(frozen=True, slots=True)
class Real:
    """A number between two positive ends, evenly spread on a logarithmic scale, to three digits."""

    low: float
    high: float

    def draw(self, rng: Random) -> float:
        return float(f"{math.exp(rng.uniform(math.log(self.low), math.log(self.high))):.3g}")

    def nudge(self, value: Value, rng: Random) -> float:
        centre = float(value) if isinstance(value, int | float) else self.draw(rng)
        while True:
            near = float(f"{min(self.high, max(self.low, centre * math.exp(rng.gauss(0, 0.6)))):.3g}")
            if near != value:
                return near


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number between two positive ends, evenly spread on a logarithmic scale."""

    low: int
    high: int

    def draw(self, rng: Random) -> int:
        return min(self.high, max(self.low, round(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))))

    def nudge(self, value: Value, rng: Random) -> int:
        centre = int(value) if isinstance(value, int | float) else self.draw(rng)
        while True:
            near = min(self.high, max(self.low, round(centre * math.exp(rng.gauss(0, 0.5))) + rng.choice((-1, 0, 1))))
            if near != value:
                return near


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few values."""

    options: tuple[Value, ...]

    def draw(self, rng: Random) -> Value:
        return rng.choice(self.options)

    def nudge(self, value: Value, rng: Random) -> Value:
        return rng.choice([option for option in self.options if option != value])
