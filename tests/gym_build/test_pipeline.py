"""Whole builds, with a scripted model and a scripted Kaggle on loopback."""

import json
from pathlib import Path
from typing import Any

import pytest
from gym_build.made_up import (
    BAD_METRICS,
    BAD_PREPARES,
    METRIC,
    PREPARE,
    SPEC_FIELDS,
    code_reply,
    csv_text,
    house_rows,
    houses,
    json_reply,
)
from gym_build.scripted_kaggle import Kaggle, serve_kaggle, zipped
from gym_build.scripted_model import Cut, Model, Trouble, serve_model
from openmle_gym.build import BuildReport, BuildRequest, build_package, kaggle, parse_source
from openmle_gym.build.state import BuildState, StateFile, locked
from openmle_gym.chat import OpenAIChat
from openmle_gym.check import check_package
from openmle_gym.cli import main
from openmle_gym.errors import ConfigError, ModelUnavailable, PackageError, StoreError
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.task import load_package

RUNNER = ProcessRunner(allow_no_isolation=True)
SLUG = "house-prices-again"
DATA = zipped(
    {
        "train.csv.zip": zipped({"train.csv": houses()}),
        "test.csv": csv_text("Id,area,town", [[f"t{n}", str(n), "Aa"] for n in range(40)]),
    }
)
BOARD = zipped({f"{SLUG}-publicleaderboard.csv": "Rank,TeamId,TeamName,Score\n1,7,Alice,12.5\n2,8,Bob,14\n"})


def request(folder: Path, source: str, **changes: Any) -> BuildRequest:
    return BuildRequest(source=parse_source(source), work=folder / "work", output=folder / "tasks", **changes)


async def built(wanted: BuildRequest, model: Model | None = None, patience: float = 0.0) -> BuildReport:
    if model is None:
        return await build_package(wanted, model=None, runner=RUNNER)
    async with OpenAIChat(model.base_url, model="scripted", patience_seconds=patience) as chat:
        return await build_package(wanted, model=chat, runner=RUNNER)


def state(folder: Path) -> BuildState:
    return BuildState.model_validate_json((folder / "work" / "state.json").read_bytes())


@pytest.fixture
def at_kaggle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A scripted Kaggle that the official client goes to."""
    known = Kaggle(
        competitions={SLUG: DATA},
        leaderboards={SLUG: BOARD},
        pages={SLUG: {"Description": "<p>Sell houses.</p>", "Evaluation": "RMSE of the price"}},
        datasets={"someone/houses": zipped({"train.csv": houses()})},
        licences={"someone/houses": "CC0-1.0"},
    )
    monkeypatch.setattr(kaggle, "RETRY_SECONDS", 0.0)
    monkeypatch.setenv("KAGGLE_CONFIG_DIR", str(tmp_path / "kaggle"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KAGGLE_API_TOKEN", raising=False)
    with serve_kaggle(known):
        for name, value in known.environment().items():
            monkeypatch.setenv(name, value)
        yield known


@pytest.mark.slow
async def test_a_competition_becomes_a_package_though_kaggle_and_the_model_err(
    at_kaggle: Kaggle, tmp_path: Path
) -> None:
    at_kaggle.failures = [503]
    script = {
        "describe": [
            "I would predict the price.",
            json_reply({**SPEC_FIELDS, "target": ["worth"]}),
            json_reply(SPEC_FIELDS),
        ],
        "prepare": [
            Trouble(500),
            Cut("```python\nimport pandas as pd\n\n\ndef prepare(raw, public, priv"),
            code_reply(BAD_PREPARES["KeyError"], before="Sure! First a thought, in prose.\n"),
            code_reply(PREPARE, after="This splits the rows."),
        ],
        "metric": [code_reply(BAD_METRICS["metric_execution_failed"]), code_reply(METRIC)],
    }
    with serve_model(script) as model:
        report = await built(request(tmp_path, SLUG), model, patience=20.0)
        assert report.ok, report
        package = load_package(tmp_path / "tasks" / SLUG)
        assert (model.troubles, {name: len(model.asked(name)) for name in script}) == (
            1,
            {"describe": 3, "prepare": 3, "metric": 2},
        )
        assert at_kaggle.log.count(f"DownloadDataFiles {SLUG}") == 2
        # What the model was told.
        assert "Sell houses." in model.asked("describe")[0]
        assert "no column 'worth'" in model.asked("describe")[2]
        assert "truncated_reply" in model.asked("prepare")[1]
        mend = model.asked("prepare")[2]
        assert "KeyError" in mend
        assert 'answers = test[["Id", "worth"]]' in mend
        assert "KeyError" in model.asked("metric")[1]
        # Again, nothing is asked of anybody.
        asked, log = len(model.prompts), len(at_kaggle.log)
        assert (await built(request(tmp_path, SLUG), model)).ok
        assert (len(model.prompts), len(at_kaggle.log)) == (asked, log)
    manifest = package.manifest
    assert (manifest.columns.id, manifest.columns.target, manifest.metric.higher_is_better) == (
        ("Id",),
        ("price",),
        False,
    )
    assert manifest.provenance.source == f"https://www.kaggle.com/competitions/{SLUG}"
    assert manifest.provenance.train_test_split.startswith("stratified: 20% test rows")
    assert (package.root / "info/leaderboard.csv").read_text() == "rank,score\n1,12.5\n2,14\n"
    assert (package.root / "raw/train.csv").read_text() == houses()
    assert json.loads((package.root / "info/build.json").read_text())["model"] == "scripted-1"
    record = state(tmp_path).stages["task/prepare"]
    assert (record.attempts, record.usage.prompt_tokens, record.usage.completion_tokens) == (3, 3000, 300)
    assert (report.usage.prompt_tokens, report.cost_usd) == (8000, None)
    checked = await check_package(package.root, runner=RUNNER)
    assert checked.passed


async def test_an_outage_of_the_model_stops_a_stage_and_counts_no_attempt(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(houses())
    script = {"describe": [json_reply(SPEC_FIELDS)], "prepare": [code_reply("print(1)"), Trouble(500)], "metric": []}
    wanted = request(tmp_path, str(tmp_path / "train.csv"), attempts=2)
    with serve_model(script) as model:
        with pytest.raises(ModelUnavailable, match="scripted trouble at prepare"):
            await built(wanted, model)
        record = state(tmp_path).stages["task/prepare"]
        assert (record.status, record.code, record.attempts) == ("stopped", "", 0)
        assert "scripted trouble" in record.message
        model.script = {"prepare": [code_reply(PREPARE)], "metric": [code_reply(METRIC)]}
        assert (await built(wanted, model)).ok
        assert {name: len(model.asked(name)) for name in ("describe", "prepare", "metric")} == {
            "describe": 1,
            "prepare": 2,
            "metric": 1,
        }
    assert state(tmp_path).stages["task/prepare"].attempts == 2


async def test_when_no_attempt_will_do_the_best_is_kept_and_a_rerun_asks_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(houses())
    nearly = BAD_PREPARES["missing_outputs"]
    script = {
        "describe": [json_reply(SPEC_FIELDS)],
        "prepare": [code_reply(nearly), code_reply(BAD_PREPARES["syntax_error"]), code_reply(PREPARE)],
        "metric": [code_reply(METRIC)],
    }
    with serve_model(script) as model:
        for _ in range(2):
            report = await built(request(tmp_path, str(tmp_path / "train.csv"), attempts=2), model)
            failed = report.tasks[0]
            assert (failed.package, failed.failed_stage, failed.code) == (None, "task/prepare", "missing_outputs")
            assert len(model.asked("prepare")) == 2
        assert (tmp_path / "work/tasks/task/best_prepare.py").read_text().strip() == nearly.strip()
        assert not (tmp_path / "tasks").exists()
        # One more attempt is one more question, which shows the best of those before.
        report = await built(request(tmp_path, str(tmp_path / "train.csv"), attempts=3), model)
        assert report.ok
        asked = model.asked("prepare")[2]
        assert "The best attempt so far (number 1)" in asked
        assert "The last attempt (number 2)" in asked


async def test_a_data_set_becomes_several_distinct_tasks(
    at_kaggle: Kaggle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The second one's metrics will not do, so the library's stands in."""
    other = {**SPEC_FIELDS, "name": "which-town", "target": ["town"], "metric": "accuracy", "higher_is_better": True}
    other["statement"] = "Each row is a house. Say in which `town` it stands, from its area and from its price alone."
    proposals = {
        "tasks": [
            {**SPEC_FIELDS, "name": "what-price"},
            {**SPEC_FIELDS, "name": "which-price", "metric": "mae"},
            {**SPEC_FIELDS, "name": "wrong", "target": ["colour"]},
            other,
        ]
    }
    by_town = (
        PREPARE.replace('"price"', '"town"').replace("price=train", "town=train").replace(".mean())", ".mode()[0])")
    )
    script = {
        "propose": [json_reply({"tasks": []}), json_reply(proposals)],
        "prepare": [code_reply(PREPARE), code_reply(by_town)],
        "metric": [code_reply(METRIC), *[code_reply("class TownMetrics:\n    pass\n")] * 2],
    }
    with serve_model(script) as model:
        report = await built(request(tmp_path, "someone/houses", tasks=3, attempts=2), model)
        assert "the object has no list `tasks`" in model.asked("propose")[1]
    assert report.dropped == {"which-price": "says what what-price says", "wrong": report.dropped["wrong"]}
    assert "no column 'colour'" in report.dropped["wrong"]
    assert [task.package for task in report.tasks] == [
        str(tmp_path / "tasks" / name) for name in ("what-price", "which-town")
    ]
    assert "which-town: no attempt will do; the library's accuracy stands in" in caplog.text
    manifest = load_package(tmp_path / "tasks" / "which-town").manifest
    assert (manifest.metric.name, manifest.provenance.licence) == ("accuracy", "CC0-1.0")


async def test_missing_credentials_say_what_to_set(
    at_kaggle: Kaggle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAGGLE_KEY")
    with pytest.raises(ConfigError, match="export KAGGLE_API_TOKEN=TOKEN"):
        await built(request(tmp_path, SLUG))
    assert at_kaggle.log == []


async def test_rules_that_are_not_accepted_are_told_with_their_page(at_kaggle: Kaggle, tmp_path: Path) -> None:
    at_kaggle.not_accepted = {SLUG}
    failed = (await built(request(tmp_path, SLUG))).tasks[0]
    assert (failed.failed_stage, failed.package) == ("fetch", None)
    assert f"https://www.kaggle.com/competitions/{SLUG}/rules" in failed.message


async def test_kaggles_own_trouble_stops_the_build_for_later(at_kaggle: Kaggle, tmp_path: Path) -> None:
    at_kaggle.failures = [503] * kaggle.TRIES
    with pytest.raises(kaggle.KaggleUnavailable, match="503"):
        await built(request(tmp_path, SLUG))
    assert state(tmp_path).stages["fetch"].status == "stopped"


def test_a_leaderboard_is_taken_without_names() -> None:
    assert kaggle.leaderboard_csv(BOARD) == "rank,score\n1,12.5\n2,14\n"
    assert kaggle.leaderboard_csv("\ufeffTeam,Score\nA,1\n".encode()) == "rank,score\n1,1\n"
    for wrong in (b"PK\x03\x04", b"<html>", b"Team,Score\nA,high\n"):
        with pytest.raises(PackageError):
            kaggle.leaderboard_csv(wrong)


def write_groups(path: Path) -> None:
    """Owners whose houses are alike; the price hangs on the owner."""
    rows = []
    for number, (identity, area, town, _) in enumerate(house_rows(200)):
        owner = number % 25
        rows.append([identity, f"o{owner}", area, town, str(owner * 100 + number % 3)])
    path.write_text(csv_text("Id,owner,area,town,price", rows).replace("owner", "owner_id", 1))


async def test_a_file_becomes_a_package_without_a_model_and_changed_files_a_new_one(tmp_path: Path) -> None:
    source = tmp_path / "sales.csv"
    write_groups(source)
    wanted = request(tmp_path, str(source), targets=("price",), licence="CC0-1.0")
    report = await built(wanted)
    package = load_package(tmp_path / "tasks" / "sales")
    assert (report.ok, report.usage.prompt_tokens) == (True, 0)
    assert not any("leakage" in warning or "licence" in warning for warning in report.tasks[0].warnings)
    assert package.manifest.provenance.train_test_split.startswith("grouped: 20% test rows, whole groups by owner_id")
    before = state(tmp_path).stages
    source.write_text(source.read_text().replace("h7,", "h7x,"))
    assert (await built(wanted)).ok
    after = state(tmp_path).stages
    assert after["unpack"].output != before["unpack"].output
    text = (tmp_path / "tasks/sales/data/public/train.csv").read_text() + package.answers.to_csv()
    assert "h7x," in text + (tmp_path / "tasks/sales/data/private/test_answer.csv").read_text()


def test_the_command_builds_folders_of_images_without_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("cat", "dog"):
        (tmp_path / "pets" / kind).mkdir(parents=True)
        for n in range(30):
            (tmp_path / "pets" / kind / f"{kind}{n}.png").write_bytes(f"{kind} {n}".encode())
    monkeypatch.chdir(tmp_path)
    arguments = ["build", "pets", "runner=process", "allow_process=true", "licence=CC0-1.0", "keep_raw=false"]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["tasks"][0]["name"]) == (True, "pets")
    package = load_package(tmp_path / "tasks/pets")
    assert package.manifest.modality == ("image",)
    test = sorted(path.name for path in (package.public_dir / "test").iterdir())
    assert len(test) == 12
    assert not any("cat" in name or "dog" in name for name in test)
    assert "60 files" in (package.root / "raw.txt").read_text()
    assert not (package.root / "raw").exists()


def test_the_command_names_a_wrong_setting_and_a_wrong_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(houses())
    for arguments, said in (
        (["t.csv", "retry=1"], "retries"),
        (["t.csv", "metric=rsme"], "metric"),
        (["nothing.csv"], "no such file"),
        (["ai4code"], "MLE-Bench"),
    ):
        assert main(["build", *arguments, "runner=process", "allow_process=true"]) == 2
        assert said in capsys.readouterr().err


async def test_a_work_folder_is_for_one_source_and_one_build_at_a_time(tmp_path: Path) -> None:
    for name in ("one.csv", "two.csv"):
        (tmp_path / name).write_text("x\n")
    (tmp_path / "work").mkdir()
    StateFile(tmp_path / "work", f"local {tmp_path / 'one.csv'}").write(
        "fetch",
        BuildState.model_validate({"source": "x", "stages": {"f": {"status": "done", "fingerprint": ""}}}).stages["f"],
    )
    with pytest.raises(StoreError, match="holds the build of"):
        await built(request(tmp_path, str(tmp_path / "two.csv")))
    with locked(tmp_path / "work"), pytest.raises(StoreError, match="another build is at work"):
        await built(request(tmp_path, str(tmp_path / "one.csv")))
