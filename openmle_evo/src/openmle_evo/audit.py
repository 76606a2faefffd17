"""An audit of a run from its own records: that selection saw validation scores only, and that nothing was changed.

What is checked:

    cards          each attempt that was begun or has a prompt is judged once, and no card holds a test score
    calls          each card's reply was asked for, so that what the run cost is counted whole
    programs       each card's program is of the policy's reply, to the last line
    selection      every decision, made again from the cards that it knew, comes out the same
    prompts        no prompt shows the test score of the final report
    skills         experience that prompts show is what the manifest records, and of other tasks
    protocol       every decision went by the kind of score that the run's protocol names, and says so
    review         no program that was refused has a score, and none counts without a verdict unless settings say so
    final          the program graded on test follows by the run's strategy from validation scores at that time, and was
                   graded last

What is not: that the sandbox graded honestly, or that the records were not all forged together; also a score that no
decision hung on, such as a lower one on the last card, can be changed unseen. A bundle's digest, once published, rules
out any later change.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from openmle_gym.contracts import Contract
from openmle_gym.errors import ReplyError
from openmle_gym.evaluate import Attempt
from openmle_gym.experience import ExperienceCard
from openmle_gym.features import best_card
from openmle_gym.history import History
from openmle_gym.program import parse_reply, program_id
from openmle_gym.scores import TestScore

from openmle_evo.audit_skills import skills_fault
from openmle_evo.config import SearchConfig
from openmle_evo.final_choice import choice_fault
from openmle_evo.islands import Islands
from openmle_evo.protocols import all_seen, decide, provenance
from openmle_evo.reading import Exchange, RunFacts
from openmle_evo.records import Records, lines, pack, read_records
from openmle_evo.run import settings_of


class Finding(Contract):
    """One check and what came of it."""

    check: Literal["cards", "calls", "programs", "selection", "prompts", "skills", "protocol", "review", "final"]
    passed: bool
    message: str


def audit(path: Path) -> list[Finding]:
    """Audits a run, finished or not.

    Args:
        path: Its directory, or the bundle that was written of it.

    Raises:
        StoreError: There is neither, a file or a setting of it is damaged, or a bundle's sums do not hold.
    """
    return _findings(read_records(path))


def _findings(records: Records) -> list[Finding]:
    facts = records.facts
    prompts = {
        attempt: "\n".join(message.content for message in exchange.messages)
        for attempt, exchange in records.exchanges.items()
    }
    return [
        _cards(facts, prompts),
        _calls(facts),
        _programs(records),
        _selection(facts),
        _prompts(facts, prompts),
        _skills(facts, prompts),
        _protocol(facts),
        _review(facts),
        _final(facts, records.blend),
    ]


def _cards(facts: RunFacts, prompts: Mapping[int, str]) -> Finding:
    numbers = [card.attempt for card in facts.cards]
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    if twice:
        return Finding(check="cards", passed=False, message=f"attempts {twice} have more than one card")
    scored = [card.attempt for card in facts.cards if card.test is not None]
    if scored:
        return Finding(check="cards", passed=False, message=f"the cards of attempts {scored} hold a test score")
    begun = range(max([*numbers, *prompts], default=-1) + 1)
    missing = sorted(set(begun) - set(numbers))
    if len(missing) > facts.under_way:
        return Finding(check="cards", passed=False, message=f"attempts among {missing} were begun and have no card")
    if facts.final is not None and facts.final.cards > len(numbers):
        message = f"the final report knew of {facts.final.cards} cards, there are {len(numbers)}"
        return Finding(check="cards", passed=False, message=message)
    return Finding(check="cards", passed=True, message=f"{len(numbers)} attempts, one card each, no test score")


def _calls(facts: RunFacts) -> Finding:
    answered = {call.attempt for call in facts.calls if call.failure is None and call.purpose not in ("note", "review")}
    unasked = [card.attempt for card in facts.cards if card.attempt not in answered]
    if unasked:
        message = f"no answered call of the policy is on record for attempts {unasked}"
        return Finding(check="calls", passed=False, message=message)
    return Finding(
        check="calls", passed=True, message=f"{len(facts.calls)} calls of models, one answered for each card"
    )


def _programs(records: Records) -> Finding:
    cards = records.facts.cards
    strange = [card.attempt for card in cards if not _is_of_reply(card, records.exchanges.get(card.attempt))]
    if strange:
        message = f"the programs of attempts {strange} are not those of the replies"
        return Finding(check="programs", passed=False, message=message)
    return Finding(check="programs", passed=True, message=f"{len(cards)} programs found again in the replies")


def _is_of_reply(card: ExperienceCard, exchange: Exchange | None) -> bool:
    """Whether a card's program is of the reply: each of its lines stands there, or it is what is read there today.

    How programs are found in replies changes from version to version; that a line was added shows in any.
    """
    if exchange is None or (card.program_id is not None and card.program_id != program_id(card.source)):
        return False
    said = {line.strip() for line in exchange.reply.splitlines()}
    return all(line.strip() in said for line in card.source.splitlines() if line.strip()) or card.source in [
        _program_of(exchange.reply, truncated=truncated) for truncated in (False, True)
    ]


def _program_of(reply: str, *, truncated: bool) -> str:
    """The program in a reply; empty where there is none."""
    try:
        return parse_reply(reply, truncated=truncated).source
    except ReplyError:
        return ""


def _selection(facts: RunFacts) -> Finding:
    config = _settings(facts)
    islands, history, seen = Islands(config.islands, config.seed), History(), 0
    every = all_seen(facts.cards, config.protocol)
    for card in sorted(facts.cards, key=lambda each: (each.selection.committed, each.attempt)):
        known = card.selection.committed
        if known < seen or known > len(facts.cards):
            return Finding(check="selection", passed=False, message=f"attempt {card.attempt} knew of {known} cards")
        for committed in every[seen:known]:
            islands.commit(committed)
            history.append(committed)
        seen = known
        again = decide(card.attempt, history, _under_way(card, facts.cards, known), islands, config)
        if (again.operator, again.parents, again.selection) != (card.operator, card.parents, card.selection):
            message = (
                f"attempt {card.attempt} was {card.operator} of {list(card.parents)}; its cards make it "
                f"{again.operator} of {list(again.parents)}"
            )
            return Finding(check="selection", passed=False, message=message)
    return Finding(
        check="selection",
        passed=True,
        message=f"{len(facts.cards)} decisions replayed from {_KINDS[config.protocol]} alone",
    )


def _settings(facts: RunFacts) -> SearchConfig:
    return settings_of(facts.manifest, facts.path)


def _under_way(card: ExperienceCard, cards: Sequence[ExperienceCard], known: int) -> list[Attempt]:
    """The attempts that were begun before this one and had no card yet."""
    done = {each.attempt for each in cards[:known]}
    return [
        Attempt(
            run_id=each.run_id,
            task=each.task,
            attempt=each.attempt,
            operator=each.operator,
            parents=each.parents,
            selection=each.selection,
        )
        for each in sorted(cards, key=lambda one: one.attempt)
        if each.attempt < card.attempt and each.attempt not in done
    ]


def _prompts(facts: RunFacts, prompts: dict[int, str]) -> Finding:
    final = facts.final
    scores = [score for score in (final.test, final.sample_submission) if score] if final else []
    shown = [attempt for attempt, text in prompts.items() if any(_shows(text, score) for score in scores)]
    if shown:
        return Finding(check="prompts", passed=False, message=f"the prompts of attempts {shown} show a test score")
    return Finding(
        check="prompts", passed=True, message=f"{len(prompts)} prompts searched for {len(scores)} test scores"
    )


def _skills(facts: RunFacts, prompts: dict[int, str]) -> Finding:
    fault = skills_fault(facts.manifest, prompts)
    given = [each.file for each in facts.manifest.skills.given]
    message = fault or (f"{', '.join(given)}: of other tasks, and in prompts as recorded" if given else "none given")
    return Finding(check="skills", passed=fault is None, message=message)


def _shows(text: str, score: TestScore) -> bool:
    """Whether the score's digits stand in the text; a score of few digits could stand there by chance."""
    forms = {repr(score.value), f"{score.value:.6g}"}
    return any(len(form.strip("-0.")) >= 5 and form in text for form in forms)


_KINDS = {
    "holdout": "validation",
    "two_package": "validation",
    "self_valid": "the programs' own printed scores",
    "evaluator": "the benchmark's evaluator",
}


def _protocol(facts: RunFacts) -> Finding:
    manifest, config = facts.manifest, _settings(facts)
    if manifest.protocol != config.protocol:
        message = f"the manifest says {manifest.protocol}, the settings say {config.protocol}"
        return Finding(check="protocol", passed=False, message=message)
    wanted = provenance(config.protocol)
    wrong = [card.attempt for card in facts.cards if card.selection.provenance is not wanted]
    if wrong:
        message = f"under {config.protocol} decisions go by {wanted} scores; those of attempts {wrong} do not say so"
        return Finding(check="protocol", passed=False, message=message)
    final = manifest.final_package
    if (config.protocol == "two_package") != (final is not None):
        message = f"protocol {config.protocol}, final package {final.name if final else 'none'}"
        return Finding(check="protocol", passed=False, message=message)
    if final is not None and final.answers_sha256 == final.search_answers_sha256:
        return Finding(check="protocol", passed=False, message="both packages have the same answers")
    ends = f"; graded on {final.name}, whose answers are others" if final else ""
    message = f"{config.protocol}: {len(facts.cards)} decisions by {_KINDS[config.protocol]}{ends}"
    return Finding(check="protocol", passed=True, message=message)


def _review(facts: RunFacts) -> Finding:
    fail = _settings(facts).review.fail
    refused = [card for card in facts.cards if card.review == "refused"]
    unknown = [card for card in facts.cards if card.review == "unknown"]
    scored = [card.attempt for card in refused if card.valid or card.withheld]
    if scored:
        return Finding(check="review", passed=False, message=f"attempts {scored} were refused and have a score")
    counted = [card.attempt for card in unknown if card.valid]
    if counted and fail != "fail_open":
        message = f"attempts {counted} count without a verdict, which review.fail={fail} forbids"
        return Finding(check="review", passed=False, message=message)
    asked = sum(call.purpose == "review" for call in facts.calls)
    message = f"{len(refused)} programs refused, {len(unknown)} without a verdict"
    message += f", of which {len(counted)} count (review.fail=fail_open)" if counted else ""
    return Finding(check="review", passed=True, message=f"{message}, {asked} judgements by a model")


def _final(facts: RunFacts, blend: str | None) -> Finding:
    final = facts.final
    if final is None:
        said = "nothing was graded on the test split yet"
        if facts.manifest.protocol == "evaluator":
            said = "the benchmark has no test apart from what the search selected on"
        return Finding(check="final", passed=True, message=said)
    known = facts.cards[: final.cards]
    best = best_card(all_seen(known, _settings(facts).protocol))
    fault = choice_fault(known, best, final, asked=_settings(facts).final, blend=blend) if best else "nothing valid"
    if fault is not None:
        return Finding(check="final", passed=False, message=fault)
    late = [card.attempt for card in known if _moment(card.finished_at) > _moment(final.finished_at)]
    if late:
        return Finding(check="final", passed=False, message=f"attempts {late} ended after the grading on test")
    more = len(facts.cards) - len(known)
    went_on = f"; the search went on for {more} attempts, whose decisions are among those replayed" if more else ""
    chosen = {
        "best": f"attempt {final.attempt} was the best of {len(known)}",
        "top_k": f"attempt {final.attempt} had the best mean of repeats",
        "blend": "the blend was better than the best program" if final.chosen_blend else "the best beat every blend",
    }[final.strategy]
    return Finding(check="final", passed=True, message=f"{chosen}{went_on}")


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(microsecond=0)


def write_bundle(path: Path, destination: Path) -> str:
    """Writes everything that the audit needs into one tar file, the same bytes for the same run; see `read_records`.

    Returns:
        The bundle's SHA-256, in hex: publish it, and nobody can change the run unseen.

    Raises:
        StoreError: There is no run in the directory, or a file of it is damaged.
    """
    records = read_records(path)
    return pack(records, lines(finding.model_dump_json() for finding in _findings(records)), destination)
