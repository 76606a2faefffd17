"""One CSV file becomes a task package."""

import logging
from pathlib import Path

import pandas as pd
import pytest
from openmle_gym.assemble import hash_files, run_prepare
from openmle_gym.errors import ConfigError, PackageError
from openmle_gym.grading import grade_submission
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.metrics import METRICS
from openmle_gym.new_task import new_task
from openmle_gym.new_task_table import read_table

RUNNER = ProcessRunner(allow_no_isolation=True)


def houses(rows: int = 80) -> pd.DataFrame:
    """Prices that follow the size; one of two towns, one of three heatings, some gaps."""
    return pd.DataFrame(
        {
            "size": [20 + (7 * i) % 100 for i in range(rows)],
            "town": ["North" if i % 2 else "South" for i in range(rows)],
            "heating": [("gas", "oil", "")[i % 3] for i in range(rows)],
            "price": [1000 + 13 * ((7 * i) % 100) + i for i in range(rows)],
            "sold": ["yes" if i % 4 == 0 else "no" for i in range(rows)],
        }
    )


def write(folder: Path, table: pd.DataFrame | str, name: str = "houses.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    text = table if isinstance(table, str) else table.to_csv(index=False)
    path.write_bytes(text.encode(encoding))
    return path


async def make(folder: Path, table: pd.DataFrame | str, **settings):
    path = write(folder, table)
    settings = {"target": ["price"], "metric": "rmse", "destination": folder / "task", **settings}
    return await new_task(path, runner=RUNNER, **settings)


async def test_a_regression_table_becomes_a_whole_package(tmp_path):
    package = await make(tmp_path, houses(), title="What does a house cost?")
    manifest = package.manifest
    assert not package.inferred
    assert (manifest.name, manifest.title, manifest.task_type) == ("houses", "What does a house cost?", "regression")
    assert (manifest.metric.name, manifest.metric.higher_is_better, manifest.metric.prediction) == (
        "rmse",
        False,
        "number",
    )
    assert (manifest.columns.id, manifest.columns.target) == (("row_id",), ("price",))
    assert manifest.files == hash_files(package.root)
    assert {
        "utils/prepare.py",
        "utils/metric.py",
        "raw/train.csv",
        "data/private/test_answer.csv",
    } <= manifest.files.keys()
    train = pd.read_csv(package.public_dir / "train.csv")
    test = pd.read_csv(package.public_dir / "test.csv")
    sample = pd.read_csv(package.public_dir / "sample_submission.csv")
    assert (len(train), len(test)) == (64, 16)
    assert list(test.columns) == ["row_id", "size", "town", "heating", "sold"]
    assert list(train.columns) == ["row_id", "size", "town", "heating", "price", "sold"]
    assert list(sample.columns) == list(package.answers.columns) == ["row_id", "price"]
    assert sample["row_id"].tolist() == test["row_id"].tolist() == package.answers["row_id"].astype(int).tolist()
    assert sample["price"].unique() == pytest.approx(train["price"].mean(), rel=1e-5)
    everything = pd.concat([train["price"], package.answers["price"].astype(int)])
    assert sorted(everything) == sorted(houses()["price"])


async def test_the_description_speaks_of_public_files_only(tmp_path):
    text = (await make(tmp_path, houses())).description
    for words in (
        "rmse",
        "Lower is better",
        "64 labelled rows",
        "16 rows without",
        '"North", "South"',
        "row_id,price\n",
    ):
        assert words in text
    for words in ("raw/", "private", "test_answer", "prepare", "<"):
        assert words not in text


async def test_the_package_can_be_made_again_from_its_own_prepare(tmp_path):
    package = await make(tmp_path, houses(), target=["sold"], metric="auc")
    source = (package.root / "utils" / "prepare.py").read_text(encoding="utf-8")
    outputs = await run_prepare(source, package.root / "raw", runner=RUNNER)
    for name, content in outputs.items():
        folder = "private" if name == "test_answer.csv" else "public"
        assert content == (package.root / "data" / folder / name).read_bytes(), name


async def test_the_same_table_and_seed_make_the_same_bytes_and_another_seed_another_split(tmp_path):
    first = await make(tmp_path, houses(), destination=tmp_path / "a")
    second = await make(tmp_path, houses(), destination=tmp_path / "b")
    other = await make(tmp_path, houses(), destination=tmp_path / "c", seed=1)
    assert hash_files(first.root) == hash_files(second.root)
    assert first.answers["price"].tolist() != other.answers["price"].tolist()


async def test_a_binary_target_is_split_evenly_and_its_baseline_is_the_share_of_the_larger_label(tmp_path):
    package = await make(tmp_path, houses(), target=["sold"], metric="log_loss", test_fraction=0.25)
    assert package.answers["sold"].value_counts().to_dict() == {"no": 15, "yes": 5}
    sample = pd.read_csv(package.public_dir / "sample_submission.csv")
    assert sample["sold"].unique().tolist() == [0.25]
    assert "of 'yes'" in package.description
    assert package.manifest.metric.prediction == "probability"


async def test_a_label_target_gets_the_most_frequent_label(tmp_path):
    table = houses().assign(heating=lambda t: t["heating"].where(t.index % 3 > 0, "gas"))
    package = await make(tmp_path, table, target=["heating"], metric="accuracy")
    sample = pd.read_csv(package.public_dir / "sample_submission.csv")
    train = pd.read_csv(package.public_dir / "train.csv", keep_default_na=False)
    assert sample["heating"].unique().tolist() == [train["heating"].mode()[0]] == ["gas"]


async def test_rows_without_a_target_are_dropped_and_counted(tmp_path, caplog):
    table = houses().astype({"price": object})
    table.loc[[3, 5, 8], "price"] = ["", "NA", None]
    package = await make(tmp_path, table)
    assert len(pd.read_csv(package.public_dir / "train.csv")) + len(package.answers) == 77
    assert "3 rows without a target were dropped" in package.manifest.provenance.train_test_split
    assert "3 rows without a target were dropped" in caplog.text


async def test_several_targets_are_asked_for_together(tmp_path):
    package = await make(tmp_path, houses(), target=["price", "size"])
    assert package.manifest.columns.target == ("price", "size")
    assert list(pd.read_csv(package.public_dir / "test.csv").columns) == ["row_id", "town", "heating", "sold"]


def heated() -> pd.DataFrame:
    """One column for each of three classes, with a 1 in every third row."""
    classes = {name: [int(i % 3 == n) for i in range(80)] for n, name in enumerate(("gas", "oil", "wood"))}
    return houses()[["size", "town"]].assign(**classes)


async def test_a_column_for_each_class_is_scored_together(tmp_path):
    package = await make(tmp_path, heated(), target=["gas", "oil", "wood"], metric="multiclass_log_loss")
    sample = pd.read_csv(package.public_dir / "sample_submission.csv")
    assert sample[["gas", "oil", "wood"]].sum(axis=1).tolist() == pytest.approx([1.0] * 16, abs=1e-5)
    assert "of each class in its column" in package.description
    assert "averaged over" not in package.description
    grade = await grade_submission(package, sample.to_csv(index=False).encode(), splits=("all",), runner=RUNNER)
    assert grade.scores["all"] == pytest.approx(1.0986, abs=0.02)  # the log of 3, as the classes are nearly even


@pytest.mark.parametrize(
    ("target", "changes", "words"),
    [
        (["gas"], {}, "one column for each class, but the only target is 'gas'"),
        (["gas", "oil"], {}, "1 in one target column and 0 in the others, but a row has '0', '0'"),
        (["gas", "oil", "wood"], {"wood": 1}, "but a row has '1', '0', '1'"),
        (["gas", "oil", "wood"], {"wood": "yes"}, "but a row has '1', '0', 'yes'"),
    ],
)
async def test_columns_that_are_no_classes_are_refused_where_they_are_scored_together(tmp_path, target, changes, words):
    with pytest.raises(PackageError, match=words):
        await make(tmp_path, heated().assign(**changes), target=target, metric="multiclass_log_loss")


async def test_an_id_is_taken_as_given_or_recognised_and_keeps_its_spelling(tmp_path):
    table = houses().assign(HouseId=[f"{i:04d}" for i in range(80)])
    recognised = await make(tmp_path, table, destination=tmp_path / "a")
    given = await make(
        tmp_path, table.rename(columns={"HouseId": "code"}), destination=tmp_path / "b", id_column="code"
    )
    assert recognised.manifest.columns.id == ("HouseId",)
    assert given.manifest.columns.id == ("code",)
    assert all(len(name) == 4 for name in given.answers["code"])
    assert "row_id" not in pd.read_csv(given.public_dir / "train.csv").columns


async def test_a_column_called_like_an_id_that_repeats_is_a_feature(tmp_path):
    table = houses().assign(town_id=[i % 5 for i in range(80)], row_id=[i % 2 for i in range(80)])
    package = await make(tmp_path, table)
    assert package.manifest.columns.id == ("row_id_",)


@pytest.mark.parametrize(("separator", "decimal"), [(";", ","), ("\t", "."), ("|", "."), (",", ".")])
def test_any_usual_separator_and_decimal_sign_is_read(tmp_path, separator, decimal):
    lines = ["name,size,note", "a,1.5,x", "b,-20,y"]
    text = "\n".join(
        line.replace(".", decimal).replace(",", separator, 9) if decimal == "." else line for line in lines
    )
    if decimal == ",":
        text = "name;size;note\na;1,5;x, y\nb;-20;y"
    table = read_table(write(tmp_path, text))
    assert list(table.columns) == ["name", "size", "note"]
    assert table["size"].tolist() == ["1.5", "-20"]


def test_a_byte_order_mark_and_spaces_in_the_header_mean_nothing(tmp_path):
    assert list(read_table(write(tmp_path, "\ufeffid, size \n1,2\n")).columns) == ["id", "size"]


@pytest.mark.parametrize(
    ("town", "encoding", "warns"),
    [
        ("Köln – „5 €“", "cp1252", "read as cp1252"),
        ("北京", "gb18030", "read as gb18030"),
        ("Köln", "utf-16", ""),
        ("Köln", "utf-16-le", ""),
        ("Köln", "utf-32", ""),
    ],
)
def test_any_usual_encoding_is_read_and_a_guess_is_told(tmp_path, caplog, town, encoding, warns):
    with caplog.at_level(logging.WARNING):
        table = read_table(write(tmp_path, f"town,size\n{town},3\n", encoding=encoding))
    assert table["town"].tolist() == [town]
    assert warns in caplog.text
    assert bool(caplog.text) == bool(warns)


def test_an_encoding_that_is_told_is_taken(tmp_path, caplog):
    path = write(tmp_path, "town,size\nМосква,3\n", encoding="cp1251")
    assert read_table(path, encoding="cp1251")["town"].tolist() == ["Москва"]
    assert not caplog.text
    with pytest.raises(ConfigError, match="encoding 'cp9999': Python has no such codec"):
        read_table(path, encoding="cp9999")
    with pytest.raises(PackageError, match="byte 10 cannot be read as ascii"):
        read_table(path, encoding="ascii")


@pytest.mark.parametrize(
    ("text", "columns", "row"),
    [
        ("sep=;\nsize;town\n1,5;x\n", ["size", "town"], ["1.5", "x"]),
        (",size,town\n0,1.5,x\n1,2,y\n", ["index", "size", "town"], ["0", "1.5", "x"]),
        ("size,town,\n1.5,x,\n2,y,\n", ["size", "town"], ["1.5", "x"]),
        ("size,town\n1.5,x,\n2,y,\n", ["size", "town"], ["1.5", "x"]),
        ("size,town\n1.5,x\n,\n \n", ["size", "town"], ["1.5", "x"]),
        ('size,town\n"1,234.5",x\n"2",y\n', ["size", "town"], ["1234.5", "x"]),
        ('size,town\n"1,234",x\n"2",y\n', ["size", "town"], ["1234", "x"]),
    ],
)
def test_what_spreadsheets_and_pandas_add_changes_no_cell(tmp_path, text, columns, row):
    table = read_table(write(tmp_path, text))
    assert list(table.columns) == columns
    assert table.iloc[0].tolist() == row


def test_a_cell_may_be_longer_than_the_csv_modules_default_limit(tmp_path):
    table = read_table(write(tmp_path, "a,b\n" + "x" * 200_000 + ",1\n"))
    assert table["a"].tolist() == ["x" * 200_000]


async def test_an_index_names_rows_only_where_no_other_column_does(tmp_path):
    package = await make(tmp_path, houses().assign(house_id=range(100, 180)).to_csv())
    assert package.manifest.columns.id == ("house_id",)


def test_quoted_separators_and_newlines_stay_in_their_cell(tmp_path):
    table = read_table(write(tmp_path, 'a,b\n"x, y","one\ntwo"\n'))
    assert table.iloc[0].tolist() == ["x, y", "one\ntwo"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("a,b,a\n1,2,3\n", "two columns are called 'a'"),
        ("a,,c\n1,2,3\n", "column 2 has no name"),
        ("a,b\n1,2\n3\n", "row 3 has 1 fields, the header has 2"),
        ('a,b\n1,2\n"1,2\n', "row 3 cannot be read: unexpected end of data"),
        ("a,\n1,2\n", "column 2 has no name"),
        (",b\n1,2\n1,3\n", "column 1 has no name"),
        (" \n\t\n", "the file is empty"),
        ("PK\x03\x04\0\0", "is no text, but a zip archive or a workbook"),
        ("a,b\n1,\0\n", "is no text"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, text, message):
    with pytest.raises(PackageError, match=message):
        read_table(write(tmp_path, text))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": ["prise"]}, "no column 'prise'; did you mean 'price'"),
        ({"target": ["zzz"]}, "no column 'zzz'; there are size, town"),
        ({"target": []}, "name each column"),
        ({"target": ["price", "price"]}, "name each column"),
        ({"metric": "rsme"}, f"no metric 'rsme'; there are {', '.join(METRICS)}"),
        ({"metric": "auc", "target": ["heating2"]}, "'heating2': auc needs two classes, but there are 3"),
        ({"target": ["town"]}, "'town': rmse needs numbers, but row 2 has 'South'"),
        ({"target": ["endless"]}, "'endless': rmse needs numbers, but row 7 has 'inf'"),
        ({"metric": "accuracy"}, "'price': accuracy needs classes, but 80 rows have 80 different values"),
        ({"metric": "rmsle", "target": ["debt"]}, "at least 0, but there is -40"),
        ({"target": ["same"]}, "every row has the same value"),
        ({"id_column": "town"}, "does not name rows"),
        ({"id_column": "price"}, "both id and target"),
        ({"id_column": "Town"}, "did you mean 'town'"),
        ({"test_fraction": 1.0}, "between 0 and 1"),
        ({"name": "---"}, "needs a letter"),
    ],
)
async def test_what_does_not_fit_is_refused_and_nothing_is_left(tmp_path, settings, message):
    table = houses().assign(
        heating2=[("gas", "oil", "wood")[i % 3] for i in range(80)], debt=range(-40, 40), same=["x"] * 80
    )
    table["endless"] = ["inf" if i == 5 else str(i) for i in range(80)]
    with pytest.raises(PackageError, match=message):
        await make(tmp_path, table, **settings)
    assert [path.name for path in tmp_path.iterdir()] == ["houses.csv"]


async def test_too_few_rows_a_missing_file_and_a_taken_place_are_refused(tmp_path):
    with pytest.raises(PackageError, match="49 rows with a target; a task needs at least 50"):
        await make(tmp_path, houses(49))
    with pytest.raises(PackageError, match=r"nowhere.csv: No such file"):
        await new_task(
            tmp_path / "nowhere.csv", target=["a"], metric="rmse", destination=tmp_path / "task", runner=RUNNER
        )
    (tmp_path / "task").mkdir()
    with pytest.raises(PackageError, match="is there already"):
        await make(tmp_path, houses())
    with pytest.raises(PackageError, match="no column is left"):
        await make(tmp_path, houses()[["price"]], destination=tmp_path / "other")
