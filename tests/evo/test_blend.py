"""Blends: how submissions are combined, how weights are found, and the programs that they are run as."""

import asyncio
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from evo.make import TASK
from hypothesis import given
from hypothesis import strategies as st
from openmle_evo.blend import Counts, blend_method, blend_program, fit_counts, stored_blend
from openmle_evo.combine import combine
from openmle_evo.final_choice import held_parts
from openmle_gym.manifest import Columns, Metric
from openmle_gym.task import TaskPackage
from toy import GOOD, WORSE, write_toy_package

IDS, TARGETS = ("id",), ("y",)
PACKAGE = TaskPackage(root=Path("nowhere"), manifest=TASK.manifest, inferred=False)


def blended(*parts: tuple[int, bytes], method: str, targets: tuple[str, ...] = TARGETS) -> str:
    return combine([content for _, content in parts], [weight for weight, _ in parts], IDS, targets, method)


def test_a_mean_is_weighted_and_keeps_the_first_ones_rows() -> None:
    first, second = b"id,y\n7,1\n5,3\n", b"id,y\n5,6\n7,4\n"
    assert blended((2, first), (1, second), method="mean") == "id,y\n7,2.0\n5,4.0\n"


def test_rows_are_found_whatever_spelling_their_ids_and_columns_have() -> None:
    first = b"id,y\n7,1\n5,3\n"
    second = "\ufeffY , extra, ID\r\n6,x,5.0\r\n\r\n4,x, 7.0\r\n".encode()
    assert blended((1, first), (1, second), method="mean") == "id,y\n7,2.5\n5,4.5\n"
    assert blended((1, first), (1, "id,y\n7,3\n5,3\n".encode("utf-16")), method="mean") == "id,y\n7,2.0\n5,3.0\n"


def test_a_mean_of_ranks_sees_only_the_order() -> None:
    # ranks of 1, 5, 5, 1000 are 1, 2.5, 2.5, 4; of 0.4, 0.3, 0.2, 0.1 they are 4, 3, 2, 1; each divided by 4
    first, second = b"id,y\n1,1\n2,5\n3,5\n4,1000\n", b"id,y\n1,0.4\n2,0.3\n3,0.2\n4,0.1\n"
    lines = blended((1, first), (1, second), method="rank").splitlines()
    assert lines == ["id,y", "1,0.625", "2,0.6875", "3,0.5625", "4,0.625"]


def test_a_vote_goes_by_weight_and_a_tie_to_the_first() -> None:
    first, second, third = b"id,y\n1,cat\n2,1\n3,a\n", b"id,y\n1,dog\n2,0\n3,b\n", b"id,y\n1,dog\n2,1.0\n3,b\n"
    votes = blended((3, first), (1, second), (2, third), method="vote")
    assert votes == "id,y\n1,cat\n2,1\n3,a\n"
    assert blended((1, first), (1, second), (1, third), method="vote") == "id,y\n1,dog\n2,1\n3,b\n"


def test_each_column_is_combined_by_what_it_holds_where_nothing_is_known() -> None:
    first, second = b"id,y,z\n1,1,0.5\n", b"id,y,z\n1,2,1\n"
    assert blended((1, first), (2, second), method="auto", targets=("y", "z")) == "id,y,z\n1,2,0.8333333333333334\n"


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(0, 1)), min_size=1, max_size=6))
def test_a_mean_of_probabilities_is_a_probability(parts: list[tuple[int, float]]) -> None:
    text = blended(*((weight, f"id,y\n1,{value!r}\n".encode()) for weight, value in parts), method="mean")
    assert 0.0 <= float(text.splitlines()[1].split(",")[1]) <= 1.0


class Table:
    """Scores blends of predictions of one number by how near to a wanted one they come; remembers what was asked."""

    def __init__(self, predictions: list[float], wanted: float) -> None:
        self.predictions, self.wanted = predictions, wanted
        self.asked: list[Counts] = []

    def utility(self, counts: Counts) -> float:
        mean = sum(count * each for count, each in zip(counts, self.predictions, strict=True)) / sum(counts)
        return -abs(mean - self.wanted)

    async def score(self, counts: Counts) -> float | None:
        self.asked.append(counts)
        return self.utility(counts)

    async def fit(self, *, jobs: int = 100, seconds: list[float] | None = None, limit: float = 100.0):
        first = self.utility((1, *(0 for _ in self.predictions[1:])))
        times = seconds or [1.0 for _ in self.predictions]
        return await fit_counts(first, times, self.score, jobs=jobs, limit_seconds=limit)


async def test_selection_takes_with_replacement_what_improves_most() -> None:
    # 0 alone is 1 away from 1; with 3 it is 1.5; (1, 1) is 0.5 away, (2, 1) is exact
    found = await Table([0.0, 3.0, -9.0], 1.0).fit()
    assert found.counts == (2, 1, 0)
    assert found.utility == 0.0


async def test_the_best_alone_stays_when_no_blend_is_better() -> None:
    table = Table([1.0, 2.0, 3.0], 1.0)
    found = await table.fit()
    assert (found.counts, found.jobs) == ((1, 0, 0), 7)
    assert table.asked == [(1, 1, 0), (1, 0, 1), (1, 1, 1), (2, 1, 0), (2, 0, 1), (4, 1, 0), (4, 0, 1)]


async def test_a_submission_that_helps_with_little_weight_alone_is_found() -> None:
    # 0 is 1 away from 1, and so is (0 + 4) / 2; a third of 4 is 1/3 away, a quarter is exact
    found = await Table([0.0, 4.0], 1.0).fit()
    assert (found.counts, found.utility) == ((3, 1), 0.0)


async def test_three_that_vote_may_win_where_no_two_do() -> None:
    async def wins_together(counts: Counts) -> float:
        return float(counts[:3] == (1, 1, 1))

    assert (await fit_counts(0.5, [1, 1, 1, 1], wins_together, jobs=9, limit_seconds=9)).counts == (1, 1, 1, 0)


async def test_no_more_blends_are_scored_than_allowed() -> None:
    table = Table([0.0, 3.0, 3.1, 3.2], 1.0)
    found = await table.fit(jobs=5)
    assert found.jobs == len(table.asked) == 5


async def test_a_part_that_takes_too_long_is_left_out() -> None:
    table = Table([0.0, 2.0, 5.0], 1.0)
    found = await table.fit(seconds=[4.0, 7.0, 6.0], limit=10.0)
    assert found.counts[1] == 0
    assert all(counts[1] == 0 for counts in table.asked)


async def test_a_blend_that_fails_is_no_blend() -> None:
    async def fails(counts: Counts) -> None:
        await asyncio.sleep(0)

    assert (await fit_counts(0.5, [1, 1], fails, jobs=9, limit_seconds=9)).counts == (1, 0)


def with_metric(package: TaskPackage, **changes: object) -> TaskPackage:
    metric = Metric.model_validate({"name": "rmse", "higher_is_better": True, **changes})
    return dataclasses.replace(package, manifest=package.manifest.model_copy(update={"metric": metric}))


def test_the_method_follows_from_the_metric(tmp_path: Path) -> None:
    package = write_toy_package(tmp_path / "toy")
    assert blend_method(package) == "mean"
    assert blend_method(with_metric(package, prediction="label")) == "vote"
    ranking = with_metric(package, name="auc", prediction="probability")
    assert blend_method(ranking) == "rank"
    columns = Columns(id=("id",), target=("a", "b"))
    several = dataclasses.replace(ranking, manifest=ranking.manifest.model_copy(update={"columns": columns}))
    assert blend_method(several) == "mean"
    assert blend_method(dataclasses.replace(package, inferred=True)) == "auto"


def run_program(source: str, folder: Path, package: TaskPackage) -> subprocess.CompletedProcess[str]:
    """Runs one of our own programs as anybody would."""
    folder.mkdir()
    (folder / "program.py").write_text(source)
    environment = os.environ | {"DATA_DIR": str(package.public_dir)}
    command = [sys.executable, "-I", "program.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def predictions(folder: Path) -> dict[str, float]:
    rows = (folder / "submission.csv").read_text().splitlines()[1:]
    return {row.split(",")[0]: float(row.split(",")[1]) for row in rows}


def test_a_stored_blend_writes_the_blend_of_what_it_holds(tmp_path: Path) -> None:
    package = write_toy_package(tmp_path / "toy")
    source = stored_blend([b"id,y\n1,0\n", b"id,y\n1,99\n", b"id,y\n1,3\n"], (2, 0, 1), package)
    assert run_program(source, tmp_path / "at", package).returncode == 0
    assert predictions(tmp_path / "at") == {"1": 1.0}


def test_a_blend_runs_its_parts_and_combines_what_they_write(tmp_path: Path) -> None:
    package = write_toy_package(tmp_path / "toy")
    source = blend_program([GOOD, "raise SystemExit", WORSE], (1, 0, 2), package, limit_seconds=60.0)
    done = run_program(source, tmp_path / "at", package)
    assert (done.returncode, done.stdout) == (0, "")  # a part's own score is not taken for the blend's
    found = predictions(tmp_path / "at")
    assert found["100"] == pytest.approx(202.0)
    assert found["139"] == pytest.approx(280.0)


def test_a_part_that_fails_or_has_no_time_is_left_out_and_named(tmp_path: Path) -> None:
    package = write_toy_package(tmp_path / "toy")
    source = blend_program([GOOD, "print('why')\nraise KeyError('x')"], (1, 1), package, limit_seconds=60.0)
    done = run_program(source, tmp_path / "at", package)
    assert done.returncode == 0
    assert "part 1 is left out: exit code 1" in done.stdout
    assert "    why" in done.stdout
    assert predictions(tmp_path / "at")["100"] == pytest.approx(200.0)
    done = run_program(blend_program([GOOD], (1,), package, limit_seconds=0.0), tmp_path / "late", package)
    assert done.returncode != 0
    assert "no time is left" in done.stdout
    assert "no part wrote a submission" in done.stderr


@given(st.text(alphabet=st.characters(exclude_categories=()), min_size=1))
def test_a_blend_holds_the_very_text_of_its_parts(source: str) -> None:
    text = blend_program([source], (1,), PACKAGE, limit_seconds=1.0)
    assert held_parts(text) == {source: 1}
