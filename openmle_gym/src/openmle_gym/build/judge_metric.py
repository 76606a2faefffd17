"""Whether a metric.py will do: it runs isolated on submissions whose worth is known, and beside the library's metric.

The probes are those of `openmle-gym check`. What a metric that somebody else wrote may leave to grading's own
validation, a metric that is being written has to do itself: it refuses missing predictions and wrong rows.
"""

import ast
import math
import shutil
from dataclasses import replace
from pathlib import Path

from openmle_gym.build.attempts import Judgement
from openmle_gym.build.drafts import Draft
from openmle_gym.build.run_prepare import last_error, output_tail
from openmle_gym.check.finding import Finding
from openmle_gym.check.metric_probes import probe_metric
from openmle_gym.check.probe_result import ProbeResult
from openmle_gym.check.run import CHECKS
from openmle_gym.check.subject import load_subject
from openmle_gym.errors import PackageError
from openmle_gym.isolation.runner import Isolation, Runner, RunResult, RunSpec
from openmle_gym.manifest import Columns
from openmle_gym.metrics import METRICS, render_metric_module

SYNTAX, FAILED, FLAWED, GOOD = 1.0, 2.0, 5.0, 10.0
"""How far a metric came."""
_MUST_REFUSE = frozenset(
    ["metric_accepts_nan", "metric_accepts_duplicate_rows", "metric_accepts_missing_rows", "metric_accepts_extra_rows"]
)
_MUST_IGNORE = frozenset(["metric_depends_on_row_order", "metric_depends_on_column_order"])
_COMPARED = ("perfect", "constant", "shuffled_0", "shuffled_1", "sample")


class Overhearing:
    """A runner that remembers the last run's result: its output holds the tracebacks that the probes leave out."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.last: RunResult | None = None

    @property
    def isolation(self) -> Isolation:
        """See `Runner`."""
        return self._runner.isolation

    async def check(self) -> None:
        """See `Runner`."""
        await self._runner.check()

    async def run(self, spec: RunSpec) -> RunResult:
        """See `Runner`."""
        self.last = await self._runner.run(spec)
        return self.last


async def judge_metric(source: str, draft: Draft, *, runner: Runner, scratch: Path) -> Judgement:
    """Runs the probes on a draft of the package with this metric.

    Raises:
        RunnerUnavailable: The metric could not be started.
    """
    if problem := _reads(source):
        return Judgement(accepted=False, rank=SYNTAX, code="syntax_error", feedback=problem)
    overhearing = Overhearing(runner)
    root = replace(draft, metric=source).write(scratch / "package" / draft.spec.name)
    try:
        subject = load_subject(root)
        if subject.package is None:
            return Judgement(accepted=False, rank=SYNTAX, code="not_a_metric", feedback=subject.refusal)
        subject.probes = await probe_metric(subject, overhearing)
        findings = [finding for check in CHECKS if check.runs_metric for finding in check.look(subject)]
        compared = await _compare(source, subject.probes, draft, runner, scratch)
    except PackageError as error:
        return Judgement(accepted=False, rank=FAILED, code="answers_unusable", feedback=str(error))
    finally:
        shutil.rmtree(scratch / "package", ignore_errors=True)
    wrong = [finding for finding in findings if _rules_out(finding)]
    problems = [f"{finding.id}: {finding.message}" for finding in wrong] + ([compared] if compared else [])
    notes = tuple(f"{each.id}: {each.message}" for each in findings if each.severity == "warning" and each not in wrong)
    if not problems:
        return Judgement(accepted=True, rank=GOOD, notes=notes)
    failed = {finding.id for finding in wrong} & {"task_process_failed", "metric_execution_failed"}
    feedback = "The metric will not do:\n" + "\n".join(f"- {problem}" for problem in problems)
    if failed and overhearing.last is not None:
        feedback += f"\n\nThe last error: {last_error(overhearing.last.log.text)}\n{output_tail(overhearing.last)}"
    rank = FAILED if failed else FLAWED + 1 / (1 + len(problems))
    return Judgement(accepted=False, rank=rank, code=problems[0].partition(":")[0], feedback=feedback, notes=notes)


def _rules_out(finding: Finding) -> bool:
    return finding.severity == "error" or finding.id in _MUST_REFUSE | _MUST_IGNORE


def _reads(source: str) -> str:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        return f"metric.py is not valid Python: {error}"
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.endswith("Metrics")]
    if len(classes) != 1:
        return f"metric.py must define one class whose name ends in Metrics; it has {len(classes)}."
    methods = {node.name for node in classes[0].body if isinstance(node, ast.FunctionDef)}
    missing = [name for name in ("evaluate", "validate_submission") if name not in methods]
    return f"The class {classes[0].name} has no method {missing[0]}." if missing else ""


async def _compare(source: str, probes: ProbeResult, draft: Draft, runner: Runner, scratch: Path) -> str:
    """Where the library has a metric of that name, both give the same scores; else what is wrong."""
    if draft.spec.metric not in METRICS or not probes.runs:
        return ""
    columns = Columns(id=draft.spec.id, target=draft.spec.target)
    ours = render_metric_module(METRICS[draft.spec.metric], columns)
    if source == ours:
        return ""
    subject = load_subject(replace(draft, metric=ours).write(scratch / "package" / draft.spec.name))
    known = await probe_metric(subject, runner)
    for name in _COMPARED:
        told, right = probes.score(name), known.score(name)
        if told is not None and right is not None and not math.isclose(told, right, rel_tol=1e-6, abs_tol=1e-9):
            return f"not_that_metric: the {name} submission scores {told:g}; {draft.spec.metric} of it is {right:g}"
    return ""
