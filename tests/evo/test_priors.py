"""Runs become skills: counts worked out by hand, no score in them, and nothing of a package that is gone."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from evo.make import HashExecutor, card, toy_manifest
from evo.make_package import make_package
from hypothesis import given, settings
from hypothesis import strategies as st
from openmle_evo.cli import main
from openmle_evo.config import BudgetConfig, SearchConfig
from openmle_evo.launch import Place, create_run, run_to_end
from openmle_evo.priors import Evidence, distill, read_artefact, render_evidence, rewrite, write_skills
from openmle_evo.reading import read_exchanges
from openmle_evo.run import FinalReport, RunDirectory
from openmle_evo.skills import Skill, SkillFacts, Source, read_skill
from openmle_gym.chat import Completion, Message
from openmle_gym.errors import ConfigError, StoreError
from openmle_gym.experience import ExperienceCard
from openmle_gym.jobs import JobRequest
from openmle_gym.operators import Operator
from openmle_gym.scores import TestScore, ValidationScore
from openmle_gym.task import TaskPackage

RIDGE = "model = Ridge()"
FOREST = "model = RandomForestRegressor()"
CARDS = [
    card(0, 1.0, source=RIDGE),
    card(1, signature="KeyError@main", source=FOREST),
    card(2, 3.0, operator=Operator.DEBUG, parents=(1,), source=f"{FOREST}\nscaler = Scaler()"),
    card(3, 2.0, operator=Operator.IMPROVE, parents=(0,), source=f"{RIDGE}\nx = 1"),
    card(4, 5.0, operator=Operator.IMPROVE, parents=(0,), source=FOREST),
    card(5, 5.0, operator=Operator.CROSSOVER, parents=(2, 4), source=f"{FOREST}\nx = 2"),
    card(6, signature="KeyError@main", operator=Operator.IMPROVE, parents=(4,), source=f"{FOREST}\nx = 3"),
    card(7, signature="KeyError@main", operator=Operator.DEBUG, parents=(6,), source=f"{FOREST}\nx = 4"),
]


def test_families_are_counted_with_their_standing() -> None:
    evidence = Evidence()
    evidence.add_run(CARDS)
    assert (evidence.runs, evidence.programs, evidence.valid) == (1, 8, 5)
    # Valid utilities: 1, 3, 2, 5, 5; each beats this share of the other four, ties half.
    assert evidence.families["linear"].standings == [0.0, 0.25]
    assert evidence.families["forest"].standings == [0.5, 0.875, 0.875]
    assert evidence.families["forest"].programs == 6


def test_moves_are_counted_with_the_new_bests_that_they_set_and_what_changed() -> None:
    evidence = Evidence()
    evidence.add_run(CARDS)
    mended, across = evidence.moves["debug: within forest"], evidence.moves["improve: from linear to forest"]
    assert (mended.attempts, mended.new_bests, mended.changes) == (2, 1, ['adds Scaler; "plan"'])
    assert (across.attempts, across.new_bests) == (1, 1)
    assert across.changes == ['adds RandomForestRegressor; drops Ridge; "plan"']
    assert evidence.moves["draft: linear"].new_bests == 0  # the first valid program beats nothing
    assert evidence.moves["crossover: within forest"].new_bests == 0  # as good as the best is not better


def test_errors_are_counted_with_what_mended_them() -> None:
    evidence = Evidence()
    evidence.add_run(CARDS)
    error = evidence.errors["KeyError@main"]
    assert (error.times, error.mending, error.mended) == (3, 2, 1)
    assert error.changes == ['adds Scaler; "plan"']


def test_lower_is_better_turns_the_standing() -> None:
    evidence = Evidence()
    evidence.add_run([card(i, value, source=RIDGE, higher_is_better=False) for i, value in enumerate((1.0, 2.0, 3.0))])
    assert evidence.families["linear"].standings == [1.0, 0.5, 0.0]


def test_runs_add_up_and_a_lone_valid_program_stands_in_the_middle() -> None:
    evidence = Evidence()
    evidence.add_run([card(0, 1.0, source=RIDGE)])
    evidence.add_run([card(0, 9.0, source=RIDGE), card(1, 3.0, source=FOREST)])
    assert (evidence.runs, evidence.families["linear"].standings) == (2, [0.5, 1.0])


def test_the_text_names_kind_sources_and_counts() -> None:
    evidence = Evidence()
    evidence.add_run(CARDS)
    facts = SkillFacts(
        modality=("tabular",),
        task_type="regression",
        metric="r2",
        higher_is_better=True,
        sources=(Source(task="roofs"),),
    )
    text = render_evidence(evidence, facts)
    assert "## regression on tabular data, r2 (higher is better)" in text
    assert "Tasks: roofs; runs: 1; programs: 8, of these valid: 5." in text
    assert "- forest: 3 of 6 programs valid, standing 0.75\n- linear: 2 of 2 programs valid, standing 0.12" in text
    assert '- KeyError@main: 3 x; mended in 1 of 2 attempts, e.g. adds Scaler; "plan"' in text
    assert "draft: linear" not in text


def stored(path: Path, package: TaskPackage, cards: Sequence[ExperienceCard], *, test: float | None = None) -> Path:
    """A run's folder with these cards; with `test`, finished and graded so."""
    manifest = toy_manifest(
        run_id=f"id-{path.name}",
        task=package.name,
        title=package.name,
        metric=package.manifest.metric,
        package=str(package.root),
        policy="none",
    )
    run = RunDirectory.create(path, manifest)
    for each in cards:
        run.judged(each.model_copy(update={"run_id": manifest.run_id}))
    if test is not None:
        final = FinalReport(
            attempt=cards[0].attempt,
            program_id=cards[0].program_id or "",
            validation=cards[0].validation or ValidationScore(value=0.0, higher_is_better=True),
            test=TestScore(value=test, higher_is_better=True),
            sample_submission=TestScore(value=test / 2, higher_is_better=True),
            standing=None,
            finished_at="2026-01-01T00:00:00Z",
        )
        run.write_final(final)
    run.close()
    return path


def test_each_task_becomes_a_skill_that_the_guard_knows_again(tmp_path: Path) -> None:
    roofs = make_package(tmp_path / "tasks", "roofs", description="Predict the price of a roof from its tiles.")
    piers = make_package(tmp_path / "tasks", "piers", description="Predict the age of a pier from photographs of it.")
    runs = [stored(tmp_path / name, package, CARDS) for name, package in (("r1", roofs), ("r2", roofs), ("p1", piers))]
    skills = distill(runs)
    assert [(each.name, each.tasks, each.facts.sources[0].runs) for each in skills] == [
        ("roofs.md", ("roofs",), ("id-r1", "id-r2")),
        ("piers.md", ("piers",), ("id-p1",)),
    ]
    assert "Tasks: roofs; runs: 2; programs: 16" in skills[0].text
    assert (skills[0].facts.size, skills[0].facts.metric, skills[0].facts.prediction) == ("small", "rmse", "number")
    assert len(skills[0].facts.sources[0].files) == 2
    assert [read_skill(path) for path in write_skills(skills, tmp_path / "skills")] == skills
    (pooled,) = distill(runs, pool=True)
    assert (pooled.name, pooled.tasks) == ("tabular-regression-rmse.md", ("roofs", "piers"))
    assert "Tasks: roofs, piers; runs: 3; programs: 24" in pooled.text


def test_a_run_whose_package_is_gone_is_refused_until_its_new_place_is_named(tmp_path: Path) -> None:
    package = make_package(tmp_path / "tasks", "roofs")
    run = stored(tmp_path / "run", package, CARDS)
    (tmp_path / "tasks").rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match="--packages"):
        distill([run])
    assert distill([run], packages=tmp_path / "moved")[0].tasks == ("roofs",)
    with pytest.raises(StoreError, match="holds no run"):
        distill([tmp_path / "moved"])


# Numbers of many digits, so that none is in a text by chance.
marked = st.integers(10**12, 10**13 - 1).map(lambda digits: digits / 10**12)


@settings(max_examples=20, deadline=None)
@given(marked, marked, st.lists(st.sampled_from([None, 1.0, 2.0, 3.0]), min_size=2, max_size=6))
def test_no_test_score_and_no_validation_score_is_in_a_skill(
    test: float, validation: float, values: list[float | None]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        package = make_package(Path(folder) / "tasks", "roofs")
        cards = [
            card(i, None if value is None else value * validation, source=FOREST).model_copy(
                update={"test": TestScore(value=test, higher_is_better=True)}
            )
            for i, value in enumerate(values)
        ]
        (skill,) = distill([stored(Path(folder) / "run", package, cards, test=test)])
        for score in (test, test / 2, *(value * validation for value in values if value)):
            assert f"{score}"[:8] not in skill.render()


ARTEFACT = """\
+++
tasks = ["Roof tiles"]
modality = ["tabular"]
metric = "rmse"
url = "https://example.org/roofs"
description = "Predict the price of a roof from its tiles."
+++
# Lessons

Bin the ages.
"""


def test_a_public_write_up_becomes_a_skill(tmp_path: Path) -> None:
    (tmp_path / "Roof lessons.md").write_text(ARTEFACT)
    skill = read_artefact(tmp_path / "Roof lessons.md")
    source = skill.facts.sources[0]
    assert (skill.name, skill.text) == ("Roof-lessons.md", "## Lessons\n\nBin the ages.")
    assert (source.task, source.url, len(source.sketch.split())) == ("Roof tiles", "https://example.org/roofs", 5)
    assert "Predict the price" not in skill.render()


def test_a_public_program_becomes_a_skill(tmp_path: Path) -> None:
    (tmp_path / "best.py").write_text('# +++\n# tasks = ["roofs"]\n# +++\n# Output\nprint(1)\n')
    skill = read_artefact(tmp_path / "best.py")
    assert skill.text == "A program for roofs:\n\n```python\n## Output\nprint(1)\n```"


def test_an_artefact_that_does_not_say_what_it_is_about_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("+++\nmodality = ['text']\n+++\nhello")
    with pytest.raises(ConfigError, match=r"notes\.md: tasks"):
        read_artefact(tmp_path / "notes.md")


def test_two_sources_of_one_name_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    skill = Skill(name="a.md", facts=SkillFacts(sources=(Source(task="a"),)), text="t")
    with pytest.raises(ConfigError, match=r"a\.md"):
        write_skills([skill, skill], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("reply", "expected"), [("# Try trees", "## Try trees"), ("  ", "evidence"), ("w" * 500, None)]
)
async def test_a_models_words_stand_in_for_the_rules_within_the_limit(reply: str, expected: str | None) -> None:
    class Model:
        async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
            assert messages[-1].content == "evidence"
            return Completion(text=reply)

    skill = Skill(name="a.md", facts=SkillFacts(sources=(Source(task="a"),)), text="evidence")
    worded = await rewrite(skill, Model(), length=100)
    assert worded.facts == skill.facts
    assert len(worded.text) <= 100
    assert expected is None or worded.text == expected


async def test_a_search_shows_the_skills_of_other_tasks_alone_and_says_so_in_its_manifest(tmp_path: Path) -> None:
    roofs = make_package(tmp_path / "tasks", "roofs", description="Predict the price of a roof from its tiles.")
    ships = make_package(tmp_path / "tasks", train="id,length,hours\n5,30,4\n")
    skills = tmp_path / "skills"
    write_skills(distill([stored(tmp_path / n, p, CARDS) for n, p in (("r", roofs), ("s", ships))]), skills)
    config = SearchConfig(
        task=str(ships.root), run_dir=str(tmp_path / "run"), skills=str(skills), budget=BudgetConfig(attempts=4)
    )

    class Sandbox(HashExecutor):
        async def submission(self, job: JobRequest) -> bytes | None:
            return None

    place = Place(Sandbox(), None, "none")
    run = await create_run(config, ships, place)
    record = run.manifest.skills
    assert [each.file for each in record.given] == ["roofs.md"]
    assert [(each.file, "is the task harbour-hours" in each.reason) for each in record.refused] == [
        ("harbour-hours.md", True)
    ]
    run.close()
    (skills / "roofs.md").write_text("changed since")
    resumed = RunDirectory.resume(tmp_path / "run")
    await run_to_end(resumed, config, ships, place)
    resumed.close()
    for exchange in read_exchanges(tmp_path / "run").values():
        assert f"# Experience from other tasks\n\n{record.text}\n" in exchange.messages[-1].content


def test_the_command_writes_skills_of_runs_and_artefacts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = stored(tmp_path / "run", make_package(tmp_path / "tasks", "roofs"), CARDS)
    (tmp_path / "lessons.md").write_text(ARTEFACT)
    assert main(["distill", str(run), str(tmp_path / "lessons.md"), "--out", str(tmp_path / "skills")]) == 0
    assert json.loads(capsys.readouterr().out)["sources"] == {"roofs.md": ["roofs"], "lessons.md": ["Roof tiles"]}
    assert main(["distill", str(tmp_path), "--out", str(tmp_path / "skills")]) == 1
    assert main(["distill", str(run), "--out", str(tmp_path / "skills"), "--model", "nobody"]) == 2
    assert "nobody" in capsys.readouterr().err
