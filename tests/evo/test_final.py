"""What a run submits: each strategy chooses on validation, keeps a record, and is found out where the record is wrong."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from evo.make import TASK, card, toy_manifest
from openmle_evo.audit import Finding, audit, write_bundle
from openmle_evo.candidates import FinalJobs, candidate_cards, judging_job
from openmle_evo.config import FinalConfig
from openmle_evo.final import grade_finally
from openmle_evo.final_choice import BLEND_FILE, Choice, choose_final
from openmle_evo.report import print_summary
from openmle_evo.run import RunDirectory, read_final
from openmle_gym.chat import Completion
from openmle_gym.errors import ConfigError, ExecutorUnavailable
from openmle_gym.evaluate import Attempt, JobSettings, evaluate_reply
from openmle_gym.execute import LocalExecutor
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.features import best_card
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.jobs import JobRequest, JobResult, Outcome
from openmle_gym.operators import Operator
from openmle_gym.submissions import SubmissionSource
from openmle_gym.task import TaskPackage
from rich.console import Console
from sandbox.make import HeldRunner, job_client, request, serving
from toy import CRASHES, GOOD, READ, reply, write_toy_package

ABOVE = READ + "write(lambda x: slope * x + 3)\n"
BELOW = READ + "write(lambda x: slope * x - 3.5)\n"
BLIND = READ + "write(lambda x: 300)\n"
NOWHERE = TaskPackage(root=Path("nowhere"), manifest=TASK.manifest, inferred=False)
SETTINGS = JobSettings(data_dir="toy", timeout_seconds=60)


class Scripted:
    """Gives each program its scores in turn, None for a failure; counts what it runs. `submissions` are by program."""

    def __init__(self, scores: dict[str, list[float | None]], submissions: dict[str, bytes] | None = None) -> None:
        self.scores = {source: iter(values) for source, values in scores.items()}
        self.submissions = submissions or {}
        self.jobs: list[JobRequest] = []
        self.fails_at: int | None = None

    async def run(self, job: JobRequest) -> JobResult:
        if len(self.jobs) == self.fails_at:
            self.fails_at = None
            raise ExecutorUnavailable("down")
        self.jobs.append(job)
        assert job.eval_split == "validation"
        score = next(self.scores[job.code])
        outcome = Outcome.TIMEOUT if score is None else Outcome.SUCCESS
        return JobResult(outcome=outcome, validation_score=score, higher_is_better=True)

    async def submission(self, job: JobRequest) -> bytes | None:
        return self.submissions.get(job.code)


def open_run(folder: Path, final: FinalConfig, *, task: str = "toy") -> RunDirectory:
    manifest = toy_manifest(
        task=task, settings={"task": task, "final": {"strategy": final.strategy, "programs": final.programs}}
    )
    return RunDirectory.create(folder, manifest)


async def choose(
    run: RunDirectory, cards: Sequence[ExperienceCard], final: FinalConfig, executor: SubmissionSource
) -> Choice:
    best = best_card(cards)
    assert best
    return await choose_final(
        cards, best, final, jobs=FinalJobs(executor=executor, settings=SETTINGS, run=run), package=NOWHERE
    )


CARDS = [
    card(0, 0.9, source="a"),
    card(1, 0.8, source="b"),
    card(2, 0.9, source="a"),
    card(3),
    card(4, 0.7, source="c"),
]
TOP_TWO = FinalConfig(strategy="top_k", programs=2, repeats=3)


def test_candidates_are_the_best_programs_each_once() -> None:
    assert [each.attempt for each in candidate_cards(CARDS, 2)] == [0, 1]


async def test_top_k_submits_the_best_mean_and_keeps_first_mean_and_best(tmp_path: Path) -> None:
    executor = Scripted({"a": [0.5, 0.7, 0.6], "b": [0.8, 0.6, 0.85]})
    choice = await choose(open_run(tmp_path / "run", TOP_TWO), CARDS, TOP_TWO, executor)
    assert choice.card.attempt == 1
    first, second = choice.considered
    assert (first.first.value, first.best.value) == (0.9, 0.9)
    assert (second.first.value, second.best.value) == (0.8, 0.85)
    assert first.mean
    assert first.mean.value == pytest.approx(0.6)
    assert second.mean
    assert second.mean.value == pytest.approx(0.75)
    assert len({job.idempotency_key for job in executor.jobs}) == 6


async def test_a_program_that_fails_once_has_no_mean_and_loses(tmp_path: Path) -> None:
    executor = Scripted({"a": [0.9, None, 0.9], "b": [0.1, 0.1, 0.1]})
    choice = await choose(open_run(tmp_path / "run", TOP_TWO), CARDS, TOP_TWO, executor)
    assert choice.card.attempt == 1
    assert choice.considered[0].mean is None
    assert [each and each.value for each in choice.considered[0].repeats] == [0.9, None, 0.9]


async def test_when_all_fail_again_the_best_of_the_search_is_submitted(tmp_path: Path) -> None:
    executor = Scripted({"a": [None] * 3, "b": [None] * 3})
    assert (await choose(open_run(tmp_path / "run", TOP_TWO), CARDS, TOP_TWO, executor)).card.attempt == 0


async def test_a_choice_that_broke_off_repeats_nothing(tmp_path: Path) -> None:
    executor = Scripted({"a": [0.5] * 3, "b": [0.6] * 3})
    executor.fails_at = 4
    run = open_run(tmp_path / "run", TOP_TWO)
    with pytest.raises(ExecutorUnavailable):
        await choose(run, CARDS, TOP_TWO, executor)
    assert (await choose(run, CARDS, TOP_TWO, executor)).card.attempt == 1
    assert max(Counter(job.idempotency_key for job in executor.jobs).values()) == 1
    assert len(executor.jobs) == 6


async def test_without_two_submissions_there_is_no_blend(tmp_path: Path) -> None:
    final = FinalConfig(strategy="blend")
    executor = Scripted({}, {"a": b"id,y\n1,1\n"})
    choice = await choose(open_run(tmp_path / "run", final), CARDS, final, executor)
    assert (choice.card.attempt, choice.card.source) == (0, "a")
    assert choice.blend
    assert (choice.blend.chosen, choice.blend.jobs) == (False, 0)


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"final\.strategy"):
        FinalConfig(strategy="luck")


async def test_a_cards_job_is_the_job_that_judged_it() -> None:
    class Records(Scripted):
        async def run(self, job: JobRequest) -> JobResult:
            self.jobs.append(job)
            return JobResult(outcome=Outcome.SUCCESS, validation_score=0.5, higher_is_better=True)

    executor = Records({})
    made = await judged(executor, 7, GOOD)
    assert executor.jobs == [judging_job(made, SETTINGS)]
    # also where the budget left the program less time than the run's limit
    assert executor.jobs == [
        judging_job(made, dataclasses.replace(SETTINGS, timeout_seconds=SETTINGS.timeout_seconds + 1))
    ]


async def judged(executor: SubmissionSource, number: int, source: str) -> ExperienceCard:
    attempt = Attempt(
        run_id="run",
        task="toy",
        attempt=number,
        operator=Operator.DRAFT,
        parents=(),
        selection=Selection(reason="test"),
    )
    return await evaluate_reply(
        Completion(text=reply(source), model="m"), attempt, executor=executor, settings=SETTINGS
    )


async def test_a_service_hands_out_a_submission_without_running_the_job_again(tmp_path: Path) -> None:
    runner = HeldRunner()
    runner.files = {"submission.csv": b"id,target\n0,1\n"}
    async with serving(tmp_path, runner) as app, job_client(app) as client:
        job = request("a program", idempotency_key="k")
        await client.run(job)
        assert await client.submission(job) == b"id,target\n0,1\n"
        assert runner.started == ["a program"]
        runner.files = {}
        assert await client.submission(request("another", idempotency_key="l")) is None


def local(folder: Path) -> LocalExecutor:
    return LocalExecutor(task_root=folder, runner=ProcessRunner(allow_no_isolation=True), parallel=2)


async def finished_run(folder: Path, final: FinalConfig, sources: Sequence[str]) -> Path:
    """A run whose programs are really judged, chosen from and graded."""
    package = write_toy_package(folder / "toy")
    executor = local(folder)
    run = open_run(folder / "run", final)
    for number, source in enumerate(sources):
        run.judged(await judged(executor, number, source))
    cards = run.cards()
    best = best_card(cards)
    assert best
    jobs = FinalJobs(executor=executor, settings=SETTINGS, run=run)
    choice = await choose_final(cards, best, final, jobs=jobs, package=package)
    report = await grade_finally(choice.card, package, cards=len(cards), grader=executor, settings=SETTINGS)
    run.write_final(report.model_copy(update=choice.record()))
    run.close()
    return run.path


def finding(run: Path) -> Finding:
    (found,) = [each for each in audit(run) if each.check == "final"]
    return found


async def test_a_blend_that_is_better_is_submitted_and_passes_the_audit(tmp_path: Path) -> None:
    # errors of +3 and -3.5: 7 of the one and 6 of the other would be exact; one of each is 0.25 off, and so greedy goes on
    run = await finished_run(tmp_path, FinalConfig(strategy="blend", blend_jobs=8), [CRASHES, BLIND, ABOVE, BELOW])
    final = read_final(run)
    assert final
    assert final.chosen_blend
    assert final.chosen_blend.fitted == final.chosen_blend.whole == final.validation
    assert final.validation.value <= 0.25 + 1e-9
    assert final.test
    assert final.test.value == pytest.approx(final.validation.value)
    assert {part.attempt for part in final.chosen_blend.parts} == {2, 3}
    assert final.chosen_blend.jobs <= 8
    assert finding(run).passed, finding(run).message

    with (tmp_path / "out.txt").open("w") as out:
        print_summary(run, Console(file=out, width=200))
    assert "by a blend of attempt 2 (" in (tmp_path / "out.txt").read_text()
    write_bundle(run, tmp_path / "bundle.tar")
    assert BLEND_FILE.encode() in (tmp_path / "bundle.tar").read_bytes()


async def test_the_audit_finds_a_blend_that_is_not_the_reports(tmp_path: Path) -> None:
    run = await finished_run(tmp_path, FinalConfig(strategy="blend", blend_jobs=3), [BLIND, ABOVE, BELOW])
    final = read_final(run)
    assert final
    assert final.chosen_blend
    assert finding(run).passed
    blend, honest = final.chosen_blend, (run / "final.json").read_text()
    heavier = blend.parts[0].model_copy(update={"weight": 0.9})
    lies = [
        {"blend": blend.model_copy(update={"parts": (heavier, *blend.parts[1:])})},
        {"blend": blend.model_copy(update={"chosen": False})},
        {"strategy": "best"},
        {"considered": final.considered[1:]},
        {"considered": (final.considered[0].model_copy(update={"first": final.validation}), *final.considered[1:])},
        {"validation": final.considered[0].first},
    ]
    for lie in lies:
        (run / "final.json").write_text(final.model_copy(update=lie).model_dump_json())
        assert not finding(run).passed, lie
    (run / "final.json").write_text(honest)
    (run / BLEND_FILE).write_text((run / BLEND_FILE).read_text() + "\n")
    assert not finding(run).passed


async def test_the_best_alone_is_submitted_where_no_blend_is_better(tmp_path: Path) -> None:
    run = await finished_run(tmp_path, FinalConfig(strategy="blend"), [ABOVE, GOOD])
    final = read_final(run)
    assert final
    assert (final.attempt, final.chosen_blend, final.validation.value) == (1, None, 0.0)
    assert not (run / BLEND_FILE).exists()
    assert finding(run).passed, finding(run).message


async def test_the_audit_follows_top_k(tmp_path: Path) -> None:
    run = await finished_run(tmp_path, FinalConfig(strategy="top_k", programs=2, repeats=1), [BLIND, ABOVE, BELOW])
    final = read_final(run)
    assert final
    assert final.attempt == 1
    assert finding(run).passed, finding(run).message
    better = final.considered[0].first.model_copy(update={"value": 9.0})
    lie = final.considered[0].model_copy(update={"repeats": (better,), "mean": better})
    (run / "final.json").write_text(
        final.model_copy(update={"considered": (lie, final.considered[1])}).model_dump_json()
    )
    assert not finding(run).passed
