"""`openmle-evo smoke`: one small real search, and whether everything about it is as it should be.

The six criteria are the published ones (the original's search, §6), which it asks of the reader; here the command checks
them itself. The fourth is about several workers, and told by their attempts' times.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from openmle_gym.contracts import Contract
from openmle_gym.experience import ExperienceCard
from openmle_gym.jobs import Outcome

from openmle_evo.reading import RunFacts


class Criterion(Contract):
    """One of the six, and what was seen."""

    number: int
    asks: str
    passed: bool
    seen: str


def check_run(facts: RunFacts, *, workers: int, search: str, exit_code: int) -> list[Criterion]:
    """Checks a finished run.

    Args:
        workers: As they were asked for.
        search: The schedule that was asked for.
        exit_code: How the search ended.
    """
    settings, final = facts.manifest.settings, facts.final
    schedule = settings["schedule"]
    kind = schedule["kind"] if isinstance(schedule, dict) else None
    succeeded = [card for card in facts.cards if card.outcome is Outcome.SUCCESS]
    bare = [card.attempt for card in succeeded if not (card.validation and card.usage.completion_tokens)]
    at_once = most_at_once(facts.cards)
    submitted = final.test if final else None
    return [
        Criterion(
            number=1,
            asks="the manifest names the search and the workers that were asked for",
            passed=kind == search and settings["workers"] == workers,
            seen=f"search {kind}, {settings['workers']} workers, isolation {facts.manifest.isolation}",
        ),
        Criterion(
            number=2,
            asks="at least one program succeeded",
            passed=bool(succeeded),
            seen=f"{len(succeeded)} of {len(facts.cards)} attempts",
        ),
        Criterion(
            number=3,
            asks="every successful attempt has a validation score and token counts",
            passed=not bare and bool(succeeded),
            seen=f"missing on attempts {bare}" if bare else f"on all {len(succeeded)}",
        ),
        Criterion(
            number=4,
            asks="with several workers, attempts overlapped in time and all came to an end",
            passed=(workers == 1 or at_once > 1) and facts.under_way == 0,
            seen=f"{at_once} at once, {facts.under_way} left under way",
        ),
        Criterion(
            number=5,
            asks="the chosen program has a score on the test split",
            passed=submitted is not None,
            seen=f"{submitted.value:.6g}" if submitted else (final.message if final else "no final report"),
        ),
        Criterion(
            number=6, asks="the search ended with exit code 0", passed=exit_code == 0, seen=f"exit code {exit_code}"
        ),
    ]


def most_at_once(cards: Sequence[ExperienceCard]) -> int:
    """How many attempts were under way at once, from when they ended and how long they took."""
    events: list[tuple[datetime, int]] = []
    for card in cards:
        end = datetime.fromisoformat(card.finished_at)
        took = card.sandbox_seconds + card.queue_seconds + card.model_seconds
        events += [(end - timedelta(seconds=took), 1), (end, -1)]
    most = now = 0
    for _, change in sorted(events, key=lambda event: (event[0], event[1])):
        now += change
        most = max(most, now)
    return most
