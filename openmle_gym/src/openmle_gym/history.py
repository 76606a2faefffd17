"""The cards of a run with what follows from them, kept up to date card by card.

All of it follows from the cards alone. A search asks for it at every step, and deriving it anew each time would make
the n-th step n times as long.
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Self, overload

from openmle_gym.experience import ExperienceCard
from openmle_gym.features import FamilyFacts, gain, method_family
from openmle_gym.operators import Operator


class History(Sequence[ExperienceCard]):
    """Cards in the order of their commits, so that parents come before their children; only ever added to."""

    def __init__(self, cards: Iterable[ExperienceCard] = ()) -> None:
        self._cards: list[ExperienceCard] = []
        self.by_attempt: dict[int, ExperienceCard] = {}
        self.ranked: list[ExperienceCard] = []
        """Those with a validation score, best first, the earlier attempt first among equals."""
        self.new_bests: list[ExperienceCard] = []
        """Those that each were the best when they were committed."""
        self.by_operator: Mapping[Operator, list[ExperienceCard]] = {operator: [] for operator in Operator}
        self.failures: list[ExperienceCard] = []
        """Those that Debug accepts as a parent."""
        self.families: dict[str, FamilyFacts] = {}
        """In order of first trial."""
        self.errors: Counter[str] = Counter()
        """Error signatures, in order of first occurrence."""
        self.visits: Counter[int] = Counter()
        """How often an attempt was a parent."""
        self.gains: dict[int, float] = {}
        """By attempt: by how much its utility exceeds that of its best scored parent; of those that have both alone."""
        self._children: dict[int, list[ExperienceCard]] = {}
        self._roots: list[ExperienceCard] = []
        for card in cards:
            self.append(card)

    @classmethod
    def of(cls, cards: Sequence[ExperienceCard]) -> Self:
        """The history itself, or one made of other cards."""
        return cards if isinstance(cards, cls) else cls(cards)

    def append(self, card: ExperienceCard) -> None:
        """Takes a committed card in."""
        self._cards.append(card)
        self.by_attempt[card.attempt] = card
        self.by_operator[card.operator].append(card)
        if (won := gain(card, self.by_attempt)) is not None:
            self.gains[card.attempt] = won
        if card.validation is not None:
            insort(self.ranked, card, key=_order)
            if not self.new_bests or _order(card)[0] < _order(self.new_bests[-1])[0]:
                self.new_bests.append(card)
        if card.may_parent(Operator.DEBUG):
            self.failures.append(card)
        if card.program_id is not None:
            self._count_family(card)
        if card.error_signature:
            self.errors[card.error_signature] += 1
        self.visits.update(card.parents)
        for parent in dict.fromkeys(card.parents):
            self._children.setdefault(parent, []).append(card)
        if not card.parents:
            self._roots.append(card)

    def _count_family(self, card: ExperienceCard) -> None:
        family = method_family(card.source)
        facts = self.families.get(family, FamilyFacts(attempts=0, valid=0, best=None))
        best = facts.best
        if card.validation is not None and (best is None or _order(card) < _order(best)):
            best = card
        self.families[family] = FamilyFacts(attempts=facts.attempts + 1, valid=facts.valid + card.valid, best=best)

    @property
    def best(self) -> ExperienceCard | None:
        """The best valid card, the earliest attempt among equals; None when none is valid."""
        return self.ranked[0] if self.ranked else None

    def children(self, attempt: int) -> Sequence[ExperienceCard]:
        """The cards that an attempt is a parent of."""
        return self._children.get(attempt, ())

    def siblings(self, card: ExperienceCard) -> list[ExperienceCard]:
        """The other cards that share a parent with this one, or have none as it has none."""
        kin = [child for parent in card.parents for child in self.children(parent)] if card.parents else self._roots
        return list({each.attempt: each for each in kin if each.attempt != card.attempt}.values())

    def recent_gain(self, last: int = 5) -> float | None:
        """The mean of the last few gains over parents, in units of the metric, larger is better; None without any."""
        found = list(islice(reversed(self.gains.values()), last))
        return sum(found) / len(found) if found else None

    @overload
    def __getitem__(self, index: int) -> ExperienceCard: ...

    @overload
    def __getitem__(self, index: slice) -> list[ExperienceCard]: ...

    def __getitem__(self, index: int | slice) -> ExperienceCard | list[ExperienceCard]:
        return self._cards[index]

    def __len__(self) -> int:
        return len(self._cards)

    def __iter__(self) -> Iterator[ExperienceCard]:
        return iter(self._cards)


def _order(card: ExperienceCard) -> tuple[float, int]:
    assert card.validation is not None
    return -card.validation.utility, card.attempt
