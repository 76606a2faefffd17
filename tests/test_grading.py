from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from openmle_gym.errors import PackageError, RunnerUnavailable
from openmle_gym.grading import Grade, GradedSplit, grade_submission, hidden_answers, with_standing
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.isolation.runner import Isolation, RunResult, RunSpec
from openmle_gym.jobs import Limits
from openmle_gym.leaderboard import Leaderboard, Medal
from openmle_gym.manifest import Columns, HiddenSplit, Manifest, Metric, write_manifest
from openmle_gym.task import TaskPackage, load_package

FILES = Path(__file__).parent / "fixtures" / "submissions"
RUNNER = ProcessRunner(allow_no_isolation=True)

MEAN = """
class MeanMetrics:
    def __init__(self, value="y", higher_is_better=True):
        self.value = value

    def evaluate(self, y_true, y_pred):
        {body}
"""
AUC = MEAN.format(
    body="""from itertools import product
        scored = list(zip(y_true["target"], y_pred["target"], strict=True))
        pairs = [(p, n) for (a, p), (b, n) in product(scored, scored) if a > b]
        return sum((p > n) + 0.5 * (p == n) for p, n in pairs) / len(pairs)"""
)


def package(
    root: Path,
    metric: str,
    *,
    answers: str = "id,y\n1,1\n2,2\n3,3\n4,4\n",
    columns: Columns | None = None,
    leaderboard: str = "",
    fraction: float = 0.5,
) -> TaskPackage:
    """A package whose hidden answers are `answers`, scored by `metric`."""
    for folder in ("data/public", "data/private", "utils", "info"):
        (root / folder).mkdir(parents=True)
    (root / "data/public/description.txt").write_text("Predict.")
    (root / "data/public/sample_submission.csv").write_text(answers)
    (root / "data/private/test_answer.csv").write_text(answers)
    (root / "utils/metric.py").write_text(metric)
    if leaderboard:
        (root / "info/leaderboard.csv").write_text(leaderboard)
    manifest = Manifest(
        name="small",
        metric=Metric(name="mean", higher_is_better=True),
        columns=columns or Columns(id=("id",), target=("y",)),
        hidden_split=HiddenSplit(validation_fraction=fraction),
    )
    write_manifest(manifest, root / "task.toml")
    return load_package(root)


PERFECT = b"id,y\n4,4\n3,3\n2,2\n1,1\n"


async def graded(
    task: TaskPackage, content: bytes = PERFECT, splits: Sequence[GradedSplit] = ("all",), seconds: float = 300.0
) -> Grade:
    return await grade_submission(
        task, content, splits=splits, runner=RUNNER, limits=Limits(wall_seconds=seconds, memory_bytes=2**32)
    )


async def test_collected_submissions_that_mean_the_same_score_the_same(tmp_path: Path) -> None:
    answers = (FILES / "_answers.csv").read_text()
    task = package(tmp_path / "task", AUC, answers=answers, columns=Columns(id=("id",), target=("target",)))
    names = ("clean", "shuffled_rows", "bom", "header_spaces", "index_column_Unnamed0")
    grades = [await graded(task, (FILES / f"{name}.csv").read_bytes(), ("validation", "all")) for name in names]
    assert all(grade.accepted for grade in grades)
    assert [grade.scores for grade in grades] == [grades[0].scores] * len(names)
    truth = pd.read_csv(FILES / "_answers.csv").merge(pd.read_csv(FILES / "clean.csv"), on="id")
    ranks = truth["target_y"].rank()
    hits = int(truth["target_x"].sum())
    by_ranks = (ranks[truth["target_x"] == 1].sum() - hits * (hits + 1) / 2) / (hits * (len(truth) - hits))
    assert grades[0].scores["all"] == pytest.approx(by_ranks, abs=1e-12)


async def test_each_split_is_scored_on_its_own_rows(tmp_path: Path) -> None:
    task = package(tmp_path / "task", MEAN.format(body="return (y_pred['y'] * 10 ** y_true['id']).sum()"))
    grade = await graded(task, b"id,y\n1,1\n2,1\n3,1\n4,1\n", ("validation", "test", "all"))
    assert grade.scores["validation"] + grade.scores["test"] == grade.scores["all"] == 11110
    halves = [sorted(f"{grade.scores[split]:05.0f}") for split in ("validation", "test")]
    assert halves == [list("00011")] * 2


async def test_rows_are_aligned_for_a_metric_that_pairs_them_by_position(tmp_path: Path) -> None:
    task = package(
        tmp_path / "task", MEAN.format(body="return (y_true['y'].to_numpy() == y_pred['y'].to_numpy()).mean()")
    )
    assert (await graded(task)).scores == {"all": 1.0}


async def test_a_refused_submission_never_reaches_the_metric(tmp_path: Path) -> None:
    task = package(tmp_path / "task", "raise SystemExit('the metric ran')")
    grade = await grade_submission(task, b"id,y\n1,1\n2,nan\n3,3\n4,4\n", splits=["all"], runner=Unavailable())
    assert not grade.accepted
    assert (grade.code, grade.row, grade.column, grade.scores) == ("missing_value", 2, "y", {})
    assert grade.message == "row 2 (id '2'), column 'y': the prediction is missing"


class Unavailable:
    """A runner that cannot start anything."""

    isolation = Isolation.PROCESS

    async def check(self) -> None:
        raise RunnerUnavailable("the engine is down")

    async def run(self, spec: RunSpec) -> RunResult:
        raise RunnerUnavailable("the engine is down")


async def test_a_runner_that_is_down_is_an_exception(tmp_path: Path) -> None:
    task = package(tmp_path / "task", MEAN.format(body="return 1"))
    with pytest.raises(RunnerUnavailable):
        await grade_submission(task, PERFECT, splits=["all"], runner=Unavailable())


VALIDATOR = (
    MEAN.format(body="return 1") + "\n    def validate_submission(self, submission, ground_truth):\n        {body}\n"
)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ValueError('y must grow')", "ValueError: y must grow"),
        ("return False, 'y must grow'", "y must grow"),
        ("import numpy; return numpy.bool_(False), 'y must grow'", "y must grow"),
    ],
)
async def test_the_packages_own_validator_refuses_by_raising_and_by_returning_false(
    tmp_path: Path, body: str, message: str
) -> None:
    grade = await graded(package(tmp_path / "task", VALIDATOR.format(body=body)))
    assert (grade.accepted, grade.code, grade.message) == (False, "refused_by_package", message)
    assert grade.scores == {}


@pytest.mark.parametrize("body", ["return 'Submission is valid.'", "return True, ''", "submission['y'] = 0"])
async def test_the_packages_own_validator_accepts_by_returning_anything_else(tmp_path: Path, body: str) -> None:
    metric = VALIDATOR.format(body=body).replace("return 1\n", "return y_pred['y'].sum()\n")
    assert (await graded(package(tmp_path / "task", metric))).scores == {"all": 10.0}


async def test_the_packages_validator_sees_all_rows_and_the_score_only_those_of_the_split(tmp_path: Path) -> None:
    metric = VALIDATOR.format(body="assert len(submission) == len(ground_truth) == 4").replace(
        "return 1\n", "return len(y_pred)\n"
    )
    assert (await graded(package(tmp_path / "task", metric), splits=("validation",))).scores == {"validation": 2.0}


@pytest.mark.parametrize(
    ("metric", "code", "words"),
    [
        (MEAN.format(body="raise KeyError('y2')"), "metric_failed", "KeyError: 'y2'"),
        (MEAN.format(body="return 'good'"), "metric_failed", "returned 'good', not a number"),
        (MEAN.format(body="return True"), "metric_failed", "returned True, not a number"),
        (MEAN.format(body="return float('nan')"), "score_not_finite", "returned nan on the all rows"),
        (MEAN.format(body="raise SystemExit(0)"), "metric_failed", "SystemExit: 0"),
        (MEAN.format(body="import os; os._exit(3)"), "metric_failed", "ended without a score: exit code 3"),
        (MEAN.format(body="import os; os.kill(os.getpid(), 9)"), "metric_failed", "ended without a score: signal 9"),
        ("import nothing_of_this_name", "metric_failed", "ModuleNotFoundError"),
        ("class Metric:\n    pass\n", "metric_failed", "no class whose name ends with Metrics"),
        (
            MEAN.format(body="import os; open('result.json', 'w').write('{}'); os._exit(0)"),
            "metric_failed",
            "result cannot be read",
        ),
    ],
)
async def test_a_metric_that_fails_is_a_value(tmp_path: Path, metric: str, code: str, words: str) -> None:
    grade = await graded(package(tmp_path / "task", metric))
    assert (grade.accepted, grade.code, grade.scores) == (False, code, {})
    assert words in grade.message


async def test_a_metric_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    task = package(tmp_path / "task", "while True:\n    pass\n")
    grade = await graded(task, seconds=1.0)
    assert (grade.accepted, grade.code) == (False, "metric_timeout")
    assert grade.message == "the metric was stopped after 1 seconds"


async def test_what_a_metric_prints_does_not_matter(tmp_path: Path) -> None:
    metric = MEAN.format(body="""print('{"scores": {"all": 9}}'); return y_pred["y"].mean()""")
    assert (await graded(package(tmp_path / "task", metric))).scores == {"all": 2.5}


async def test_the_first_own_metrics_class_by_name_is_taken(tmp_path: Path) -> None:
    metric = "from unittest.mock import Mock as AMetrics\n" + "".join(
        f"class {name}Metrics:\n    def evaluate(self, y_true, y_pred):\n        return {score}\n"
        for name, score in (("Z", 3), ("B", 1), ("C", 2))
    )
    assert (await graded(package(tmp_path / "task", metric))).scores == {"all": 1.0}


async def test_numpy_scalars_are_scores(tmp_path: Path) -> None:
    metric = MEAN.format(body="import numpy; return numpy.float32(0.5)")
    assert (await graded(package(tmp_path / "task", metric))).scores == {"all": 0.5}


async def test_numbers_reach_the_metric_exactly(tmp_path: Path) -> None:
    number = 0.00651592972722763
    task = package(tmp_path / "task", MEAN.format(body="return y_pred['y'][0]"), answers="id,y\n1,0.5\n")
    assert (await graded(task, f"id,y\n1,{number!r}\n".encode())).scores == {"all": number}


async def test_whole_predictions_of_whole_answers_reach_the_metric_as_integers(tmp_path: Path) -> None:
    task = package(tmp_path / "task", MEAN.format(body="return (y_true['y'].map(str) == y_pred['y'].map(str)).mean()"))
    assert (await graded(task, b"id,y\n1,1.0\n2,2.0\n3,3\n4,5e0\n")).scores == {"all": 0.75}


async def test_the_metric_sees_every_column_of_the_answers(tmp_path: Path) -> None:
    task = package(
        tmp_path / "task",
        MEAN.format(body="return (y_true['weight'] * y_pred['y']).sum() + 100 * len(y_pred.columns)"),
        answers="id,y,weight\n1,1,10\n2,1,0\n",
    )
    assert (await graded(task, b"id,y\n1,1\n2,1\n")).scores == {"all": 210.0}


async def test_the_grading_process_sees_no_program_and_nothing_of_the_package_but_metric_and_answers(
    tmp_path: Path,
) -> None:
    specs: list[RunSpec] = []

    class Recording(ProcessRunner):
        async def run(self, spec: RunSpec) -> RunResult:
            specs.append(spec)
            return await super().run(spec)

    task = package(tmp_path / "task", MEAN.format(body="return 1"))
    runner = Recording(allow_no_isolation=True)
    await grade_submission(task, PERFECT, splits=["validation", "test"], runner=runner)
    assert len(specs) == 1
    assert sorted(specs[0].inputs) == ["grading_child.py", "metric.py"]
    assert sorted(specs[0].files) == ["answers.npy", "submission.npy"]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (b"", "is empty"),
        (b"id,y\n", "there is no row"),
        (b"id,y\n1,1\n2\n", "row 2 has 1 cells where the header has 2"),
        (b"id,y\n1,1,\n2,2,\n", "row 1 has 3 cells where the header has 2"),
        (b"id,y,y\n1,1,1\n", "two columns 'y'"),
        (b"id;y\n1;1\n", "no column 'id'; the header is 'id;y'"),
        (b"ID,y\n1,1\n", "no column 'id'; the header is 'ID', 'y'"),
        (b"id,y\n1,1\n2,\xe9\n", "line 3 is not text in UTF-8"),
        (b"id,y\n1,1\n 1 ,2\n", "two rows have id '1'"),
        (b"id,y\n1,1\n,\n", "row 2 has no id"),
    ],
)
def test_answers_that_cannot_be_used_are_the_packages_fault(tmp_path: Path, answers: bytes, words: str) -> None:
    broken = package(tmp_path / "p", MEAN.format(body="return 0.5"))
    broken.answers_path.write_bytes(answers)
    with pytest.raises(PackageError, match=words) as caught:
        hidden_answers(broken)
    assert str(caught.value).startswith(str(broken.answers_path))


async def test_a_half_without_rows_is_the_packages_fault(tmp_path: Path) -> None:
    task = package(tmp_path / "task", MEAN.format(body="return 1"), answers="id,y\n1,1\n", fraction=0.1)
    with pytest.raises(PackageError, match="no row of the answers is in the validation half"):
        await graded(task, b"id,y\n1,1\n", ("validation",))


async def test_only_a_score_on_all_rows_has_a_rank(tmp_path: Path) -> None:
    board = "score\n" + "".join(f"{score}\n" for score in (4, 3, 2.5, 2, 1))
    task = package(tmp_path / "task", MEAN.format(body="return y_pred['y'].mean()"), leaderboard=board)
    grade = await graded(task)
    assert (grade.scores, grade.rank, grade.fraction_beaten, grade.medal) == ({"all": 2.5}, 3, 0.4, None)
    validation = await graded(task, splits=("validation",))
    assert (validation.rank, validation.fraction_beaten, validation.medal) == (None, None, None)


def test_a_standing_needs_a_score_and_a_leaderboard() -> None:
    grade = Grade(accepted=True, scores={"all": 5.0}, higher_is_better=True)
    board = Leaderboard(scores=(4.0, 3.0), higher_is_better=True)
    assert with_standing(grade, None) == grade
    assert with_standing(grade, board).medal is Medal.GOLD
    without = grade.model_copy(update={"scores": {"validation": 5.0}})
    assert with_standing(without, board) == without


def test_a_grade_survives_json() -> None:
    grade = Grade.model_validate(
        {"accepted": False, "code": "metric_timeout", "message": "slow", "higher_is_better": True, "scores": {}}
    )
    assert Grade.model_validate_json(grade.model_dump_json()) == grade
