"""The tasks that ship: what is in their packages, and that building them is safe to repeat."""

import tomllib

import pandas as pd
import pytest
from openmle_gym.anchors import ANCHORS, build_anchor
from openmle_gym.assemble import PackageParts, assemble_package, hash_files, run_prepare
from openmle_gym.errors import PackageError
from openmle_gym.grading import grade_submission
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.isolation.runner import INPUTS, PYTHON, RunSpec
from openmle_gym.jobs import Limits
from openmle_gym.manifest import Columns, Manifest, Metric
from openmle_gym.operators import Operator
from openmle_gym.policies.recipes import RecipePolicy
from openmle_gym.program import parse_reply
from openmle_gym.prompts import Surroundings, build_prompt, public_task

RUNNER = ProcessRunner(allow_no_isolation=True)
BUILT = ("breast-cancer", "digits", "diabetes", "diamonds", "credit", "textures", "fries")
"""Built here; `test_anchors_all.py` builds the others."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("anchors")


async def built(folder, name):
    """The anchor, built once for this module."""
    return await build_anchor(name, folder / name, runner=RUNNER)


@pytest.mark.parametrize("name", BUILT)
async def test_an_anchor_is_a_whole_package_with_rows_as_its_manifest_says(folder, name):
    package, anchor = await built(folder, name), ANCHORS[name]
    train = pd.read_csv(package.public_dir / "train.csv")
    test = pd.read_csv(package.public_dir / "test.csv")
    (identity,), targets = package.manifest.columns.id, package.manifest.columns.target
    assert not package.inferred
    assert (len(train), len(test)) == (anchor.train_rows, anchor.test_rows)
    for count in (len(train), len(test)):
        assert f"{count:,}" in package.manifest.provenance.train_test_split
        assert str(count) in package.description.replace(",", "")
    assert test[identity].astype(str).tolist() == package.answers[identity].tolist()
    assert sorted([*train[identity], *test[identity]]) == list(range(1, len(train) + len(test) + 1))
    assert set(train.columns) == {*test.columns, *targets}
    assert package.manifest.provenance.licence
    assert package.manifest.provenance.source
    assert package.manifest.files == hash_files(package.root)
    for column in train.columns:
        assert f"`{column}`" in package.description or column.startswith("pixel_")


@pytest.mark.parametrize("name", BUILT)
async def test_no_label_of_a_test_row_is_in_a_public_file(folder, name):
    package = await built(folder, name)
    targets = list(package.manifest.columns.target)
    names = sorted(path.name for path in package.public_dir.rglob("*") if path.suffix != ".png")
    assert names == [
        "description.txt",
        *["images"] * (name == "textures"),
        "sample_submission.csv",
        "test.csv",
        "train.csv",
    ]
    assert not set(targets) & set(pd.read_csv(package.public_dir / "test.csv").columns)
    sample = pd.read_csv(package.public_dir / "sample_submission.csv")
    assert sample[targets].nunique().tolist() == [1] * len(targets)
    data = public_task(package).data
    assert "test_answer" not in data
    train, test = (pd.read_csv(package.public_dir / f"{part}.csv") for part in ("train", "test"))
    features = [column for column in test.columns if column not in package.manifest.columns.id]
    shared = test.merge(train[features].drop_duplicates(), on=features)
    assert len(shared) <= 0.01 * len(test)


@pytest.mark.parametrize("name", BUILT)
async def test_the_sample_submission_is_graded_as_the_dummy_of_the_leaderboard(folder, name):
    package = await built(folder, name)
    content = (package.public_dir / "sample_submission.csv").read_bytes()
    grade = await grade_submission(package, content, splits=("all",), runner=RUNNER)
    assert grade.accepted
    table = pd.read_csv(package.root / "info" / "leaderboard.csv").set_index("entry")
    kind = "dummy, median" if package.manifest.metric.name == "mae" else "dummy, mean"
    dummy = next(entry for entry in table.index if entry.startswith(("dummy, most frequent", kind)))
    assert grade.scores["all"] == pytest.approx(table["score"][dummy], abs=2e-4)


@pytest.mark.parametrize("name", ["digits", "textures"])
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


async def test_a_program_of_the_recipe_policy_sees_what_is_in_the_images(folder):
    package = await built(folder, "textures")
    messages = build_prompt(Operator.DRAFT, public_task(package), (), Surroundings(limits=Limits(wall_seconds=60)))
    reply = await RecipePolicy(slip_rate=0.0).complete(messages, seed=1)
    spec = RunSpec(
        argv=(PYTHON, "main.py"),
        files={"main.py": parse_reply(reply.text).source.encode()},
        inputs={"data": package.public_dir},
        environment={"DATA_DIR": f"{INPUTS}/data"},
        limits=Limits(wall_seconds=300),
        artifacts={"submission.csv": 10**6},
    )
    result = await RUNNER.run(spec)
    assert result.exit_code == 0, result.log.text
    content = result.artifacts["submission.csv"].content or b""
    grade = await grade_submission(package, content, splits=("all",), runner=RUNNER)
    assert grade.scores["all"] > 0.45  # a third is chance


OTHERS = """\
import zipfile

def prepare(raw, public, private):
    for name in ("description.txt", "train.csv", "test.csv", "sample_submission.csv"):
        (public / name).write_text("id,y\\n1,2\\n")
    (private / "test_answer.csv").write_text("id,y\\n1,2\\n")
    (public / "images").mkdir()
    (public / "images" / "1.png").write_bytes(b"one")
"""
ELSEWHERE = """\
    write = zipfile.ZipFile.write
    zipfile.ZipFile.write = lambda archive, path, name: write(archive, path, "../" + name)
"""


async def test_other_public_files_come_out_of_the_isolation_and_lead_nowhere_else(tmp_path):
    (tmp_path / "raw").mkdir()
    outputs = await run_prepare(OTHERS, tmp_path / "raw", runner=RUNNER)
    assert outputs["images/1.png"] == b"one"
    assert len(outputs) == 6
    with pytest.raises(PackageError, match=r"a public file '\.\./images/1\.png'"):
        await run_prepare(OTHERS + ELSEWHERE, tmp_path / "raw", runner=RUNNER)


async def test_the_manifest_says_that_the_leaderboard_is_machine_made(folder):
    package = await built(folder, "diabetes")
    manifest = tomllib.loads((package.root / "task.toml").read_text())
    assert manifest["provenance"]["leaderboard"] == "machine"
    assert package.leaderboard is not None
    assert package.leaderboard.rank(min(package.leaderboard.scores)) == 1
