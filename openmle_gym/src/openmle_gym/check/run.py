"""All checks of a task package, in one list, and the road through them."""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from openmle_gym.check import description, layout, leakage, media, metric_probes, overlap, submission_probes
from openmle_gym.check.finding import Finding, Report
from openmle_gym.check.metric_probes import probe_metric
from openmle_gym.check.probe_result import ProbeResult
from openmle_gym.check.subject import Subject, load_subject
from openmle_gym.errors import PackageError
from openmle_gym.isolation.runner import Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A function that looks at a package, and the ids of what it may find."""

    look: Callable[[Subject], Iterable[Finding]]
    ids: tuple[str, ...]
    """`<file>` stands for a table's name, `<n>` for a number."""
    runs_metric: bool = False


CHECKS: tuple[Check, ...] = (
    Check(
        look=layout.files,
        ids=("missing_required_files", "missing_train_csv", "missing_test_csv", "task_process_failed"),
    ),
    Check(
        look=layout.structure,
        ids=(
            *("structure_error_<n>", "empty_<file>", "missing_header_<file>"),
            *("duplicate_columns_<file>", "row_width_<file>", "loose_quote_<file>"),
        ),
    ),
    Check(
        look=layout.rows_and_ids,
        ids=(
            *("row_count_mismatch_sample_submission_csv", "row_count_mismatch_test_answer_csv"),
            *("duplicate_submission_identifiers", "test_submission_identifier_mismatch"),
            *("duplicate_test_identifiers", "target_columns_in_test"),
        ),
    ),
    Check(look=layout.metric_reads_all_rows, ids=("metric_submission_row_mismatch", "metric_answer_row_mismatch")),
    Check(look=layout.sizes, ids=("few_rows", "submission_too_large", "package_too_large")),
    Check(look=layout.links, ids=("symlink_in_public",)),
    Check(look=layout.hashes, ids=("file_hash_mismatch",)),
    Check(look=layout.provenance, ids=("licence_missing", "source_missing")),
    Check(look=description.files_exist, ids=("description_names_missing_file",)),
    Check(look=description.keeps_secrets, ids=("description_mentions_private",)),
    Check(look=description.says_enough, ids=("description_short", "description_omits_target")),
    Check(look=leakage.answers_in_public, ids=("answers_in_public",)),
    Check(look=leakage.columns_that_tell, ids=("column_equals_target", "column_predicts_target")),
    Check(look=leakage.shared_rows, ids=("train_test_duplicates", "train_test_near_duplicates")),
    Check(look=leakage.groups, ids=("group_leakage",)),
    Check(look=leakage.time, ids=("time_leakage",)),
    Check(look=leakage.labels, ids=("single_valued_target", "labels_not_in_train", "label_distribution")),
    Check(look=media.census, ids=("media_folder_empty", "media_missing")),
    Check(look=media.coverage, ids=("media_missing", "media_unreferenced")),
    Check(look=media.strangers, ids=("media_train_test_duplicates",)),
    Check(look=overlap.by_name, ids=("mle_bench_slug",)),
    Check(look=overlap.by_content, ids=("benchmark_content",)),
    Check(look=submission_probes.sample_is_not_the_answers, ids=("sample_equals_answers",)),
    Check(look=submission_probes.sample_is_valid, ids=("sample_submission_refused",), runs_metric=True),
    Check(
        look=submission_probes.wrong_is_refused,
        ids=tuple(id for id, _ in submission_probes.WRONG.values()),
        runs_metric=True,
    ),
    Check(
        look=metric_probes.executes,
        ids=("metric_execution_failed", "metric_score_not_finite", "task_process_failed"),
        runs_metric=True,
    ),
    Check(
        look=metric_probes.ranks,
        ids=(
            *("metric_constant", "direction_disagrees", "perfect_not_best"),
            *("shuffled_not_worse", "metric_direction_blind"),
        ),
        runs_metric=True,
    ),
    Check(look=metric_probes.bounds, ids=("score_out_of_bounds", "perfect_short_of_bound"), runs_metric=True),
    Check(
        look=metric_probes.order,
        ids=("metric_depends_on_row_order", "metric_depends_on_column_order"),
        runs_metric=True,
    ),
    Check(look=metric_probes.determinism, ids=("metric_not_deterministic",), runs_metric=True),
)


async def check_package(root: Path, *, runner: Runner, against: Sequence[Path] = ()) -> Report:
    """Checks a task package; its metric runs isolated, and nothing else of it runs.

    Args:
        root: The package's folder.
        runner: What holds the metric.
        against: Folders of benchmarks, such as MLE-Bench's prepared data, that the package must share nothing with.

    Raises:
        RunnerUnavailable: The metric could not be started.
    """
    subject = await asyncio.to_thread(load_subject, root, tuple(against))
    not_run = subject.refusal
    if subject.package is not None:
        try:
            subject.probes = await probe_metric(subject, runner)
        except PackageError as error:
            not_run = str(error)
            subject.probes = ProbeResult(process_failure=not_run)
    findings = await asyncio.to_thread(lambda: [finding for check in CHECKS for finding in check.look(subject)])
    checked = {id for check in CHECKS for id in check.ids}
    not_checked = {id for check in CHECKS if check.runs_metric and not_run for id in check.ids} - {
        "task_process_failed"
    }
    return Report(
        package=subject.package.name if subject.package else subject.root.name,
        findings=tuple(findings),
        checked=tuple(sorted(checked - not_checked)),
        not_checked=dict.fromkeys(sorted(not_checked), not_run),
    )


def registered_ids() -> list[str]:
    """The ids of all checks, as `docs/checks.md` lists them."""
    return sorted({id for check in CHECKS for id in check.ids})


def registered(id: str) -> str | None:
    """The id of the registry that a finding's id is one of, such as `row_width_<file>` for `row_width_train_csv`."""
    for pattern in registered_ids():
        if re.fullmatch(re.escape(pattern).replace("<file>", r"\w+_csv").replace("<n>", r"\d+"), id):
            return pattern
    return None
