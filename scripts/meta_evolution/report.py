"""A loop's results as JSON, as Markdown and as one HTML page: python report.py RUN."""

import html
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from results import results

COLOURS = ("#0b6e99", "#c2410c", "#4d7c0f", "#7c3aed", "#475569")
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


def write(found: Mapping[str, Any]) -> Page:
    """Everything that is said of a loop."""
    page = Page()
    page.head("Results of the closed loop", 1)
    last = found["rounds"][-1]
    gate = last["gate"]
    page.text(
        f"Did training help? {'Yes' if gate['passed'] else 'Not shown'}: held-out Draft utility of the trained policies less "
        f"that of base is {gate['why']} (the gate: more than two standard errors over tasks, at least 250 samples each)."
    )
    sides = found["tasks"]
    page.text(
        f"{len(sides['train'])} train tasks, {len(sides['held-out'])} held out ({', '.join(sides['held-out'])}); synthetic: "
        f"{', '.join(sides['synthetic']) or 'none'}. Rewards came from validation rows; every number of quality below is from "
        "test rows, which nothing learns from or selects by. Utility of a Draft is the share of the task's reference leaderboard "
        "(machine-made baselines) that it beats, 0 if it has no score. Human Rank is the same of a whole search's submission."
    )
    for each in found["rounds"]:
        round_page(page, each)
    training_page(page, found["training"])
    signal_page(page, found["signal"])
    page.head("Seconds")
    total = sum(found["seconds"].values())
    page.table(
        ("stage", "seconds"),
        [(name, f"{value:.0f}") for name, value in found["seconds"].items()] + [("all", f"{total:.0f}")],
    )
    return page


def round_page(page: Page, found: Mapping[str, Any]) -> None:
    """One generation."""
    page.head(f"{found['name'].replace('-', ' ').capitalize()}: {found['corpus']['examples']} examples")
    for side in ("held-out", "train"):
        drafts = found["drafts"][side]
        base = drafts["against base"]
        page.head(f"Single Drafts, {side} tasks", 3)
        rows = []
        for name in ordered(drafts):
            mine, apart = drafts[name], base.get(name)
            rows.append(
                (
                    name,
                    f"{mine['samples']}",
                    f"{mine['utility']:.3f} ± {number(mine['standard_error_of_samples'])}",
                    f"{mine['valid']:.1%}",
                    f"{mine['utility_of_valid']:.3f}",
                    "" if apart is None else f"{apart['difference']:+.3f} ± {number(apart['standard_error'])}",
                    "" if apart is None else f"{apart['p_value']:.3g}",
                )
            )
        page.table(
            (
                "policy",
                "Drafts",
                "utility ± SE",
                "valid",
                "of the valid",
                "less base ± SE (tasks)",
                "p",
            ),
            rows,
        )
        page.figure(bars({name: drafts[name]["by_task"] for name in ordered(drafts)}, f"utility by {side} task"))
    page.head("How held-out Drafts ended", 3)
    drafts = found["drafts"]["held-out"]
    kinds = sorted({kind for name in ordered(drafts) for kind in drafts[name]["outcomes"]})
    page.table(
        ("policy", *kinds),
        [(name, *(f"{drafts[name]['outcomes'].get(kind, 0.0):.1%}" for kind in kinds)) for name in ordered(drafts)],
    )
    page.head("Searches on held-out tasks, one budget", 3)
    searches = found["search"]
    page.table(
        ("policy", "searches", "Valid Rate", "Medal Average", "Human Rank", "tokens"),
        [
            (
                name,
                str(searches[name]["valid_rate"]["outcomes"]),
                *(rate(searches[name][key]) for key in ("valid_rate", "medal_average", "human_rank")),
                f"{searches[name]['tokens']:,}",
            )
            for name in ordered(searches)
        ],
    )
    rows = [
        (
            pair,
            each["measure"],
            f"{each['difference']:+.3f} ± {number(each['standard_error'])}",
            f"{each['p_value']:.3g}",
            each["verdict"],
        )
        for pair, measures in found["search_against"].items()
        for each in measures
        if each["measure"] != "valid_rate"
    ]
    page.table(("matched difference", "measure", "± SE over tasks", "p", "verdict"), rows)


def training_page(page: Page, runs: Mapping[str, Any]) -> None:
    """Curves of reinforcement learning."""
    page.head("Reinforcement learning")
    page.text(
        "The mean reward is no sign of progress: its bounds rise with the policy. Progress and percentile are on fixed bounds, of validation rows."
    )
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for name, run in runs.items():
        kinds.setdefault(name.rpartition("-seed-")[0], []).append(run)
    rows = []
    for kind, each in kinds.items():
        ends = [first_and_last(run["curves"], "percentile/mean") for run in each]
        rewards = [first_and_last(run["curves"], "reward/mean") for run in each]
        rows.append(
            (
                kind,
                str(len(each)),
                str(sum(run["samples"] for run in each)),
                f"{mean([a for a, _ in ends]):.3f} to {mean([b for _, b in ends]):.3f}",
                f"{mean([a for a, _ in rewards]):.3f} to {mean([b for _, b in rewards]):.3f}",
                f"{mean([run['curves']['seconds/step'][-1] for run in each]):.1f}",
            )
        )
    page.table(
        ("run", "seeds", "samples", "percentile, first to last fifth", "mean reward", "seconds of the last step"), rows
    )
    for name in ("percentile/mean", "reward/mean", "outcome/success"):
        page.figure(
            lines({kind: averaged([run["curves"][name] for run in each]) for kind, each in kinds.items()}, name)
        )


def signal_page(page: Page, found: Mapping[str, Any]) -> None:
    """Upper-tail weighting and adaptive bounds, on the groups that were trained on."""
    if not found:
        return
    page.head("What the rewards did to the very groups that were trained on")
    best, resolution = found["best_advantage"], found["resolution"]
    page.text(
        f"Over {found['groups']} groups with a signal, the best candidate's advantage is {best['entropic']:.2f} with entropic weighting "
        f"and {best['group_normalised']:.2f} normalised by the group: {best['ratio']:.2f} times (the paper's figure 8a: 4.0 times)."
    )
    if resolution:
        page.text(
            f"The valid programs of a group take {resolution['adaptive']:.1%} of the reward range with adaptive bounds, and "
            f"{resolution['static']:.1%} with static ones."
        )


def ordered(found: Mapping[str, Any]) -> list[str]:
    """The policies, in the order of the story."""
    names = [name for name in found if name not in ("against base",)]
    return sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def rate(found: Mapping[str, Any] | None) -> str:
    """A rate with its standard error over runs."""
    return "" if found is None else f"{found['mean']:.3f} ± {number(found['standard_error'])}"


def number(value: float | None) -> str:
    """Three digits; a dash where there is none."""
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"


def mean(values: Sequence[float]) -> float:
    """NaN where there are none."""
    return statistics.fmean(values) if values else math.nan


def first_and_last(curves: Mapping[str, Sequence[float | None]], name: str) -> tuple[float, float]:
    """The means of a curve's first and last fifth."""
    values = [value for value in curves.get(name, ()) if value is not None and not math.isnan(value)]
    part = max(1, len(values) // 5)
    return mean(values[:part]), mean(values[-part:])


def averaged(curves: Sequence[Sequence[float | None]]) -> list[float]:
    """Over seeds, as far as all of them go."""
    known = [[value if value is not None else math.nan for value in curve] for curve in curves]
    return [mean([value for value in step if not math.isnan(value)]) for step in zip(*known, strict=False)]


def lines(curves: Mapping[str, Sequence[float]], title: str, width: int = 640, height: int = 220) -> str:
    """Lines over steps."""
    values = [value for curve in curves.values() for value in curve if not math.isnan(value)]
    if not values:
        return ""
    low, high = min(0.0, *values), max(values) or 1.0
    steps = max(len(curve) for curve in curves.values())

    def at(step: int, value: float) -> str:
        x = 48 + (width - 60) * step / max(1, steps - 1)
        y = height - 24 - (height - 60) * (value - low) / (high - low or 1.0)
        return f"{x:.1f},{y:.1f}"

    parts = [f'<text x="8" y="16">{html.escape(title)}, by step</text>']
    for value in (low, (low + high) / 2, high):
        _, y = at(0, value).split(",")
        parts.append(
            f'<line class="grid" x1="48" x2="{width - 12}" y1="{y}" y2="{y}"/><text x="8" y="{float(y) + 4:.0f}">{value:.2f}</text>'
        )
    for place, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[place % len(COLOURS)]
        points = " ".join(at(step, value) for step, value in enumerate(curve) if not math.isnan(value))
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>')
        parts.append(f'<text x="{60 + 190 * place}" y="36" style="fill:{colour}">{html.escape(name)}</text>')
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(title)}">{"".join(parts)}</svg>'


def bars(groups: Mapping[str, Mapping[str, float]], title: str, width: int = 760, height: int = 250) -> str:
    """Bars of each policy, by task."""
    tasks = sorted({task for values in groups.values() for task in values})
    if not tasks:
        return ""
    high = max(0.05, *(value for values in groups.values() for value in values.values()))
    slot = (width - 60) / len(tasks)
    thick = 0.8 * slot / len(groups)
    parts = [f'<text x="8" y="16">{html.escape(title)}</text>']
    for value in (0.0, high / 2, high):
        y = height - 60 - (height - 110) * value / high
        parts.append(
            f'<line class="grid" x1="48" x2="{width - 12}" y1="{y:.1f}" y2="{y:.1f}"/><text x="8" y="{y + 4:.0f}">{value:.2f}</text>'
        )
    for place, (name, values) in enumerate(groups.items()):
        colour = COLOURS[place % len(COLOURS)]
        parts.append(f'<text x="{60 + 130 * place}" y="36" style="fill:{colour}">{html.escape(name)}</text>')
        for column, task in enumerate(tasks):
            size = (height - 110) * values.get(task, 0.0) / high
            x = 52 + slot * column + thick * place
            parts.append(
                f'<rect x="{x:.1f}" y="{height - 60 - size:.1f}" width="{thick:.1f}" height="{size:.1f}" fill="{colour}"/>'
            )
    for column, task in enumerate(tasks):
        x = 52 + slot * column
        parts.append(f'<text transform="translate({x + 4:.1f} {height - 48}) rotate(28)">{html.escape(task)}</text>')
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(title)}">{"".join(parts)}</svg>'


def front_figure(found: Mapping[str, Any], width: int = 860, height: int = 300) -> str:
    """Held-out utility of single Drafts with two standard errors of samples, and the policies' percentile over training."""
    drafts = found["rounds"][-1]["drafts"]["held-out"]
    names = [name for name in ("recipes", "base", "trained") if name in drafts]
    high = (
        max(drafts[name]["utility"] + 2 * (drafts[name]["standard_error_of_samples"] or 0.0) for name in names) * 1.1
        or 1.0
    )
    floor, top = height - 40, 56
    parts = [
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        '<text x="16" y="24" font-weight="600">Single Drafts on tasks never trained on</text>',
        '<text x="16" y="42">share of the leaderboard beaten; bars of two standard errors</text>',
    ]
    for place, name in enumerate(names):
        value, error = drafts[name]["utility"], 2 * (drafts[name]["standard_error_of_samples"] or 0.0)
        x, scale = 50 + 110 * place, (floor - top) / high
        y, colour = floor - value * scale, COLOURS[place]
        parts += [
            f'<rect x="{x}" y="{y:.1f}" width="70" height="{value * scale:.1f}" fill="{colour}"/>',
            f'<line x1="{x + 35}" x2="{x + 35}" y1="{y - error * scale:.1f}" y2="{y + error * scale:.1f}" stroke="#111827" stroke-width="2"/>',
            f'<text x="{x + 35}" y="{floor + 18}" text-anchor="middle">{name}</text>',
            f'<text x="{x + 42}" y="{y - 4:.1f}">{value:.2f}</text>',
        ]
    curves = [run["curves"]["percentile/mean"] for name, run in found["training"].items() if "-rl-seed-" in name]
    values = averaged(curves)
    known = [value for curve in curves for value in curve if value is not None and not math.isnan(value)]
    low, most = min(known, default=0.0), max(known, default=1.0)
    left, right = 440, width - 30

    def at(step: int, value: float) -> str:
        x = left + 30 + (right - left - 30) * step / max(1, len(values) - 1)
        return f"{x:.1f},{floor - (floor - top - 10) * (value - low) / (most - low or 1.0):.1f}"

    parts += [
        f'<text x="{left}" y="24" font-weight="600">Reinforcement learning on train tasks</text>',
        f'<text x="{left}" y="42">its samples, on validation rows: each seed, and the mean</text>',
        f'<text x="{left}" y="{floor + 4}">{low:.2f}</text><text x="{left}" y="{top + 14}">{most:.2f}</text>',
        f'<text x="{left + 30}" y="{floor + 18}">1</text>',
        f'<text x="{right}" y="{floor + 18}" text-anchor="end">step {len(values)}</text>',
    ]
    for curve, colour, thick in (*((each, "#cbd5e1", 1.5) for each in curves), (values, COLOURS[2], 3.0)):
        points = " ".join(
            at(step, each) for step, each in enumerate(curve) if each is not None and not math.isnan(each)
        )
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="{thick}" points="{points}"/>')
    style = 'font-family="system-ui, sans-serif" font-size="13" fill="#111827"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {style} role="img" '
        f'aria-label="Before and after training">{"".join(parts)}</svg>\n'
    )


def main() -> int:
    """Writes results.json, results.md, report.html and figure.svg into the run's folder; prints where."""
    run = Path(sys.argv[1])
    found = results(run)
    page = write(found)
    (run / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    (run / "results.md").write_text("\n".join(page.markdown), encoding="utf-8")
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>The closed loop</title><style>{STYLE}</style>'
    (run / "figure.svg").write_text(front_figure(found), encoding="utf-8")
    (run / "report.html").write_text(head + "\n".join(page.html), encoding="utf-8")
    gates = {each["name"]: each["gate"] for each in found["rounds"]}
    print(
        json.dumps({"report": str(run / "report.html"), "results": str(run / "results.json"), "gate": gates}, indent=2)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
