"""The anchors as the table in `docs/anchors.md`: `python -m openmle_gym.anchors.show` prints it."""

from openmle_gym.anchors import ANCHORS
from openmle_gym.metrics import METRICS

HEAD = ("task", "side", "kind", "modality", "metric", "train", "test", "traits", "seconds", "source", "licence")


def markdown_table() -> str:
    """One line for each anchor."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    for anchor in ANCHORS.values():
        arrow = "↑" if METRICS[anchor.metric].higher_is_better else "↓"
        cells = (
            f"`{anchor.name}`",
            anchor.side.replace("_", " "),
            anchor.kind,
            ", ".join(anchor.modality),
            f"{anchor.metric} {arrow}",
            f"{anchor.train_rows:,}",
            f"{anchor.test_rows:,}",
            ", ".join(anchor.traits),
            f"{anchor.median_seconds:.2f}",
            f"{anchor.origin} (`{anchor.data}`)",
            anchor.licence,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown_table(), end="")
