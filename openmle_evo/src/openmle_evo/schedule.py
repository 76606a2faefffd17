"""What the next attempt does: a pure function of the cards, the attempts under way, and the attempt's own randomness."""

import hashlib
import random
from collections.abc import Sequence
from typing import NamedTuple

from openmle_gym.evaluate import Attempt
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.operators import Operator

from openmle_evo.config import ScheduleConfig, SelectionConfig
from openmle_evo.selection import draw, listed, population, weigh

REPEATED = "the same error twice"


class Choice(NamedTuple):
    """An operator, its parents in the order of the prompt, and why."""

    operator: Operator
    parents: tuple[int, ...]
    selection: Selection


def attempt_seed(seed: int, attempt: int) -> int:
    """The seed of everything random in an attempt, the policy's call included; in [0, 2**31)."""
    digest = hashlib.sha256(f"{seed}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def choose(
    number: int,
    cards: Sequence[ExperienceCard],
    under_way: Sequence[Attempt],
    *,
    schedule: ScheduleConfig,
    selection: SelectionConfig,
    seed: int,
) -> Choice:
    """Chooses attempt `number`'s operator and parents.

    In this order: mend a failed program; draft anew where mending went in circles; draft while there is nothing else
    to build on; then, by chance, Draft, Crossover or Improve.
    """
    rng = random.Random(attempt_seed(seed, number))
    if broken := _to_mend(cards, under_way, schedule.max_debug_depth):
        return Choice(Operator.DEBUG, (broken.attempt,), Selection(reason=f"attempt {broken.attempt} failed"))
    if _circles(cards) > sum(made.selection.reason == REPEATED for made in (*cards, *under_way)):
        return _draft(REPEATED)
    if sum(made.operator is Operator.DRAFT for made in (*cards, *under_way)) < schedule.initial_drafts:
        return _draft("warm-up")
    members = population(cards, schedule.max_population)
    if not members:
        return _draft("no valid program yet")
    if rng.random() < schedule.draft_probability:
        return _draft("by chance")
    crossing = number >= schedule.crossover_from_attempt and rng.random() < schedule.crossover_probability
    operator = Operator.CROSSOVER if crossing and len(members) > 1 else Operator.IMPROVE
    candidates = weigh(members, cards, selection)
    drawn = draw(candidates, operator.parent_count, rng)
    record = Selection(
        reason="drawn by score, gain and novelty",
        temperature=selection.temperature,
        candidates=listed(candidates, drawn),
    )
    return Choice(operator, tuple(candidate.attempt for candidate in drawn), record)


def _draft(reason: str) -> Choice:
    return Choice(Operator.DRAFT, (), Selection(reason=reason))


def _to_mend(cards: Sequence[ExperienceCard], under_way: Sequence[Attempt], max_depth: int) -> ExperienceCard | None:
    """The oldest failed program that nobody has tried to mend, unless its line of mending is spent."""
    by_attempt = {card.attempt: card for card in cards}
    taken = {parent for made in (*cards, *under_way) if made.operator is Operator.DEBUG for parent in made.parents}
    for card in cards:
        if card.attempt in taken or not card.may_parent(Operator.DEBUG):
            continue
        line = _mending_line(card, by_attempt)
        if len(line) <= max_depth and not _in_circles(line):
            return card
    return None


def _mending_line(card: ExperienceCard, by_attempt: dict[int, ExperienceCard]) -> list[ExperienceCard]:
    """The card, then the failed program that it tried to mend, and so on to the first failure."""
    line = [card]
    while line[-1].operator is Operator.DEBUG:
        line.append(by_attempt[line[-1].parents[0]])
    return line


def _in_circles(line: Sequence[ExperienceCard]) -> bool:
    """Whether the last attempt to mend ended with the error that it was to mend."""
    return len(line) > 1 and line[0].error_signature is not None and line[0].error_signature == line[1].error_signature


def _circles(cards: Sequence[ExperienceCard]) -> int:
    """How many lines of mending have ended in circles so far."""
    by_attempt = {card.attempt: card for card in cards}
    mended = [card for card in cards if card.operator is Operator.DEBUG and card.may_parent(Operator.DEBUG)]
    return sum(_in_circles(_mending_line(card, by_attempt)) for card in mended)
