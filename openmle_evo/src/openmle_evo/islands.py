"""The populations that parents are drawn from: who is admitted, who leaves, and what happens to the weaker half.

The state follows from the cards alone, replayed in order of commit, so a resumed run has the same islands.

Source: admission at the island's mean, as published (the original's search, §3.2). Departures: the best program of an
island never leaves it; a reset strikes the weaker half (the original's strikes the stronger); a program joins the
island that its parents came from.
"""

import math
import random
from collections.abc import Sequence

from openmle_gym.experience import ExperienceCard
from openmle_gym.features import normalised_source

from openmle_evo.config import IslandsConfig
from openmle_evo.randomness import seeded


class Islands:
    """All islands of a run, kept up to date card by card."""

    def __init__(self, config: IslandsConfig, seed: int, cards: Sequence[ExperienceCard] = ()) -> None:
        """Args:
        cards: In order of commit.
        """
        self._config = config
        self._seed = seed
        self._commits = 0
        self.members: list[list[ExperienceCard]] = [[] for _ in range(config.count)]
        for card in cards:
            self.commit(card)

    def commit(self, card: ExperienceCard) -> None:
        """Takes note of a card: admits it, or not; and resets the weaker islands when their time has come."""
        self._commits += 1
        if card.valid:
            admit(card, self.members[card.selection.island % len(self.members)], self._config)
        if len(self.members) > 1 and self._commits % self._config.reset_every == 0:
            rng = seeded(self._seed, "reset", self._commits)
            if rng.random() < self._config.reset_probability:
                self.members = reset_weaker_half(self.members, rng)

    def draw(self, least: int, rng: random.Random, temperature: float) -> int | None:
        """An island with at least so many members, the better ones more likely; None when there is none.

        The probability is a softmax over the islands' mean scores, scaled to [0, 1] over all members.
        """
        able = [index for index, members in enumerate(self.members) if len(members) >= least]
        if len(able) <= 1:
            return able[0] if able else None
        everyone = [utility(card) for members in self.members for card in members]
        low, spread = min(everyone), max(everyone) - min(everyone)
        means = [mean_utility(self.members[index]) for index in able]
        weights = [math.exp((mean - low) / spread / temperature) if spread else 1.0 for mean in means]
        return rng.choices(able, weights=weights)[0]


def admit(card: ExperienceCard, members: list[ExperienceCard], config: IslandsConfig) -> None:
    """Adds a valid card to an island, if its admission rule allows; a full island then loses its worst, latest card."""
    if config.admission == "mean" and members and utility(card) < mean_utility(members):
        return
    if config.admission == "novel":
        known = {normalised_source(member.source) for member in members}
        if normalised_source(card.source) in known:
            return
    members.append(card)
    if len(members) > config.max_size:
        members.remove(min(members, key=lambda member: (utility(member), -member.attempt)))


def reset_weaker_half(islands: Sequence[list[ExperienceCard]], rng: random.Random) -> list[list[ExperienceCard]]:
    """The islands after a reset: the weaker half, by their best programs, keeps only those.

    Each of them takes in one program of a stronger island, which loses it: never that island's best, and the better the
    likelier (softmax over scores scaled to [0, 1], temperature 1).
    """
    islands = [list(members) for members in islands]
    ranked = sorted(range(len(islands)), key=lambda index: (_best_utility(islands[index]), index))
    weaker, stronger = ranked[: len(islands) // 2], ranked[len(islands) // 2 :]
    for index in weaker:
        best = max(islands[index], key=utility, default=None)
        islands[index] = [] if best is None else [best]
        sources = [source for source in stronger if len(islands[source]) > 1]
        if sources:
            source = rng.choice(sources)
            migrant = _migrant(islands[source], rng)
            islands[source].remove(migrant)
            islands[index].append(migrant)
    return islands


def _migrant(members: Sequence[ExperienceCard], rng: random.Random) -> ExperienceCard:
    best = max(members, key=utility)
    others = [member for member in members if member is not best]
    low, spread = min(map(utility, others)), max(map(utility, others)) - min(map(utility, others))
    weights = [math.exp((utility(member) - low) / spread) if spread else 1.0 for member in others]
    return rng.choices(others, weights=weights)[0]


def _best_utility(members: Sequence[ExperienceCard]) -> float:
    return max(map(utility, members), default=-math.inf)


def mean_utility(members: Sequence[ExperienceCard]) -> float:
    """The mean of the members' validation scores, larger is better."""
    return math.fsum(map(utility, members)) / len(members)


def utility(card: ExperienceCard) -> float:
    """A valid card's validation score, larger is better."""
    assert card.validation is not None
    return card.validation.utility
