"""`openmle-evo watch`: a run in the terminal, as it goes. Reads only; any number may watch."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from openmle_gym.experience import ExperienceCard
from openmle_gym.features import best_card, by_operator, by_outcome, new_bests
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from openmle_evo.reading import RunFacts, read_run

LOOK_SECONDS = 1.0
LAST_EVENTS = 8
BARS = "▁▂▃▄▅▆▇█"


def watch(path: Path, console: Console, *, wait: Callable[[float], None] = time.sleep) -> None:
    """Shows a run until it has its final report; without a terminal, a line for each attempt.

    Raises:
        StoreError: There is no run in the directory, or a file of it is damaged.
    """
    if not console.is_terminal:
        shown = 0
        for facts in _looks(path, wait):
            for card in facts.cards[shown:]:
                console.print(Text(line(card, facts)), soft_wrap=True)
            shown = len(facts.cards)
        return
    with Live(console=console, auto_refresh=False) as live:
        for facts in _looks(path, wait):
            live.update(picture(facts), refresh=True)


def _looks(path: Path, wait: Callable[[float], None]) -> Iterator[RunFacts]:
    while True:
        facts = read_run(path)
        yield facts
        if facts.final is not None:
            return
        wait(LOOK_SECONDS)


def picture(facts: RunFacts) -> Group:
    """The whole of what is shown."""
    manifest, best = facts.manifest, best_card(facts.cards)
    better = "higher" if manifest.metric.higher_is_better else "lower"
    head = Text(f"{manifest.title}  {manifest.metric.name}, {better} is better", style="bold")
    now = Text(
        f"{len(facts.cards)} of {_attempts(facts)} attempts, {facts.under_way} under way, "
        + (f"best {best.validation.value:.6g} by attempt {best.attempt}" if best and best.validation else "none valid")
    )
    seconds, usage = facts.seconds, facts.usage
    spent = Text(
        f"{seconds.sandbox:.0f} s sandbox, {seconds.model:.0f} s model, {seconds.queue:.0f} s queue, "
        f"{usage.prompt_tokens + usage.completion_tokens:,} tokens{' (estimated)' if usage.estimated else ''}"
    )
    operators = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("operator", "attempts", "valid", "new bests"):
        operators.add_column(name, justify="left" if name == "operator" else "right")
    for operator, own in by_operator(facts.cards).items():
        operators.add_row(operator, str(own.attempts), str(own.valid), str(own.new_bests))
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in by_outcome(facts.cards).items() if count)
    events = [Text(line(card, facts), overflow="ellipsis", no_wrap=True) for card in facts.cards[-LAST_EVENTS:]]
    return Group(head, now, Text(curve(facts)), spent, operators, Text(outcomes), *events)


def _attempts(facts: RunFacts) -> object:
    budget = facts.manifest.settings.get("budget")
    return budget.get("attempts") if isinstance(budget, dict) else "?"


def curve(facts: RunFacts, width: int = 60) -> str:
    """The best score so far, one bar for each attempt or group of attempts; better is higher."""
    bests = {card.attempt for card in new_bests(facts.cards)}
    best: float | None = None
    steps: list[float | None] = []
    for card in facts.cards:
        if card.attempt in bests and card.validation:
            best = card.validation.utility
        steps.append(best)
    every = max(1, -(-len(steps) // width))
    picked = [steps[min(place + every - 1, len(steps) - 1)] for place in range(0, len(steps), every)]
    known = [value for value in picked if value is not None]
    low, spread = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    return "".join(
        " " if value is None else BARS[int((value - low) / spread * (len(BARS) - 1)) if spread else len(BARS) - 1]
        for value in picked
    )


def line(card: ExperienceCard, facts: RunFacts) -> str:
    """One attempt in one line."""
    verdict = f"{facts.manifest.metric.name} {card.validation.value:.6g}" if card.validation else str(card.outcome)
    parents = f" of {', '.join(map(str, card.parents))}" if card.parents else ""
    plan = " ".join(card.plan.split())
    return f"{card.attempt:>4} {card.operator}{parents}: {verdict}, {card.sandbox_seconds:.1f} s. {plan[:100]}"
