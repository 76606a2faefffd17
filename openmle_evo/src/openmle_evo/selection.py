"""Who may be a parent, and who becomes one. Pure functions of cards and a random generator.

Source: score, gain and novelty with their weights, softmax and temperature as published (OpenMLE-Evo, appendix C;
specs of the original's search, §3.2 and §3.5). A departure: the best program never leaves the population.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence

from openmle_gym.experience import Candidate, ExperienceCard
from openmle_gym.features import gain, method_family

from openmle_evo.config import SelectionConfig

LISTED_CANDIDATES = 8
"""How many candidates a card's record of its selection keeps, likeliest first, beside the drawn ones."""


def population(cards: Sequence[ExperienceCard], max_size: int) -> list[ExperienceCard]:
    """The programs that may be parents, by replaying the admissions in order of commit.

    A valid program is admitted when it is at least as good as the mean of those already in; when the population is
    full, the worst one leaves (the latest among equals).
    """
    members: list[ExperienceCard] = []
    for card in cards:
        if card.validation is None:
            continue
        utilities = [_utility(member) for member in members]
        if members and card.validation.utility < math.fsum(utilities) / len(utilities):
            continue
        members.append(card)
        if len(members) > max_size:
            members.remove(min(members, key=lambda member: (_utility(member), -member.attempt)))
    return members


def weigh(
    members: Sequence[ExperienceCard], cards: Sequence[ExperienceCard], config: SelectionConfig
) -> list[Candidate]:
    """The members as candidates, in the same order, with their probabilities."""
    by_attempt = {card.attempt: card for card in cards}
    scores = _scaled([_utility(member) for member in members])
    gains = [max(gain(member, by_attempt) or 0.0, 0.0) for member in members]
    largest = max(gains, default=0.0) or 1.0
    families = [method_family(member.source) for member in members]
    count = Counter(families)
    novelties = [1.0 / math.sqrt(count[family]) for family in families]
    utilities = [
        config.score * score + config.gain * won / largest + config.novelty * novelty
        for score, won, novelty in zip(scores, gains, novelties, strict=True)
    ]
    probabilities = _softmax(utilities, config.temperature)
    return [
        Candidate(attempt=m.attempt, score=s, gain=g / largest, novelty=n, utility=u, probability=p)
        for m, s, g, n, u, p in zip(members, scores, gains, novelties, utilities, probabilities, strict=True)
    ]


def draw(candidates: Sequence[Candidate], count: int, rng: random.Random) -> list[Candidate]:
    """Draws `count` different candidates, each with its probability among those left."""
    left = list(candidates)
    drawn = []
    for _ in range(count):
        chosen = rng.choices(left, weights=[candidate.probability for candidate in left])[0]
        left.remove(chosen)
        drawn.append(chosen)
    return drawn


def listed(candidates: Sequence[Candidate], drawn: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The likeliest candidates and the drawn ones, for the record."""
    ranked = sorted(candidates, key=lambda candidate: (-candidate.probability, candidate.attempt))
    kept = {candidate.attempt for candidate in (*ranked[:LISTED_CANDIDATES], *drawn)}
    return tuple(candidate for candidate in ranked if candidate.attempt in kept)


def _utility(card: ExperienceCard) -> float:
    assert card.validation is not None
    return card.validation.utility


def _scaled(values: Sequence[float]) -> list[float]:
    """Min-max to [0, 1]; 0.5 for all when they are equal."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if high == low:
        return [0.5] * len(values)
    return [(value - low) / (high - low) for value in values]


def _softmax(values: Sequence[float], temperature: float) -> list[float]:
    top = max(values, default=0.0)
    weights = [math.exp((value - top) / temperature) for value in values]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
