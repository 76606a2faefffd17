"""The data inside the page, as JSON: the run's records under their own field names, and what follows from them."""

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from openmle_gym.experience import ExperienceCard
from openmle_gym.features import best_card, by_operator, by_outcome, gain, method_family, new_bests

from openmle_evo.protocols import all_seen
from openmle_evo.reading import RunFacts

PROGRAMS_BYTES = 8_000_000
LOGS_BYTES = 3_500_000
"""What all programs, and all logs and plans, may take in the page; beyond it each is shortened to the same length."""

_FORBIDDEN = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def embed(value: object) -> str:
    """JSON that is inert inside a script element: no markup can begin in it, whatever the strings hold.

    Raises:
        ValueError: A number is not finite.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, escape in _FORBIDDEN.items():
        text = text.replace(character, escape)
    return text


class Limits(NamedTuple):
    """How many characters of a text the page holds."""

    program: int
    log: int
    """Of a log's head, of its tail, of a plan and of a message each."""


def fit(cards: Sequence[ExperienceCard]) -> Limits:
    """The limits with which the page stays small enough to open; they cut nothing in a run of ordinary size."""
    texts = [text for card in cards for text in (card.plan, card.message, *_halves(card.log_head + card.log_tail))]
    return Limits(
        program=_limit([card.source for card in cards], 64_000, PROGRAMS_BYTES), log=_limit(texts, 16_000, LOGS_BYTES)
    )


def _halves(log: str) -> tuple[str, str]:
    middle = (len(log) + 1) // 2
    return log[:middle], log[middle:]


def _limit(texts: Sequence[str], most: int, budget_bytes: int) -> int:
    limit = most
    while limit > 500 and sum(len(embed(text[:limit]).encode()) for text in texts) > budget_bytes:
        limit //= 2
    return limit


def page_payload(facts: RunFacts) -> dict[str, Any]:
    """Everything that the page shows."""
    cards = all_seen(facts.cards, facts.manifest.protocol)
    limits = fit(cards)
    attempts = _attempts(cards, limits)
    if facts.manifest.protocol == "self_valid":
        for attempt, card in zip(attempts, facts.cards, strict=True):
            attempt["measured"] = card.validation.model_dump() if card.validation else None
    best = best_card(cards)
    usage = facts.usage
    costs = [card.cost_usd for card in cards if card.cost_usd is not None]
    return {
        "manifest": facts.manifest.model_dump(mode="json"),
        "final": facts.final.model_dump(mode="json") if facts.final else None,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "last_result_at": facts.last_result_at,
        "under_way": facts.under_way,
        "best": best.attempt if best else None,
        "isolations": sorted({card.isolation for card in cards if card.isolation}),
        "models": sorted({card.model for card in cards if card.model}),
        "usage": usage.model_dump(),
        "cost_usd": sum(costs) if costs else None,
        "seconds": facts.seconds._asdict(),
        "operators": _operators(cards),
        "outcomes": [{"outcome": outcome, "attempts": count} for outcome, count in by_outcome(cards).items()],
        "errors": _errors(cards),
        "limits": limits._asdict(),
        "shortened_programs": sum("program_cut" in attempt for attempt in attempts),
        "shortened_logs": sum("log_cut" in attempt for attempt in attempts),
        "attempts": attempts,
    }


def _attempts(cards: Sequence[ExperienceCard], limits: Limits) -> list[dict[str, Any]]:
    by_attempt = {card.attempt: card for card in cards}
    bests = {card.attempt for card in new_bests(cards)}
    losses = sorted(-card.validation.utility for card in cards if card.validation is not None)
    return [
        card.model_dump(mode="json", exclude={"schema_version", "run_id", "task", "selection"})
        | _shortened(card, limits)
        | {
            "selection": _selection(card),
            "utility": card.validation.utility if card.validation else None,
            "rank": 1 + bisect_left(losses, -card.validation.utility) if card.validation else None,
            "gain": gain(card, by_attempt),
            "new_best": card.attempt in bests,
            "family": method_family(card.source) if card.source else None,
        }
        for card in cards
    ]


def _selection(card: ExperienceCard) -> dict[str, Any]:
    candidates = [
        {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in candidate}
        for candidate in card.selection.candidates
    ]
    return card.selection.model_dump(mode="json") | {"candidates": candidates}


def _shortened(card: ExperienceCard, limits: Limits) -> dict[str, Any]:
    """The card's long texts within the limits; of a log, its beginning and its end stay."""
    cut: dict[str, Any] = {"plan": card.plan[: limits.log], "message": card.message[: limits.log]}
    if len(card.source) > limits.program:
        cut |= {"source": card.source[: limits.program], "program_cut": len(card.source) - limits.program}
    whole = len(card.log_head) + len(card.log_tail)
    tail = card.log_tail
    if not tail and len(card.log_head) > limits.log:
        tail = card.log_head[limits.log :]
    head, tail = card.log_head[: limits.log], tail[-limits.log :]
    if len(head) + len(tail) < whole:
        cut["log_cut"] = whole - len(head) - len(tail)
    return cut | {"log_head": head, "log_tail": tail}


def _operators(cards: Sequence[ExperienceCard]) -> list[dict[str, Any]]:
    rows = []
    for operator, facts in by_operator(cards).items():
        own = [card for card in cards if card.operator is operator]
        rows.append(
            {
                "operator": operator,
                "attempts": facts.attempts,
                "valid": facts.valid,
                "new_bests": facts.new_bests,
                "tokens": facts.tokens,
                "prompt_tokens": sum(card.usage.prompt_tokens for card in own),
                "completion_tokens": sum(card.usage.completion_tokens for card in own),
                "sandbox_seconds": facts.sandbox_seconds,
                "queue_seconds": sum(card.queue_seconds for card in own),
            }
        )
    return rows


def _errors(cards: Sequence[ExperienceCard]) -> list[dict[str, Any]]:
    """The error signatures, the most frequent first, with the attempts that ended in them."""
    attempts = defaultdict(list)
    for card in cards:
        if card.error_signature is not None:
            attempts[(card.outcome, card.error_signature)].append(card.attempt)
    ranked = sorted(attempts.items(), key=lambda item: (-len(item[1]), item[0]))
    return [{"outcome": outcome, "signature": sign, "attempts": numbers} for (outcome, sign), numbers in ranked]
