import csv
import io
import json
import sqlite3
import zipfile
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openmle_gym.catalogue.boards import attach_board, board_text, download_board, kaggle_key, standing
from openmle_gym.catalogue.funnel import funnel, read_catalogue
from openmle_gym.catalogue.index import build_index, query_index
from openmle_gym.catalogue.overview import COLUMNS, ask_category, find_packages, overview, overview_csv, size_text
from openmle_gym.catalogue.released import read_inventory, read_released
from openmle_gym.catalogue.taxonomy import category, read_category, read_compute
from openmle_gym.chat import Completion
from openmle_gym.errors import ConfigError, ExecutorUnavailable, PackageError, StoreError
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.leaderboard import Leaderboard, Medal, read_scores
from pydantic import SecretStr
from scripted_server import Asked, Reply, serving
from toy import write_toy_package


class Says:
    """A model that always says the same."""

    def __init__(self, text: str) -> None:
        self.text = text

    async def complete(self, messages: object, *, seed: int | None = None) -> Completion:
        return Completion(text=self.text)


def test_words_are_those_of_the_lists_in_their_order() -> None:
    assert read_category(" tabular, image @ classification ").text == "Image,Tabular@Classification"
    assert category(["time series", "Tabular"], "object detection").text == "Tabular,Time-Series@Object-Detection"
    assert read_compute("gpu") == "GPU"
    for bad in ("Tabular", "Smell@Classification", "Tabular@Guessing", "@Regression"):
        with pytest.raises(PackageError):
            read_category(bad)


async def test_a_model_s_words_are_checked() -> None:
    assert (await ask_category("x", Says("Sure. <out>Audio@Regression</out>"))).text == "Audio@Regression"
    with pytest.raises(PackageError, match="modality 'Smell' is none of"):
        await ask_category("x", Says("<out>Smell@Regression</out>"))


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0.00 B"), (93080, "90.90 KB"), (1237320, "1.18 MB"), (5 * 1024**4, "5120.00 GB")]
)
def test_sizes_are_written_as_the_published_tables_write_them(size: int, text: str) -> None:
    assert size_text(size) == text


async def test_an_overview_has_the_published_columns_and_markers(tmp_path: Path) -> None:
    root = tmp_path / "tasks"
    write_toy_package(root / "toy")
    (write_toy_package(root / "bare").root / "task.toml").unlink()
    broken = write_toy_package(root / "broken")
    (broken.root / "utils/metric.py").write_text(
        "class ToyMetrics:\n    def evaluate(self, y_true, y_pred):\n        raise KeyError('y')\n"
    )
    (root / "empty" / "data" / "public").mkdir(parents=True)
    outside = write_toy_package(tmp_path / "outside")
    (root / "link").symlink_to(outside.root)
    rows = await overview(root, runner=ProcessRunner(allow_no_isolation=True))
    content = overview_csv(rows)
    assert content.startswith(
        b"\xef\xbb\xbfName,Modality,Task,Raw Size,Final Size,CPU/GPU,Source,Metric,NOTE,Server Location\r\n"
    )
    table = {row["Name"]: row for row in csv.DictReader(io.StringIO(content.decode("utf-8-sig")))}
    assert list(table) == ["bare", "broken", "empty", "link", "toy"]
    toy = table["toy"]
    assert (toy["Modality"], toy["Task"], toy["CPU/GPU"], toy["Source"]) == ("Tabular", "Regression", "CPU", "OpenMLE")
    # the answers are 200, 202, ... 278 and the sample says 0
    score = (sum((2 * n) ** 2 for n in range(100, 140)) / 40) ** 0.5
    assert toy["Metric"] == f"@Evaluation result: {{'score': {score!r}}}"
    assert (toy["Raw Size"], toy["NOTE"]) == ("0.00 B", "")
    assert table["bare"]["Modality"] == "#SKIPPED_LLM"
    assert table["broken"]["Metric"] == "#MEVA_RUNTIME_ERROR: metric_failed: KeyError: 'y'"
    assert table["empty"]["NOTE"] == "#DESCRIPTION_NOT_FOUND"
    assert table["link"]["NOTE"].startswith("#TASK_RUNTIME_ERROR: is a link")
    assert {row.name for row in rows if row.failed} == {"broken", "empty", "link"}
    assert len(COLUMNS) == 10


def test_a_batch_of_builds_is_not_taken_for_one_task(tmp_path: Path) -> None:
    write_toy_package(tmp_path / "batch" / "data" / "toy")
    assert [path.name for path in find_packages(tmp_path / "batch")] == ["toy"]
    assert [path.name for path in find_packages(tmp_path / "batch" / "data" / "toy")] == ["toy"]
    with pytest.raises(PackageError, match="no task packages"):
        find_packages(tmp_path)


def catalogue(tmp_path: Path, rows: list[dict[str, object]]) -> list[dict[str, str]]:
    pd.DataFrame(rows).to_csv(tmp_path / "catalogue.csv", index=False)
    return read_catalogue(tmp_path / "catalogue.csv")


def test_each_drop_has_the_first_reason_that_applies(tmp_path: Path) -> None:
    good = {
        "teams": 500,
        "license": "CC0-1.0",
        "build_status": "success",
        "recommendation": "recommended",
        "build_error": "",
    }
    rows = [
        {"Slug": "fine", **good},
        {"Slug": "Fine", **good},
        {"Slug": "ai4code", **good, "teams": 3},
        {"Slug": "short", **good, "teams": 49},
        {"Slug": "boardless", **good, "teams": ""},
        {"Slug": "closed", **good, "license": "CC BY-NC-ND 4.0"},
        {"Slug": "unlicensed", **good, "license": ""},
        {"Slug": "crashed", **good, "build_status": "failed", "build_error": "Prepare run: KeyError: 'id'"},
        {"Slug": "dull", **good, "recommendation": "conditional"},
        {"Slug": "waiting", **good, "recommendation": ""},
    ]
    found = funnel(catalogue(tmp_path, rows))
    assert {verdict.slug: verdict.reason for verdict in found.verdicts} == {
        "fine": "",
        "Fine": "duplicate",
        "ai4code": "overlap",
        "short": "leaderboard_too_short",
        "boardless": "leaderboard_missing",
        "closed": "licence",
        "unlicensed": "licence_missing",
        "crashed": "prepare_run",
        "dull": "conditional",
        "waiting": "unjudged",
    }
    assert found.reached == {"eligible": 4, "executable": 3, "admitted": 1}


def test_the_paper_s_funnel_counts_are_reproduced() -> None:
    def row(number: int) -> dict[str, str]:
        return {
            "slug": f"c{number}",
            "teams": "80" if number < 3972 else "12",
            "built": "yes" if number < 2839 else "no",
            "quality": "recommended" if number < 2240 else "conditional",
        }

    found = funnel(map(row, range(11_000)))
    assert [found.candidates, *found.reached.values()] == [11_000, 3_972, 2_839, 2_240]
    assert {stage: round(100 * share) for stage, share in found.shares().items()} == {
        "eligible": 36,
        "executable": 26,
        "admitted": 20,
    }
    assert found.reasons == {
        "eligible": {"leaderboard_too_short": 7_028},
        "executable": {"build_failed": 1_133},
        "admitted": {"conditional": 599},
    }


def test_a_catalogue_needs_slugs(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="no column slug"):
        catalogue(tmp_path, [{"teams": 3}])


def test_counts_are_read_as_tables_write_them(tmp_path: Path) -> None:
    counts = {"a": "50", "b": "50.0", "c": "1,234", "d": "4.9e1", "e": "49.0", "f": "NaN", "g": "", "h": " 60 "}
    found = funnel(catalogue(tmp_path, [{"slug": slug, "teams": count} for slug, count in counts.items()]))
    short, missing = "leaderboard_too_short", "leaderboard_missing"
    wanted = {"a": "", "b": "", "c": "", "d": short, "e": short, "f": missing, "g": missing, "h": ""}
    assert {verdict.slug: verdict.reason for verdict in found.verdicts} == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slug,teams\na,60\nb,many\n", "row 2: teams 'many' is no whole number"),
        ("slug,teams\na,\u00b2\n", "row 1: teams '\u00b2' is no whole number"),
        ("slug,teams\na,-3\n", "row 1: teams '-3' is no whole number"),
        ("slug,teams\na,60.5\n", "row 1: teams '60.5' is no whole number"),
        (f"slug,teams\na,{'9' * 5000}\n", "row 1: teams '9{40}' is no whole number"),
        ("slug,teams\na,60\n,60\n", "row 2: no slug"),
        ("slug,teams\na,60\nb\n", "row 2 has 1 cells where the header has 2"),
        ("slug,teams\na,60,x\n", "row 1 has 3 cells where the header has 2"),
        ("slug,Teams,teams\na,60,70\n", "two columns 'teams'"),
        ("slug;teams\na;60\n", "no column slug"),
        ('slug,teams\na,60\nb,"60\nc,60\n', "row 2: not CSV"),
        ("", "is empty"),
        ("teams\n", "no column slug"),
    ],
)
def test_a_catalogue_that_would_be_miscounted_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "catalogue.csv").write_text(text, encoding="utf-8")
    with pytest.raises(PackageError, match=words):
        read_catalogue(tmp_path / "catalogue.csv")


BOARD = "rank,TeamName,score\n1,a,0.5\n2,b,0.75\n3,c,0.75\n4,d,1.5\n"


def zipped(**members: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as out:
        for name, text in members.items():
            out.writestr(name.replace("__", "."), text)
    return file.getvalue()


async def test_a_board_is_downloaded_with_patience_and_credentials() -> None:
    replies = [
        Reply(429, b"slow down", {"Retry-After": "0"}),
        Reply(503, b"", {"Retry-After": "0"}),
        Reply(200, zipped(notes__csv="a,b\n", public_leaderboard__csv=BOARD)),
    ]
    asked: list[Asked] = []

    def answer(request: Asked) -> Reply:
        asked.append(request)
        return replies[len(asked) - 1]

    key = kaggle_key({"KAGGLE_USERNAME": "me", "KAGGLE_KEY": "secret"})
    with serving(answer) as base:
        assert await download_board("titanic", key=key, base_url=base) == BOARD
    assert [request.path for request in asked] == ["/api/v1/competitions/titanic/leaderboard/download"] * 3
    assert asked[0].headers["Authorization"] == "Basic bWU6c2VjcmV0"


async def test_a_refusal_is_not_asked_again() -> None:
    asked: list[Asked] = []

    def answer(request: Asked) -> Reply:
        asked.append(request)
        return Reply(403, b"accept the rules first")

    with serving(answer) as base, pytest.raises(ExecutorUnavailable, match="accept the rules first"):
        await download_board("x", key=kaggle_key({"KAGGLE_USERNAME": "m", "KAGGLE_KEY": "k"}), base_url=base)
    assert len(asked) == 1


@pytest.mark.parametrize("content", [b"<html>log in</html>", b"word\n", b"PK\x03\x04broken", zipped(a__txt="x")])
def test_what_is_no_table_is_refused(content: bytes) -> None:
    with pytest.raises(PackageError):
        board_text(content, "there")


def test_credentials_come_from_the_environment_or_the_file(tmp_path: Path) -> None:
    (tmp_path / "kaggle.json").write_text(json.dumps({"username": "u", "key": "k"}))
    assert kaggle_key({"KAGGLE_CONFIG_DIR": str(tmp_path)}) == ("u", SecretStr("k"))
    with pytest.raises(ConfigError, match=r"set KAGGLE_USERNAME and KAGGLE_KEY, or put kaggle\.json at"):
        kaggle_key({"HOME": str(tmp_path)})


def test_an_attached_board_is_the_package_s(tmp_path: Path) -> None:
    package = write_toy_package(tmp_path / "toy")
    board, empty = tmp_path / "board.csv", tmp_path / "empty.csv"
    board.write_text(BOARD)
    empty.write_text("rank,score\n1,\n")
    attached = attach_board(package, board, source="kaggle")
    assert attached.leaderboard is not None
    assert attached.leaderboard.scores == (0.5, 0.75, 0.75, 1.5)
    assert attached.manifest.provenance.leaderboard == "kaggle"
    with pytest.raises(PackageError, match=rf"{empty}: no row with a score"):
        attach_board(attached, empty, source="x")
    assert (attached.root / "info/leaderboard.csv").read_text() == BOARD


def test_ties_share_a_rank_and_a_missing_score_is_last() -> None:
    board = Leaderboard(scores=(0.5, 0.75, 0.75, 1.5), higher_is_better=False)
    tie = standing(board, 0.75)
    assert (tie.rank, tie.percentile, tie.rank_fraction, tie.medal) == (2, 0.25, 0.5, None)
    best = standing(board, 0.5)
    assert (best.rank, best.percentile, best.medal) == (1, 0.75, Medal.GOLD)
    for missing in (None, float("nan"), float("inf")):
        last = standing(board, missing)
        assert (last.rank, last.percentile, last.rank_fraction, last.medal) == (5, 0.0, 1.0, None)
    # lower is better, so a higher score is worse
    assert standing(board, 2.0).rank == 5
    assert standing(Leaderboard(scores=board.scores, higher_is_better=True), 2.0).rank == 1


def test_teams_without_a_score_count_for_n_and_are_last(tmp_path: Path) -> None:
    path = tmp_path / "board.csv"
    path.write_text("rank,Score\n1,3\n2,2\n3,\n4,NaN\n5,-\n")
    assert read_scores(path) == ((3.0, 2.0), 3)
    board = Leaderboard(scores=(3.0, 2.0), higher_is_better=True)
    found = standing(board, 2.0, unscored=3)
    # of five teams the first two win bronze or better: int(0.4 * 5)
    assert (found.teams, found.rank, found.percentile, found.medal) == (5, 2, 0.6, Medal.BRONZE)
    assert standing(board, 2.0).medal is None
    assert standing(board, None, unscored=3).rank == 6


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30), st.integers(-6, 6), st.integers(0, 5), st.booleans())
def test_rank_and_percentile_leave_room_for_ties_only(
    scores: list[int], score: int, unscored: int, higher: bool
) -> None:
    found = standing(
        Leaderboard(scores=tuple(map(float, scores)), higher_is_better=higher), float(score), unscored=unscored
    )
    ties = scores.count(score)
    assert found.rank - 1 + ties + round(found.percentile * found.teams) == found.teams == len(scores) + unscored


def test_an_index_can_be_asked(tmp_path: Path) -> None:
    for name, modality, compute in (("one", '["tabular"]', "cpu"), ("two", '["image", "tabular"]', "gpu")):
        package = write_toy_package(tmp_path / "tasks" / name)
        text = (package.root / "task.toml").read_text()
        changes = {'name = "toy"': f'name = "{name}"', 'compute = "cpu"': f'compute = "{compute}"'}
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        start, end = text.index("modality = ["), text.index("]", text.index("modality = ["))
        (package.root / "task.toml").write_text(f"{text[:start]}modality = {modality}{text[end + 1 :]}")
    (write_toy_package(tmp_path / "tasks" / "odd").root / "task.toml").write_text("name = 3")
    made = build_index([tmp_path / "tasks"], tmp_path / "index.sqlite")
    assert made.tasks == 2
    assert list(made.refused) == [str(tmp_path / "tasks" / "odd")]

    def names(**conditions: object) -> list[str]:
        return [task.name for task in query_index(tmp_path / "index.sqlite", **conditions)]  # pyright: ignore[reportArgumentType]

    assert names() == names(modality="tabular", task_type="regression") == ["one", "two"]
    assert names(modality="Image") == names(compute="gpu") == ["two"]
    assert names(task_type="Segmentation") == names(min_bytes=10**9) == names(max_rows=28) == []
    assert names(max_rows=29) == ["one", "two"]
    (task,) = query_index(tmp_path / "index.sqlite", compute="gpu")
    assert (task.modalities, task.train_rows, task.test_rows) == (("Image", "Tabular"), 29, 40)
    (package := tmp_path / "tasks" / "one" / "data" / "public" / "train.csv").write_text('id,note\n1,"a\nb"\n2,\n')
    build_index([tmp_path / "tasks"], tmp_path / "odd?name#1.sqlite")
    assert [task.train_rows for task in query_index(tmp_path / "odd?name#1.sqlite")] == [2, 29]
    package.write_text("id,note\n1\n")
    build_index([tmp_path / "tasks"], tmp_path / "odd?name#1.sqlite")
    assert [task.train_rows for task in query_index(tmp_path / "odd?name#1.sqlite")] == [None, 29]
    (tmp_path / "no.sqlite").write_text("text")
    with pytest.raises(StoreError, match="is no task index"):
        query_index(tmp_path / "no.sqlite")
    with sqlite3.connect(tmp_path / "other.sqlite") as connection:
        connection.executescript("CREATE TABLE tasks (name); CREATE TABLE modalities (name, modality);")
        connection.execute("INSERT INTO tasks VALUES ('a')")
    with pytest.raises(StoreError, match="is no task index"):
        query_index(tmp_path / "other.sqlite")
    with sqlite3.connect(tmp_path / "index.sqlite") as connection:
        assert connection.execute("SELECT COUNT(*) FROM modalities").fetchone() == (3,)


def test_the_release_s_layout_and_records_read(tmp_path: Path) -> None:
    built = write_toy_package(tmp_path / "tasks" / "toy@1")
    (built.root / "task.toml").unlink()
    facts = {"task_name": "toy@1", "higher_is_better": False, "cpu_gpu": "GPU", "theoretical_min": 0, "more": 1}
    (built.root / "info/task_metadata.json").write_text(json.dumps(facts))
    (tmp_path / "tasks" / "recipe" / "utils").mkdir(parents=True)
    (tmp_path / "tasks" / "recipe" / "utils" / "prepare.py").write_text("")
    (tmp_path / "tasks" / "notes").mkdir()
    recipe, toy = read_released(tmp_path / "tasks")
    assert (recipe.kind, recipe.metadata, toy.kind) == ("recipe", None, "built_task")
    assert toy.metadata is not None
    assert (toy.metadata.cpu_gpu, toy.metadata.theoretical_max) == ("GPU", None)
    assert toy.package().manifest.compute == "gpu"
    with pytest.raises(PackageError, match="is a recipe"):
        recipe.package()
    with pytest.raises(PackageError, match="no such folder"):
        list(read_released(tmp_path / "elsewhere"))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_an_inventory_reads_in_three_formats(tmp_path: Path, suffix: str) -> None:
    rows = [
        {"task_id": "a", "release_type": "built_task", "package_bytes": 5, "artifact_path": "a/"},
        {"task_id": "b", "release_type": "recipe", "package_bytes": None, "artifact_path": None},
    ]
    path = tmp_path / f"inventory.{suffix}"
    frame = pd.DataFrame(rows)
    if suffix == "csv":
        frame.to_csv(path, index=False)
    elif suffix == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_parquet(path)
    one, two = read_inventory(path)
    assert (one.release_type, one.artifact_path, two.artifact_path, two.package_bytes) == (
        "built_task",
        "a/",
        None,
        None,
    )
    path.with_suffix(".csv").write_text("task_id,release_type\na,draft\n")
    with pytest.raises(PackageError, match="record 1"):
        read_inventory(path.with_suffix(".csv"))
