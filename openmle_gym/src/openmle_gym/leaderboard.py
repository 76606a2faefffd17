"""Where a score would stand among a competition's final scores; pure.

Positions follow the mle-bench rule, the awards of Kaggle by the number of teams. Unlike mle-bench, the direction is
always told, never guessed from a file's order, and the scores are sorted here.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from openmle_gym.errors import PackageError
from openmle_gym.text_table import read_rows

_NO_SCORE = frozenset({"", "-", "na", "n/a", "none", "null"})
"""What boards write for a team without a score, beside what `float` reads as no finite number."""


class Medal(StrEnum):
    """What a rank would have won."""

    GOLD = "gold"
    SILVER = "silver"
    BRONZE = "bronze"


class MedalPositions(NamedTuple):
    """The last rank, counted from 1, that wins each medal."""

    gold: int
    silver: int
    bronze: int


class MedalThresholds(NamedTuple):
    """The score that just wins each medal."""

    gold: float
    silver: float
    bronze: float


def medal_positions(teams: int) -> MedalPositions:
    """The awards of a competition with so many teams.

    Raises:
        ValueError: There are none.
    """
    if teams < 1:
        raise ValueError(f"a leaderboard needs at least one score, got {teams}")
    if teams < 250:
        gold = 10 if teams >= 100 else max(1, int(0.1 * teams))
        return MedalPositions(gold, max(1, int(0.2 * teams)), max(1, int(0.4 * teams)))
    gold = 10 + int(0.002 * teams)
    if teams < 1000:
        return MedalPositions(gold, 50, 100)
    return MedalPositions(gold, int(0.05 * teams), int(0.1 * teams))


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaderboard:
    """The final scores of all teams.

    Raises:
        ValueError: There is no score, or one is not finite.
    """

    scores: tuple[float, ...]
    """Sorted, the best first."""
    higher_is_better: bool

    def __post_init__(self) -> None:
        if not self.scores:
            raise ValueError("a leaderboard needs at least one score, got 0")
        for score in self.scores:
            _check_finite(score)
        object.__setattr__(self, "scores", tuple(sorted(self.scores, reverse=self.higher_is_better)))

    def rank(self, score: float) -> int:
        """1 + the teams that are strictly better; one more than there are teams for a score below all."""
        return 1 + sum(self._better(other, score) for other in self.scores)

    def rank_fraction(self, score: float) -> float:
        """The rank, at most the number of teams, as a fraction of it; lower is better."""
        return min(self.rank(score), len(self.scores)) / len(self.scores)

    def fraction_beaten(self, score: float) -> float:
        """The fraction of teams that are strictly worse."""
        return sum(self._better(score, other) for other in self.scores) / len(self.scores)

    def medal_thresholds(self) -> MedalThresholds:
        """The scores at the medal positions."""
        return MedalThresholds(*(self.scores[position - 1] for position in medal_positions(len(self.scores))))

    def medal(self, score: float) -> Medal | None:
        """The best medal that the score wins; a score equal to the threshold wins it."""
        for medal, threshold in zip(Medal, self.medal_thresholds(), strict=True):
            if not self._better(threshold, score):
                return medal
        return None

    def _better(self, one: float, other: float) -> bool:
        _check_finite(one)
        _check_finite(other)
        return one > other if self.higher_is_better else one < other


def _check_finite(score: float) -> None:
    if not math.isfinite(score):
        raise ValueError(f"a score must be finite, got {score!r}")


class BoardScores(NamedTuple):
    """What a leaderboard's file says."""

    scores: tuple[float, ...]
    """All finite, as in the file."""
    unscored: int
    """Rows whose score is missing or not finite."""


def read_scores(path: Path) -> BoardScores:
    """Reads the column `score`, whatever its case.

    Raises:
        PackageError: The file is no CSV, has no such column, a word in it, or no score at all.
    """
    rows = read_rows(path)
    names = [name.strip().lower() for name in next(rows)]
    if names.count("score") != 1:
        raise PackageError(f"{path}: {names.count('score') or 'no'} columns 'score' among {names[:20]}")
    place = names.index("score")
    scores: list[float] = []
    number = 0
    for number, cells in enumerate(rows, start=1):
        cell = cells[place].strip()
        if cell.casefold() in _NO_SCORE:
            continue
        try:
            score = float(cell)
        except ValueError as error:
            raise PackageError(f"{path}: row {number}: score {cell[:40]!r} is no number") from error
        if math.isfinite(score):
            scores.append(score)
    if not scores:
        raise PackageError(f"{path}: no row with a score")
    return BoardScores(tuple(scores), number - len(scores))


def read_leaderboard(path: Path, *, higher_is_better: bool) -> Leaderboard:
    """The scores of a leaderboard's file; rows without a finite one are left out.

    Raises:
        PackageError: As `read_scores`.
    """
    return Leaderboard(scores=read_scores(path).scores, higher_is_better=higher_is_better)
