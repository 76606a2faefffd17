"""Which program a run submits, by a named strategy; and whether a report's choice follows from the run's records.

    best     the best by validation
    top_k    the best few are run again, and the best mean of the repeats wins
    blend    a weighted mean, or vote, of the best few's submissions, if it is better on validation than the best alone

Everything here is run on the validation split.
"""

import ast
import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from openmle_gym.experience import ExperienceCard
from openmle_gym.program import program_id
from openmle_gym.scores import ValidationScore
from openmle_gym.task import TaskPackage

from openmle_evo.blend import SHARE_OF_TIME, Counts, blend_method, blend_program, fit_counts, stored_blend
from openmle_evo.candidates import FinalJobs, best_mean, candidate_cards, considered, reconsider
from openmle_evo.choice_record import BlendPart, BlendRecord, Considered, Strategy
from openmle_evo.config import FinalConfig
from openmle_evo.run import FinalReport, write_whole

BLEND_FILE = "best_blend.py"
MOST_PROGRAM_BYTES = 6_000_000
"""A job with more is refused by sandbox services."""


class Choice(NamedTuple):
    """What is submitted, and why."""

    card: ExperienceCard
    """The chosen program's; for a blend, its first part's with the blend's program and score."""
    strategy: Strategy
    considered: tuple[Considered, ...] = ()
    blend: BlendRecord | None = None

    def record(self) -> dict[str, object]:
        """The fields of a final report that say how it was chosen."""
        return {"strategy": self.strategy, "considered": self.considered, "blend": self.blend}


async def choose_final(
    cards: Sequence[ExperienceCard],
    best: ExperienceCard,
    config: FinalConfig,
    *,
    jobs: FinalJobs,
    package: TaskPackage,
) -> Choice:
    """Chooses what to submit.

    Args:
        best: The best of the cards.
        jobs: Of the run; a blend is written to its `best_blend.py`.

    Raises:
        InfrastructureError: Machinery failed; the choice can be made later, and goes on where it was.
    """
    if config.strategy == "top_k":
        return await _top_k(cards, config, jobs)
    if config.strategy == "blend":
        return await _blend(cards, best, config, jobs=jobs, package=package)
    return Choice(best, "best")


async def _top_k(cards: Sequence[ExperienceCard], config: FinalConfig, jobs: FinalJobs) -> Choice:
    candidates = candidate_cards(cards, config.programs)
    programs = await asyncio.gather(*(reconsider(card, jobs, repeats=config.repeats) for card in candidates))
    chosen = best_mean(programs)
    card = next(card for card in candidates if card.attempt == chosen.attempt)
    return Choice(card, "top_k", tuple(programs))


async def _blend(
    cards: Sequence[ExperienceCard],
    best: ExperienceCard,
    config: FinalConfig,
    *,
    jobs: FinalJobs,
    package: TaskPackage,
) -> Choice:
    assert best.validation is not None
    limit_seconds = jobs.settings.timeout_seconds
    programs = candidate_cards(cards, config.programs)
    found = await asyncio.gather(*(jobs.submission(card) for card in programs))
    submissions = {card.attempt: content for card, content in zip(programs, found, strict=True) if content}
    parts = [card for card in programs if card.attempt in submissions]
    record = BlendRecord(method=blend_method(package), parts=(), jobs=0)
    choice = Choice(best, "blend", tuple(considered(card) for card in programs), record)
    if len(parts) < 2 or parts[0].attempt != best.attempt:
        return _unchosen(choice, record, "fewer than two submissions to blend, or not the best program's")

    contents = [submissions[card.attempt] for card in parts]

    async def score(counts: Counts) -> float | None:
        source = stored_blend(contents, counts, package)
        if len(source) > MOST_PROGRAM_BYTES:
            return None
        scored = await jobs.score(source, f"blend-{program_id(source)}")
        return None if scored is None else scored.utility

    fitted = await fit_counts(
        best.validation.utility,
        [card.sandbox_seconds for card in parts],
        score,
        jobs=config.blend_jobs,
        limit_seconds=SHARE_OF_TIME * limit_seconds,
    )
    record = record.model_copy(update={"jobs": fitted.jobs})
    if fitted.utility <= best.validation.utility:
        return _unchosen(choice, record, f"no blend of {len(parts)} submissions was better than the best program")
    record = record.model_copy(
        update={"parts": _parts(parts, fitted.counts), "fitted": _scored(best.validation, fitted.utility)}
    )
    source = blend_program([card.source for card in parts], fitted.counts, package, limit_seconds=limit_seconds)
    write_whole(jobs.run.path / BLEND_FILE, source)
    whole = await jobs.score(source, f"whole-{program_id(source)}")
    record = record.model_copy(update={"whole": whole})
    if whole is None:
        return _unchosen(choice, record, "the blend failed as one program")
    if whole.utility <= best.validation.utility:
        return _unchosen(choice, record, "as one program the blend was no better than the best program")
    record = record.model_copy(update={"chosen": True})
    card = best.model_copy(update={"source": source, "program_id": program_id(source), "validation": whole})
    return Choice(card, "blend", choice.considered, record)


def _unchosen(choice: Choice, record: BlendRecord, message: str) -> Choice:
    return choice._replace(blend=record.model_copy(update={"message": message}))


def _scored(like: ValidationScore, utility: float) -> ValidationScore:
    return like.model_copy(update={"value": utility if like.higher_is_better else -utility})


def _parts(cards: Sequence[ExperienceCard], counts: Counts) -> tuple[BlendPart, ...]:
    parts = [
        BlendPart(attempt=card.attempt, program_id=card.program_id or "", weight=count / sum(counts))
        for card, count in zip(cards, counts, strict=True)
        if count
    ]
    return tuple(sorted(parts, key=lambda part: (-part.weight, part.attempt)))


def choice_fault(
    cards: Sequence[ExperienceCard], best: ExperienceCard, final: FinalReport, *, asked: FinalConfig, blend: str | None
) -> str | None:
    """Why a report's program is not what its strategy chooses; None when it is.

    Args:
        cards: Those that the choice knew.
        best: The best of them.
        asked: The run's settings.
        blend: The text of the run's `best_blend.py`.
    """
    if final.strategy != asked.strategy:
        return f"the strategy was {final.strategy}, the settings say {asked.strategy}"
    candidates = candidate_cards(cards, asked.programs)
    known = {card.attempt: card for card in candidates}
    if final.strategy != "best" and [each.attempt for each in final.considered] != list(known):
        return f"the programs considered are not the best {asked.programs}"
    for each in final.considered:
        if each != considered(known[each.attempt], each.repeats):
            return f"what was considered of attempt {each.attempt} is not what its card and its repeats say"
    graded = next((card for card in cards if card.attempt == final.attempt), None)
    own = (final.program_id, final.validation)
    if final.chosen_blend is None and (graded is None or (graded.program_id, graded.validation) != own):
        return f"the program and validation score that were reported are not those of attempt {final.attempt}"
    if final.strategy == "top_k":
        wanted = best_mean(final.considered).program_id
        return None if final.program_id == wanted else f"attempt {final.attempt} has not the best mean"
    if final.chosen_blend is not None:
        return _blend_fault(best, final, final.chosen_blend, known, blend)
    return None if final.program_id == best.program_id else f"attempt {final.attempt} was not the best of {len(cards)}"


def _blend_fault(
    best: ExperienceCard, final: FinalReport, blend: BlendRecord, known: dict[int, ExperienceCard], text: str | None
) -> str | None:
    if text is None:
        return f"there is no {BLEND_FILE}"
    if program_id(text) != final.program_id:
        return f"{BLEND_FILE} is not the program that was graded"
    assert best.validation is not None
    if blend.whole != final.validation or final.validation.utility <= best.validation.utility:
        return "the blend was not better on validation than the best program"
    held = held_parts(text)
    total = sum(held.values())
    wanted = {known[part.attempt].source: part.weight for part in blend.parts if part.attempt in known}
    if len(wanted) != len(blend.parts) or {source: weight / total for source, weight in held.items()} != wanted:
        return f"{BLEND_FILE} does not run the parts of the report with their weights"
    return None


def held_parts(text: str) -> dict[str, int]:
    """The weights in a blend's program, by the programs that it runs; empty when it is no such program."""
    try:
        body = ast.parse(text).body
        for node in body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PARTS":
                return {source: weight for weight, source in ast.literal_eval(node.value)}
    except (SyntaxError, ValueError, TypeError):
        return {}
    return {}
