"""The figures of a loop's report, as SVG."""

import html
import math
import statistics
from collections.abc import Mapping, Sequence

from results import PLAIN, Results

COLOURS = ("#0b6e99", "#c2410c", "#4d7c0f", "#7c3aed", "#475569")


def averaged(curves: Sequence[Sequence[float | None]]) -> list[float]:
    """Over seeds, as far as all of them go."""
    known = [[value if value is not None else math.nan for value in curve] for curve in curves]
    return [
        statistics.fmean([value for value in step if not math.isnan(value)] or [math.nan])
        for step in zip(*known, strict=False)
    ]


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


def front_figure(found: Results, width: int = 860, height: int = 300) -> str:
    """Held-out utility of single Drafts with two standard errors of samples, and the policies' percentile over training."""
    drafts = found.rounds[0].sides["held-out"].drafts
    errors = {name: 2 * (drafts[name].standard_error_of_samples or 0.0) for name in PLAIN if name in drafts}
    high = max(drafts[name].utility + error for name, error in errors.items()) * 1.1 or 1.0
    floor, top = height - 40, 56
    parts = [
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        '<text x="16" y="24" font-weight="600">Single Drafts on tasks never trained on</text>',
        '<text x="16" y="42">share of the leaderboard beaten; bars of two standard errors</text>',
    ]
    for place, (name, error) in enumerate(errors.items()):
        value = drafts[name].utility
        x, scale = 50 + 110 * place, (floor - top) / high
        y, colour = floor - value * scale, COLOURS[place]
        parts += [
            f'<rect x="{x}" y="{y:.1f}" width="70" height="{value * scale:.1f}" fill="{colour}"/>',
            f'<line x1="{x + 35}" x2="{x + 35}" y1="{y - error * scale:.1f}" y2="{y + error * scale:.1f}" stroke="#111827" stroke-width="2"/>',
            f'<text x="{x + 35}" y="{floor + 18}" text-anchor="middle">{name}</text>',
            f'<text x="{x + 42}" y="{y - 4:.1f}">{value:.2f}</text>',
        ]
    curves = [
        run.curves["percentile/mean"] for name, run in found.training.items() if name.startswith("round-1-rl-seed-")
    ]
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
