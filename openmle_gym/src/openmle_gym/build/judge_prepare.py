"""Whether a prepare.py will do: it runs twice, and what it made is looked at before anybody may use it."""

import ast
import shutil
from pathlib import Path

import pandas as pd

from openmle_gym.build.attempts import Judgement
from openmle_gym.build.description import describe_package, with_description
from openmle_gym.build.drafts import Draft
from openmle_gym.build.run_prepare import Made, PrepareSettings, first_difference, run_prepare
from openmle_gym.build.spec import TaskSpec
from openmle_gym.build.split_advisor import SplitAdvice, check_split
from openmle_gym.build.state import fresh
from openmle_gym.check.finding import Finding
from openmle_gym.check.run import CHECKS
from openmle_gym.check.subject import load_subject
from openmle_gym.errors import PackageError
from openmle_gym.grading import hidden_answers
from openmle_gym.isolation.runner import Runner
from openmle_gym.submission import validate_submission
from openmle_gym.task import load_package

WANTED = ("public/train.csv", "public/test.csv", "public/sample_submission.csv", "private/test_answer.csv")
SYNTAX, FAILED, INCOMPLETE, UNSTABLE, FLAWED, GOOD = 1.0, 2.0, 3.0, 4.0, 5.0, 10.0
"""How far a program came."""
_LISTED = 40
_NOT_OURS = frozenset(["licence_missing", "source_missing", "mle_bench_slug", "benchmark_content", "few_rows"])
"""What no prepare.py can help."""


async def judge_prepare(
    source: str, draft: Draft, *, raw: Path, runner: Runner, settings: PrepareSettings, scratch: Path
) -> Judgement:
    """Runs and examines a prepare.py; where it is accepted, `draft.data` holds what it made, the description with it.

    Raises:
        RunnerUnavailable: It could not be started.
    """
    if problem := _reads(source):
        return Judgement(accepted=False, rank=SYNTAX, code="syntax_error", feedback=problem)
    folders = [scratch / "first", scratch / "second"]
    runs: list[Made] = []
    for number, folder in enumerate(folders, start=1):
        made = await run_prepare(source, raw, folder, runner=runner, settings=settings, hash_seed=number)
        if made.code:
            rank = FAILED if number == 1 else UNSTABLE
            again = "" if number == 1 else "The first run went well, the second did not.\n"
            return Judgement(accepted=False, rank=rank, code=made.code, feedback=again + made.feedback)
        runs.append(made)
        if missing := [name for name in WANTED if name not in made.hashes]:
            feedback = f"prepare() did not write {', '.join(missing)}.\n\n{_listing(made.hashes)}"
            return Judgement(accepted=False, rank=INCOMPLETE, code="missing_outputs", feedback=feedback)
    if difference := first_difference(folders[0], folders[1], runs[0].hashes, runs[1].hashes):
        return Judgement(accepted=False, rank=UNSTABLE, code="not_deterministic", feedback=difference)
    problems, notes = _examine(draft, folders[0], source)
    if problems:
        code = problems[0].partition(":")[0]
        feedback = "\n".join(f"- {problem}" for problem in problems)
        feedback = f"It ran, and what it made will not do:\n{feedback}\n\n{_listing(runs[0].hashes)}"
        rank = FLAWED + 1 / (1 + len(problems))
        return Judgement(accepted=False, rank=rank, code=code, feedback=feedback, notes=tuple(notes))
    fresh(draft.data)
    draft.data.rmdir()
    shutil.move(folders[0], draft.data)
    return Judgement(accepted=True, rank=GOOD, notes=tuple(notes))


def _reads(source: str) -> str:
    """Why the source cannot be run at all; empty where it can."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        return f"prepare.py is not valid Python: {error}"
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return "" if "prepare" in names else "prepare.py defines no function prepare(raw, public, private)."


def _listing(hashes: dict[str, str]) -> str:
    names = sorted(hashes)
    more = f"\nand {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return "The files that it made:\n```\n" + "\n".join(names[:_LISTED]) + more + "\n```"


def _examine(draft: Draft, made: Path, source: str) -> tuple[list[str], list[str]]:
    """What is wrong with a package of these files, and what is worth knowing."""
    problems = _header_problems(draft.spec, made)
    if problems:
        return problems, []
    public = made / "public"
    description = describe_package(draft.spec, public)
    (public / "description.txt").write_text(description, encoding="utf-8")
    trial = Draft(
        spec=draft.spec,
        advice=draft.advice,
        source=draft.source,
        about=draft.about,
        data=made,
        prepare=with_description(source, description),
    )
    root = trial.write(made.parent / "package" / draft.spec.name)
    try:
        subject = load_subject(root)
        if subject.package is None:
            return [f"not_a_package: {subject.refusal}"], []
        problems += sample_problems(root)
        findings = [finding for check in CHECKS if not check.runs_metric for finding in check.look(subject)]
    except PackageError as error:
        return [f"answers_unusable: {error}"], []
    finally:
        shutil.rmtree(made.parent / "package")
    problems += [_said(finding) for finding in findings if _rules_out(finding, draft.advice)]
    if problem := _split_problem(draft.advice, public):
        problems.append(f"split: {problem}")
    notes = [_said(finding) for finding in findings if finding.severity == "warning" and finding.id not in _NOT_OURS]
    return list(dict.fromkeys(problems)), notes


def _rules_out(finding: Finding, advice: SplitAdvice) -> bool:
    if finding.id in _NOT_OURS:
        return False
    by_design = {"group_leakage": advice.strategy == "grouped", "time_leakage": advice.strategy == "time"}
    return finding.severity == "error" or by_design.get(finding.id, False)


def _said(finding: Finding) -> str:
    return f"{finding.id}: {finding.message}"


def _header_problems(spec: TaskSpec, made: Path) -> list[str]:
    """The two tables of predictions have exactly the columns that were agreed on, and train has the targets."""
    problems = []
    headers = {}
    for name in WANTED:
        try:
            frame = pd.read_csv(made / name, dtype=str, nrows=0, encoding="utf-8")
        except (ValueError, UnicodeDecodeError) as error:
            problems.append(f"unreadable: {name} cannot be read as CSV in UTF-8: {error}")
            continue
        headers[name] = [str(column) for column in frame.columns]
    for name in WANTED[2:]:
        if name in headers and headers[name] != list(spec.header):
            problems.append(f"wrong_header: {name} has the header {headers[name]}, not {list(spec.header)}")
    for name in WANTED[:2]:
        missing = [column for column in spec.id if column not in headers.get(name, spec.id)]
        if missing:
            problems.append(f"wrong_header: {name} has no id column {missing[0]!r}")
    missing = [column for column in spec.target if column not in headers.get(WANTED[0], spec.target)]
    if missing:
        problems.append(f"wrong_header: {WANTED[0]} has no target column {missing[0]!r}")
    return problems


def sample_problems(root: Path) -> list[str]:
    """Whether grading would take the sample submission."""
    package = load_package(root)
    content = (package.public_dir / "sample_submission.csv").read_bytes()
    verdict = validate_submission(content, key=hidden_answers(package).key)
    return [] if verdict.accepted else [f"sample_submission_refused: {verdict.code}: {verdict.message}"]


def _split_problem(advice: SplitAdvice, public: Path) -> str:
    if advice.strategy not in ("grouped", "time"):
        return ""
    tables = [pd.read_csv(public / name, dtype=str, keep_default_na=False) for name in ("train.csv", "test.csv")]
    return check_split(advice, *tables)
