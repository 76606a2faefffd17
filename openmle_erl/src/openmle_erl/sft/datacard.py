"""The dataset card: what a corpus holds, in Markdown."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from openmle_gym.operators import Operator

from openmle_erl.sft.corpus import Origin
from openmle_erl.sft.reasons import MEANINGS, Drop

if TYPE_CHECKING:
    from openmle_erl.sft.build import CorpusManifest


def render_card(manifest: "CorpusManifest", origins: Sequence[Origin]) -> str:
    """The card's text; it follows from the manifest and the sidecar alone."""
    parts = [
        "# SFT corpus\n\nConversations that teach the four operators: each ends with a program that was run and "
        "judged. Made by `openmle-erl sft-data build`; `manifest.json` holds what it was made from.",
        "## Contents",
        _contents(manifest, origins),
        "## Examples by operator and source",
        _by_operator(origins),
        "## Examples by task",
        _table(("task", "examples", "best validation score"), _by_task(origins)),
        "## What became of the candidates",
        _table(("source", "candidates", "kept", "dropped"), _sums(manifest)),
        _table(("reason", "dropped", "meaning"), _reasons(manifest)),
        "## How examples were chosen",
        "Selection used validation scores alone: the half of the hidden answers that is set apart for it. No test score "
        "was read, and no prompt holds one. Programs are labelled by what they did when they were run.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _contents(manifest: "CorpusManifest", origins: Sequence[Origin]) -> str:
    lines = [
        f"* {manifest.examples} examples of {len({origin.task for origin in origins})} tasks, from "
        f"{len(manifest.inputs)} runs with {sum(each.attempts for each in manifest.inputs)} attempts",
        f"* {sum(origin.thinking for origin in origins)} with thinking",
        f"* {sum(origin.prompt == 'rebuilt' for origin in origins)} with a prompt that was built again from cards",
        f"* {manifest.near_duplicates} near-duplicates of an earlier reply (`near_duplicates.jsonl`)",
        f"* reserved tasks kept out: {manifest.reserved_tasks or 'none were named'}",
        f"* models: {', '.join(sorted({origin.model for origin in origins if origin.model})) or 'unknown'}",
    ]
    if manifest.tokens is not None and origins:
        counts = sorted(origin.tokens or 0 for origin in origins)
        middle = counts[len(counts) // 2]
        lines.insert(1, f"* {manifest.tokens} tokens; {counts[0]} to {counts[-1]} an example, median {middle}")
    if manifest.judge is not None:
        lines.append(f"* questions to the judge: {manifest.judge.questions}, unclear: {manifest.judge.unclear}")
    return "\n".join(lines)


def _by_operator(origins: Sequence[Origin]) -> str:
    counts = Counter((origin.operator, origin.source) for origin in origins)
    rows = [
        (str(operator), counts[operator, "parallel"], counts[operator, "search"], _both(counts, operator))
        for operator in Operator
    ]
    total = Counter(origin.source for origin in origins)
    rows.append(("all", total["parallel"], total["search"], len(origins)))
    return _table(("operator", "parallel", "search", "all"), rows)


def _both(counts: "Counter[tuple[Operator, str]]", operator: Operator) -> int:
    return counts[operator, "parallel"] + counts[operator, "search"]


def _by_task(origins: Sequence[Origin]) -> Iterable[Sequence[object]]:
    for task in sorted({origin.task for origin in origins}):
        own = [origin for origin in origins if origin.task == task]
        scores = [origin.validation for origin in own if origin.validation is not None]
        best = (max if own[0].higher_is_better else min)(scores, default=None)
        yield task, len(own), "none" if best is None else f"{best:.6g}"


def _sums(manifest: "CorpusManifest") -> Iterable[Sequence[object]]:
    for source, counts in manifest.counts.items():
        yield source, counts.candidates, counts.kept, sum(counts.dropped.values())


def _reasons(manifest: "CorpusManifest") -> Iterable[Sequence[object]]:
    totals: Counter[str] = Counter()
    for counts in manifest.counts.values():
        totals.update(counts.dropped)
    for reason, count in totals.most_common():
        yield f"`{reason}`", count, MEANINGS[Drop(reason)]


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines) if len(lines) > 2 else ""
