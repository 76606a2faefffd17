"""On which scores a run selects, where it ends, and that both can be seen and audited afterwards."""

import dataclasses
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
import toy
from evo.make import TASK, SeededPolicy, card, toy_manifest
from openmle_evo.audit import audit
from openmle_evo.config import BudgetConfig, FinalConfig, MixtureConfig, SearchConfig
from openmle_evo.final import grade_finally
from openmle_evo.launch import Place, create_run, run_to_end
from openmle_evo.protocols import TrustedClaim, final_package, seen
from openmle_evo.reading import read_exchanges, read_run
from openmle_evo.report.payload import page_payload
from openmle_evo.run import RunDirectory, read_final, read_run_manifest, settings_of
from openmle_evo.search import Search
from openmle_gym.chat import Completion, Message
from openmle_gym.errors import ConfigError, ModelUnavailable
from openmle_gym.evaluate import JobSettings
from openmle_gym.execute import LocalExecutor
from openmle_gym.experience import ExperienceCard
from openmle_gym.features import best_card
from openmle_gym.isolation.choose import strongest_runner
from openmle_gym.jobs import JobRequest, JobResult, Limits, Outcome
from openmle_gym.manifest import HiddenSplit, write_manifest
from openmle_gym.policies.settings import PolicyConfig
from openmle_gym.review import ReviewConfig
from openmle_gym.scores import Provenance, SelfReportedScore, ValidationScore
from openmle_gym.task import TaskPackage, load_package

CLAIM = SelfReportedScore(value=0.5, higher_is_better=True)


class Claims:
    """The better a program's printed score, the worse its measured one; crashed programs print the best of all."""

    def __init__(self) -> None:
        self.jobs: list[JobRequest] = []

    async def run(self, job: JobRequest) -> JobResult:
        self.jobs.append(job)
        rng = random.Random(job.code)
        claim, fails = rng.randrange(1000, 2000) + 0.125, rng.random() < 0.3
        measured = 9000.5 - claim
        if fails:
            return JobResult(
                outcome=Outcome.CODE_EXECUTION_ERROR,
                error_signature="KeyError@main",
                message="it failed",
                higher_is_better=False,
                self_reported_score=0.0,
            )
        tests = job.eval_split == "test"
        return JobResult(
            outcome=Outcome.SUCCESS,
            self_reported_score=claim,
            higher_is_better=False,
            validation_score=None if tests else measured,
            test_score=measured + 20_000 if tests else None,
        )

    async def submission(self, job: JobRequest) -> bytes | None:
        return None


def settings(protocol: str = "self_valid", **others: object) -> SearchConfig:
    return SearchConfig(
        task="toy",
        protocol=protocol,
        workers=3,
        budget=BudgetConfig(attempts=40),
        **others,  # pyright: ignore
    )


async def searched(
    path: Path, config: SearchConfig, policy: SeededPolicy | None = None
) -> tuple[ExperienceCard | None, list[ExperienceCard]]:
    manifest = toy_manifest(protocol=config.protocol, settings=dataclasses.asdict(config))
    run = RunDirectory.create(path, manifest)
    search = Search(
        run=run,
        task=TASK,
        policy=policy or SeededPolicy(),
        executor=Claims(),
        config=config,
        limits=Limits(),
        job=JobSettings(data_dir="toy", timeout_seconds=60),
    )
    best = await search.run_to_end()
    cards = run.cards()
    run.close()
    return best, cards


def failed(path: Path) -> list[str]:
    return [finding.check for finding in audit(path) if not finding.passed]


def change_card(path: Path, attempt: int, **changes: object) -> None:
    """Rewrites a card past the store's own guards."""
    with sqlite3.connect(path / "store.sqlite") as connection:
        connection.execute("DROP TRIGGER IF EXISTS cards_are_never_changed")
        (text,) = connection.execute("SELECT card FROM cards WHERE attempt = ?", (attempt,)).fetchone()
        changed = ExperienceCard.model_validate_json(text).model_copy(update=changes)
        connection.execute("UPDATE cards SET card = ? WHERE attempt = ?", (changed.model_dump_json(), attempt))


@pytest.mark.parametrize("protocol", ["holdout", "two_package"])
def test_measured_scores_are_seen_as_they_are(protocol: str) -> None:
    scored = card(0, 0.25)
    assert seen(scored, protocol) is scored


@pytest.mark.parametrize(
    ("changes", "score"),
    [
        ({"self_reported": CLAIM}, 0.5),
        ({"self_reported": None}, None),
        ({"self_reported": CLAIM, "outcome": Outcome.CODE_EXECUTION_ERROR, "validation": None}, None),
        ({"self_reported": CLAIM, "outcome": Outcome.SCORING_FAILED, "validation": None}, None),
        ({"self_reported": CLAIM, "outcome": Outcome.TIMEOUT, "validation": None}, None),
        (
            {
                "self_reported": CLAIM,
                "validation": None,
                "withheld": ValidationScore(value=0.25, higher_is_better=True),
            },
            None,
        ),
    ],
)
def test_self_valid_sees_the_printed_score_of_a_program_that_was_graded(changes: dict, score: float | None) -> None:
    made = seen(card(0, 0.25).model_copy(update=changes), "self_valid")
    assert (made.validation.value if made.validation else None) == score
    if made.validation is not None:
        assert isinstance(made.validation, TrustedClaim)
        assert made.validation.provenance is Provenance.SELF_REPORTED


async def test_self_valid_selects_by_printed_scores_and_stores_both_kinds_apart(tmp_path: Path) -> None:
    best, cards = await searched(tmp_path / "run", settings())
    assert best is not None
    scored = [each for each in cards if each.validation]
    assert {each.selection.provenance for each in cards} == {Provenance.SELF_REPORTED}
    assert all(type(each.validation) is ValidationScore and each.validation.value >= 7000 for each in scored)
    claims = {each.attempt: each.self_reported.value for each in scored if each.self_reported}
    assert claims[best.attempt] == min(claims.values())
    measured = best_card(cards)
    assert measured is not None
    assert measured.attempt != best.attempt
    assert (tmp_path / "run" / "best.py").read_text() == best.source
    assert failed(tmp_path / "run") == []


async def test_under_self_valid_no_prompt_shows_a_measured_score(tmp_path: Path) -> None:
    _, cards = await searched(tmp_path / "run", settings())
    shown = "\n".join(
        message.content for exchange in read_exchanges(tmp_path / "run").values() for message in exchange.messages
    )
    scored = [each for each in cards if each.validation and each.self_reported]
    assert not any(f"{each.validation.value:.6g}" in shown for each in scored if each.validation)
    assert any(f"{each.self_reported.value:.6g}" in shown for each in scored if each.self_reported)


async def test_holdout_selects_by_measured_scores_and_says_so(tmp_path: Path) -> None:
    best, cards = await searched(tmp_path / "run", settings("holdout"))
    assert best == best_card(cards)
    assert {each.selection.provenance for each in cards} == {Provenance.VALIDATION}
    assert failed(tmp_path / "run") == []


async def test_a_changed_printed_score_shows_in_the_decisions_that_it_led_to(tmp_path: Path) -> None:
    best, _ = await searched(tmp_path / "run", settings())
    assert best is not None
    change_card(tmp_path / "run", best.attempt, self_reported=SelfReportedScore(value=1e6, higher_is_better=False))
    assert failed(tmp_path / "run") == ["selection"]


async def test_a_decision_that_hides_its_protocol_is_found(tmp_path: Path) -> None:
    _, cards = await searched(tmp_path / "run", settings())
    hidden = cards[3].selection.model_copy(update={"provenance": Provenance.VALIDATION})
    change_card(tmp_path / "run", cards[3].attempt, selection=hidden)
    assert failed(tmp_path / "run") == ["selection", "protocol"]


async def test_a_manifest_that_hides_its_protocol_is_found(tmp_path: Path) -> None:
    await searched(tmp_path / "run", settings())
    path = tmp_path / "run" / "manifest.json"
    manifest = read_run_manifest(tmp_path / "run").model_copy(update={"protocol": "holdout"})
    path.write_text(manifest.model_dump_json())
    assert failed(tmp_path / "run") == ["protocol"]


async def test_the_report_ranks_by_what_was_selected_on_and_keeps_what_was_measured(tmp_path: Path) -> None:
    best, cards = await searched(tmp_path / "run", settings())
    assert best is not None
    page = page_payload(read_run(tmp_path / "run"))
    assert (page["manifest"]["protocol"], page["best"]) == ("self_valid", best.attempt)
    row = next(row for row in page["attempts"] if row["attempt"] == best.attempt)
    measured = next(each.validation for each in cards if each.attempt == best.attempt)
    assert measured is not None
    assert row["rank"] == 1
    assert row["measured"]["value"] == measured.value
    assert row["selection"]["provenance"] == "self_reported"


class Judge(SeededPolicy):
    """Writes programs, and judges every other one; to the others it gives no answer."""

    async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
        if "You check programs" not in messages[0].content:
            return await super().complete(messages, seed=seed)
        if sum(map(ord, messages[1].content)) % 2:
            raise ModelUnavailable("http://nowhere: away")
        return Completion(text='{"verdict": "honest", "line": null, "reason": "fine"}')


def judging(fail: str) -> SearchConfig:
    review = ReviewConfig(judge=True, fail=fail)
    return settings("holdout", review=review, policy=PolicyConfig(kind="openai"))


@pytest.mark.parametrize("fail", ["unknown", "fail_open", "fail_closed"])
async def test_programs_without_a_verdict_count_only_where_the_settings_say_so(tmp_path: Path, fail: str) -> None:
    _, cards = await searched(tmp_path / "run", judging(fail), Judge())
    unknown = [each for each in cards if each.review == "unknown"]
    assert {each.review for each in cards} == {"accepted", "unknown"}
    assert any(each.valid for each in unknown) == (fail == "fail_open")
    assert any(each.withheld for each in unknown) == (fail == "unknown")
    assert all(each.outcome is Outcome.REJECTED for each in unknown) == (fail == "fail_closed")
    asked = [call for call in read_run(tmp_path / "run").calls if call.purpose == "review"]
    assert len(asked) == len({each.program_id for each in cards if each.review == "accepted"}) + len(unknown)
    assert sum(call.failure is not None for call in asked) == len(unknown)
    assert failed(tmp_path / "run") == []


async def test_a_program_that_counts_without_a_verdict_is_found(tmp_path: Path) -> None:
    _, cards = await searched(tmp_path / "run", judging("unknown"), Judge())
    last = [each for each in cards if each.withheld][-1]
    change_card(tmp_path / "run", last.attempt, validation=last.withheld, withheld=None)
    assert "review" in failed(tmp_path / "run")


async def test_a_refused_program_with_a_score_is_found(tmp_path: Path) -> None:
    _, cards = await searched(tmp_path / "run", settings("holdout"))
    valid = [each for each in cards if each.valid][-1]
    change_card(tmp_path / "run", valid.attempt, review="refused")
    assert failed(tmp_path / "run") == ["review"]


def packages(folder: Path) -> tuple[TaskPackage, TaskPackage]:
    """One to search on, and an official one that is graded whole, with other rows."""
    search, final = toy.write_toy_package(folder / "one" / "search"), toy.write_toy_package(folder / "two" / "final")
    public, rows = final.root / "data" / "public", range(300, 330)
    (public / "train.csv").write_text("id,x,y\n" + "".join(f"{n},{n},{2 * n}\n" for n in range(1, 140)))
    (public / "test.csv").write_text("id,x\n" + "".join(f"{n},{n}\n" for n in rows))
    (public / "sample_submission.csv").write_text("id,y\n" + "".join(f"{n},0\n" for n in rows))
    (final.root / "data/private/test_answer.csv").write_text("id,y\n" + "".join(f"{n},{2 * n}\n" for n in rows))
    change_manifest(final, hidden_split=HiddenSplit(validation_fraction=0))
    return search, load_package(final.root)


def change_manifest(package: TaskPackage, **changes: object) -> None:
    write_manifest(package.manifest.model_copy(update=changes), package.root / "task.toml")


def test_two_packages_with_different_answers_are_recorded(tmp_path: Path) -> None:
    search, final = packages(tmp_path)
    record = final_package(search, final)
    assert (record.name, record.package) == ("toy", str(final.root))
    assert record.answers_sha256 != record.search_answers_sha256


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda search, final: (search, search), "is the package that is searched on"),
        (lambda search, final: (search, with_answers_of(search, final)), "has the same answers"),
        (lambda search, final: (search, showing(search, final, "test.csv", 7)), "7 of its hidden rows are in test.csv"),
        (
            lambda search, final: (showing(final, search, "train.csv", 3), final),
            "3 of its hidden rows are in train.csv",
        ),
        (lambda search, final: (search, halved(final)), "15 of its rows would be left out"),
        (lambda search, final: (search, measured_otherwise(final)), "its metric are"),
    ],
)
def test_a_final_package_that_would_prove_nothing_is_refused(tmp_path: Path, change, named: str) -> None:
    search, final = change(*packages(tmp_path))
    with pytest.raises(ConfigError, match=named):
        final_package(search, final)


def with_answers_of(one: TaskPackage, other: TaskPackage) -> TaskPackage:
    name = "data/private/test_answer.csv"
    (other.root / name).write_bytes((one.root / name).read_bytes())
    return load_package(other.root)


def showing(one: TaskPackage, other: TaskPackage, table: str, rows: int) -> TaskPackage:
    """The second package, whose table ends with hidden rows of the first."""
    hidden = (one.public_dir / "test.csv").read_text().splitlines()[1 : rows + 1]
    path = other.public_dir / table
    answer = ",0" if table == "train.csv" else ""
    path.write_text(path.read_text() + "".join(f"{line}{answer}\n" for line in hidden))
    return load_package(other.root)


def halved(package: TaskPackage) -> TaskPackage:
    change_manifest(package, hidden_split=HiddenSplit())
    return load_package(package.root)


def measured_otherwise(package: TaskPackage) -> TaskPackage:
    metric = package.manifest.metric.model_copy(update={"higher_is_better": True})
    change_manifest(package, metric=metric)
    return load_package(package.root)


async def test_a_two_package_run_ends_on_the_other_package(tmp_path: Path) -> None:
    search, final = packages(tmp_path)
    config = SearchConfig(
        task=str(search.root),
        protocol="two_package",
        final_task=str(final.root),
        final_data_dir="official/toy",
        run_dir=str(tmp_path / "run"),
        budget=BudgetConfig(attempts=8),
    )
    searcher, grader = Claims(), Claims()
    place = Place(searcher, grader, "none")
    run = await create_run(config, search, place)
    ended = await run_to_end(run, settings_of(run.manifest, run.path), search, place)
    run.close()
    assert ended.best is not None
    assert {(job.data_dir, job.eval_split) for job in searcher.jobs} == {(str(search.root), "validation")}
    assert {(job.data_dir, job.eval_split) for job in grader.jobs} == {("official/toy", "test")}
    manifest = read_run_manifest(tmp_path / "run")
    assert manifest.protocol == "two_package"
    assert manifest.final_package == final_package(search, final)
    assert failed(tmp_path / "run") == []


async def test_the_best_program_is_graded_also_after_an_error_that_nobody_expected(tmp_path: Path) -> None:
    class Breaks(Claims):
        async def run(self, job: JobRequest) -> JobResult:
            if len(self.jobs) == 6:
                raise RuntimeError("a fault of ours")
            return await super().run(job)

    search, _ = packages(tmp_path)
    config = SearchConfig(
        task=str(search.root), workers=1, run_dir=str(tmp_path / "run"), budget=BudgetConfig(attempts=12)
    )
    place = Place(Breaks(), Claims(), "none")
    run = await create_run(config, search, place)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await run_to_end(run, settings_of(run.manifest, run.path), search, place)
    run.close()
    assert read_final(tmp_path / "run") is not None


async def test_a_self_valid_run_ends_on_the_hidden_test_rows_with_the_measured_score_beside(tmp_path: Path) -> None:
    search, _ = packages(tmp_path)
    config = SearchConfig(
        task=str(search.root), protocol="self_valid", run_dir=str(tmp_path / "run"), budget=BudgetConfig(attempts=12)
    )
    searcher, grader = Claims(), Claims()
    place = Place(searcher, grader, "none")
    run = await create_run(config, search, place)
    ended = await run_to_end(run, settings_of(run.manifest, run.path), search, place)
    run.close()
    final = read_final(tmp_path / "run")
    assert ended.best is not None
    assert final is not None
    assert final.attempt == ended.best.attempt
    assert final.validation.value >= 7000
    assert {job.eval_split for job in grader.jobs} == {"test"}
    assert read_run_manifest(tmp_path / "run").protocol == "self_valid"
    assert failed(tmp_path / "run") == []


async def test_the_official_package_is_graded_on_all_its_rows(tmp_path: Path) -> None:
    _, final = packages(tmp_path)
    answers = final.root / "data" / "private" / "test_answer.csv"
    answers.write_text(answers.read_text().replace("\n300,600\n", "\n300,630\n"))  # off by 30 in one row of 30
    runner = await strongest_runner("auto", docker_image="none/such:image", allow_process=True)
    good = card(0, 0.0, source=toy.GOOD, higher_is_better=False)
    report = await grade_finally(
        good,
        load_package(final.root),
        cards=1,
        grader=LocalExecutor(task_root=final.root.parent, runner=runner),
        settings=JobSettings(data_dir=str(final.root), timeout_seconds=60),
    )
    assert report.test is not None
    assert report.test.value == pytest.approx(30 / 30**0.5)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"protocol": "trust_me"}, "protocol: must be one of holdout, two_package, self_valid"),
        ({"protocol": "two_package"}, "final_task: protocol=two_package needs it"),
        ({"final_task": "tasks/official"}, "final_task: protocol=two_package needs it"),
        ({"protocol": "self_valid", "final": FinalConfig(strategy="top_k")}, "final.strategy: protocol=self_valid"),
        ({"review": ReviewConfig(judge=True)}, "review.judge: needs a model"),
    ],
)
def test_settings_that_contradict_each_other_are_named(changes: dict, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SearchConfig(task="toy", **changes)


def test_a_profile_for_reviews_is_a_model_for_the_judge() -> None:
    SearchConfig(task="toy", review=ReviewConfig(judge=True), mixture=MixtureConfig(review="vllm"))
