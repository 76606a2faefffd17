"""Draws the figures of docs/rewards.md into docs/figures, from what the library computes.

    pip install matplotlib==3.11.2 && python scripts/draw_rewards.py

The colours are legible on a light and on a dark page; the files do not change unless the figures do.
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from openmle_erl.rewards import (
    PAPER,
    ROBUST,
    Bounds,
    GapPenalty,
    RewardTask,
    apply_gap_penalty,
    entropic_advantages,
    group_normalised_advantages,
    group_rewards,
    human_rank,
    leave_one_out_advantages,
    margin_tanh,
    percentile,
    power_clip,
    power_sigmoid,
    shape_by_parent,
)

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
GREY = "#848d97"
BLUE, ORANGE, GREEN = "#3b82d6", "#d97706", "#2f9e57"
TASK = RewardTask(higher_is_better=True, static_best=1.0, static_worst=0.0)


def main() -> None:
    """Draws them all."""
    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "openmle",
            "font.family": "sans-serif",
            "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
            "font.size": 10,
            "text.color": GREY,
            "axes.edgecolor": GREY,
            "axes.labelcolor": GREY,
            "axes.titlecolor": GREY,
            "axes.titlesize": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "xtick.color": GREY,
            "ytick.color": GREY,
            "legend.frameon": False,
            "legend.fontsize": 9,
            "lines.linewidth": 1.8,
        }
    )
    FIGURES.mkdir(exist_ok=True)
    for name, draw in (("mapping", mapping), ("bounds", bounds), ("shaping", shaping), ("advantages", advantages)):
        figure = Figure(figsize=(8.4, 3.0), layout="constrained")
        draw(*figure.subplots(1, 2))
        figure.savefig(FIGURES / f"rewards-{name}.svg", transparent=True, metadata={"Date": None})


def mapping(continuous: Axes, ranks: Axes) -> None:
    """Utility to reward: between two bounds, and among other scores."""
    u = np.linspace(-0.25, 1.25, 301)
    unit = Bounds(worst=0.0, best=1.0)
    continuous.plot(u, power_clip(u, unit), color=BLUE, label="power_clip")
    continuous.plot(u, power_clip(u, unit, alpha=2.0), color=BLUE, linestyle="--", label="power_clip, α = 2")
    continuous.plot(u, margin_tanh(u, unit), color=ORANGE, label="margin_tanh")
    continuous.plot(u, power_sigmoid(u, unit), color=GREEN, label="power_sigmoid")
    continuous.set(title="between the bounds 0 and 1", xlabel="utility", ylabel="reward")
    continuous.legend()
    others = np.sort(np.random.default_rng(4).normal(0.5, 0.2, 20))
    ranks.plot(u, human_rank(u, others), color=BLUE, label="human_rank")
    ranks.plot(u, percentile(u, others), color=ORANGE, label="percentile")
    ranks.plot(others, np.full(20, -0.04), "|", color=GREY, label="the 20 others")
    ranks.set(title="among 20 other scores", xlabel="utility")
    ranks.legend(loc="upper left")


def bounds(spread: Axes, saturated: Axes) -> None:
    """What a score earns after a history of the same task, by preset."""
    draw = np.random.default_rng(2)
    histories = {
        spread: ("after 40 scores", draw.normal(0.6, 0.12, 40), (0.0, 1.0)),
        saturated: ("after 400 scores near the record", 0.95 - 0.02 * draw.exponential(1.0, 400), (0.9, 0.96)),
    }
    for axes, (title, history, shown) in histories.items():
        scores = np.linspace(*shown, 251)
        # One score at a time, each looked at as the only sample of its group.
        for preset, colour, label in ((ROBUST, BLUE, "robust"), (PAPER, ORANGE, "paper")):
            rewards = [group_rewards([s], task=TASK, settings=preset, history=history).rewards[0] for s in scores]
            axes.plot(scores, rewards, color=colour, label=label)
        axes.plot(scores, scores, color=GREY, linestyle=":", label="static limits")
        seen = np.unique(np.round(history, 3))
        axes.plot(seen, np.full(len(seen), -0.04), "|", color=GREY, label="history")
        axes.set(title=title, xlabel="score", xlim=shown)
    spread.set_ylabel("reward")
    spread.legend(loc="upper left")


def shaping(gap: Axes, parent: Axes) -> None:
    """What a gap between claim and grade costs, and what the parent's reward does."""
    gaps = np.linspace(0.0, 0.3, 301)
    for penalty, colour, label in (
        (GapPenalty(), BLUE, "default: c₁ = 1, c₂ = 2"),
        (GapPenalty(coefficient=0.2, high_coefficient=0.6), ORANGE, "c₁ = 0.2, c₂ = 0.6"),
        (GapPenalty(coefficient=0.2, piecewise=False), GREEN, "linear, c₁ = 0.2"),
    ):
        kept = apply_gap_penalty(np.ones(len(gaps)), gaps, np.zeros(len(gaps)), penalty=penalty, denominator=1.0)
        gap.plot(gaps, kept, color=colour, label=label)
    gap.set(title="gap penalty", xlabel="|claimed − graded|, relative", ylabel="factor")
    gap.legend()
    rewards = np.linspace(0.001, 1.0, 500)
    for strategy, bonus, colour, label in (
        ("base", 0.5, BLUE, "base, bonus 0.5"),
        ("gate", 0.0, ORANGE, "gate"),
        ("diff", 0.0, GREEN, "diff"),
    ):
        final = shape_by_parent(rewards, np.full(500, 0.4), strategy=strategy, bonus=bonus).final
        parent.plot(rewards, final, color=colour, label=label)
    parent.set(title="a parent whose reward is 0.4", xlabel="reward", ylabel="shaped reward")
    parent.legend()


def advantages(ramp: Axes, lone: Axes) -> None:
    """Reward to advantage, for sixteen rewards evenly spread and for two successes of different worth."""
    groups = {
        ramp: ("evenly spread", np.arange(16) / 15),
        lone: ("two successes", np.array([0.0] * 14 + [0.4, 0.5])),
    }
    for axes, (title, rewards) in groups.items():
        for function, colour, label, shift in (
            (entropic_advantages, BLUE, "entropic", -0.27),
            (group_normalised_advantages, ORANGE, "group-normalised", 0.0),
            (leave_one_out_advantages, GREEN, "leave-one-out", 0.27),
        ):
            axes.bar(np.arange(16) + shift, function(rewards, [0] * 16), width=0.25, color=colour, label=label)
        axes.axhline(0.0, color=GREY, linewidth=0.8)
        axes.set(title=title, xlabel="member, by rising reward", xticks=range(0, 16, 3))
    ramp.set_ylabel("advantage")
    ramp.legend()


if __name__ == "__main__":
    main()
