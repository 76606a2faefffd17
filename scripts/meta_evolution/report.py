"""A loop's results as JSON, as Markdown and as one HTML page: python report.py RUN."""

import html
import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from figures import averaged, bars, front_figure, lines
from openmle_evo.evaluation.results import Rate
from results import LEAST_SAMPLES, Difference, Generation, Results, Round, Side, Signal, Training, results

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1f2937; background: #fff }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; display: block; overflow-x: auto }
td, th { padding: .25rem .55rem; font-size: .93rem; border-bottom: 1px solid #d1d5db; text-align: right; white-space: nowrap } td:first-child, th:first-child { text-align: left }
svg { max-width: 100%; height: auto } text { font: 12px system-ui, sans-serif; fill: currentColor } .grid { stroke: #d1d5db }
@media (prefers-color-scheme: dark) { body { color: #e5e7eb; background: #111827 } td, th { border-color: #374151 } .grid { stroke: #374151 } }
"""
ORDER = ("recipes", "base", "trained", "group_normalised", "static_bounds", "max-recipes", "max-trained")


class Page:
    """The same content twice: Markdown for the repository, HTML for the browser."""

    def __init__(self) -> None:
        self.markdown: list[str] = []
        self.html: list[str] = []

    def head(self, text: str, level: int = 2) -> None:
        self.markdown.append(f"{'#' * level} {text}\n")
        self.html.append(f"<h{level}>{html.escape(text)}</h{level}>")

    def text(self, text: str) -> None:
        self.markdown.append(f"{text}\n")
        self.html.append(f"<p>{html.escape(text)}</p>")

    def table(self, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        rule = ["---", *["---:"] * (len(titles) - 1)]
        self.markdown += [f"| {' | '.join(row)} |" for row in (titles, rule, *rows)] + [""]
        cells = [
            "<tr>" + "".join(f"<{tag}>{html.escape(each)}</{tag}>" for each in row) + "</tr>"
            for tag, row in (("th", titles), *(("td", row) for row in rows))
        ]
        self.html.append(f"<table>{''.join(cells)}</table>")

    def figure(self, svg: str) -> None:
        self.html.append(svg)


def write(found: Results) -> Page:
    """Everything that is said of a loop."""
    page = Page()
    page.head("Results of the closed loop", 1)
    for each in found.rounds:
        page.text(
            f"Did training help{'' if len(found.rounds) == 1 else f' in {each.name}'}? {'Yes' if each.gate.passed else 'Not shown'}: "
            f"held-out Draft utility of the trained policies less that of base is {each.gate.why} (the gate: more than two "
            f"standard errors over tasks, at least {LEAST_SAMPLES} samples each)."
        )
    held_out = found.tasks["held-out"]
    page.text(
        f"{len(found.tasks['train'])} train tasks, {len(held_out)} held out ({', '.join(held_out)}); synthetic: "
        f"{', '.join(found.synthetic) or 'none'}. Rewards came from validation rows; every number of quality below is from "
        "test rows, which nothing learns from or selects by. Utility of a Draft is the share of the task's reference leaderboard "
        "(machine-made baselines) that it beats, 0 if it has no score. Human Rank is the same of a whole search's submission."
    )
    for each in found.rounds:
        round_page(page, each)
    if found.generations:
        generations_page(page, found.generations)
    training_page(page, found.training)
    if found.signal:
        signal_page(page, found.signal)
    page.head("Seconds")
    total = sum(found.seconds.values())
    page.table(
        ("stage", "seconds"),
        [(name, f"{value:.0f}") for name, value in found.seconds.items()] + [("all", f"{total:.0f}")],
    )
    return page


def round_page(page: Page, found: Round) -> None:
    """One generation."""
    page.head(f"{found.name.replace('-', ' ').capitalize()}: {found.examples} examples")
    for name, side in found.sides.items():
        page.head(f"Single Drafts, {name} tasks", 3)
        drafts_table(page, side)
        page.figure(bars({each: side.drafts[each].by_task for each in ordered(side.drafts)}, f"utility by {name} task"))
    if any(side.ablations for side in found.sides.values()):
        page.head("What adaptive bounds and entropic advantages are worth", 3)
        page.text(
            "The trained policy less one that was trained otherwise, with the same seeds and as many samples; utility of single Drafts."
        )
        page.table(
            ("trained less", "tasks", "difference ± SE (tasks)", "p"),
            [
                (each, side, signed(difference), chance(difference.p_value))
                for side, measured in found.sides.items()
                for each, difference in measured.ablations.items()
            ],
        )
    page.head("How held-out Drafts ended", 3)
    drafts = found.sides["held-out"].drafts
    kinds = sorted({kind for single in drafts.values() for kind in single.outcomes})
    page.table(
        ("policy", *kinds),
        [(name, *(f"{drafts[name].outcomes.get(kind, 0.0):.1%}" for kind in kinds)) for name in ordered(drafts)],
    )
    page.head("Searches on held-out tasks, one budget", 3)
    searches_tables(page, found)


def generations_page(page: Page, found: Sequence[Generation]) -> None:
    """What a round's policies are worth above those of the round before."""
    page.head("One generation above the last")
    page.text("A policy less the same of the round before; utility of single Drafts.")
    page.table(
        ("round", "policy", "tasks", "difference ± SE (tasks)", "p"),
        [
            (each.round, each.policy, each.side, signed(each.less_before), chance(each.less_before.p_value))
            for each in found
        ],
    )


def drafts_table(page: Page, side: Side) -> None:
    """What single Drafts are worth, by policy."""
    rows = []
    for name in ordered(side.drafts):
        mine, apart = side.drafts[name], side.less_base.get(name)
        rows.append(
            (
                name,
                f"{mine.samples}",
                f"{mine.utility:.3f} ± {number(mine.standard_error_of_samples)}",
                f"{mine.valid:.1%}",
                number(mine.utility_of_valid),
                *(("", "") if apart is None else (signed(apart), chance(apart.p_value))),
            )
        )
    titles = ("policy", "Drafts", "utility ± SE", "valid", "of the valid", "less base ± SE (tasks)", "p")
    page.table(titles, rows)


def searches_tables(page: Page, found: Round) -> None:
    """What searches are worth, and which differences can be told. Rates are of attempts; of searches there are too few."""
    rows = []
    for name in ordered(found.searches):
        mine = found.searches[name]
        runs, medals, rank = mine.suite.valid_rate, mine.suite.medal_average, mine.suite.human_rank
        rows.append(
            (
                name,
                f"{mine.attempts}",
                f"{mine.valid_attempts / mine.attempts:.1%}",
                count(runs),
                count(medals),
                "" if rank is None else f"{rank.mean:.3f} ± {number(rank.standard_error)}",
                f"{mine.suite.tokens:,}",
            )
        )
    titles = (
        "policy",
        "attempts",
        "valid",
        "searches that ended valid",
        "with a medal",
        "Human Rank ± SE (runs)",
        "tokens",
    )
    page.table(titles, rows)
    page.table(
        ("matched difference", "measure", "± SE over tasks", "p", "verdict"),
        [
            (
                pair,
                each.measure,
                f"{each.difference:+.3f} ± {number(each.standard_error)}",
                chance(each.p_value),
                each.verdict,
            )
            for pair, measures in found.searches_compared.items()
            for each in measures
            if each.measure != "valid_rate"
        ],
    )


def training_page(page: Page, runs: Mapping[str, Training]) -> None:
    """Curves of reinforcement learning."""
    page.head("Reinforcement learning")
    page.text(
        "The mean reward is no sign of progress: its bounds rise with the policy. Progress and percentile are on fixed bounds, of validation rows."
    )
    kinds: dict[str, list[Training]] = {}
    for name, run in runs.items():
        kinds.setdefault(name.rpartition("-seed-")[0], []).append(run)
    rows = []
    for kind, each in kinds.items():
        ends = [first_and_last(run.curves, "percentile/mean") for run in each]
        rewards = [first_and_last(run.curves, "reward/mean") for run in each]
        trained = sum(run.fates["trained"] for run in each)
        rows.append(
            (
                kind,
                str(len(each)),
                str(trained),
                str(sum(run.executions for run in each)),
                f"{mean([a for a, _ in ends]):.3f} to {mean([b for _, b in ends]):.3f}",
                f"{mean([a for a, _ in rewards]):.3f} to {mean([b for _, b in rewards]):.3f}",
            )
        )
    titles = (
        "run",
        "seeds",
        "samples trained on",
        "programs executed",
        "percentile, first to last fifth",
        "mean reward",
    )
    page.table(titles, rows)
    for name in ("percentile/mean", "reward/mean", "outcome/success"):
        page.figure(lines({kind: averaged([run.curves[name] for run in each]) for kind, each in kinds.items()}, name))


def signal_page(page: Page, found: Signal) -> None:
    """Upper-tail weighting and adaptive bounds, on the groups that were trained on."""
    page.head("What the rewards did to the very groups that were trained on")
    entropic, normalised = found.entropic_advantage, found.group_normalised_advantage
    page.text(
        f"Over {found.groups} groups with a signal, the best candidate's advantage is {entropic:.2f} with entropic weighting "
        f"and {normalised:.2f} normalised by the group: {entropic / normalised:.2f} times (the paper's figure 8a: 4.0 times)."
    )
    if not math.isnan(found.adaptive_resolution):
        page.text(
            f"The valid programs of a group take {found.adaptive_resolution:.1%} of the reward range with adaptive bounds, and "
            f"{found.static_resolution:.1%} with static ones."
        )


def ordered(found: Iterable[str]) -> list[str]:
    """The policies, in the order of the story."""
    return sorted(found, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def count(found: Rate | None) -> str:
    """How many of how many."""
    return "" if found is None else f"{round(found.mean * found.outcomes)} of {found.outcomes}"


def signed(found: Difference) -> str:
    """With its standard error."""
    return f"{found.difference:+.3f} ± {number(found.standard_error)}"


def number(value: float | None) -> str:
    """Three digits; a dash where there is none."""
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"


def chance(value: float | None) -> str:
    """A p value."""
    return "-" if value is None else f"{value:.2g}"


def mean(values: Sequence[float]) -> float:
    """NaN where there are none."""
    return statistics.fmean(values) if values else math.nan


def first_and_last(curves: Mapping[str, Sequence[float | None]], name: str) -> tuple[float, float]:
    """The means of a curve's first and last fifth."""
    values = [value for value in curves.get(name, ()) if value is not None and not math.isnan(value)]
    part = max(1, len(values) // 5)
    return mean(values[:part]), mean(values[-part:])


def main() -> int:
    """Writes results.json, results.md, report.html and figure.svg into the run's folder; prints where."""
    run = Path(sys.argv[1])
    found = results(run)
    page = write(found)
    (run / "results.json").write_text(found.model_dump_json(indent=1), encoding="utf-8")
    (run / "results.md").write_text("\n".join(page.markdown), encoding="utf-8")
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>The closed loop</title><style>{STYLE}</style>'
    (run / "figure.svg").write_text(front_figure(found), encoding="utf-8")
    (run / "report.html").write_text(head + "\n".join(page.html), encoding="utf-8")
    gates = {each.name: each.gate.model_dump() for each in found.rounds}
    print(
        json.dumps({"report": str(run / "report.html"), "results": str(run / "results.json"), "gate": gates}, indent=2)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
