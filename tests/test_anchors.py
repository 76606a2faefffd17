"""The tasks that ship: what is in their packages, and that building them is safe to repeat."""

import io
import tomllib

import pandas as pd
import pytest
from openmle_gym.anchors import ANCHORS, build_anchor
from openmle_gym.anchors.leaderboards import baselines, score_baseline
from openmle_gym.assemble import PackageParts, assemble_package, hash_files
from openmle_gym.errors import PackageError
from openmle_gym.grading import grade_submission
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.manifest import Columns, Manifest, Metric
from openmle_gym.metrics import METRICS
from openmle_gym.prompts import public_task

RUNNER = ProcessRunner(allow_no_isolation=True)
CHEAP = ("dummy", "naive Bayes", "linear", "1 nearest", "decision tree, depth 3", "ridge")
SIZES = {
    "breast-cancer": (149, 420),
    "digits": (300, 1497),
    "diabetes": (192, 250),
    "diamonds": (2400, 3600),
    "credit": (1454, 3000),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("anchors")


async def built(folder, name):
    """The anchor, built once for this module."""
    return await build_anchor(name, folder / name, runner=RUNNER)


@pytest.mark.parametrize("name", ANCHORS)
async def test_an_anchor_is_a_whole_package_with_rows_as_its_manifest_says(folder, name):
    package = await built(folder, name)
    train = pd.read_csv(package.public_dir / "train.csv")
    test = pd.read_csv(package.public_dir / "test.csv")
    (identity,), (target,) = package.manifest.columns.id, package.manifest.columns.target
    assert not package.inferred
    assert (len(train), len(test)) == SIZES[name]
    for count in SIZES[name]:
        assert f"{count:,}" in package.manifest.provenance.train_test_split
        assert str(count) in package.description.replace(",", "")
    assert test[identity].astype(str).tolist() == package.answers[identity].tolist()
    assert sorted([*train[identity], *test[identity]]) == list(range(1, len(train) + len(test) + 1))
    assert set(train.columns) == {*test.columns, target}
    assert package.manifest.provenance.licence
    assert package.manifest.provenance.source
    assert package.manifest.files == hash_files(package.root)
    for column in train.columns:
        assert f"`{column}`" in package.description or column.startswith("pixel_")


@pytest.mark.parametrize("name", ANCHORS)
async def test_no_label_of_a_test_row_is_in_a_public_file(folder, name):
    package = await built(folder, name)
    target = package.manifest.columns.target[0]
    names = sorted(path.name for path in package.public_dir.rglob("*"))
    assert names == ["description.txt", "sample_submission.csv", "test.csv", "train.csv"]
    assert target not in pd.read_csv(package.public_dir / "test.csv").columns
    sample = pd.read_csv(package.public_dir / "sample_submission.csv")
    assert sample[target].nunique() == 1
    data = public_task(package).data
    assert "test_answer" not in data
    train, test = (pd.read_csv(package.public_dir / f"{part}.csv") for part in ("train", "test"))
    features = [column for column in test.columns if column not in package.manifest.columns.id]
    shared = test.merge(train[features].drop_duplicates(), on=features)
    assert len(shared) <= 0.01 * len(test)


@pytest.mark.parametrize("name", ANCHORS)
async def test_the_sample_submission_is_graded_as_the_dummy_of_the_leaderboard(folder, name):
    package = await built(folder, name)
    content = (package.public_dir / "sample_submission.csv").read_bytes()
    grade = await grade_submission(package, content, splits=("all",), runner=RUNNER)
    assert grade.accepted
    table = pd.read_csv(package.root / "info" / "leaderboard.csv").set_index("entry")
    dummy = next(entry for entry in table.index if entry.startswith(("dummy, most frequent", "dummy, mean")))
    assert grade.scores["all"] == pytest.approx(table["score"][dummy], abs=2e-4)


@pytest.mark.parametrize("name", ANCHORS)
def test_a_leaderboard_is_a_sorted_table_of_the_grid(name):
    anchor = ANCHORS[name]
    table = pd.read_csv(io.StringIO(anchor.file("leaderboard.csv")))
    assert list(table.columns) == ["rank", "entry", "score"]
    assert 30 <= len(table) <= 60
    assert sorted(table["entry"]) == sorted(baseline.entry for baseline in baselines(anchor))
    higher = METRICS[anchor.metric].higher_is_better
    assert table["score"].tolist() == sorted(table["score"], reverse=higher)
    assert table["rank"].tolist() == table["score"].rank(method="min", ascending=not higher).astype(int).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", ANCHORS)
async def test_cheap_entries_of_the_leaderboard_are_found_again(folder, name):
    anchor, package = ANCHORS[name], await built(folder, name)
    table = pd.read_csv(io.StringIO(anchor.file("leaderboard.csv"))).set_index("entry")["score"]
    checked = 0
    for baseline in baselines(anchor):
        if baseline.entry.startswith(CHEAP):
            assert score_baseline(baseline, anchor, package) == pytest.approx(table[baseline.entry], abs=2e-6), baseline
            checked += 1
    assert checked >= 5


@pytest.mark.parametrize("name", ["digits", "credit"])
async def test_building_twice_gives_the_same_bytes(folder, tmp_path, name):
    first = await built(folder, name)
    second = await build_anchor(name, tmp_path / "elsewhere", runner=RUNNER)
    assert hash_files(first.root) == hash_files(second.root)
    assert (first.root / "task.toml").read_bytes() == (second.root / "task.toml").read_bytes()


async def test_a_whole_package_is_reused_and_a_damaged_one_or_force_builds_anew(tmp_path):
    place = tmp_path / "diabetes"
    package = await build_anchor("diabetes", place, runner=RUNNER)
    inode = place.stat().st_ino
    await build_anchor("diabetes", place, runner=RUNNER)
    assert place.stat().st_ino == inode
    (package.public_dir / "train.csv").write_text("patient_id,progression\n1,2\n")
    repaired = await build_anchor("diabetes", place, runner=RUNNER)
    assert place.stat().st_ino != inode
    assert len(pd.read_csv(repaired.public_dir / "train.csv")) == 192
    inode = place.stat().st_ino
    (place / "info" / "leaderboard.csv").unlink()
    await build_anchor("diabetes", place, runner=RUNNER)
    assert place.stat().st_ino != inode
    inode = place.stat().st_ino
    await build_anchor("diabetes", place, runner=RUNNER, force=True)
    assert place.stat().st_ino != inode
    assert [path.name for path in tmp_path.iterdir()] == ["diabetes"]


async def test_a_folder_of_something_else_is_never_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(PackageError, match="is there already"):
        await build_anchor("diabetes", tmp_path, runner=RUNNER, force=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


async def test_an_unknown_anchor_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(PackageError, match="no anchor 'iris'; there are breast-cancer, digits"):
        await build_anchor("iris", tmp_path / "iris", runner=RUNNER)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        ("def prepare(raw, public, private):\n    raise ValueError('no such column')\n", "no such column"),
        ("def prepare(raw, public, private):\n    (public / 'train.csv').write_text('a')\n", "description.txt"),
        ("x = 1\n", "cannot import name 'prepare'"),
    ],
)
async def test_a_prepare_that_fails_leaves_nothing_behind(tmp_path, prepare, message):
    manifest = Manifest(
        name="broken",
        metric=Metric(name="rmse", higher_is_better=False),
        columns=Columns(id=("id",), target=("y",)),
    )
    parts = PackageParts(manifest=manifest, raw={"a.csv": b"1"}, prepare=prepare, metric="class AMetrics: pass\n")
    with pytest.raises(PackageError, match=message):
        await assemble_package(parts, tmp_path / "broken", runner=RUNNER)
    assert list(tmp_path.iterdir()) == []


async def test_the_manifest_says_that_the_leaderboard_is_machine_made(folder):
    package = await built(folder, "diabetes")
    manifest = tomllib.loads((package.root / "task.toml").read_text())
    assert manifest["provenance"]["leaderboard"] == "machine"
    assert package.leaderboard is not None
    assert package.leaderboard.rank(min(package.leaderboard.scores)) == 1
