"""The profile of raw data: every format, every encoding, the same words every time."""

import io
import json
import wave
from pathlib import Path

import openpyxl
import pandas as pd
import pytest
from openmle_gym.build import template_prepare
from openmle_gym.build.numerals import plain_numbers
from openmle_gym.build.profile import profile_folder
from openmle_gym.build.profile_text import profile_text
from openmle_gym.build.tables import NotATable, read_samples
from openmle_gym.build.text_files import detect_encoding
from PIL import Image

TABLE = "id;größe;ort\n" + "".join(f"{n};{n * 7 % 50},5;{'Köln' if n % 2 else 'Bonn'}\n" for n in range(60))


@pytest.mark.parametrize(
    ("codec", "found"),
    [
        ("utf-8", "utf-8"),
        ("utf-8-sig", "utf-8-sig"),
        ("utf-16", "utf-16"),
        ("utf-16-le", "utf-16-le"),
        ("utf-16-be", "utf-16-be"),
        ("latin-1", "cp1252"),
    ],
)
def test_a_table_is_read_in_any_usual_encoding(codec: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(TABLE.encode(codec))
    table = profile_folder(tmp_path).tables[0]
    assert (table.encoding, table.delimiter, table.rows) == (found, ";", 60)
    assert table.names == ("id", "größe", "ort")
    size = table.column("größe")
    assert size is not None
    assert (size.kind, size.minimum, size.maximum) == ("number", "0.5", "49.5")
    assert table.candidates.ids == ("id",)


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("name,price\n“Café” – 5 €,3\n", "cp1252"),
        ("编号,城市\n1,北京\n2,上海\n", "gb18030"),
    ],
)
def test_text_that_is_not_unicode_is_read_as_what_it_looks_like(text: str, codec: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode(codec))
    assert detect_encoding(tmp_path / "t.csv") == codec


def test_bytes_that_windows_1252_does_not_have_are_latin_1(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"name\n" + b"plain text " * 10 + b"\x81\n")
    assert detect_encoding(tmp_path / "t.csv") == "latin-1"


@pytest.mark.parametrize(
    ("cells", "delimiter", "plain"),
    [
        (["1,5", "-20", ""], ";", ["1.5", "-20", ""]),
        (["1,5", "2,25"], ",", ["1.5", "2.25"]),
        (["1.234,5", "12"], ";", ["1234.5", "12"]),
        (["1 234,5", "NA"], ";", ["1234.5", "NA"]),
        (["1,234.5", "12"], ";", ["1234.5", "12"]),
        (["1,234,567", "8"], ";", ["1234567", "8"]),
        (["12,345", "6"], ",", ["12345", "6"]),
        (["12,345", "6"], ";", ["12.345", "6"]),
        (["0,345", "0,6"], ",", ["0.345", "0.6"]),
        (["1,5", "a, b"], ";", ["1,5", "a, b"]),
        (["1.5", "2"], ",", ["1.5", "2"]),
    ],
)
def test_commas_in_numbers_are_read_as_all_cells_of_the_column_allow(
    cells: list[str], delimiter: str, plain: list[str]
) -> None:
    column = pd.Series(cells, dtype=str)
    assert plain_numbers(column, delimiter=delimiter).tolist() == plain


def test_the_template_reads_numbers_as_the_profile_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_prepare, "MISSING", ["", "NA"])
    for delimiter, expected in ((",", ["1234", "5", "NA", ""]), (";", ["1.234", "5", "NA", ""])):
        monkeypatch.setattr(template_prepare, "READ", {"delimiter": delimiter})
        assert template_prepare.pointed(pd.Series(["1,234", "5", "NA", ""])).tolist() == expected
    assert template_prepare.pointed(pd.Series(["1.234,5", "NA"])).tolist() == ["1234.5", "NA"]
    assert template_prepare.pointed(pd.Series(["1,234.5", "NA"])).tolist() == ["1234.5", "NA"]
    assert template_prepare.pointed(pd.Series(["a, b", "1"])).tolist() == ["a, b", "1"]


def test_binary_files_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_bytes(bytes(range(256)) * 10)
    assert detect_encoding(tmp_path / "b.csv") is None
    assert profile_folder(tmp_path).unreadable == {"b.csv": "not text"}


def records() -> list[dict[str, object]]:
    return [{"name": f"n{n}", "age": n, "sick": n % 2 == 0, "note": None if n % 3 else "x"} for n in range(30)]


def write_excel(path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.title = "people"
    sheet.append(list(records()[0]))
    for record in records():
        sheet.append(list(record.values()))
    book.create_sheet("empty")
    book.save(path)


WRITERS = {
    "p.csv": lambda path: pd.DataFrame(records()).to_csv(path, index=False),
    "p.tsv": lambda path: pd.DataFrame(records()).to_csv(path, index=False, sep="\t"),
    "p.json": lambda path: path.write_text(json.dumps(records())),
    "named.json": lambda path: path.write_text(json.dumps({"rows": records()})),
    "columns.json": lambda path: path.write_text(
        json.dumps({key: [r[key] for r in records()] for key in records()[0]})
    ),
    "p.jsonl": lambda path: path.write_text("".join(json.dumps(record) + "\n" for record in records())),
    "p.parquet": lambda path: pd.DataFrame(records()).to_parquet(path),
    "p.xlsx": write_excel,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_table_is_the_same_in_every_format(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    table = profile_folder(tmp_path).tables[0]
    assert (table.rows, table.names) == (30, ("name", "age", "sick", "note"))
    kinds = [column.kind for column in table.columns]
    assert kinds == ["text", "integer", "boolean", "category"]
    assert [column.missing for column in table.columns] == [0, 0, 0, 20]


def test_a_profile_is_the_same_every_time(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text("x\n" + "".join(f"{n}\n" for n in range(30_000)))
    first, second = profile_folder(tmp_path), profile_folder(tmp_path)
    assert first.model_dump_json() == second.model_dump_json()
    assert profile_text(first) == profile_text(second)


def test_of_a_long_table_all_rows_are_counted_and_a_spread_sample_is_kept(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text("x,y\n" + "".join(f"{n},a\n" for n in range(5000)) + "odd\n")
    sample = read_samples(tmp_path / "long.csv", sample_rows=100)[0]
    assert (sample.rows, sample.ragged, len(sample.frame)) == (5001, 1, 100)
    numbers = sample.frame["x"].astype(int)
    assert numbers.is_monotonic_increasing
    assert numbers.max() > 4000
    assert 2000 < numbers.mean() < 3000


def test_the_unlabelled_twin_tells_the_target(tmp_path: Path) -> None:
    rows = "".join(f"{n},{n % 7},{n % 3},{n % 2}\n" for n in range(40))
    (tmp_path / "train.csv").write_text("key,a,b,quux\n" + rows)
    (tmp_path / "test.csv").write_text("key,a,b\n" + "".join(f"{n},1,2\n" for n in range(40, 60)))
    (tmp_path / "sample_submission.csv").write_text("key,quux\n" + "".join(f"{n},0\n" for n in range(40, 60)))
    train = profile_folder(tmp_path).table("train.csv")
    assert train is not None
    assert (train.twin, train.candidates.targets[0]) == ("test.csv", "quux")


def test_groups_and_times_are_candidates_by_name_and_content(tmp_path: Path) -> None:
    rows = "".join(f"{n},p{n % 20},2024-01-{n % 28 + 1:02d},{n % 5}\n" for n in range(100))
    (tmp_path / "t.csv").write_text("visit_id,patient,when,level\n" + rows)
    found = profile_folder(tmp_path).tables[0].candidates
    assert (found.ids, found.groups, found.times) == (("visit_id",), ("patient",), ("when",))


def test_images_and_sounds_are_told_by_their_headers(tmp_path: Path) -> None:
    for kind, size in (("cat", (8, 6)), ("dog", (16, 6))):
        (tmp_path / "pets" / kind).mkdir(parents=True)
        for n in range(12):
            Image.new("RGB", size, (n, 0, 0)).save(tmp_path / "pets" / kind / f"{n}.png")
    (tmp_path / "pets" / "dog" / "broken.png").write_bytes(b"no image")
    with wave.open(str(tmp_path / "beep.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(2 * 8000 * 3))
    profile = profile_folder(tmp_path)
    facts = {group.folder: (group.kind, group.files, group.facts, group.unreadable) for group in profile.groups}
    assert facts == {
        "": ("audio", 1, "3 s, 8000 Hz, 1 channels", 0),
        "pets/cat": ("image", 12, "8 x 6 pixels, mode RGB", 0),
        "pets/dog": ("image", 13, "16 x 6 pixels, mode RGB", 1),
    }
    assert profile.class_folder == "pets"
    assert "each sub-folder of pets holds one class" in profile_text(profile)


def test_texts_archives_and_other_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("Measured in 1912.\n")
    (tmp_path / "more.zip").write_bytes(b"PK\x03\x04")
    (tmp_path / "data.db").write_bytes(b"SQLite format 3\0" + bytes(100))
    profile = profile_folder(tmp_path)
    assert [(text.path, text.head) for text in profile.texts] == [("README.md", "Measured in 1912.\n")]
    assert profile.packed == ("more.zip",)
    assert {(group.suffix, group.kind) for group in profile.groups} == {(".zip", "other"), (".db", "other")}


def test_a_long_profile_is_cut_and_says_so(tmp_path: Path) -> None:
    names = ",".join(f"column_{n}" for n in range(300))
    (tmp_path / "wide.csv").write_text(names + "\n" + ",".join("1" * 300) + "\n")
    text = profile_text(profile_folder(tmp_path), most_characters=2000)
    assert text.endswith("[... profile cut here ...]")
    assert len(text) < 2100
    whole = profile_text(profile_folder(tmp_path))
    assert "and 220 more columns, the last of them column_299" in whole


def test_a_json_document_without_records_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"a": 1}')
    with pytest.raises(NotATable, match="without records"):
        read_samples(tmp_path / "settings.json")


def test_nothing_of_an_excel_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.xlsx").write_bytes(io.BytesIO(b"no workbook").getvalue())
    assert "BadZipFile" in profile_folder(tmp_path).unreadable["x.xlsx"]
