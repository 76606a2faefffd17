"""Every check on a package that trips it; and the same package without that fault trips none."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from check_fixtures import (
    RMSE_BODY,
    answers_of,
    both,
    declare,
    edit_table,
    edit_text,
    metric,
    metric_body,
    new_column,
    read_table,
    write_binary,
    write_healthy,
    write_pictures,
    write_table,
    write_words,
)
from openmle_gym.check import Report, check_package
from openmle_gym.check.overlap import mle_bench_ids
from openmle_gym.check.run import CHECKS, registered, registered_ids
from openmle_gym.check.subject import load_subject
from openmle_gym.cli import main
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.manifest import Provenance

RUNNER = ProcessRunner(allow_no_isolation=True)
Edit = Callable[[Path], object]


def looked(root: Path) -> dict[str, str]:
    """Severities by id of what is found without running the metric."""
    subject = load_subject(root)
    return {finding.id: finding.severity for check in CHECKS for finding in check.look(subject)}


async def test_nothing_is_found_in_a_healthy_package(tmp_path: Path) -> None:
    report = await check_package(write_healthy(tmp_path / "houses"), runner=RUNNER)
    assert [finding.message for finding in report.findings] == []
    assert report.passed
    assert set(report.checked) == set(registered_ids())
    assert report.not_checked == {}
    assert Report.model_validate_json(report.model_dump_json()) == report


@pytest.mark.parametrize("write", [write_binary, write_pictures])
def test_nothing_is_found_in_healthy_packages_of_other_kinds(tmp_path: Path, write: Edit) -> None:
    write(tmp_path / "houses")
    assert looked(tmp_path / "houses") == {}


def remove(name: str) -> Edit:
    return lambda root: (root / name).unlink()


def without_last(rows: list[list[str]]) -> list[list[str]]:
    return rows[:-1]


def copy_answers(to: str) -> Edit:
    return lambda root: shutil.copy(root / "data/private/test_answer.csv", root / "data/public" / to)


def answers_with_more(root: Path) -> None:
    """The answers under other names, in another order, with another column."""
    rows = [[row[0], "x", row[1]] for row in read_table(root / "data/private/test_answer.csv")[1:]]
    write_table(root / "data/public/extra.csv", [["id", "note", "worth"], *rows[::-1]])


def sample_is_answers(root: Path) -> None:
    rows = read_table(root / "data/private/test_answer.csv")
    write_table(root / "data/public/sample_submission.csv", [rows[0], *([row[0], f" {row[1]}"] for row in rows[1:])])


def share_rows(root: Path, *, change: float = 0.0) -> None:
    """Every fifth row of test is a row of train, under its own id, give or take `change` in the area."""
    train, test = (read_table(root / f"data/public/{name}.csv") for name in ("train", "test"))
    answers = read_table(root / "data/private/test_answer.csv")
    for number in range(1, len(test), 5):
        _, area, town, built, price = train[number]
        test[number][1:] = [f"{float(area) + change:.3f}" if change else area, f"{town}{'!' if change else ''}", built]
        answers[number][1] = price
    write_table(root / "data/public/test.csv", test)
    write_table(root / "data/private/test_answer.csv", answers)


def scaled_answers(root: Path) -> None:
    edit_table("test_answer.csv", lambda rows: [rows[0], *([row[0], str(float(row[1]) * 3)] for row in rows[1:])])(root)


def ragged(rows: list[list[str]]) -> list[list[str]]:
    return [*rows[:3], rows[3][:-1], *rows[4:]]


def swallow_rows(text: str) -> str:
    """A quote opens the last cell of the row in line 9 and is not closed."""
    lines = text.splitlines()
    head, _, last = lines[8].rpartition(",")
    return "\n".join([*lines[:8], f'{head},"{last}', *lines[9:], ""])


def dated(row: list[str], _: str) -> str:
    return f"2020-{int(row[0]) % 12 + 1:02}-{int(row[0]) % 28 + 1:02}"


def broken_bytes(name: str) -> Edit:
    return lambda root: (root / name).write_bytes(b"id,price\n1,\xff\n")


def link(root: Path) -> None:
    (root / "data/public/more").symlink_to(root / "data/private")


def one_answer(rows: list[list[str]]) -> list[list[str]]:
    return [rows[0], *([row[0], "5"] for row in rows[1:])]


def rename(name: str) -> Edit:
    return lambda root: declare(root, name=name)


TRIPS: list[tuple[str, str, Edit]] = [
    ("missing_required_files", "error", remove("utils/prepare.py")),
    ("missing_required_files", "error", remove("data/private/test_answer.csv")),
    ("task_process_failed", "error", lambda root: (root / "task.toml").write_text("name = 1")),
    ("missing_train_csv", "error", remove("data/public/train.csv")),
    ("missing_test_csv", "error", remove("data/public/test.csv")),
    ("structure_error_1", "error", broken_bytes("data/public/train.csv")),
    ("structure_error_1", "error", edit_text("data/public/test.csv", lambda text: text.replace(",", ";"))),
    ("empty_train_csv", "error", edit_table("train.csv", lambda rows: rows[:1])),
    ("empty_test_answer_csv", "error", edit_table("test_answer.csv", lambda rows: rows[:1])),
    ("missing_header_train_csv", "error", lambda root: (root / "data/public/train.csv").write_text("")),
    ("duplicate_columns_test_csv", "error", edit_table("test.csv", lambda rows: [[*row, row[1]] for row in rows])),
    ("row_width_train_csv", "error", edit_table("train.csv", ragged)),
    ("loose_quote_train_csv", "warning", edit_text("data/public/train.csv", swallow_rows)),
    ("row_count_mismatch_sample_submission_csv", "error", edit_table("sample_submission.csv", without_last)),
    ("row_count_mismatch_test_answer_csv", "error", edit_table("test_answer.csv", without_last)),
    ("duplicate_submission_identifiers", "error", edit_table("sample_submission.csv", lambda rows: [*rows[:-1], rows[1]])),
    ("test_submission_identifier_mismatch", "error", edit_table("sample_submission.csv", lambda rows: [*rows[:-1], ["9", "1"]])),
    ("test_submission_identifier_mismatch", "warning", edit_table("sample_submission.csv", lambda rows: [rows[0], *rows[:0:-1]])),
    ("duplicate_test_identifiers", "error", edit_table("test.csv", lambda rows: [*rows[:-1], rows[1]])),
    ("target_columns_in_test", "error", edit_table("test.csv", lambda rows: [rows[0] + ["price"], *([*row, "1"] for row in rows[1:])])),
    ("metric_answer_row_mismatch", "error", edit_text("data/private/test_answer.csv", lambda text: text + ",\n")),
    ("metric_submission_row_mismatch", "error", edit_text("data/public/sample_submission.csv", lambda text: text + ",\n")),
    ("few_rows", "warning", edit_table("train.csv", lambda rows: rows[:40])),
    ("symlink_in_public", "error", link),
    ("file_hash_mismatch", "error", lambda root: declare(root, files={"data/public/train.csv": "0" * 64})),
    ("file_hash_mismatch", "error", lambda root: declare(root, files={"data/public/gone.csv": "0" * 64})),
    ("licence_missing", "warning", lambda root: declare(root, provenance=Provenance(source="made up"))),
    ("source_missing", "warning", lambda root: declare(root, provenance=Provenance(licence="CC0-1.0"))),
    ("description_names_missing_file", "error", edit_text("data/public/description.txt", lambda text: text + "See `towns.csv`.")),
    ("description_mentions_private", "error", edit_text("data/public/description.txt", lambda text: text + "Not test_answer.csv.")),
    ("description_short", "warning", edit_text("data/public/description.txt", lambda _: "Predict price.")),
    ("description_omits_target", "warning", edit_text("data/public/description.txt", lambda text: text.replace("price", "it"))),
    ("answers_in_public", "error", copy_answers("notes.dat")),
    ("answers_in_public", "error", answers_with_more),
    ("column_equals_target", "error", new_column("worth", lambda _, target: f"{target}0")),
    ("column_predicts_target", "error", new_column("tax", lambda _, target: str(float(target) ** 3))),
    ("column_predicts_target", "error", new_column("debt", lambda _, target: str(-float(target)))),
    ("train_test_duplicates", "error", share_rows),
    ("train_test_near_duplicates", "warning", lambda root: share_rows(root, change=0.001)),
    ("group_leakage", "warning", new_column("owner_id", lambda row, _: f"o{int(row[0]) % 50}")),
    ("time_leakage", "warning", new_column("sold", dated)),
    ("single_valued_target", "error", edit_table("test_answer.csv", one_answer)),
    ("label_distribution", "warning", scaled_answers),
    ("media_folder_empty", "error", lambda root: (root / "data/public/test").mkdir()),
    ("mle_bench_slug", "error", rename("ai4code")),
    ("mle_bench_slug", "error", rename("Leaf-Classification@2")),
    ("mle_bench_slug", "error", lambda root: declare(root, provenance=Provenance(source="https://www.kaggle.com/c/AI4Code", licence="x"))),
    ("sample_equals_answers", "error", sample_is_answers),
]  # fmt: skip


@pytest.mark.parametrize(("id", "severity", "edit"), TRIPS, ids=[f"{id}-{n}" for n, (id, _, _) in enumerate(TRIPS)])
def test_a_fault_is_found_by_its_name(tmp_path: Path, id: str, severity: str, edit: Edit) -> None:
    root = write_healthy(tmp_path / "houses")
    edit(root)
    found = looked(root)
    assert found.get(id) == severity, found
    assert all(registered(name) for name in found), found


BINARY_TRIPS: list[tuple[str, str, Edit]] = [
    ("column_predicts_target", "error", new_column("state", lambda _, target: {"yes": "A", "no": "B"}[target])),
    ("labels_not_in_train", "warning", edit_table("test_answer.csv", lambda rows: [*rows[:-1], [rows[-1][0], "maybe"]])),
    ("label_distribution", "warning", edit_table("test_answer.csv", lambda rows: [rows[0], *([row[0], "yes"] for row in rows[1:-1]), [rows[-1][0], "no"]])),
]  # fmt: skip


@pytest.mark.parametrize(("id", "severity", "edit"), BINARY_TRIPS)
def test_a_fault_of_a_classification_is_found(tmp_path: Path, id: str, severity: str, edit: Edit) -> None:
    edit(write_binary(tmp_path / "houses"))
    assert looked(tmp_path / "houses").get(id) == severity


PICTURE_TRIPS: list[tuple[str, str, Edit]] = [
    ("media_missing", "error", remove("data/public/test/250.png")),
    ("media_unreferenced", "warning", lambda root: (root / "data/public/test/999.png").write_bytes(b"?")),
    ("media_train_test_duplicates", "error", lambda root: (root / "data/public/test/250.png").write_bytes(b"picture 7")),
    ("answers_in_public", "error", copy_answers("train/labels.txt")),
]  # fmt: skip


@pytest.mark.parametrize(("id", "severity", "edit"), PICTURE_TRIPS)
def test_a_fault_of_media_is_found(tmp_path: Path, id: str, severity: str, edit: Edit) -> None:
    edit(write_pictures(tmp_path / "houses"))
    assert looked(tmp_path / "houses").get(id) == severity


def test_a_task_that_says_it_has_pictures_and_has_none_is_found(tmp_path: Path) -> None:
    root = write_healthy(tmp_path / "houses")
    declare(root, modality=("image",))
    for name in ("train", "test"):
        edit_table(f"{name}.csv", lambda rows: [[row[0], *row[4:]] for row in rows])(root)
    assert looked(root)["media_missing"] == "error"


def test_rows_in_the_order_of_time_and_groups_on_one_side_are_not_found(tmp_path: Path) -> None:
    root = write_healthy(tmp_path / "houses")
    new_column("sold", lambda row, _: f"20{int(row[0]) // 12 + 10:02}-{int(row[0]) % 12 + 1:02}-01")(root)
    assert "time_leakage" not in looked(root)
    other = write_healthy(tmp_path / "others")
    new_column("owner_id", lambda row, _: f"o{int(row[0]) // 4}")(other)
    assert looked(other).keys() <= {"group_leakage"} - {"group_leakage"}


def test_all_75_competitions_are_known_by_name() -> None:
    assert len(mle_bench_ids()) == 75
    assert {"ai4code", "whale-categorization-playground"} <= mle_bench_ids()


def test_a_file_and_rows_of_a_benchmark_are_found(tmp_path: Path) -> None:
    root, bench = write_healthy(tmp_path / "houses"), tmp_path / "bench" / "prepared"
    bench.mkdir(parents=True)

    def overlaps() -> list[str]:
        subject = load_subject(root, (tmp_path / "bench",))
        return [f.id for check in CHECKS for f in check.look(subject)]

    rows = read_table(root / "data/public/train.csv")
    write_table(
        bench / "all.csv", [[row[2], row[1], row[3]] for row in [rows[0], *(["1", "7", "x", "2"] for _ in rows)]]
    )
    assert overlaps() == []
    write_table(bench / "all.csv", [[row[2], row[1], f"n{n}", row[3]] for n, row in enumerate(rows)])
    edit_text(
        "data/../../bench/prepared/all.csv", lambda text: text.replace("town,area,n0,built", "town,area,key,built")
    )(root)
    assert overlaps() == ["benchmark_content"]
    shutil.copy(root / "data/public/test.csv", bench / "other.csv")
    (bench / "all.csv").unlink()
    assert overlaps() == ["benchmark_content"]


async def test_words_reach_a_metric_as_they_are_spelt(tmp_path: Path) -> None:
    """`NA` and `null` are words, and `1` is not `1.0`; an empty prediction is one too."""
    report = await check_package(write_words(tmp_path / "houses"), runner=RUNNER)
    assert report.ids() <= TRUSTS_ITS_CALLER, [finding.message for finding in report.findings]
    assert report.passed


TRUSTS_ITS_CALLER = {
    *("metric_depends_on_row_order", "metric_accepts_duplicate_rows", "metric_accepts_missing_rows"),
    "metric_accepts_extra_rows",
}
"""What is found in the fixture's hand-made metrics, which leave rows to grading."""


METRIC_TRIPS: list[tuple[set[str], Edit]] = [
    ({"metric_constant"}, metric_body("return 0.5")),
    ({"direction_disagrees"}, metric_body("return -float(np.mean((true - pred) ** 2))")),
    ({"direction_disagrees"}, both(metric(higher_is_better=True, theoretical_min=None), metric_body(RMSE_BODY))),
    ({"perfect_not_best"}, metric_body("return float(abs(np.std(pred) - 20))")),
    ({"metric_direction_blind"}, metric_body("return 1 - float(np.corrcoef(true, pred)[0, 1] ** 2) if np.std(pred) else 1.0")),
    ({"shuffled_not_worse"}, metric_body("return float(abs(np.sort(true) - np.sort(pred)).mean())")),
    ({"metric_execution_failed"}, metric_body("raise KeyError('Price')")),
    ({"metric_score_not_finite"}, metric_body("return float('nan')")),
    ({"task_process_failed"}, metric_body("import os; os._exit(3)")),
    ({"score_out_of_bounds"}, both(metric(theoretical_max=1.0), metric_body(RMSE_BODY))),
    ({"perfect_short_of_bound"}, metric_body(f"{RMSE_BODY[:-1]}) + 1.0")),
    ({"metric_depends_on_row_order"}, metric_body(RMSE_BODY)),
    ({"metric_depends_on_column_order"}, metric_body("pred = y_pred.iloc[:, 1].to_numpy(); " + RMSE_BODY)),
    ({"metric_not_deterministic"}, metric_body("return float(np.mean((true - pred) ** 2)) * (1 + np.random.random())")),
    ({"metric_not_deterministic"}, metric_body("return float(np.mean((true - pred) ** 2)) * (hash('a') % 1000 + 1)")),
    (
        {"metric_accepts_nan", "metric_accepts_duplicate_rows", "metric_accepts_missing_rows", "metric_accepts_extra_rows"},
        metric_body("joined = y_true.merge(y_pred, on='id'); return float((joined.price_x - joined.price_y).abs().mean())"),
    ),
    ({"sample_submission_refused"}, edit_table("sample_submission.csv", lambda rows: [*rows[:-1], [rows[-1][0], ""]])),
]  # fmt: skip


@pytest.mark.parametrize(("ids", "edit"), METRIC_TRIPS)
async def test_a_faulty_metric_is_found(tmp_path: Path, ids: set[str], edit: Edit) -> None:
    root = write_healthy(tmp_path / "houses")
    edit(root)
    report = await check_package(root, runner=RUNNER)
    assert ids <= report.ids(), [finding.message for finding in report.findings]
    assert all(registered(finding.id) for finding in report.findings)
    warned = {"perfect_short_of_bound"}
    if not any(id.startswith(("metric_accepts", "metric_depends")) or id in warned for id in ids):
        assert not report.passed


async def test_a_package_that_cannot_be_loaded_is_reported_and_its_metric_not_run(tmp_path: Path) -> None:
    root = write_healthy(tmp_path / "houses")
    (root / "task.toml").write_text("name = 1")
    report = await check_package(root, runner=RUNNER)
    assert "task_process_failed" in report.ids("error")
    assert "metric_constant" in report.not_checked
    assert "metric_constant" not in report.checked


def test_the_command_prints_the_report_and_exits_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_healthy(tmp_path / "houses")
    command = ["check", str(root), "--runner", "process", "--allow-process"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
    copy_answers("notes.csv")(root)
    assert answers_of(root)
    assert main(command) == 1
    captured = capsys.readouterr()
    assert [finding["id"] for finding in json.loads(captured.out)["findings"]] == ["answers_in_public"]
    assert "notes.csv" in captured.err


def test_the_page_on_checks_describes_every_check_and_no_other() -> None:
    page = (Path(__file__).parents[3] / "docs" / "checks.md").read_text(encoding="utf-8")
    described = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(described) == registered_ids()
