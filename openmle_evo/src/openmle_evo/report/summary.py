"""The summary for the terminal."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from openmle_gym.experience import ExperienceCard
from openmle_gym.features import by_operator, by_outcome, new_bests
from openmle_gym.scores import Score
from rich.console import Console
from rich.table import Table
from rich.text import Text

from openmle_evo.budget import ModelCall
from openmle_evo.protocols import all_seen
from openmle_evo.reading import RunFacts, read_run
from openmle_evo.run import FinalReport, Standing

_ROWS = 10
_PROTOCOLS = {
    "two_package": "searched on one package, graded on another",
    "self_valid": "selected on the scores that programs print themselves",
}


def print_summary(run: Path, console: Console) -> None:
    """Prints what a run came to: progress, operators, test score, seconds, tokens, outcomes.

    Raises:
        StoreError: There is no run in the directory, or a file of it is damaged.
    """
    facts = read_run(run)
    manifest = facts.manifest
    direction = "higher" if manifest.metric.higher_is_better else "lower"
    console.print(_plain(f"{manifest.title or manifest.task}: {manifest.metric.name}, {direction} is better"))
    if manifest.protocol != "holdout":
        console.print(_plain(f"Protocol    {manifest.protocol}: {_PROTOCOLS[manifest.protocol]}"))
    if facts.cards:
        seen = replace(facts, cards=tuple(all_seen(facts.cards, manifest.protocol)))
        console.print(_progress(seen))
        console.print(_operators(seen.cards))
    for name, value in _lines(facts):
        console.print(_plain(f"{name:<12}{value}"), soft_wrap=True)


def _plain(text: str) -> Text:
    """Text that neither rich nor the terminal takes for a command."""
    return Text("".join(character if character.isprintable() else " " for character in text))


def _progress(facts: RunFacts) -> Table:
    kind = "self-reported" if facts.manifest.protocol == "self_valid" else "validation"
    table = Table(title=f"Best {kind} score", title_justify="left")
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
        *_considered(facts.final),
        ("Leaderboard", _leaderboard(facts.final)),
        ("Seconds", ", ".join(f"{value:.1f} {name}" for name, value in seconds._asdict().items())),
        (
            "Tokens",
            f"{usage.prompt_tokens:,} prompt, {usage.completion_tokens:,} completion"
            + (" (estimated)" if usage.estimated else ""),
        ),
        ("Calls", calls_line(facts.calls)),
        ("Outcomes", outcomes or "no attempt has finished yet"),
        ("Report", str(report) if report.is_file() else "not made yet"),
    ]


def calls_line(calls: Sequence[ModelCall]) -> str:
    """Every call of a model by what it was for, notes, reviews and failed ones too."""
    told = []
    for purpose in dict.fromkeys(str(call.purpose) for call in calls):
        own = [call for call in calls if call.purpose == purpose]
        tokens = sum(call.usage.prompt_tokens + call.usage.completion_tokens for call in own)
        failed = sum(call.failure is not None for call in own)
        told.append(f"{len(own)} {purpose} ({tokens:,} tokens{f', {failed} failed' if failed else ''})")
    return ", ".join(told) or "none"


def _test(final: FinalReport | None) -> str:
    if final is None:
        return "not graded on test yet"
    sample = _score(final.sample_submission) if final.sample_submission else "refused by the metric"
    if final.test is None:
        return f"{_program(final)} failed when it was graded on test: {final.message}; sample submission {sample}"
    return f"{_score(final.test)} by {_program(final)}; sample submission {sample}"


def _program(final: FinalReport) -> str:
    if final.chosen_blend is None:
        return f"attempt {final.attempt}"
    parts = (f"attempt {part.attempt} ({part.weight:.0%})" for part in final.chosen_blend.parts)
    return f"a blend of {', '.join(parts)}"


def _considered(final: FinalReport | None) -> list[tuple[str, str]]:
    """What the final choice was between, where it was not simply the best."""
    if final is None:
        return []
    lines = []
    for each in final.considered:
        mean = _score(each.mean) if each.mean else "none, one failed"
        again = f"; of {len(each.repeats)} repeats mean {mean}; best {_score(each.best)}" if each.repeats else ""
        lines.append(("Considered", f"attempt {each.attempt}: {_score(each.first)} in the search{again}"))
    if final.blend is not None:
        blend = final.blend
        told = f"{'chosen' if blend.chosen else blend.message}; {blend.jobs} blends scored"
        scores = f"; combined {_score(blend.fitted)}, as one program {_score(blend.whole)}" if blend.parts else ""
        lines.append(("Blend", f"{told}{scores}"))
    return lines


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
