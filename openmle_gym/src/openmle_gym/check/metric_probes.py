"""Probes of the metric: it runs isolated, twice, on submissions whose worth is known, and its scores are compared."""

import asyncio
import math
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import JsonValue, ValidationError

from openmle_gym.check.finding import Finding, error, warning
from openmle_gym.check.probe_result import ProbeResult, ProbeRun
from openmle_gym.check.subject import Subject
from openmle_gym.errors import PackageError
from openmle_gym.grading import CHILD, answer_columns, hidden_answers, prediction_column
from openmle_gym.grading_tables import pack
from openmle_gym.isolation.runner import INPUTS, PYTHON, Runner, RunSpec
from openmle_gym.jobs import GRADING_LIMITS
from openmle_gym.submission import validate_submission

RESULT = "result.json"
RESULT_BYTES = 64 * 1024
PROBE = Path(__file__).with_name("probe_child.py")
SHUFFLED = ("shuffled_0", "shuffled_1", "shuffled_2")
HASH_SEEDS = ("1", "2")


async def probe_metric(subject: Subject, runner: Runner) -> ProbeResult:
    """Runs the metric on the probes' submissions.

    Raises:
        PackageError: The answers cannot be used.
        RunnerUnavailable: The metric could not be started.
    """
    package = subject.package
    assert package is not None
    hidden = await asyncio.to_thread(hidden_answers, package)
    manifest = package.manifest
    if len(package.answers) < 2:
        raise PackageError(f"{package.root}: the answers have {len(package.answers)} rows")
    sample = subject.path("sample_submission.csv").read_bytes()
    verdict = await asyncio.to_thread(validate_submission, sample, key=hidden.key)
    files = {
        "answers.npy": pack(
            await asyncio.to_thread(answer_columns, package),
            ids=list(manifest.columns.id),
            targets=list(manifest.columns.target),
            labels=[target.name for target in hidden.key.targets if not target.is_number],
        )
    }
    if verdict.aligned is not None:
        aligned = verdict.aligned
        columns = {target.name: prediction_column(target, aligned[target.name]) for target in hidden.key.targets}
        files["submission.npy"] = pack(columns)
    runs, failure = [], ""
    for seed in HASH_SEEDS:
        spec = RunSpec(
            argv=(PYTHON, f"{INPUTS}/{PROBE.name}", f"{INPUTS}/metric.py", RESULT),
            files=files,
            inputs={PROBE.name: PROBE, CHILD.name: CHILD, "metric.py": package.metric_path},
            environment={"PYTHONHASHSEED": seed},
            limits=GRADING_LIMITS,
            artifacts={RESULT: RESULT_BYTES},
            labels={"task": package.name, "step": "check"},
        )
        run = await runner.run(spec)
        try:
            runs.append(ProbeRun.model_validate_json(run.artifacts[RESULT].content or b""))
        except ValidationError:
            how = "out of time" if run.timed_out else f"exit code {run.exit_code}, signal {run.signal}"
            failure = f"{how}: {run.log.text.strip()[-300:]}"
            break
    return ProbeResult(
        runs=tuple(runs) if not failure else (),
        process_failure=failure,
        sample_code=verdict.code,
        sample_message=verdict.message,
    )


def probed(subject: Subject) -> ProbeResult | None:
    """The probes' result, where the metric was run to the end."""
    return subject.probes if subject.probes is not None and subject.probes.runs else None


def executes(subject: Subject) -> Iterator[Finding]:
    """The metric scores the answers themselves, and the sample submission, with finite numbers."""
    probes = subject.probes
    if probes is None:
        return
    if probes.process_failure:
        yield error("task_process_failed", f"the metric's process did not end well: {probes.process_failure}")
        return
    for name in ("perfect", "sample"):
        outcome = probes.runs[0].outcomes.get(name)
        if outcome is None or outcome.score is not None:
            continue
        id = "metric_score_not_finite" if outcome.not_finite is not None else "metric_execution_failed"
        yield error(id, f"the metric gives the {name} submission no score: {outcome.why}", submission=name)


def _utility(subject: Subject) -> Callable[[float], float]:
    assert subject.package is not None
    return (lambda score: score) if subject.package.manifest.metric.higher_is_better else (lambda score: -score)


def ranks(subject: Subject) -> Iterator[Finding]:
    """Perfect answers score best, shuffled ones worse, and the declared direction is the metric's."""
    probes = probed(subject)
    perfect = probes.score("perfect") if probes else None
    if probes is None or perfect is None or subject.package is None:
        return
    metric = subject.package.manifest.metric
    shuffled = [score for name in SHUFFLED if (score := probes.score(name)) is not None]
    others = {
        name: score
        for name in ("constant", "opposite", "sample", *SHUFFLED)
        if (score := probes.score(name)) is not None
    }
    if others and all(math.isclose(score, perfect, abs_tol=1e-12) for score in others.values()):
        yield error("metric_constant", f"every submission scores {perfect:g}", scores=dict(others))
        return
    utility = _utility(subject)
    attribute = probes.runs[0].higher_is_better
    if attribute is not None and attribute != metric.higher_is_better:
        yield error(
            "direction_disagrees",
            f"the manifest says higher_is_better = {metric.higher_is_better}, the metric's own attribute {attribute}",
        )
    if shuffled and all(utility(score) > utility(perfect) for score in shuffled):
        yield error(
            "direction_disagrees",
            f"shuffled answers score better ({shuffled[0]:g}) than perfect ones ({perfect:g}) in the declared direction",
            perfect=perfect,
            shuffled=list(shuffled),
        )
        return
    better = {name: score for name, score in others.items() if utility(score) > utility(perfect) + 1e-12}
    if better:
        yield error(
            "perfect_not_best",
            f"{next(iter(better))} submission scores better than perfect answers",
            perfect=perfect,
            **better,
        )
    if shuffled and not better and any(math.isclose(score, perfect, abs_tol=1e-12) for score in shuffled):
        yield error(
            "shuffled_not_worse",
            f"shuffled answers score {shuffled[0]:g}, like perfect ones",
            perfect=perfect,
            shuffled=list(shuffled),
        )
    opposite = probes.score("opposite")
    if opposite is not None and math.isclose(opposite, perfect, rel_tol=1e-9, abs_tol=1e-12):
        yield error(
            "metric_direction_blind",
            f"the opposite of the answers scores {opposite:g}, like the answers themselves",
            perfect=perfect,
            opposite=opposite,
        )


def bounds(subject: Subject) -> Iterator[Finding]:
    """Scores lie within the declared bounds, and perfect answers reach the good one."""
    probes = probed(subject)
    if probes is None or subject.package is None:
        return
    metric = subject.package.manifest.metric
    low = -math.inf if metric.theoretical_min is None else metric.theoretical_min
    high = math.inf if metric.theoretical_max is None else metric.theoretical_max
    scores = {name: outcome.score for name, outcome in probes.runs[0].outcomes.items() if outcome.score is not None}
    outside = {name: score for name, score in scores.items() if not low - 1e-9 <= score <= high + 1e-9}
    if outside:
        yield error("score_out_of_bounds", f"scores outside of the declared [{low:g}, {high:g}]", **outside)
    best, perfect = (high if metric.higher_is_better else low), probes.score("perfect")
    if perfect is not None and math.isfinite(best) and not math.isclose(perfect, best, abs_tol=1e-6):
        yield warning(
            "perfect_short_of_bound",
            f"perfect answers score {perfect:g}, the declared best is {best:g}",
            perfect=perfect,
        )


def order(subject: Subject) -> Iterator[Finding]:
    """The order of rows and of columns changes no score."""
    probes = probed(subject)
    if probes is None:
        return
    for what in ("rows", "columns"):
        for base, name in (("perfect", f"perfect_{what}_reversed"), ("shuffled_0", f"shuffled_{what}_reversed")):
            straight, turned = probes.score(base), probes.runs[0].outcomes.get(name)
            if straight is None or turned is None:
                continue
            if turned.score is None or not math.isclose(straight, turned.score, rel_tol=1e-9, abs_tol=1e-12):
                yield warning(
                    f"metric_depends_on_{what[:-1]}_order",
                    f"with its {what} reversed, a submission that scored {straight:g} gets "
                    f"{turned.why if turned.score is None else format(turned.score, 'g')}; grading aligns both",
                    straight=straight,
                    reversed=turned.score,
                )
                break


def determinism(subject: Subject) -> Iterator[Finding]:
    """The same submission gets the same score, in one process and in another."""
    probes = probed(subject)
    if probes is None:
        return
    first, second = (run.outcomes for run in probes.runs)
    unequal: dict[str, JsonValue] = {
        name: [first[name].score, second[name].score] for name in first if first[name] != second.get(name)
    }
    if first["shuffled_0"] != first["again"]:
        unequal["again"] = [first["shuffled_0"].score, first["again"].score]
    if unequal:
        name, scores = next(iter(unequal.items()))
        yield error("metric_not_deterministic", f"the {name} submission scored {scores}", **unequal)
