"""Programs that a model may write are run and examined; each mistake is found, and told by its name."""

import asyncio
from pathlib import Path

import pytest
from gym_build.made_up import BAD_METRICS, BAD_PREPARES, METRIC, PREPARE, csv_text, draft, houses
from openmle_gym.build.judge_metric import judge_metric
from openmle_gym.build.judge_prepare import judge_prepare
from openmle_gym.build.run_prepare import PrepareSettings
from openmle_gym.build.split_advisor import SplitAdvice
from openmle_gym.build.state import tree_hashes
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.jobs import Limits

RUNNER = ProcessRunner(allow_no_isolation=True)
SETTINGS = PrepareSettings(limits=Limits(wall_seconds=120.0))


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    (folder / "train.csv").write_text(houses())
    return folder


async def judged(source: str, raw: Path, folder: Path, advice: SplitAdvice | None = None, **changes: object):
    scratch = folder / "runs"
    scratch.mkdir()
    return await judge_prepare(
        source, draft(folder, advice, **changes), raw=raw, runner=RUNNER, settings=SETTINGS, scratch=scratch
    )


@pytest.fixture(scope="module")
def prepared(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data of the good prepare.py."""
    folder = tmp_path_factory.mktemp("prepared")
    judgement = asyncio.run(judged(PREPARE, raw, folder))
    assert judgement.accepted, judgement.feedback
    return folder


def test_a_good_prepare_leaves_its_files_and_a_true_description(prepared: Path) -> None:
    names = set(tree_hashes(prepared / "data"))
    assert names == {
        *("public/train.csv", "public/test.csv", "public/sample_submission.csv", "public/description.txt"),
        "private/test_answer.csv",
    }
    description = (prepared / "data/public/description.txt").read_text()
    assert "`train.csv`: 96 rows, 4 columns" in description
    assert "scored by rmse. Lower is better" in description


@pytest.mark.parametrize("code", BAD_PREPARES)
async def test_a_bad_prepare_is_rejected_for_what_is_wrong_with_it(code: str, raw: Path, tmp_path: Path) -> None:
    judgement = await judged(BAD_PREPARES[code], raw, tmp_path)
    assert not judgement.accepted
    assert judgement.code == code, judgement.feedback
    assert not (tmp_path / "data").exists()


async def test_feedback_of_a_crash_has_type_traceback_and_files(raw: Path, tmp_path: Path) -> None:
    feedback = (await judged(BAD_PREPARES["KeyError"], raw, tmp_path)).feedback
    assert "KeyError" in feedback.splitlines()[0]
    assert 'in prepare\n    answers = test[["Id", "worth"]]' in feedback
    assert "train.csv (" in feedback
    assert "openmle-run-" not in feedback


async def test_a_prepare_that_does_not_end_is_told_so(raw: Path, tmp_path: Path) -> None:
    settings = PrepareSettings(limits=Limits(wall_seconds=0.5))
    (tmp_path / "runs").mkdir()
    judgement = await judge_prepare(
        "def prepare(raw, public, private):\n    while True:\n        pass\n",
        draft(tmp_path),
        raw=raw,
        runner=RUNNER,
        settings=settings,
        scratch=tmp_path / "runs",
    )
    assert (judgement.code, judgement.accepted) == ("timeout", False)


async def test_rows_of_a_group_on_both_sides_are_rejected_where_groups_leak(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    rows = [[f"h{n}", str(n % 60), str(n * 7 % 50), str(n * 7 % 50 * 3 + n % 5)] for n in range(120)]
    (raw / "train.csv").write_text(csv_text("Id,owner_id,area,price", rows))
    advice = SplitAdvice(strategy="grouped", column="owner_id")
    judgement = await judged(PREPARE, raw, tmp_path, advice)
    assert not judgement.accepted
    assert "share their owner_id with train" in judgement.feedback


async def test_a_good_metric_is_accepted(prepared: Path, tmp_path: Path) -> None:
    judgement = await judge_metric(METRIC, draft(prepared), runner=RUNNER, scratch=tmp_path)
    assert judgement.accepted, judgement.feedback


@pytest.mark.parametrize("code", BAD_METRICS)
async def test_a_bad_metric_is_rejected_for_what_is_wrong_with_it(code: str, prepared: Path, tmp_path: Path) -> None:
    judgement = await judge_metric(BAD_METRICS[code], draft(prepared), runner=RUNNER, scratch=tmp_path)
    assert not judgement.accepted
    assert judgement.code == code, judgement.feedback
    if code == "metric_execution_failed":
        assert "KeyError" in judgement.feedback
        assert 'both["prediction"]' in judgement.feedback
    assert tree_hashes(tmp_path) == {}


async def test_a_metric_that_the_library_has_not_is_judged_by_the_probes_alone(prepared: Path, tmp_path: Path) -> None:
    source = METRIC.replace("np.sqrt(np.mean(gaps**2))", "np.mean(np.abs(gaps) ** 1.5)")
    wanted = draft(prepared, metric="p15", metric_definition="mean of the absolute error to the power of 1.5")
    judgement = await judge_metric(source, wanted, runner=RUNNER, scratch=tmp_path)
    assert judgement.accepted, judgement.feedback


def test_the_raw_data_are_as_they_were(raw: Path) -> None:
    assert (raw / "train.csv").read_text() == houses()
