"""The audit passes an honest run, and finds each way of cheating that it names."""

import asyncio
import dataclasses
import hashlib
import io
import re
import sqlite3
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from evo.make import TASK, HashExecutor, SeededPolicy, toy_manifest
from openmle_evo.audit import audit, write_bundle
from openmle_evo.audit_skills import skills_fault
from openmle_evo.config import BudgetConfig, IslandsConfig, ScheduleConfig, SearchConfig, SelectionConfig
from openmle_evo.run import FinalReport, RunDirectory, RunManifest
from openmle_evo.search import Search
from openmle_evo.skills import GivenSkill, SkillsRecord
from openmle_gym.errors import StoreError
from openmle_gym.evaluate import JobSettings
from openmle_gym.experience import ExperienceCard
from openmle_gym.features import best_card, ranked
from openmle_gym.jobs import JobRequest, JobResult, Limits
from openmle_gym.program import program_id
from openmle_gym.scores import TestScore


class Jumbled(HashExecutor):
    async def run(self, job: JobRequest) -> JobResult:
        for _ in range(len(job.code) % 7):
            await asyncio.sleep(0)
        return await super().run(job)


def make_run(path: Path, *, graded: int | None = 0, test: float = 0.73519, **config: object) -> Path:
    """A finished run; `graded` is the place of the graded program in the ranking."""
    settings = SearchConfig(task="toy", budget=BudgetConfig(attempts=40), **config)  # pyright: ignore
    manifest = toy_manifest(settings=dataclasses.asdict(settings))
    run = RunDirectory.create(path, manifest)
    job = JobSettings(data_dir="toy", timeout_seconds=60)
    search = Search(
        run=run,
        task=TASK,
        policy=SeededPolicy(),
        executor=Jumbled(),
        config=settings,
        limits=Limits(),
        job=job,
    )
    asyncio.run(search.run_to_end())
    cards = run.cards()
    if graded is not None:
        run.write_final(final_report(ranked(cards)[graded], len(cards), test))
    run.close()
    return path


def final_report(card: ExperienceCard, cards: int, test: float) -> FinalReport:
    assert card.program_id
    assert card.validation
    return FinalReport(
        attempt=card.attempt,
        program_id=card.program_id,
        validation=card.validation,
        test=TestScore(value=test, higher_is_better=False),
        sample_submission=None,
        standing=None,
        cards=cards,
        finished_at="2099-01-01T00:00:00Z",
    )


def failed(path: Path) -> list[str]:
    return [finding.check for finding in audit(path) if not finding.passed]


@pytest.mark.parametrize(
    "config",
    [
        {"workers": 1},
        {"workers": 6},
        {"workers": 4, "islands": IslandsConfig(count=3, reset_probability=0.5)},
        {"workers": 3, "selection": SelectionConfig(weights="learned", normalise="rank", final_temperature=0.1)},
        {"workers": 2, "schedule": ScheduleConfig(kind="greedy")},
    ],
)
def test_an_honest_run_passes(tmp_path: Path, config: dict) -> None:
    assert failed(make_run(tmp_path / "run", **config)) == []


def test_an_unfinished_run_passes(tmp_path: Path) -> None:
    assert failed(make_run(tmp_path / "run", graded=None)) == []


def change_card(path: Path, attempt: int, **changes: object) -> None:
    """Rewrites a card past the store's own guards."""
    with sqlite3.connect(path / "store.sqlite") as connection:
        connection.execute("DROP TRIGGER cards_are_never_changed")
        (text,) = connection.execute("SELECT card FROM cards WHERE attempt = ?", (attempt,)).fetchone()
        card = ExperienceCard.model_validate_json(text).model_copy(update=changes)
        connection.execute("UPDATE cards SET card = ? WHERE attempt = ?", (card.model_dump_json(), attempt))


def test_a_changed_score_shows_in_the_decisions_that_it_led_to(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", graded=None)
    with sqlite3.connect(path / "store.sqlite") as connection:
        rows = connection.execute("SELECT card FROM cards").fetchall()
    cards = [ExperienceCard.model_validate_json(row) for (row,) in rows]
    best = best_card(cards)
    assert best
    assert best.validation
    worse = best.validation.model_copy(update={"value": 5.0})
    change_card(path, best.attempt, validation=worse)
    assert failed(path) == ["selection"]


def test_a_test_score_on_a_card_is_found(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    change_card(path, 3, test=TestScore(value=0.5, higher_is_better=False))
    assert failed(path) == ["cards"]


def test_a_program_that_the_policy_did_not_write_is_found(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", graded=None)
    last = 39  # nothing was decided by it
    change_card(path, last, source="print(1)\n", program_id=program_id("print(1)\n"))
    assert failed(path) == ["programs"]


def test_a_call_that_is_gone_is_found(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    with sqlite3.connect(path / "store.sqlite") as connection:
        connection.execute("DELETE FROM calls WHERE json_extract(call, '$.attempt') = 7")
    assert failed(path) == ["calls"]
    (finding,) = [finding for finding in audit(path) if not finding.passed]
    assert "attempts [7]" in finding.message


def test_a_card_that_is_gone_is_found(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    with sqlite3.connect(path / "store.sqlite") as connection:
        (trigger,) = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND sql LIKE '%DELETE%'"
        ).fetchone()
        connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute("DELETE FROM cards WHERE attempt = 39")
    assert "cards" in failed(path)


def test_a_program_that_was_not_the_best_by_validation_is_found(tmp_path: Path) -> None:
    assert failed(make_run(tmp_path / "run", graded=1)) == ["final"]


def test_a_test_score_in_a_prompt_is_found(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", graded=None)
    run = RunDirectory.resume(path)
    shown = best_card(run.cards())
    assert shown
    assert shown.validation
    # a test score that equals what a prompt shows of this program: the audit cannot know that it got there honestly
    test = float(f"{shown.validation.value:.6g}")
    run.write_final(final_report(shown, len(run.cards()), test))
    run.close()
    assert failed(path) == ["prompts"]


def test_a_bundle_is_the_same_bytes_each_time_and_tells_its_digest(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    first, second = write_bundle(path, tmp_path / "a.tar"), write_bundle(path, tmp_path / "b.tar")
    assert first == second == hashlib.sha256((tmp_path / "a.tar").read_bytes()).hexdigest()
    with tarfile.open(tmp_path / "a.tar") as bundle:
        names = bundle.getnames()
        sums = bundle.extractfile("SHA256SUMS")
        assert sums
        for line in sums.read().decode().splitlines():
            digest, name = line.split("  ")
            member = bundle.extractfile(name)
            assert member
            assert hashlib.sha256(member.read()).hexdigest() == digest
    assert {"manifest.json", "cards.jsonl", "calls.jsonl", "exchanges.jsonl", "final.json"} <= set(names)


def test_a_bundle_is_audited_as_its_run_is(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    write_bundle(path, tmp_path / "a.tar")
    assert audit(tmp_path / "a.tar") == audit(path)


def test_a_changed_bundle_is_refused(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    write_bundle(path, tmp_path / "a.tar")
    (tmp_path / "a.tar").write_bytes((tmp_path / "a.tar").read_bytes().replace(b"0.73519", b"0.63519"))
    with pytest.raises(StoreError, match=r"final.json: not what SHA256SUMS says"):
        audit(tmp_path / "a.tar")
    (tmp_path / "b.tar").write_text("no tar")
    with pytest.raises(StoreError, match="neither a run's directory nor a bundle"):
        audit(tmp_path / "b.tar")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The members of an honest run's bundle."""
    folder = tmp_path_factory.mktemp("honest")
    write_bundle(make_run(folder / "run"), folder / "a.tar")
    with tarfile.open(folder / "a.tar") as bundle:
        return {each.name: file.read().decode() for each in bundle if (file := bundle.extractfile(each))}


def forge(path: Path, members: Iterable[tuple[str, str]]) -> Path:
    """A bundle of these members whose sums are right."""
    members = [(name, text) for name, text in members if name != "SHA256SUMS"]
    sums = "".join(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in members)
    with tarfile.open(path, "w") as bundle:
        for name, text in [*members, ("SHA256SUMS", sums)]:
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            bundle.addfile(entry, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize(
    ("name", "old", "new", "check"),
    [
        ("final.json", r'"attempt": \d+', '"attempt": 999', "final"),
        ("final.json", r'("validation": {\s*"value": )[-.\de]+', r"\g<1>0.123", "final"),
        ("cards.jsonl", r"(?s)(.*)\n.*\n", r"\1\n", "cards"),  # the last card is gone: its prompt is there
        ("cards.jsonl", r"\A(.*\n)(?s:(.*))", r"\1\1\2", "cards"),  # the first one is there twice
        ("cards.jsonl", r'\A(.*\n.*"parents":\[)', r"\g<1>7", "selection"),
    ],
)
def test_a_forgery_with_the_right_sums_is_found(
    tmp_path: Path, honest: dict[str, str], name: str, old: str, new: str, check: str
) -> None:
    final = honest["final.json"]
    if name == "cards.jsonl":  # else the number of cards in the final report tells
        final = final.replace('"cards": 40', '"cards": 39')
    forged, count = re.subn(old, new, honest[name], count=1)
    assert count == 1
    found = audit(forge(tmp_path / "b.tar", {**honest, "final.json": final, name: forged}.items()))
    assert check in [finding.check for finding in found if not finding.passed]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cards.jsonl": '{"schema_version":1}\n{"sche'}, r"cards.jsonl, line 1: run_id: Field required"),
        ({"cards.jsonl": '{"sche'}, r"cards.jsonl, line 1: Invalid JSON"),
        ({"exchanges.jsonl": '{"attempt":0}\n'}, r"exchanges.jsonl, line 1: messages: Field required; reply"),
        ({"under_way": "-1"}, r"under_way: must be a number of attempts, got '-1'"),
        ({"../../evil": "x"}, r"\.\./\.\./evil does not belong there"),
    ],
)
def test_a_damaged_bundle_is_refused_with_the_place_in_one_line(
    tmp_path: Path, honest: dict[str, str], changes: dict[str, str], said: str
) -> None:
    with pytest.raises(StoreError, match=said) as error:
        audit(forge(tmp_path / "b.tar", {**honest, **changes}.items()))
    assert "\n" not in str(error.value)


def test_a_bundle_that_is_empty_or_holds_a_file_twice_is_refused(tmp_path: Path, honest: dict[str, str]) -> None:
    with pytest.raises(StoreError, match=r"no audit.json, calls.jsonl, cards.jsonl"):
        audit(forge(tmp_path / "b.tar", []))
    twice = [("cards.jsonl", "something else"), *honest.items()]
    with pytest.raises(StoreError, match=r"cards.jsonl: not one plain file of that name"):
        audit(forge(tmp_path / "b.tar", twice))


def test_settings_that_this_version_does_not_know_are_named(tmp_path: Path, honest: dict[str, str]) -> None:
    manifest = honest["manifest.json"].replace('"settings": {', '"settings": {"colour": 1,')
    with pytest.raises(StoreError, match=r"the manifest's settings: Key 'colour' not in 'SearchConfig'"):
        audit(forge(tmp_path / "b.tar", {**honest, "manifest.json": manifest}.items()))


SKILL = "## What worked\n\nGradient boosting on small tables."


def _with_skills(text: str, sources: tuple[str, ...] = ("other",)) -> RunManifest:
    given = (GivenSkill(file="a.md", sha256="0" * 64, sources=sources),)
    return toy_manifest(skills=SkillsRecord(text=text, given=given))


def _prompt(experience: str) -> str:
    section = f"\n\n# Experience from other tasks\n\n{experience}" if experience else ""
    return f"# Operator: draft\n\nDraft.\n\n# Task\n\nPredict y.{section}\n\n# Output\n\nA program."


@pytest.mark.parametrize(
    ("manifest", "shown", "fault"),
    [
        (_with_skills(SKILL), SKILL, None),
        (_with_skills(SKILL), SKILL[:10] + "\n[... 20 characters cut ...]\n" + SKILL[-10:], None),
        (_with_skills(SKILL), "", None),
        (_with_skills(SKILL), "## What worked\n\nThe answers are 1, 2, 3.", "show other experience"),
        (toy_manifest(), "## What worked\n\nThe answers.", "show other experience"),
        (_with_skills(SKILL, ("TOY",)), SKILL, "is the task toy"),
        (_with_skills(SKILL + " As on toy."), SKILL, "names toy"),
    ],
)
def test_experience_in_prompts_is_what_the_manifest_records_and_of_other_tasks(
    manifest: RunManifest, shown: str, fault: str | None
) -> None:
    found = skills_fault(manifest, {0: _prompt(shown)})
    assert found is None if fault is None else found is not None and fault in found


def test_a_program_that_looks_like_a_section_is_no_experience() -> None:
    program = "```python\nx = 1\n\n# Experience from other tasks\n\ny = 2\n```"
    prompt = f"# Parent program 1 of 1\n\n{program}\n\n# Output\n\nA program."
    assert skills_fault(toy_manifest(), {0: prompt}) is None
