"""The summary for the terminal."""

from collections.abc import Sequence
from pathlib import Path

from openmle_gym.experience import ExperienceCard
from openmle_gym.features import by_operator, by_outcome, new_bests
from openmle_gym.scores import Score
from rich.console import Console
from rich.table import Table
from rich.text import Text

from openmle_evo.reading import RunFacts, read_run
from openmle_evo.run import FinalReport, Standing

_ROWS = 10


def print_summary(run: Path, console: Console) -> None:
    """Prints what a run came to: progress, operators, test score, seconds, tokens, outcomes.

    Raises:
        StoreError: There is no run in the directory, or a file of it is damaged.
    """
    facts = read_run(run)
    manifest = facts.manifest
    direction = "higher" if manifest.metric.higher_is_better else "lower"
    console.print(_plain(f"{manifest.title or manifest.task}: {manifest.metric.name}, {direction} is better"))
    if facts.cards:
        console.print(_progress(facts))
        console.print(_operators(facts.cards))
    for name, value in _lines(facts):
        console.print(_plain(f"{name:<12}{value}"), soft_wrap=True)


def _plain(text: str) -> Text:
    """Text that neither rich nor the terminal takes for a command."""
    return Text("".join(character if character.isprintable() else " " for character in text))


def _progress(facts: RunFacts) -> Table:
    table = Table(title="Best validation score", title_justify="left")
    for heading in ("attempts finished", "attempt", "operator", facts.manifest.metric.name):
        table.add_column(_plain(heading), justify="left" if heading == "operator" else "right")
    bests = new_bests(facts.cards)
    order = {card.attempt: place for place, card in enumerate(facts.cards, start=1)}
    for card in _spread(bests, _ROWS):
        table.add_row(str(order[card.attempt]), str(card.attempt), card.operator, _score(card.validation))
    if not bests:
        table.add_row(str(len(facts.cards)), "", "", "no valid program")
    elif bests[-1] is not facts.cards[-1]:
        table.add_row(str(len(facts.cards)), "", "no better one since", _score(bests[-1].validation))
    return table


def _score(score: Score | None) -> str:
    return "none" if score is None else f"{score.value:#.6g}".rstrip(".")


def _spread(cards: Sequence[ExperienceCard], most: int) -> list[ExperienceCard]:
    """At most `most` of the cards, the first and the last among them, evenly spread."""
    if len(cards) <= most:
        return list(cards)
    return [cards[round(place * (len(cards) - 1) / (most - 1))] for place in range(most)]


def _operators(cards: Sequence[ExperienceCard]) -> Table:
    table = Table(title="Operators", title_justify="left")
    table.add_column("operator")
    for heading in ("attempts", "valid", "new bests", "tokens"):
        table.add_column(heading, justify="right")
    for operator, facts in by_operator(cards).items():
        if facts.attempts:
            table.add_row(operator, *(f"{n:,}" for n in (facts.attempts, facts.valid, facts.new_bests, facts.tokens)))
    return table


def _lines(facts: RunFacts) -> list[tuple[str, str]]:
    usage = facts.usage
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in by_outcome(facts.cards).items() if count)
    seconds = facts.seconds
    report = facts.path / "report.html"
    return [
        ("Test", _test(facts.final)),
        ("Leaderboard", _leaderboard(facts.final)),
        ("Seconds", ", ".join(f"{value:.1f} {name}" for name, value in seconds._asdict().items())),
        (
            "Tokens",
            f"{usage.prompt_tokens:,} prompt, {usage.completion_tokens:,} completion"
            + (" (estimated)" if usage.estimated else ""),
        ),
        ("Outcomes", outcomes or "no attempt has finished yet"),
        ("Report", str(report) if report.is_file() else "not made yet"),
    ]


def _test(final: FinalReport | None) -> str:
    if final is None:
        return "not graded on test yet"
    sample = _score(final.sample_submission) if final.sample_submission else "refused by the metric"
    if final.test is None:
        return f"attempt {final.attempt} failed when it was graded on test: {final.message}; sample submission {sample}"
    return f"{_score(final.test)} by attempt {final.attempt}; sample submission {sample}"


def _leaderboard(final: FinalReport | None) -> str:
    if final is None:
        return "not graded on test yet"
    if final.standing is None:
        return "no test score to place" if final.test is None else "no leaderboard"
    standing = final.standing
    medal = f"{standing.medal} medal" if standing.medal else "no medal"
    return (
        f"rank {standing.rank} of {standing.entries} entries, beats {standing.fraction_beaten:.0%}, {medal}"
        f" ({_made_by(standing)})"
    )


def _made_by(standing: Standing) -> str:
    return "machine-made leaderboard" if standing.made_by == "machine" else f"leaderboard by {standing.made_by}"
