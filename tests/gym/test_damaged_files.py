"""Files of other people, and our own after an accident: each reader says in one line which file it is and what is wrong."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from openmle_gym.bridges.mle_bench.archives import unpack_archives
from openmle_gym.bridges.mle_bench.facts import Split
from openmle_gym.bridges.mle_bench.files import FILE_NAMES, FOLDS, LABELS, recorded_rows
from openmle_gym.bridges.mle_bench.table import read_table
from openmle_gym.bridges.naturebench import read_task
from openmle_gym.build.asking import Desk
from openmle_gym.build.attempts import load_attempts
from openmle_gym.build.kaggle import leaderboard_csv
from openmle_gym.build.state import STATE, StateFile
from openmle_gym.build.tables import NotATable, read_samples
from openmle_gym.catalogue.released import read_inventory
from openmle_gym.errors import OpenMLEError, PackageError

DAMAGED = {
    "empty": b"",
    "cut": b'{"a": [1, {"b":',
    "not text": b"\xff\xfe\x00a,\xe9\n1,2\n",
    "of another kind": b"[7]",
    "a number of many digits": b"9" * 6_000,
    "too deep": b"[" * 100_000,
}
RECORDINGS = {
    FOLDS: "rec_id,fold\n1,0\n2,0\n3,1\n4,0\n",
    LABELS: "rec_id,[labels]\n1,3\n2,0,1\n3,?\n4,2\n",
    FILE_NAMES: "rec_id,filename\n1,a\n2,b\n3,c\n4,d\n",
}
SPLIT = Split(kind="draw")


def recordings(folder: Path, damaged: str, content: bytes) -> Path:
    for name, text in RECORDINGS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if name == damaged else text.encode())
    return folder


def nature(path: Path) -> None:
    (path.parent / "problem" / "data").mkdir(parents=True)
    (path.parent / "problem" / "README.md").touch()
    read_task(path.parent)


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a train table": ("train.json", read_table),
    "an inventory": ("all.jsonl", read_inventory),
    "NatureBench": ("metadata.json", nature),
    "attempts": ("attempt_01.json", lambda path: load_attempts(path.parent)),
    "calls": ("prepare.call.json", lambda path: Desk(None, path.parent).calls()),
    "a build": (STATE, lambda path: StateFile(path.parent, "here")),
}


@pytest.mark.parametrize(
    ("reader", "damage"),
    [
        (reader, damage)
        for reader in READERS
        for damage in DAMAGED
        if (reader, damage) != ("an inventory", "empty")  # no line is no record
    ],
)
def test_a_damaged_file_is_named(reader: str, damage: str, tmp_path: Path) -> None:
    name, read = READERS[reader]
    (tmp_path / name).write_bytes(DAMAGED[damage])
    with pytest.raises(OpenMLEError) as refused:
        read(tmp_path / name)
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("name", RECORDINGS)
def test_damaged_recordings_are_named(name: str, damage: str, tmp_path: Path) -> None:
    assert len(recorded_rows(recordings(tmp_path, "none", b""), SPLIT).ids) == 4  # one hidden, species 0 to 3
    with pytest.raises(PackageError) as refused:
        recorded_rows(recordings(tmp_path, name, DAMAGED[damage]), SPLIT)
    assert f"{tmp_path / name}: " in str(refused.value)


def strange_zip(path: Path, *, flag: int = 0, method: int | None = None) -> Path:
    """An archive that says of its member that it is encrypted (flag 1), or compressed in a way of its own."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", "id,score\n" + "1,2\n" * 500)
    raw = bytearray(path.read_bytes())
    for header, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = raw.find(header) + at
        raw[place] |= flag
        if method is not None:
            raw[place + 2] = method
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("strange", [{"flag": 1}, {"method": 77}], ids=["encrypted", "of another method"])
def test_an_archive_that_python_cannot_read_is_refused(strange: dict[str, int], tmp_path: Path) -> None:
    path = strange_zip(tmp_path / "train.csv.zip", **strange)
    with pytest.raises(PackageError, match="the leaderboard cannot be read"):
        leaderboard_csv(path.read_bytes())
    with pytest.raises(PackageError, match=str(path)):
        unpack_archives(tmp_path)


def test_a_table_that_its_reader_stumbles_over_is_no_table(tmp_path: Path) -> None:
    deep = tmp_path / "deep.json"
    deep.write_bytes(b"[" * 100_000)
    cut = tmp_path / "cut.xlsx"
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["id", "y"])
    book.save(cut)
    with zipfile.ZipFile(cut) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(cut, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content[:200] if "sheet1" in name else content)
    for path in (deep, cut):
        with pytest.raises(NotATable):
            read_samples(path)
