"""What the next attempt does: a pure function of the cards, the islands, the attempts under way, and a seed."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from openmle_gym.evaluate import Attempt
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.history import History
from openmle_gym.operators import Operator

from openmle_evo.config import ScheduleConfig, SearchConfig
from openmle_evo.islands import Islands
from openmle_evo.randomness import attempt_seed
from openmle_evo.selection import draw, draw_complementary, listed, temperature_of, weigh, weights_of

REPEATED = "the same error twice"


class Choice(NamedTuple):
    """An operator, its parents in the order of the prompt, and why."""

    operator: Operator
    parents: tuple[int, ...]
    selection: Selection


def choose(
    number: int, cards: Sequence[ExperienceCard], under_way: Sequence[Attempt], islands: Islands, config: SearchConfig
) -> Choice:
    """Chooses attempt `number`'s operator and parents.

    Args:
        islands: As the cards have made them.
    """
    cards = History.of(cards)
    rng = random.Random(attempt_seed(config.seed, number))
    if config.schedule.kind == "best_of_n":
        choice = _draft("independent drafts", islands, rng)
    elif config.schedule.kind == "greedy":
        choice = _greedy(cards, under_way, config.schedule, islands, rng)
    else:
        choice = _evolve(number, cards, under_way, islands, config, rng)
    return choice._replace(selection=choice.selection.model_copy(update={"committed": len(cards)}))


def _evolve(
    number: int,
    cards: History,
    under_way: Sequence[Attempt],
    islands: Islands,
    config: SearchConfig,
    rng: random.Random,
) -> Choice:
    """In this order: mend a failed program; draft anew where mending went in circles; draft while there is nothing
    else to build on; then, by chance, Draft, Crossover or Improve."""
    schedule = config.schedule
    if broken := next(_to_mend(cards, under_way, schedule), None):
        return _debug(broken)
    drafts = (*cards.by_operator[Operator.DRAFT], *under_way)
    if _circles(cards) > sum(made.selection.reason == REPEATED for made in drafts):
        return _draft(REPEATED, islands, rng)
    if _drafts(cards, under_way) < schedule.initial_drafts:
        return _draft("warm-up", islands, rng)
    if not any(islands.members):
        return _draft("no valid program yet", islands, rng)
    if rng.random() < schedule.draft_probability:
        return _draft("by chance", islands, rng)
    crossing = number >= schedule.crossover_from_attempt and rng.random() < schedule.crossover_probability
    temperature = temperature_of(config.selection, number, config.budget.attempts)
    pair = islands.draw(2, rng, temperature) if crossing else None
    if pair is not None:
        return _select(Operator.CROSSOVER, pair, cards, islands, config, temperature, rng)
    island = islands.draw(1, rng, temperature)
    assert island is not None
    return _select(Operator.IMPROVE, island, cards, islands, config, temperature, rng)


def _select(
    operator: Operator,
    island: int,
    cards: History,
    islands: Islands,
    config: SearchConfig,
    temperature: float,
    rng: random.Random,
) -> Choice:
    members = islands.members[island]
    weights = weights_of(config.selection, cards, rng)
    everyone = [member for each in islands.members for member in each]
    candidates = weigh(members, cards, config.selection, weights=weights, temperature=temperature, everyone=everyone)
    if operator is Operator.CROSSOVER and len(candidates) < 2:  # all members are one program
        operator = Operator.IMPROVE
    if operator is Operator.CROSSOVER and config.selection.second_parent == "complementary":
        drawn = draw_complementary(candidates, {member.attempt: member for member in members}, rng)
    else:
        drawn = draw(candidates, operator.parent_count, rng)
    record = Selection(
        reason="drawn by score, gain and novelty",
        island=island,
        weights=weights,
        temperature=temperature,
        candidates=listed(candidates, drawn),
    )
    return Choice(operator, tuple(candidate.attempt for candidate in drawn), record)


def _greedy(
    cards: History,
    under_way: Sequence[Attempt],
    schedule: ScheduleConfig,
    islands: Islands,
    rng: random.Random,
) -> Choice:
    """Best-first search with random debugging, as in AIDE."""
    if _drafts(cards, under_way) < schedule.initial_drafts:
        return _draft("warm-up", islands, rng)
    broken = list(_to_mend(cards, under_way, schedule))
    best = cards.best
    if broken and (best is None or rng.random() < schedule.debug_probability):
        return _debug(rng.choice(broken))
    if best is None:
        return _draft("no valid program yet", islands, rng)
    return Choice(Operator.IMPROVE, (best.attempt,), Selection(reason="the best so far"))


def _debug(broken: ExperienceCard) -> Choice:
    selection = Selection(reason=f"attempt {broken.attempt} failed", island=broken.selection.island)
    return Choice(Operator.DEBUG, (broken.attempt,), selection)


def _draft(reason: str, islands: Islands, rng: random.Random) -> Choice:
    count = len(islands.members)
    return Choice(Operator.DRAFT, (), Selection(reason=reason, island=rng.randrange(count) if count > 1 else 0))


def _drafts(cards: History, under_way: Sequence[Attempt]) -> int:
    return len(cards.by_operator[Operator.DRAFT]) + sum(made.operator is Operator.DRAFT for made in under_way)


def _to_mend(cards: History, under_way: Sequence[Attempt], schedule: ScheduleConfig) -> Iterator[ExperienceCard]:
    """The failed programs that nobody has tried to mend, oldest first, but for those whose line of mending is spent."""
    mended = (*cards.by_operator[Operator.DEBUG], *under_way)
    taken = {parent for made in mended if made.operator is Operator.DEBUG for parent in made.parents}
    for card in cards.failures:
        if card.attempt in taken:
            continue
        line = _mending_line(card, cards.by_attempt)
        seconds = sum(each.sandbox_seconds for each in line)
        spent = len(line) > schedule.max_debug_depth or seconds >= schedule.max_debug_seconds
        if not spent and not _in_circles(line):
            yield card


def _mending_line(card: ExperienceCard, by_attempt: Mapping[int, ExperienceCard]) -> list[ExperienceCard]:
    """The card, then the failed program that it tried to mend, and so on to the first failure."""
    line = [card]
    while line[-1].operator is Operator.DEBUG:
        line.append(by_attempt[line[-1].parents[0]])
    return line


def _in_circles(line: Sequence[ExperienceCard]) -> bool:
    """Whether the last attempt to mend ended with the error that it was to mend."""
    return len(line) > 1 and line[0].error_signature is not None and line[0].error_signature == line[1].error_signature


def _circles(cards: History) -> int:
    """How many lines of mending have ended in circles so far."""
    mended = [card for card in cards.failures if card.operator is Operator.DEBUG]
    return sum(_in_circles([card, cards.by_attempt[card.parents[0]]]) for card in mended)
