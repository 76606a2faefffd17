"""Runs in other tools' formats, and in the terminal."""

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from evo.synthetic_run import SyntheticRun
from openmle_evo.cli import main
from openmle_evo.export import curves_csv, export_run, graphml, tree_json
from openmle_evo.reading import RunFacts, read_run
from openmle_evo.watch import curve, watch
from openmle_gym.errors import ConfigError
from openmle_gym.features import best_card
from rich.console import Console

NAMESPACE = "{http://graphml.graphdrawing.org/xmlns}"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SyntheticRun(attempts=25, title="<b>&").build(tmp_path_factory.mktemp("export") / "run")


@pytest.fixture(scope="module")
def facts(path: Path) -> RunFacts:
    return read_run(path)


def test_graphml_holds_every_attempt_and_every_parent(facts: RunFacts) -> None:
    root = ElementTree.fromstring(graphml(facts))
    nodes = {node.get("id"): node for node in root.iter(f"{NAMESPACE}node")}
    edges = [(edge.get("source"), edge.get("target")) for edge in root.iter(f"{NAMESPACE}edge")]
    assert set(nodes) == {str(card.attempt) for card in facts.cards}
    assert edges == [(str(parent), str(card.attempt)) for card in facts.cards for parent in card.parents]
    for card in facts.cards:
        data = {each.get("key"): each.text for each in nodes[str(card.attempt)]}
        assert data["operator"] == card.operator
        assert data.get("score") == (str(card.validation.value) if card.validation else None)


def test_json_tells_with_which_probability_a_parent_was_drawn(facts: RunFacts) -> None:
    tree = json.loads(tree_json(facts))
    drawn = [edge for edge in tree["edges"] if edge["probability"] is not None]
    assert drawn
    assert all(0.0 < edge["probability"] <= 1.0 for edge in drawn)
    assert [node["attempt"] for node in tree["nodes"]] == [card.attempt for card in facts.cards]


def test_the_curves_end_at_the_best_score_and_at_what_was_spent(facts: RunFacts) -> None:
    rows = list(csv.DictReader(io.StringIO(curves_csv(facts))))
    best = best_card(facts.cards)
    assert best
    assert best.validation
    assert float(rows[-1]["best_score"]) == best.validation.value
    assert float(rows[-1]["sandbox_seconds"]) == pytest.approx(facts.seconds.sandbox, abs=0.01)
    assert int(rows[-1]["tokens"]) == facts.usage.prompt_tokens + facts.usage.completion_tokens


def test_parquet_gives_every_card_back_whole(facts: RunFacts, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    export_run(facts, "parquet", tmp_path / "cards.parquet")
    rows = parquet.read_table(tmp_path / "cards.parquet").to_pylist()
    assert [type(facts.cards[0]).model_validate_json(row["card"]) for row in rows] == list(facts.cards)
    assert [row["parents"] for row in rows] == [list(card.parents) for card in facts.cards]


def test_an_unknown_format_is_refused_and_the_command_writes_into_the_run(
    path: Path, facts: RunFacts, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="--format: must be one of graphml, json, csv, parquet, got 'dot'"):
        export_run(facts, "dot", path / "x")
    assert main(["export", str(path), "--format", "csv"]) == 0
    assert json.loads(capsys.readouterr().out) == {"exported": str(path / "run.csv")}
    assert (path / "run.csv").read_text() == curves_csv(facts)


def test_the_bars_rise_with_every_new_best(facts: RunFacts) -> None:
    bars = curve(facts).strip()
    assert list(bars) == sorted(bars)
    assert bars[-1] == "█"
    assert len(curve(facts, width=10)) <= 10


def test_without_a_terminal_a_finished_run_is_one_line_an_attempt(path: Path, facts: RunFacts) -> None:
    text = io.StringIO()
    watch(path, Console(file=text, width=200))
    assert len(text.getvalue().splitlines()) == len(facts.cards)


def test_in_a_terminal_a_run_is_shown_until_its_final_report(tmp_path: Path) -> None:
    running = SyntheticRun(attempts=9, finished=False).build(tmp_path / "run")
    done = SyntheticRun(attempts=12).build(tmp_path / "done")

    def wait(seconds: float) -> None:
        """While the watcher waits, the run ends."""
        for file in done.iterdir():
            if file.is_file():
                (running / file.name).write_bytes(file.read_bytes())

    text = io.StringIO()
    watch(running, Console(file=text, width=120, height=50, force_terminal=True), wait=wait)
    assert "9 of" in text.getvalue()
    assert "12 of" in text.getvalue()
