"""What an operator is told of earlier attempts: retrieval, notes and budgets. Pure, and shared by search and training.

    Draft      the best attempts so far, in one line each, so that it does something else
    Improve    the parent's ancestors and ranked siblings, and the board
    Crossover  the same of both parents, and what sets them apart
    Debug      earlier failures: those with the same error first, then the latest

Whatever is told follows from cards and notes alone. A card's test score is never read here.

Source: retrieval counts and lengths as published (OpenMLE-Evo, appendix C; the original's search, §4.4 and §4.5).
Departures: Draft is bounded too; rank and current best are derived on read, so they are never stale; there is no empty
root; the log, which the parent's section shows, is not repeated; all lengths hold in total as well.
"""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from openmle_gym.errors import ConfigError
from openmle_gym.experience import ExperienceCard
from openmle_gym.features import FamilyFacts, method_family
from openmle_gym.history import History
from openmle_gym.operators import Operator

Measure = Callable[[str], int]
"""The length of a text, in characters or in a tokenizer's tokens."""

KINDS = ("lineage", "everything", "none")
NOTES = ("extractive", "model", "eager")
SCORE_WEIGHT, GAIN_WEIGHT, NOVELTY_WEIGHT = 1.0, 0.4, 0.25
"""By which siblings are ranked."""


@dataclass
class MemoryConfig:
    """What operators are told of earlier attempts. Lengths are in characters, or in tokens where a tokenizer is set."""

    kind: str = "lineage"
    """`lineage`: relatives and the board; `everything`: every valid program's note, and to Debug the failed program's
    ancestors, without limits in total; `none`."""
    notes: str = "extractive"
    """Who writes a program's note: `extractive`: its plan and its changes, without a model; `model`: the policy, once
    an operation has chosen its parents and needs the note; `eager`: the policy, for every program."""
    improve_ancestors: int = 3
    """Ancestors told to Improve."""
    improve_siblings: int = 3
    """Programs that share a parent with Improve's parent, the best ranked."""
    improve_children: int = 0
    """Earlier children of Improve's parent, the latest: what was tried on it already."""
    crossover_ancestors: int = 2
    """Ancestors told to Crossover, for each parent."""
    crossover_siblings: int = 2
    """Siblings told to Crossover, for each parent."""
    debug_failures: int = 8
    """Earlier failures told to Debug."""
    draft_attempts: int = 12
    """Best attempts told to Draft."""
    note_length: int = 420
    """The most that one attempt's note takes."""
    length: int = 8000
    """The most that memory takes of one prompt."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"memory.kind: must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.notes not in NOTES:
            raise ConfigError(f"memory.notes: must be one of {', '.join(NOTES)}, got {self.notes!r}")
        for name, value in vars(self).items():
            if isinstance(value, int) and value < 0:
                raise ConfigError(f"memory.{name}: must be 0 or more, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """The attempts that one operation is told of."""

    attempts: tuple[ExperienceCard, ...]
    """In the order in which they are told; parents are not among them."""
    board: tuple[str, ...] = ()
    """Facts that follow from all cards, one line each."""


def recall(
    operator: Operator, parents: Sequence[ExperienceCard], cards: Sequence[ExperienceCard], config: MemoryConfig
) -> Recalled:
    """Chooses what an operation is told.

    Args:
        cards: Every card of the run so far, in order of commit.
    """
    if config.kind == "none":
        return Recalled(attempts=())
    known = History.of(cards)
    if config.kind == "everything":
        if operator is Operator.DEBUG:
            return Recalled(attempts=tuple(_ancestors(parents[0], known.by_attempt)))
        return Recalled(attempts=_distinct([card for card in cards if card.valid], parents))
    if operator is Operator.DRAFT:
        return Recalled(attempts=tuple(known.ranked[: config.draft_attempts]))
    if operator is Operator.DEBUG:
        (broken,) = parents
        return Recalled(attempts=_failures(broken, known, config.debug_failures), board=_errors(known))
    if operator is Operator.IMPROVE:
        (parent,) = parents
        family = tuple(_relatives(parent, known, ancestors=config.improve_ancestors, siblings=config.improve_siblings))
        children = known.children(parent.attempt)
        last = children[max(0, len(children) - config.improve_children) :]
        return Recalled(attempts=_distinct([*family, *last], parents), board=_improve_board(parent, known))
    both = [
        relative
        for parent in parents
        for relative in _relatives(
            parent, known, ancestors=config.crossover_ancestors, siblings=config.crossover_siblings
        )
    ]
    return Recalled(attempts=_distinct(both, parents), board=_crossover_board(parents, known))


def remembered(
    recalled: Recalled,
    cards: Sequence[ExperienceCard],
    notes: Mapping[int, str],
    config: MemoryConfig,
    measure: Measure = len,
) -> list[str]:
    """The lines of memory: the board first, then attempts until the budget is spent.

    Args:
        notes: By attempt, where somebody wrote one; else the extractive note is told.
    """
    known = History.of(cards)
    endless = config.kind == "everything"
    left = math.inf if endless else config.length
    lines: list[str] = []
    for line in [*recalled.board, *(_line(card, known, notes, config, measure) for card in recalled.attempts)]:
        left -= measure(line) + 1
        if left < 0:
            break
        lines.append(line)
    return lines


def extractive_note(card: ExperienceCard, by_attempt: Mapping[int, ExperienceCard]) -> str:
    """What the program does and how it differs from its first parent, without asking a model."""
    plan = " ".join(card.plan.split())
    parent = by_attempt.get(card.parents[0]) if card.parents else None
    if parent is None or not card.source:
        return plan
    return f"{plan} [{_changes(parent.source, card.source)}]"


@cache
def _changes(before: str, after: str) -> str:
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
    changes = [line for line in lines if line[0] in "+-" and line[1:].strip()]
    shown = "; ".join(f"{line[0]} {line[1:].strip()[:80]}" for line in changes[:4])
    return f"{len(changes)} lines changed: {shown}" if changes else "no line changed"


def clip(text: str, limit: int, measure: Measure = len) -> str:
    """The text in one line, cut at its end to the limit."""
    text = " ".join(text.split())
    if measure(text) <= limit:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if measure(text[:middle] + "...") <= limit else (low, middle - 1)
    return text[:low] + "..." if low else ""


def _line(
    card: ExperienceCard,
    known: History,
    notes: Mapping[int, str],
    config: MemoryConfig,
    measure: Measure,
) -> str:
    facts = [f"score {card.validation.value:.6g}" if card.validation else str(card.outcome)]
    won = known.gains.get(card.attempt)
    if won is not None:
        facts.append(f"{'better' if won > 0 else 'worse'} than its parent by {abs(won):.4g}" if won else "no gain")
    if card.error_signature:
        facts.append(card.error_signature)
    note = notes.get(card.attempt) or extractive_note(card, known.by_attempt)
    head = f"- attempt {card.attempt}, {card.operator}, {method_family(card.source)}, {', '.join(facts)}: "
    return head + clip(note, config.note_length, measure)


def _relatives(card: ExperienceCard, known: History, *, ancestors: int, siblings: int) -> list[ExperienceCard]:
    return [*_ancestors(card, known.by_attempt)[:ancestors], *_siblings(card, known)[:siblings]]


def _ancestors(card: ExperienceCard, by_attempt: Mapping[int, ExperienceCard]) -> list[ExperienceCard]:
    """Nearest first, over all parents."""
    found: dict[int, ExperienceCard] = {}
    frontier = [card]
    while frontier:
        numbers = dict.fromkeys(number for each in frontier for number in each.parents if number not in found)
        frontier = [by_attempt[number] for number in numbers]
        found |= {each.attempt: each for each in frontier}
    return list(found.values())


def _siblings(card: ExperienceCard, known: History) -> list[ExperienceCard]:
    """The attempts that share a parent with this one, or are Drafts as it is one; the best ranked first."""
    shared = [each for each in known.siblings(card) if each.program_id is not None]
    utilities = [each.validation.utility for each in shared if each.validation]
    low, high = min(utilities, default=0.0), max(utilities, default=0.0)
    most = max((known.gains.get(each.attempt, 0.0) for each in shared), default=0.0)

    def rank(each: ExperienceCard) -> float:
        spread = high - low
        score = (each.validation.utility - low) / spread if each.validation and spread else 0.5 * each.valid
        won = max(known.gains.get(each.attempt, 0.0), 0.0) / most if most > 0 else 0.0
        novelty = 1.0 / math.sqrt(known.families[method_family(each.source)].attempts)
        return SCORE_WEIGHT * score + GAIN_WEIGHT * won + NOVELTY_WEIGHT * novelty

    return sorted(shared, key=lambda each: (-rank(each), each.attempt))


def _failures(broken: ExperienceCard, known: History, most: int) -> tuple[ExperienceCard, ...]:
    """Failed attempts with a program: those with the same signature first, the latest first."""
    failed = [card for card in reversed(known.failures) if card.attempt != broken.attempt]
    return tuple(sorted(failed, key=lambda card: card.error_signature != broken.error_signature)[:most])


def _distinct(found: Sequence[ExperienceCard], parents: Sequence[ExperienceCard]) -> tuple[ExperienceCard, ...]:
    told = {parent.attempt for parent in parents}
    return tuple({card.attempt: card for card in found if card.attempt not in told}.values())


def _errors(known: History) -> tuple[str, ...]:
    errors = [f"{signature} ({count} times)" for signature, count in known.errors.most_common(5) if count > 1]
    return (f"- errors that came up repeatedly: {', '.join(errors)}",) if errors else ()


def _improve_board(parent: ExperienceCard, known: History) -> tuple[str, ...]:
    families = known.families
    lines: list[str] = []
    best = known.best
    if best is not None and best.validation is not None and best.attempt != parent.attempt:
        lines.append(
            f"- best so far: attempt {best.attempt}, {method_family(best.source)}, score {best.validation.value:.6g}"
        )
    lines.append(_family_line(method_family(parent.source), families))
    rare = [name for name, facts in families.items() if facts.attempts <= 2 and facts.valid]
    if rare:
        lines.append(f"- families tried at most twice: {', '.join(sorted(rare)[:6])}")
    lines += _errors(known)
    trend = known.recent_gain()
    if trend is not None:
        lines.append(f"- mean gain of the last attempts over their parents: {trend:+.4g} (more is better)")
    return tuple(lines)


def _crossover_board(parents: Sequence[ExperienceCard], known: History) -> tuple[str, ...]:
    families = known.families
    first, second = (method_family(parent.source) for parent in parents)
    kinship = f"both are of the family {first}" if first == second else f"the first is {first}, the second {second}"
    told = [_family_line(name, families) for name in dict.fromkeys((first, second))]
    return (f"- the parents: {kinship}", *told, *_errors(known))


def _family_line(family: str, families: Mapping[str, FamilyFacts]) -> str:
    facts = families[family]
    best = f", best score {facts.best.validation.value:.6g}" if facts.best and facts.best.validation else ""
    return f"- family {family}: {facts.attempts} attempts, {facts.valid} valid{best}"
