"""Search runs as segments: an attempt that is no repair, and the repairs that descend from it. Pure.

The endpoint of a segment is its best node, by the metric's direction, the earliest among equals; the steps that may
be learned from are those on the path from the root to it. A repair that fails later does not void the segment.

Departure from the release, which takes the latest node for the endpoint and asks a Draft for a score above 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openmle_gym.experience import ExperienceCard
from openmle_gym.features import best_card
from openmle_gym.operators import Operator

from openmle_erl.sft.acceptance import TaskFacts, accept
from openmle_erl.sft.config import AcceptanceConfig
from openmle_erl.sft.edits import uninstructive
from openmle_erl.sft.inheritance import Inheritance, inheritance
from openmle_erl.sft.reasons import Drop


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A root and its Debug descendants, by attempt."""

    root: ExperienceCard
    steps: tuple[ExperienceCard, ...]
    """The root first."""
    path: tuple[ExperienceCard, ...]
    """From the root to the endpoint; empty when no step has a validation score."""

    @property
    def endpoint(self) -> ExperienceCard | None:
        """The best step; None when none has a validation score."""
        return self.path[-1] if self.path else None

    @property
    def segment_id(self) -> str:
        """Unique over runs."""
        return f"{self.root.run_id}/{self.root.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that the rules keep, to be shown to the judge where there is one."""

    card: ExperienceCard
    parents: tuple[ExperienceCard, ...]
    segment: Segment
    inherited: Inheritance


def segments(cards: Sequence[ExperienceCard]) -> list[Segment]:
    """The segments of one run, by their roots' attempts; every card is in exactly one.

    A repair whose parent's card is missing begins a segment of its own.
    """
    by_attempt = {card.attempt: card for card in cards}
    roots = {number: _root(by_attempt[number], by_attempt) for number in sorted(by_attempt)}
    members: dict[int, list[ExperienceCard]] = {}
    for number, root in roots.items():
        members.setdefault(root, []).append(by_attempt[number])
    found = []
    for root, steps in sorted(members.items()):
        steps.sort(key=lambda card: (card.attempt != root, card.attempt))
        endpoint = best_card(steps)
        path = _path(endpoint, root, by_attempt) if endpoint is not None else ()
        found.append(Segment(root=by_attempt[root], steps=tuple(steps), path=path))
    return found


def _root(card: ExperienceCard, by_attempt: Mapping[int, ExperienceCard]) -> int:
    seen = {card.attempt}
    while card.operator is Operator.DEBUG and card.parents and card.parents[0] in by_attempt:
        card = by_attempt[card.parents[0]]
        if card.attempt in seen:
            break
        seen.add(card.attempt)
    return card.attempt


def _path(endpoint: ExperienceCard, root: int, by_attempt: Mapping[int, ExperienceCard]) -> tuple[ExperienceCard, ...]:
    path = [endpoint]
    while path[0].attempt != root:
        path.insert(0, by_attempt[path[0].parents[0]])
    return tuple(path)


def segment_drop(
    segment: Segment,
    by_attempt: Mapping[int, ExperienceCard],
    facts: TaskFacts,
    acceptance: AcceptanceConfig,
) -> Drop | None:
    """Why a whole segment is dropped; None when its endpoint passes.

    An endpoint passes when acceptance accepts it and, after Improve or Crossover, when it is strictly better than the
    best scored parent of the root, by the metric's direction. A root without a scored parent needs no more than that.
    """
    endpoint = segment.endpoint
    if endpoint is None:
        return Drop.FAILED_SEGMENT
    decision = accept(endpoint, facts, acceptance)
    if decision.drop is not None:
        return decision.drop
    parents = [by_attempt[number] for number in segment.root.parents if number in by_attempt]
    best = best_card(parents)
    assert endpoint.validation is not None
    if best is not None and best.validation is not None and endpoint.validation.utility <= best.validation.utility:
        return Drop.NOT_BETTER_THAN_PARENT
    return None


def choose_steps(
    segment: Segment,
    by_attempt: Mapping[int, ExperienceCard],
    *,
    least_inherited: float,
    keep_failed_steps: bool,
) -> tuple[list[Step], dict[int, Drop]]:
    """The steps of an accepted segment that are kept, and why each other attempt of it is dropped."""
    assert segment.endpoint is not None
    kept: list[Step] = []
    dropped: dict[int, Drop] = {}
    on_path = {card.attempt for card in segment.path}
    for card in segment.steps:
        parents = tuple(by_attempt[number] for number in card.parents if number in by_attempt)
        inherited = inheritance(card.source, [parent.source for parent in parents], segment.endpoint.source)
        drop = _step_drop(card, parents, inherited, on_path, least_inherited)
        if drop is None and not card.valid and not keep_failed_steps:
            drop = Drop.FAILED_STEP
        if drop is not None:
            dropped[card.attempt] = drop
        else:
            kept.append(Step(card=card, parents=parents, segment=segment, inherited=inherited))
    return kept, dropped


def _step_drop(
    card: ExperienceCard,
    parents: Sequence[ExperienceCard],
    inherited: Inheritance,
    on_path: set[int],
    least_inherited: float,
) -> Drop | None:
    if card.program_id is None:
        return Drop.NO_PROGRAM
    if card.attempt not in on_path:
        return Drop.OFF_THE_INHERITED_PATH
    drop = uninstructive(card, parents)
    if drop is None and inherited.share < least_inherited:
        return Drop.REVERTED_REPAIR if card.operator is Operator.DEBUG and inherited.reverted else Drop.NOT_INHERITED
    return drop
