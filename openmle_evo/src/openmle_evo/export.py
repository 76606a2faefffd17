"""A run in the formats of other tools: its tree as GraphML or JSON, its cards as Parquet, its curves as CSV."""

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path

from openmle_gym.errors import ConfigError
from openmle_gym.experience import ExperienceCard
from openmle_gym.features import gain, method_family, new_bests

from openmle_evo.reading import RunFacts
from openmle_evo.run import write_whole

_NAMESPACE = "http://graphml.graphdrawing.org/xmlns"
_KEYS = {
    "operator": "string",
    "outcome": "string",
    "family": "string",
    "score": "double",
    "island": "int",
    "program_id": "string",
}


def export_run(facts: RunFacts, form: str, destination: Path) -> None:
    """Writes a run to a file.

    Args:
        form: `graphml`, `json`, `parquet` or `csv`.

    Raises:
        ConfigError: There is no such format, or pyarrow is missing for Parquet.
    """
    if form == "parquet":
        _write_parquet(facts.cards, destination)
        return
    texts: dict[str, Callable[[RunFacts], str]] = {"graphml": graphml, "json": tree_json, "csv": curves_csv}
    if form not in texts:
        raise ConfigError(f"--format: must be one of {', '.join((*texts, 'parquet'))}, got {form!r}")
    write_whole(destination, texts[form](facts))


def graphml(facts: RunFacts) -> str:
    """The tree: a node for each attempt, an edge from each parent; missing scores are left out."""
    root = ElementTree.Element("graphml", xmlns=_NAMESPACE)
    for name, kind in _KEYS.items():
        ElementTree.SubElement(root, "key", {"id": name, "for": "node", "attr.name": name, "attr.type": kind})
    ElementTree.SubElement(root, "key", {"id": "position", "for": "edge", "attr.name": "position", "attr.type": "int"})
    graph = ElementTree.SubElement(root, "graph", id=facts.manifest.run_id, edgedefault="directed")
    for card in facts.cards:
        node = ElementTree.SubElement(graph, "node", id=str(card.attempt))
        for name, value in _node(card).items():
            if value is not None:
                ElementTree.SubElement(node, "data", key=name).text = str(value)
    for card in facts.cards:
        for position, parent in enumerate(card.parents):
            edge = ElementTree.SubElement(graph, "edge", source=str(parent), target=str(card.attempt))
            ElementTree.SubElement(edge, "data", key="position").text = str(position)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def tree_json(facts: RunFacts) -> str:
    """The tree as nodes and edges, with how each parent was drawn."""
    nodes = [{"attempt": card.attempt, **_node(card), "reason": card.selection.reason} for card in facts.cards]
    edges = [
        {"parent": parent, "child": card.attempt, "position": position, "probability": _probability(card, parent)}
        for card in facts.cards
        for position, parent in enumerate(card.parents)
    ]
    manifest = facts.manifest
    return json.dumps(
        {"run": manifest.run_id, "task": manifest.task, "nodes": nodes, "edges": edges}, indent=2, ensure_ascii=False
    )


def curves_csv(facts: RunFacts) -> str:
    """One row for each attempt in order of commit: score, best so far, and what was spent until then."""
    bests = {card.attempt for card in new_bests(facts.cards)}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(
        [
            "finished",
            "attempt",
            "operator",
            "outcome",
            "score",
            "best_score",
            "sandbox_seconds",
            "model_seconds",
            "tokens",
        ]
    )
    best: float | str = ""
    sandbox = model = tokens = 0.0
    for finished, card in enumerate(facts.cards, start=1):
        sandbox += card.sandbox_seconds
        model += card.model_seconds
        tokens += card.usage.prompt_tokens + card.usage.completion_tokens
        score = card.validation.value if card.validation else ""
        best = score if card.attempt in bests else best
        spent = [f"{sandbox:.3f}", f"{model:.3f}", int(tokens)]
        rows.writerow([finished, card.attempt, card.operator, card.outcome, score, best, *spent])
    return text.getvalue()


def _node(card: ExperienceCard) -> dict[str, str | float | int | None]:
    return {
        "operator": str(card.operator),
        "outcome": str(card.outcome),
        "family": method_family(card.source) if card.program_id else None,
        "score": card.validation.value if card.validation else None,
        "island": card.selection.island,
        "program_id": card.program_id,
    }


def _probability(card: ExperienceCard, parent: int) -> float | None:
    """With which a parent was drawn; None where nothing was weighed."""
    return next((each.probability for each in card.selection.candidates if each.attempt == parent), None)


def _write_parquet(cards: Sequence[ExperienceCard], destination: Path) -> None:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ConfigError("--format parquet: install pyarrow") from error
    by_attempt = {card.attempt: card for card in cards}
    rows = [
        {
            "attempt": card.attempt,
            **_node(card),
            "parents": list(card.parents),
            "gain": gain(card, by_attempt),
            "error_signature": card.error_signature,
            "plan": card.plan,
            "source": card.source,
            "prompt_tokens": card.usage.prompt_tokens,
            "completion_tokens": card.usage.completion_tokens,
            "sandbox_seconds": card.sandbox_seconds,
            "queue_seconds": card.queue_seconds,
            "model_seconds": card.model_seconds,
            "finished_at": card.finished_at,
            "card": card.model_dump_json(),
        }
        for card in cards
    ]
    schema = arrow.schema(
        [
            ("attempt", arrow.int64()),
            ("operator", arrow.string()),
            ("outcome", arrow.string()),
            ("family", arrow.string()),
            ("score", arrow.float64()),
            ("island", arrow.int64()),
            ("program_id", arrow.string()),
            ("parents", arrow.list_(arrow.int64())),
            ("gain", arrow.float64()),
            ("error_signature", arrow.string()),
            ("plan", arrow.string()),
            ("source", arrow.string()),
            ("prompt_tokens", arrow.int64()),
            ("completion_tokens", arrow.int64()),
            ("sandbox_seconds", arrow.float64()),
            ("queue_seconds", arrow.float64()),
            ("model_seconds", arrow.float64()),
            ("finished_at", arrow.string()),
            ("card", arrow.string()),
        ]
    )
    part = destination.with_name(destination.name + ".part")
    parquet.write_table(arrow.Table.from_pylist(rows, schema=schema), part)
    part.replace(destination)
