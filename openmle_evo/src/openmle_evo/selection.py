"""Which program of an island becomes a parent. Pure functions of cards and a random generator.

Source: score, gain and novelty with their weights, softmax and temperature as published (OpenMLE-Evo, appendix C; the
original's search, §3.5); those are the defaults. Ours, by setting: other scales, an annealed temperature, cooling by
visits, distinct programs, a complementary second parent, learned weights.
"""

import math
import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from openmle_gym.experience import Candidate, ExperienceCard
from openmle_gym.features import method_family, normalised_source
from openmle_gym.history import History

from openmle_evo.config import SelectionConfig
from openmle_evo.islands import utility

LISTED_CANDIDATES = 8
"""How many candidates a card's record of its selection keeps, likeliest first, beside the drawn ones."""


class Weights(NamedTuple):
    """What counts how much in a candidate's utility."""

    score: float
    gain: float
    novelty: float


EMPHASES = (Weights(1.0, 0.4, 0.25), Weights(2.0, 0.4, 0.25), Weights(1.0, 1.0, 0.25), Weights(1.0, 0.4, 1.0))
"""What `weights=learned` chooses from: the published weights, and each part of them emphasised."""


def weights_of(config: SelectionConfig, cards: Sequence[ExperienceCard], rng: random.Random) -> Weights:
    """The weights of one attempt.

    Learned ones are drawn by Thompson sampling: each emphasis has a beta distribution of its rate of new bests so far.
    """
    if config.weights == "fixed":
        return Weights(config.score, config.gain, config.novelty)
    bests = {card.attempt for card in History.of(cards).new_bests}
    won = Counter(card.selection.weights for card in cards if card.attempt in bests)
    tried = Counter(card.selection.weights for card in cards)
    return max(EMPHASES, key=lambda arm: rng.betavariate(1 + won[arm], 1 + tried[arm] - won[arm]))


def temperature_of(config: SelectionConfig, number: int, attempts: int) -> float:
    """The temperature of attempt `number` of `attempts`: linear from the first to the last."""
    if config.final_temperature is None or attempts < 2:
        return config.temperature
    share = min(number / (attempts - 1), 1.0)
    return config.temperature + share * (config.final_temperature - config.temperature)


def weigh(
    members: Sequence[ExperienceCard],
    cards: Sequence[ExperienceCard],
    config: SelectionConfig,
    *,
    weights: Weights,
    temperature: float,
    everyone: Sequence[ExperienceCard] | None = None,
) -> list[Candidate]:
    """The members as candidates, in the same order, with their probabilities.

    Args:
        cards: All cards so far, for gains and visits.
        everyone: The members of all islands, among which a method family is rare or not; by default `members`.
    """
    if config.distinct:
        members = list({normalised_source(member.source): member for member in reversed(members)}.values())[::-1]
    known = History.of(cards)
    scores = _scaled([utility(member) for member in members], config.normalise)
    gains = _scaled_gains([known.gains.get(member.attempt, 0.0) for member in members], config.normalise)
    families = Counter(method_family(member.source) for member in (members if everyone is None else everyone))
    visits = known.visits
    candidates = []
    for member, score, won in zip(members, scores, gains, strict=True):
        novelty = 1.0 / math.sqrt(max(families[method_family(member.source)], 1))
        cooling = config.visits * math.log1p(visits[member.attempt])
        worth = weights.score * score + weights.gain * won + weights.novelty * novelty - cooling
        candidates.append((member.attempt, score, won, novelty, worth, visits[member.attempt]))
    probabilities = _softmax([candidate[4] for candidate in candidates], temperature)
    return [
        Candidate(attempt=a, score=s, gain=g, novelty=n, utility=u, probability=p, visits=v)
        for (a, s, g, n, u, v), p in zip(candidates, probabilities, strict=True)
    ]


def draw(candidates: Sequence[Candidate], count: int, rng: random.Random) -> list[Candidate]:
    """Draws `count` different candidates, each with its probability among those left."""
    left = list(candidates)
    drawn = []
    for _ in range(count):
        chosen = _draw_one(left, rng)
        left.remove(chosen)
        drawn.append(chosen)
    return drawn


def draw_complementary(
    candidates: Sequence[Candidate], by_attempt: Mapping[int, ExperienceCard], rng: random.Random
) -> list[Candidate]:
    """Draws two candidates, the second from another method family than the first, where there is one."""
    first = _draw_one(candidates, rng)
    family = method_family(by_attempt[first.attempt].source)
    others = [candidate for candidate in candidates if candidate.attempt != first.attempt]
    foreign = [each for each in others if method_family(by_attempt[each.attempt].source) != family]
    return [first, _draw_one(foreign or others, rng)]


def _draw_one(candidates: Sequence[Candidate], rng: random.Random) -> Candidate:
    return rng.choices(candidates, weights=[candidate.probability for candidate in candidates])[0]


def listed(candidates: Sequence[Candidate], drawn: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The likeliest candidates and the drawn ones, for the record."""
    ranked = sorted(candidates, key=lambda candidate: (-candidate.probability, candidate.attempt))
    kept = {candidate.attempt for candidate in (*ranked[:LISTED_CANDIDATES], *drawn)}
    return tuple(candidate for candidate in ranked if candidate.attempt in kept)


def _scaled(values: Sequence[float], how: str) -> list[float]:
    """To [0, 1]; 0.5 for all when they are equal."""
    if how == "rank":
        return _ranks(values)
    low, high = min(values, default=0.0), max(values, default=0.0)
    if high == low:
        return [0.5] * len(values)
    if how == "robust":
        return _robust(values)
    scaled = [(value - low) / (high - low) for value in values]
    if how == "hybrid":
        return [(one + other) / 2 for one, other in zip(scaled, _ranks(values), strict=True)]
    return scaled


def _scaled_gains(gains: Sequence[float], how: str) -> list[float]:
    """Losses are 0, and the largest gain is 1; where ranks count, gains are ranked among all."""
    gains = [max(won, 0.0) for won in gains]
    largest = max(gains, default=0.0) or 1.0
    scaled = [won / largest for won in gains]
    ranks = [rank if won > 0 else 0.0 for rank, won in zip(_ranks(gains), gains, strict=True)]
    if how == "rank":
        return ranks
    if how == "hybrid":
        return [(one + other) / 2 for one, other in zip(scaled, ranks, strict=True)]
    return scaled


def _ranks(values: Sequence[float]) -> list[float]:
    """Average ranks, the best 1 and the worst 0; a lone value has 0.5."""
    if len(values) < 2:
        return [0.5] * len(values)
    order = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(order)))}
    last = {value: place for place, value in enumerate(order)}
    return [(first[value] + last[value]) / 2 / (len(values) - 1) for value in values]


def _robust(values: Sequence[float]) -> list[float]:
    """A logistic curve through the quartiles: 0.5 at the median, about 0.73 one interquartile range above it."""
    middle = statistics.median(values)
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    spread = (upper - lower) or max(abs(value - middle) for value in values)
    return [1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, (value - middle) / spread)))) for value in values]


def _softmax(values: Sequence[float], temperature: float) -> list[float]:
    top = max(values, default=0.0)
    weights = [math.exp((value - top) / temperature) for value in values]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
