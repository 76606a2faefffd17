import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from gym_bridges.prepared import GRADE, Bench, read_table, write_table
from openmle_gym.bridges.mle_bench import table
from openmle_gym.bridges.mle_bench.competition import open_competition
from openmle_gym.bridges.mle_bench.facts import Split, competitions, facts_of, lite_ids
from openmle_gym.bridges.mle_bench.importing import import_competition, verify_official
from openmle_gym.bridges.mle_bench.official import import_official
from openmle_gym.bridges.mle_bench.rows import hidden_rows
from openmle_gym.check.overlap import mle_bench_ids
from openmle_gym.errors import ConfigError, PackageError
from openmle_gym.grading import Grade, grade_submission
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.task import TaskPackage

SPOOKY, AUTHORS = "spooky-author-identification", ("EAP", "HPL", "MWS")
NOMAD, ENERGIES = "nomad2018-predict-transparent-conductors", ("formation_energy_ev_natom", "bandgap_energy_ev")


async def graded(package: TaskPackage, rows: list[dict[str, object]], split: str = "test") -> Grade:
    frame = pd.DataFrame(rows).to_csv(index=False).encode()
    return await grade_submission(package, frame, splits=(split,), runner=ProcessRunner(allow_no_isolation=True))  # pyright: ignore[reportArgumentType]


def test_the_data_name_the_75_competitions_and_lite_s_22() -> None:
    assert {name.casefold() for name in competitions()} == mle_bench_ids()
    assert len(competitions()) == 75
    assert len(lite_ids()) == 22
    assert all((facts.details is not None) == (facts.group == "low") for facts in competitions().values())
    assert [sum(facts.group == group for facts in competitions().values()) for group in ("low", "medium", "high")] == [
        22,
        38,
        15,
    ]


def test_known_bad_tasks_are_flagged_and_others_only_noted() -> None:
    assert {name for name, facts in competitions().items() if facts.known_bad} == {
        "random-acts-of-pizza",
        "multi-modal-gesture-recognition",
        "smartphone-decimeter-2022",
        "hubmap-kidney-segmentation",
        "tensorflow-speech-recognition-challenge",
        "icecube-neutrinos-in-deep-ice",
        "champs-scalar-coupling",
    }
    assert not facts_of("leaf-classification").known_bad
    assert facts_of("leaf-classification").known_issues == ("gold needs a loss of 0.0",)
    assert facts_of("osic-pulmonary-fibrosis-progression").higher_is_better
    with pytest.raises(ConfigError, match="none of MLE-Bench's 75"):
        facts_of("titanic")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def add_spooky(bench: Bench, **changes: str) -> Path:
    answers = [{"id": f"t{n}", **{a: int(a == AUTHORS[n % 3]) for a in AUTHORS}} for n in range(6)]
    sample = [{"id": f"t{n}", "EAP": 0.5, "HPL": 0.25, "MWS": 0.25} for n in range(6)]
    public = bench.add(SPOOKY, targets=AUTHORS, answers=answers, sample=sample, **changes)
    write_table(public / "test.csv", [{"id": f"t{n}", "text": f"words {n}"} for n in range(6)])
    write_table(
        public / "train.csv", [{"id": f"r{n}", "text": f"line {n}", "author": AUTHORS[n % 3]} for n in range(30)]
    )
    return public


def packages(bench: Bench, name: str) -> tuple[TaskPackage, TaskPackage]:
    official, search = import_competition(
        name, data=bench.data, checkout=bench.checkout, output=bench.data.parent / "out"
    )
    assert search is not None
    return official, search


async def test_the_official_package_is_whole_and_graded_by_its_own_grader(bench: Bench) -> None:
    add_spooky(bench)
    official, _ = packages(bench, SPOOKY)
    manifest = official.manifest
    assert (manifest.columns.id, manifest.columns.target) == (("id",), AUTHORS)
    assert not manifest.metric.higher_is_better
    assert not official.validation_rows.any()
    assert official.leaderboard is not None
    assert official.leaderboard.scores[0] == 0.0
    assert "Predict for spooky" in official.description
    assert all(path.is_relative_to(official.root) for path in official.root.rglob("*") if path.is_file())
    right = [{"id": f"t{n}", **{a: int(a == AUTHORS[n % 3]) for a in AUTHORS}} for n in range(6)]
    backwards = [dict(reversed(row.items())) for row in reversed(right)]
    assert (await graded(official, backwards)).scores == {"test": 0.0}
    flat = [{"id": f"t{n}", "EAP": 0.5, "HPL": 0.5, "MWS": 0.5} for n in range(6)]
    assert (await graded(official, flat)).scores == {"test": 0.5}


async def test_a_refusal_by_the_grader_is_told_apart_from_its_bugs(bench: Bench) -> None:
    add_spooky(bench)
    official = import_official(
        open_competition(SPOOKY, data=bench.data, checkout=bench.checkout), bench.data.parent / SPOOKY
    )
    rows: list[dict[str, object]] = [{"id": f"t{n}", "EAP": -1, "HPL": 0, "MWS": 0} for n in range(6)]
    refused = await graded(official, rows)
    assert (refused.code, refused.message) == ("refused_by_package", "InvalidSubmissionError: negative predictions")
    rows[0]["EAP"] = 5000
    for row in rows[1:]:
        row["EAP"] = 0
    assert (await graded(official, rows)).code == "metric_failed"


async def test_verification_compares_with_the_known_score(bench: Bench) -> None:
    add_spooky(bench)
    official, _ = packages(bench, SPOOKY)
    runner = ProcessRunner(allow_no_isolation=True)
    verified = await verify_official(official, expected=0.5, runner=runner)
    # errors per row: one target is off by 0.5 or 0.75, the others by their probabilities
    squares = [0.25 + 0.0625 + 0.0625, 0.25 + 0.5625 + 0.0625, 0.25 + 0.0625 + 0.5625]
    expected = round(float(np.sqrt(sum(squares) / 9)), 5)
    assert (verified.sample_score, verified.answers_score) == (expected, 0.0)
    assert not verified.agrees
    assert verified.model_copy(update={"expected": expected}).agrees


async def test_a_search_package_is_carved_out_of_train_alone(bench: Bench) -> None:
    add_spooky(bench)
    official, search = packages(bench, SPOOKY)
    train, test = read_table(search.public_dir / "train.csv"), read_table(search.public_dir / "test.csv")
    assert (len(train), len(test)) == (24, 6)
    assert {row["id"] for row in train} | {row["id"] for row in test} == {f"r{n}" for n in range(30)}
    assert list(test[0]) == ["id", "text"]
    assert [row["author"] for row in train].count("EAP") == 8
    assert search.validation_rows.all()
    assert search.manifest.columns == official.manifest.columns
    assert search.manifest.metric == official.manifest.metric
    authors = {f"r{n}": AUTHORS[n % 3] for n in range(30)}
    right: list[dict[str, object]] = [
        {"id": row["id"], **{a: int(a == authors[row["id"]]) for a in AUTHORS}} for row in test
    ]
    assert (await graded(search, right, "validation")).scores == {"validation": 0.0}
    with pytest.raises(PackageError, match="no row of the answers is in the test half"):
        await graded(search, right, "test")
    assert packages(bench, SPOOKY)[1].manifest.files == search.manifest.files


def test_importing_leaves_the_prepared_data_as_they_are(bench: Bench) -> None:
    public = add_spooky(bench)
    before = {path: path.read_bytes() for path in bench.data.rglob("*") if path.is_file()}
    packages(bench, SPOOKY)
    assert {path: path.read_bytes() for path in bench.data.rglob("*") if path.is_file()} == before
    assert public.is_dir()


def test_a_pointer_to_a_large_file_is_refused(bench: Bench) -> None:
    add_spooky(bench)
    board = bench.checkout / "mlebench" / "competitions" / SPOOKY / "leaderboard.csv"
    board.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(PackageError, match="Git-LFS pointer, not the file itself; run `git lfs pull`"):
        packages(bench, SPOOKY)


def test_what_is_missing_is_named(bench: Bench) -> None:
    with pytest.raises(PackageError, match=r"config\.yaml: no such file"):
        packages(bench, SPOOKY)
    public = add_spooky(bench)
    (public / "sample_submission.csv").unlink()
    with pytest.raises(PackageError, match="no sample submission"):
        packages(bench, SPOOKY)
    shutil.rmtree(public)
    with pytest.raises(PackageError, match="run mle-bench's own `prepare -c spooky"):
        packages(bench, SPOOKY)


async def test_a_grader_that_ignores_ids_gets_rows_in_order_and_files_move_with_their_rows(bench: Bench) -> None:
    answers = [{"id": n, ENERGIES[0]: n / 10, ENERGIES[1]: n / 5} for n in range(1, 5)]
    public = bench.add(NOMAD, targets=ENERGIES, answers=answers, sample=[{**row, ENERGIES[0]: 0} for row in answers])
    write_table(public / "test.csv", [{"id": row["id"], "atoms": 3} for row in answers])
    train = [{"id": n, "atoms": n, ENERGIES[0]: n / 10, ENERGIES[1]: n / 7} for n in range(1, 51)]
    write_table(public / "train.csv", train)
    for folder, count in (("train", 50), ("test", 4)):
        for n in range(1, count + 1):
            (public / folder / str(n)).mkdir(parents=True)
            (public / folder / str(n) / "geometry.xyz").write_text(f"{folder} {n}")
    official, search = packages(bench, NOMAD)
    assert (await graded(official, list(reversed(answers)))).scores == {"test": 0.0}  # pyright: ignore[reportArgumentType]
    hidden = {row["id"] for row in read_table(search.public_dir / "test.csv")}
    assert len(hidden) == 10
    folders = {name: {path.name for path in (search.public_dir / name).iterdir()} for name in ("train", "test")}
    assert folders == {"test": hidden, "train": {str(n) for n in range(1, 51)} - hidden}
    one = next(iter(hidden))
    assert (search.public_dir / "test" / one / "geometry.xyz").read_text() == f"train {one}"


async def test_rows_without_a_unique_id_are_numbered(bench: Bench) -> None:
    name = "detecting-insults-in-social-commentary"
    comments = ["you", "you", 'me, and "them"', "her"]
    answers = [{"Insult": n % 2, "Date": "", "Comment": c, "Usage": "x"} for n, c in enumerate(comments)]
    sample = [{"Insult": 0, "Date": "", "Comment": c} for c in comments]
    grade = GRADE.replace(
        "    checked(", "    assert list(submission.columns) == ['Insult', 'Comment'], submission.columns\n    checked("
    )
    public = bench.add(
        name,
        targets=["Insult"],
        answers=answers,
        sample=sample,
        sample_name="public/sample_submission_null.csv",
        grade=grade,
    )
    write_table(public / "test.csv", [{"Date": "", "Comment": c} for c in comments])
    write_table(public / "train.csv", [{"Insult": n % 2, "Date": "", "Comment": f"said {n % 7}"} for n in range(20)])
    official, search = packages(bench, name)
    assert official.manifest.columns.id == ("row_id",)
    assert [row["row_id"] for row in read_table(official.public_dir / "test.csv")] == ["0", "1", "2", "3"]
    right: list[dict[str, object]] = [{"row_id": n, "Insult": n % 2} for n in range(4)]
    assert (await graded(official, right)).scores == {"test": 0.0}
    assert list(read_table(search.public_dir / "test.csv")[0]) == ["row_id", "Date", "Comment"]
    assert len(search.answers) == 4


def zipped(folder: Path) -> None:
    with zipfile.ZipFile(folder.with_name(f"{folder.name}.zip"), "w") as out:
        for path in sorted(folder.iterdir()):
            out.write(path, path.name)
    shutil.rmtree(folder)


def test_labels_in_file_names_do_not_survive_the_move(bench: Bench) -> None:
    name = "dogs-vs-cats-redux-kernels-edition"
    answers = [{"id": n, "label": n % 2} for n in (1, 2)]
    public = bench.add(name, targets=["label"], answers=answers, sample=answers, answers_name="answers.csv")
    for folder, names in {
        "train": [f"{kind}.{n}.jpg" for kind in ("cat", "dog") for n in range(10)],
        "test": ["1.jpg", "2.jpg"],
    }.items():
        (public / folder).mkdir()
        for file in names:
            (public / folder / file).write_text(f"{folder} {file}")
        zipped(public / folder)
    official, search = packages(bench, name)
    assert (official.public_dir / "train" / "cat.3.jpg").read_text() == "train cat.3.jpg"
    assert "train.zip" in official.description
    assert not list(official.public_dir.glob("*.zip"))
    tested = sorted(path.name for path in (search.public_dir / "test").iterdir())
    assert tested == ["1.jpg", "2.jpg", "3.jpg", "4.jpg"]
    labels = {row["id"]: row["label"] for row in read_table(search.root / "data/private/test_answer.csv")}
    for file in tested:
        was = (search.public_dir / "test" / file).read_text()
        assert labels[file.removesuffix(".jpg")] == ("1" if "dog" in was else "0")
    assert sorted(labels.values()) == ["0", "0", "1", "1"]
    assert len(list((search.public_dir / "train").iterdir())) == 16


def test_a_member_that_would_leave_its_archive_is_refused(bench: Bench) -> None:
    public = add_spooky(bench)
    with zipfile.ZipFile(public / "more.zip", "w") as out:
        out.writestr("../../escaped.txt", "x")
    with pytest.raises(PackageError, match="would lie outside"):
        packages(bench, SPOOKY)


async def test_tokens_are_hidden_by_whole_sentences_and_graded_as_text(bench: Bench) -> None:
    name = "text-normalization-challenge-english-language"
    grade = "def grade(submission, answers):\n    return (submission['after'].astype(str) == answers['after'].astype(str)).mean()\n"
    answers = [{"id": "0_0", "after": "nan"}, {"id": "0_1", "after": 'two, or "2"'}, {"id": "0_2", "after": "x"}]
    public = bench.add(
        name,
        targets=["after"],
        answers=answers,
        sample=answers,
        answers_name="answers.csv",
        sample_name="private/sample_submission.csv",
        grade=grade,
    )
    write_table(public / "en_sample_submission_2.csv", [{**row, "after": "0"} for row in answers])
    write_table(public / "en_test_2.csv", [{"sentence_id": 0, "token_id": n, "before": "2"} for n in range(3)])
    rows = [
        {"sentence_id": n // 2, "token_id": n % 2, "class": "PLAIN", "before": f"{n}", "after": f"number {n}"}
        for n in range(84)
    ]
    write_table(public / "en_train.csv", rows)
    with zipfile.ZipFile(public / "en_train.csv.zip", "w") as out:
        out.write(public / "en_train.csv", "en_train.csv")
    (public / "en_train.csv").unlink()
    official, search = packages(bench, name)
    assert {row["after"] for row in read_table(official.public_dir / "sample_submission.csv")} == {"0"}
    grade_of_all = await graded(official, [dict(row) for row in answers])
    assert grade_of_all.scores == {"test": 1.0}
    hidden = read_table(search.public_dir / "en_test_2.csv")
    assert [row["sentence_id"] for row in hidden] == ["0", "0", "20", "20", "40", "40"]
    assert search.answers["id"].tolist() == ["0_0", "0_1", "20_0", "20_1", "40_0", "40_1"]
    assert read_table(search.public_dir / "en_sample_submission_2.csv")[0] == {"id": "0_0", "after": "0"}
    assert (
        await graded(search, [{"id": i, "after": "number 0"} for i in search.answers["id"]], "validation")
    ).scores == {"validation": 0.16667}


def test_patients_are_hidden_whole_with_their_side_tables(bench: Bench) -> None:
    name = "ranzcr-clip-catheter-line-classification"
    answers = [{"StudyInstanceUID": "t0", "ETT": 0, "PatientID": "p"}]
    sample = [{"StudyInstanceUID": "t0", "ETT": 0, "Swan": 0}]
    public = bench.add(name, targets=["ETT"], answers=answers, sample=sample)
    train = [{"StudyInstanceUID": f"r{n}", "ETT": n % 2, "PatientID": f"p{n // 3}"} for n in range(30)]
    write_table(public / "train.csv", train)
    write_table(public / "train_annotations.csv", [{"StudyInstanceUID": f"r{n}", "data": "[]"} for n in range(30)])
    for folder, names in {"train": [f"r{n}" for n in range(30)], "test": ["t0"]}.items():
        (public / folder).mkdir()
        for file in names:
            (public / folder / f"{file}.jpg").write_text(file)
    official, search = packages(bench, name)
    assert official.answers["Swan"].tolist() == ["0"]
    kept = {row["PatientID"] for row in read_table(search.public_dir / "train.csv")}
    hidden = set(search.answers["PatientID"])
    assert (len(kept), len(hidden), kept & hidden) == (8, 2, set())
    side = {row["StudyInstanceUID"] for row in read_table(search.public_dir / "train_annotations.csv")}
    assert side == {row["StudyInstanceUID"] for row in read_table(search.public_dir / "train.csv")}
    assert not (search.public_dir / "test" / "t0.jpg").exists()


def test_json_rows_stay_json_without_the_fields_of_answers(bench: Bench) -> None:
    name, target = "random-acts-of-pizza", "requester_received_pizza"
    public = bench.add(
        name,
        targets=[target],
        answers=[{"request_id": "t0", target: 1}],
        sample=[{"request_id": "t0", target: 0}],
        sample_name="public/sampleSubmission.csv",
    )
    rows = [{"request_id": f"r{n}", "likes": [n, None], "giver": "who", target: n % 2 == 0} for n in range(10)]
    (public / "train.json").write_text(json.dumps(rows))
    (public / "test.json").write_text(json.dumps([{"request_id": "t0", "likes": []}]))
    official, search = packages(bench, name)
    assert "known to be bad" in official.manifest.known_issues
    test = json.loads((search.public_dir / "test.json").read_text())
    assert [list(row) for row in test] == [["request_id", "likes"]] * 2
    assert sorted(search.answers[target]) == ["0", "1"]
    train = json.loads((search.public_dir / "train.json").read_text())
    assert all(row in rows for row in train)
    assert len(train) == 8


def test_json_rows_need_not_all_have_the_same_fields(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text('[{"a": 1}, {"b": 2}]')
    frame = table.read_table(tmp_path / "train.json").frame
    assert (list(frame.columns), frame["b"].tolist()) == (["a", "b"], [None, 2])
    (tmp_path / "train.json").write_text('{"a": 1}')
    with pytest.raises(PackageError, match=r"train\.json: is no list of objects"):
        table.read_table(tmp_path / "train.json")


def test_pixels_of_hidden_pages_are_the_answers(bench: Bench) -> None:
    from PIL import Image

    name = "denoising-dirty-documents"
    public = bench.add(
        name,
        targets=["value"],
        answers=[{"id": "900_1_1", "value": 0.5}],
        sample=[{"id": "900_1_1", "value": 1}],
        answers_name="answers.csv",
        sample_name="public/sampleSubmission.csv",
    )
    for folder in ("train", "train_cleaned", "test"):
        (public / folder).mkdir()
    for n in range(12):
        for folder in ("train", "train_cleaned"):
            Image.fromarray(np.array([[0, 51], [n, 255]], dtype=np.uint8)).save(public / folder / f"{n}.png")
    shutil.copyfile(public / "train" / "0.png", public / "test" / "900.png")
    _, search = packages(bench, name)
    hidden = {path.name for path in (search.public_dir / "test").iterdir()}
    kept = {path.name for path in (search.public_dir / "train").iterdir()}
    assert hidden
    assert hidden | kept == {f"{n}.png" for n in range(12)}
    assert kept == {path.name for path in (search.public_dir / "train_cleaned").iterdir()}
    stem = min(hidden).removesuffix(".png")
    values = dict(zip(search.answers["id"], search.answers["value"].astype(float), strict=True))
    assert [values[f"{stem}_{place}"] for place in ("1_1", "1_2", "2_1", "2_2")] == [0.0, 0.2, int(stem) / 255, 1.0]
    assert len(values) == 4 * len(hidden)


def test_hidden_recordings_look_like_official_test_recordings(bench: Bench) -> None:
    name = "mlsp-2013-birds"
    answers = [{"Id": 1000 + species, "Probability": 0} for species in range(3)]
    public = bench.add(name, targets=["Probability"], answers=answers, sample=answers, answers_name="answers.csv")
    essential = public / "essential_data"
    write_table(essential / "CVfolds_2.txt", [{"rec_id": n, "fold": int(n == 10)} for n in range(11)])
    write_table(essential / "rec_id2filename.txt", [{"rec_id": n, "filename": f"PC{n}"} for n in range(11)])
    lines = ["rec_id,[labels]", *(f"{n}" if n == 4 else f"{n},{n % 3}" for n in range(10)), "10,?"]
    (essential / "rec_labels_test_hidden.txt").write_text("\n".join(lines) + "\n")
    _, search = packages(bench, name)
    folds = read_table(search.public_dir / "essential_data/CVfolds_2.txt")
    hidden = [row["rec_id"] for row in folds if row["fold"] == "1"]
    assert (len(folds), len(hidden)) == (10, 2)
    labels = (search.public_dir / "essential_data/rec_labels_test_hidden.txt").read_text().splitlines()
    assert [line for line in labels if line.endswith("?")] == [f"{each},?" for each in hidden]
    assert search.answers["Id"].tolist() == [str(100 * int(each) + species) for each in hidden for species in range(3)]
    for row in search.answers.to_dict("records"):
        recording, species = divmod(int(row["Id"]), 100)
        assert float(row["Probability"]) == float(recording != 4 and species == recording % 3)


@pytest.mark.parametrize(
    ("split", "count"),
    [
        (Split(kind="labels", by=("a",)), 20),
        (Split(kind="labels", by=("a",), fraction=0.1), 10),
        (Split(kind="quantiles", by=("b", "c"), bins=5), 20),
        (Split(kind="largest", by=("b", "c")), 20),
        (Split(kind="several_labels", by=("a", "rare")), 20),
        (Split(kind="draw"), 20),
    ],
)
def test_a_stratified_choice_takes_its_fraction_and_depends_on_the_seed(split: Split, count: int) -> None:
    rng = np.random.default_rng(1)
    table = pd.DataFrame(
        {"a": np.arange(100) % 2, "b": rng.random(100), "c": rng.random(100), "rare": np.arange(100) == 7}
    )
    hidden = hidden_rows(table, split)
    assert hidden.sum() == count
    assert (hidden_rows(table, split) == hidden).all()
    assert (hidden_rows(table, split.model_copy(update={"seed": 43})) != hidden).any()


def test_each_stratum_gives_its_share() -> None:
    table = pd.DataFrame({"a": ["x"] * 50 + ["y"] * 40 + ["z"] * 10})
    hidden = hidden_rows(table, Split(kind="labels", by=("a",)))
    assert table["a"][hidden].value_counts().to_dict() == {"x": 10, "y": 8, "z": 2}


def test_a_digest_decides_by_the_name_alone() -> None:
    # md5("3.png") and others modulo 5, worked out with hashlib
    names = [f"{n}.png" for n in range(12)]
    hidden = hidden_rows(pd.DataFrame({"n": names}), Split(kind="digest", bins=5), names)
    one = hidden_rows(pd.DataFrame({"n": names[:3]}), Split(kind="digest", bins=5), names[:3])
    assert hidden[:3].tolist() == one.tolist()
