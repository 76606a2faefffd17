"""Skills of other tasks reach the prompts under their budget; those that touch the run's own task never do."""

import hashlib
from pathlib import Path
from random import Random

import pytest
from evo.make_package import DESCRIPTION, make_package
from hypothesis import given
from hypothesis import strategies as st
from openmle_evo.skills import (
    Skill,
    SkillFacts,
    Source,
    TaskMarks,
    data_hashes,
    give_skills,
    overlap,
    read_skill,
    resemblance,
    similarity,
    sketch,
    task_marks,
)
from openmle_gym.errors import ConfigError
from openmle_gym.manifest import Columns, Metric

MARKS = TaskMarks("harbour-hours", "How long does the ship lie?", frozenset({"ab" * 32}), DESCRIPTION)


def skill(
    name: str = "other", text: str = "Boosting did well.", *, source: Source | None = None, **facts: object
) -> Skill:
    source = source or Source(task=name)
    return Skill(name=f"{name}.md", facts=SkillFacts(sources=(source,), **facts), text=text)  # pyright: ignore[reportArgumentType]


def write(folder: Path, *skills: Skill) -> Path:
    folder.mkdir(exist_ok=True)
    for each in skills:
        (folder / each.name).write_text(each.render())
    return folder


def test_a_skill_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    source = Source(task="roofs", runs=("r1",), files=("cd" * 32,), sketch=sketch(DESCRIPTION))
    written = skill("roofs", "Text\nmore", source=source, modality=("tabular",), metric="auc", size="small")
    assert read_skill(write(tmp_path, written) / "roofs.md") == written


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("no front matter", "no front matter"),
        ("+++\nmodality = [\n+++\n", "not TOML"),
        ('+++\nmodality = ["text"]\n+++\n', "sources"),
        ('+++\ncolour = 1\n[[sources]]\ntask = "a"\n+++\n', "colour"),
    ],
)
def test_a_damaged_skill_file_is_named(tmp_path: Path, file: str, named: str) -> None:
    (tmp_path / "bad.md").write_text(file)
    with pytest.raises(ConfigError, match=r"bad\.md") as error:
        read_skill(tmp_path / "bad.md")
    assert named in str(error.value)


@given(st.sampled_from(["-", "_", " ", ".", ""]), st.randoms())
def test_a_source_of_the_tasks_name_is_refused_however_it_is_written(between: str, rng: Random) -> None:
    letters = "".join(rng.choice([letter.upper(), letter]) for letter in f"harbour{between}hours")
    assert "is the task harbour-hours" in (overlap(skill(source=Source(task=letters)), MARKS) or "")


def test_a_source_of_the_tasks_title_is_refused() -> None:
    assert overlap(skill(source=Source(task="how-long-does-the-ship-lie")), MARKS)


def test_a_source_with_one_of_the_tasks_files_is_refused() -> None:
    touching = skill(source=Source(task="piers", files=("ef" * 32, "ab" * 32)))
    assert "has a data file of harbour-hours (sha256 abababababab" in (overlap(touching, MARKS) or "")
    assert overlap(skill(source=Source(task="piers", files=("ef" * 32,))), MARKS) is None


def test_a_source_with_nearly_the_tasks_description_is_refused() -> None:
    reworded = DESCRIPTION.replace("harbour", "port").replace("cargo", "load")
    alike = skill(source=Source(task="piers", sketch=sketch(reworded)))
    assert "resembles that of harbour-hours" in (overlap(alike, MARKS) or "")
    other = "Predict from the photograph of a leaf which of ninety-nine species of tree it fell from in the autumn."
    assert overlap(skill(source=Source(task="leaves", sketch=sketch(other))), MARKS) is None


def test_a_source_with_the_tasks_rows_is_refused_though_names_order_and_words_are_others(tmp_path: Path) -> None:
    ships = [(f"{number}", f"vessel {number}", f"{number * 7}.0", f"{number % 5}") for number in range(40)]
    theirs = "id,ship,length,hours\n" + "".join(",".join(row) + "\n" for row in ships)
    ours = "key,stay,metres,who\n" + "".join(
        f"{900 + int(number)},{hours},{length.removesuffix('.0')},{ship}\n"
        for number, ship, length, hours in ships[::-1]
    )
    columns = Columns(id=("key",), target=("stay",))
    own = make_package(tmp_path, train=theirs)
    copy = make_package(tmp_path, "quays", description="Guess it.", train=ours, columns=columns)
    other = make_package(tmp_path, "piers", description="Guess it.", train=theirs.replace("vessel", "boat"))
    told = [skill(source=Source(task=each.name, rows=task_marks(each).rows)) for each in (copy, other)]
    assert overlap(told[0], task_marks(own)) == "its source quays has rows of harbour-hours (100% of those of both)"
    assert overlap(told[1], task_marks(own)) is None


def test_short_rows_and_names_of_files_are_no_marks(tmp_path: Path) -> None:
    table = "id,a,b\n1,3,4\n2,images/0001.png,\n"
    assert task_marks(make_package(tmp_path, train=table)).rows == ""


@pytest.mark.parametrize("text", ["On Harbour Hours we used", "see harbour_hours.", "(harbourhours)", DESCRIPTION])
def test_a_text_that_names_the_task_or_quotes_its_description_is_refused(text: str) -> None:
    assert overlap(skill(text=text), MARKS)


def test_a_text_with_a_longer_word_is_not_taken_for_the_tasks_name() -> None:
    assert overlap(skill(text="harbour-hoursman"), MARKS) is None
    assert overlap(skill(text="the harbour, and the hours"), MARKS) is None


def test_resemblance_is_the_share_of_common_runs_of_five_words() -> None:
    assert resemblance(sketch("a b c d e f"), sketch("a b c d e g")) == pytest.approx(1 / 3)
    assert resemblance(sketch("a b c d e f"), sketch("A, b c d: e f!")) == 1.0
    assert resemblance(sketch(""), sketch("")) == 0.0


@given(st.integers(0, 400), st.integers(1, 400))
def test_an_estimated_resemblance_is_near_the_true_one(shared: int, own: int) -> None:
    common = " ".join(f"c{i}" for i in range(shared + 4))
    first = f"{common} {' '.join(f'a{i}' for i in range(own))}"
    second = f"{common} {' '.join(f'b{i}' for i in range(own))}"
    true = shared / (shared + 2 * own)
    assert resemblance(sketch(first), sketch(second)) == pytest.approx(true, abs=0.25)


def test_hashes_are_those_of_the_manifest_else_of_the_public_files(tmp_path: Path) -> None:
    plain = make_package(tmp_path, "plain", train="x" * 10)
    assert hashlib.sha256(b"x" * 10).hexdigest() in data_hashes(plain)
    assert len(data_hashes(plain)) == 2  # the description and train.csv, not the sample submission
    listed = {
        "data/public/train.csv": "11" * 32,
        "utils/metric.py": "22" * 32,
        "data/public/sample_submission.csv": "3",
    }
    assert data_hashes(make_package(tmp_path, "listed", files=listed)) == ("11" * 32,)


def test_similar_tasks_come_first(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    shared = {"modality": ("tabular",), "task_type": "regression", "size": "small"}
    same = SkillFacts(sources=(Source(task="a"),), metric="RMSE", **shared)
    kind = SkillFacts(sources=(Source(task="a"),), metric="mae", prediction="number", higher_is_better=False, **shared)
    other = SkillFacts(sources=(Source(task="a"),), modality=("image",), task_type="other", metric="auc")
    assert [similarity(each, package) for each in (same, kind, other)] == [1.0, 7 / 8, 0.0]


def test_a_run_is_given_the_most_similar_skills_that_fit_and_told_what_was_refused(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    near = {"modality": ("tabular",), "task_type": "regression"}
    folder = write(
        tmp_path / "skills",
        skill("near", "n" * 60, metric="rmse", **near),
        skill("next", "x" * 60, metric="auc", **near),
        skill("short", "s" * 20, modality=("tabular",)),
        skill("strange", "t", modality=("image",)),
        skill("own", "o" * 10, source=Source(task="harbour_hours"), metric="rmse", **near),
    )
    record = give_skills(folder, package, budget=90)
    assert record.text == f"{'n' * 60}\n\n{'s' * 20}"
    assert [each.file for each in record.given] == ["near.md", "short.md"]
    assert record.given[0].sha256 == hashlib.sha256((folder / "near.md").read_bytes()).hexdigest()
    assert record.given[0].sources == ("near",)
    assert [each.file for each in record.refused] == ["own.md"]
    assert "harbour_hours is the task harbour-hours" in record.refused[0].reason
    assert set(record.left_out) == {"next.md", "strange.md"}


def test_the_budget_counts_in_the_given_measure(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    folder = write(tmp_path / "skills", skill("a", "one two three", modality=("tabular",)))
    assert give_skills(folder, package, budget=3, measure=lambda text: len(text.split())).text == "one two three"


def test_a_skill_that_does_not_fit_is_cut_rather_than_nothing_shown(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    folder = write(tmp_path / "skills", skill("long", "w" * 900, modality=("tabular",)))
    record = give_skills(folder, package, budget=200)
    assert 100 < len(record.text) <= 200
    assert record.given[0].cut
    assert give_skills(folder, package, budget=0).given == ()


def test_a_folder_without_skills_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"skills=.*no \*\.md file"):
        give_skills(tmp_path, make_package(tmp_path / "tasks"), budget=100)


def test_a_text_never_brings_a_section_into_the_prompt(tmp_path: Path) -> None:
    path = tmp_path / "loud.md"
    path.write_text('+++\n[[sources]]\ntask = "loud"\n+++\n# Output\n\nanything\n\n# Task\n')
    assert read_skill(path).text == "## Output\n\nanything\n\n## Task"


def test_a_pooled_skill_is_refused_when_one_of_its_tasks_is_the_runs(tmp_path: Path) -> None:
    package = make_package(tmp_path, metric=Metric(name="mae", higher_is_better=False))
    pooled = Skill(
        name="pool.md", facts=SkillFacts(sources=(Source(task="roofs"), Source(task="harbour-hours"))), text="t"
    )
    assert overlap(pooled, task_marks(package))
