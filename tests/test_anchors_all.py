"""All tasks that ship: what their definitions promise, that the sides have nothing in common, and that all build."""

import ast
import hashlib
import io
import re
import sys
from pathlib import Path

import pandas as pd
import pytest
from openmle_gym.anchors import ANCHORS, HELD_OUT_TASKS, TRAIN_TASKS, build_anchor
from openmle_gym.anchors.leaderboards import baselines, make_leaderboard
from openmle_gym.anchors.raw import export_raw
from openmle_gym.anchors.show import markdown_table
from openmle_gym.check import check_package
from openmle_gym.errors import PackageError
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.metrics import METRICS

RUNNER = ProcessRunner(allow_no_isolation=True)
PACKAGE = Path(sys.modules["openmle_gym.anchors"].__file__ or "").parent
IN_A_SANDBOX = {"collections", "hashlib", "numpy", "pandas", "pathlib", "struct", "typing", "zlib"}
CHEAP = re.compile(
    r"dummy|decision tree, depth 3|ridge, alpha 1$|^(?!words|letters).*1 nearest neighbours$|^naive Bayes$|multinomial.*alpha 1$"
)
"""Of these every processor makes the same score; neighbours among sparse rows have ties that its sort breaks."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("all-anchors")


@pytest.mark.parametrize("name", ANCHORS)
def test_a_definition_says_all_that_a_reader_wants_to_know(name):
    anchor = ANCHORS[name]
    for words in (anchor.title, anchor.origin, anchor.licence, anchor.split):
        assert len(words) > 8
    assert f"{anchor.train_rows:,} train rows" in anchor.split
    assert f"{anchor.test_rows:,} test rows" in anchor.split
    assert 50 <= anchor.train_rows <= 3_000
    assert 50 <= anchor.test_rows <= 5_000
    assert 0 < anchor.median_seconds < 3
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in anchor.raw_sha256.values())
    assert anchor.raw_sha256
    assert anchor.metric in METRICS


@pytest.mark.parametrize("name", ANCHORS)
def test_a_prepare_imports_nothing_that_a_sandbox_lacks(name):
    tree = ast.parse(ANCHORS[name].prepare())
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert {module.partition(".")[0] for module in imported} <= IN_A_SANDBOX
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert defined[-1] == "prepare"


@pytest.mark.parametrize("name", ANCHORS)
def test_a_leaderboard_is_a_sorted_table_of_the_grid(name):
    anchor = ANCHORS[name]
    table = pd.read_csv(io.StringIO(anchor.file("leaderboard.csv")))
    assert list(table.columns) == ["rank", "entry", "score"]
    assert len(table) >= 40
    assert sorted(table["entry"]) == sorted(baseline.entry for baseline in baselines(anchor))
    higher = METRICS[anchor.metric].higher_is_better
    assert table["score"].tolist() == sorted(table["score"], reverse=higher)
    assert table["rank"].tolist() == table["score"].rank(method="min", ascending=not higher).astype(int).tolist()
    assert table["score"].nunique() > 20


def test_there_are_real_tasks_of_every_kind():
    real = [anchor for anchor in ANCHORS.values() if not anchor.synthetic]
    assert len(real) >= 24
    assert {kind for anchor in real for kind in anchor.modality} == {
        *("tabular", "time series", "image", "text", "audio", "signal")
    }
    kinds = {anchor.kind for anchor in real}
    assert kinds == {"classification", "regression", "ranking", "multi-output", "forecasting"}
    traits = {trait for anchor in real for trait in anchor.traits}
    assert traits == {"imbalance", "groups", "missing values", "high cardinality"}
    assert any(not METRICS[anchor.metric].higher_is_better for anchor in real)
    assert all(anchor.data.partition("/")[0] == "sklearn" for anchor in ANCHORS.values() if anchor.synthetic)


def test_train_and_held_out_tasks_have_no_data_in_common():
    assert len(TRAIN_TASKS) >= 20
    assert len(HELD_OUT_TASKS) >= 6
    assert sorted([*TRAIN_TASKS, *HELD_OUT_TASKS]) == sorted(ANCHORS)
    assert len({anchor.data for anchor in ANCHORS.values()}) == len(ANCHORS)
    digests = [digest for anchor in ANCHORS.values() for digest in anchor.raw_sha256.values()]
    assert len(set(digests)) == len(digests)
    assert not any(ANCHORS[name].synthetic for name in HELD_OUT_TASKS)


def test_data_of_a_package_that_is_not_installed_are_refused_with_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "statsmodels.datasets", None)
    with pytest.raises(PackageError, match=r"pip install 'openmle-gym\[tasks\]'"):
        export_raw("statsmodels/co2", "carbon_dioxide")


def test_the_page_on_anchors_has_the_table_of_the_definitions():
    page = (Path(__file__).parents[1] / "docs" / "anchors.md").read_text(encoding="utf-8")
    assert markdown_table() in page


def _row_hashes(root: Path) -> set[str]:
    """Of the rows of the raw tables, numbers in their plainest spelling; short rows could agree by chance."""
    hashes = set()
    for path in sorted((root / "raw").glob("*.csv")):
        table = pd.read_csv(path, low_memory=False)
        for row in table.itertuples(index=False, name=None):
            cells = sorted(f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row)
            if len(cells) > 2:
                hashes.add(hashlib.sha256("\x1f".join(cells).encode()).hexdigest())
    return hashes


@pytest.mark.slow
async def test_every_anchor_builds_passes_its_check_and_shares_no_row_with_the_other_side(folder):
    sides: dict[str, set[str]] = {"train": set(), "held_out": set()}
    for name, anchor in ANCHORS.items():
        package = await build_anchor(name, folder / name, runner=RUNNER)
        train, test = (pd.read_csv(package.public_dir / f"{part}.csv") for part in ("train", "test"))
        assert (len(train), len(test)) == (anchor.train_rows, anchor.test_rows), name
        assert sum(path.stat().st_size for path in package.root.rglob("*") if path.is_file()) < 5 * 2**20, name
        assert package.description.startswith(f"# {anchor.title}\n"), name
        report = await check_package(package.root, runner=RUNNER)
        errors = [finding.message for finding in report.findings if finding.severity == "error"]
        assert report.passed, (name, errors)
        sides[anchor.side] |= _row_hashes(package.root)
    assert not sides["train"] & sides["held_out"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ANCHORS)
async def test_cheap_entries_of_the_leaderboard_are_found_again(folder, name):
    anchor = ANCHORS[name]
    package = await build_anchor(name, folder / name, runner=RUNNER)
    stored = pd.read_csv(io.StringIO(anchor.file("leaderboard.csv"))).set_index("entry")["score"]
    again = make_leaderboard(anchor, package, wanted=lambda baseline: bool(CHEAP.search(baseline.entry)))
    assert len(again) >= 4
    for entry, score in zip(again["entry"], again["score"], strict=True):
        assert score == pytest.approx(stored[entry], abs=2e-5, rel=1e-5), entry
