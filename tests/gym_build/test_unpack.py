"""Archives become folders, and what is wrong in one is refused by name."""

import bz2
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import py7zr
import pytest
from gym_build.scripted_kaggle import zipped
from openmle_gym.build.state import files_below
from openmle_gym.build.unpack import UnpackLimits, archive_suffix, unpack
from openmle_gym.errors import PackageError


def tarred(files: dict[str, bytes], mode: Literal["w", "w:gz", "w:bz2", "w:xz"] = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def seven(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with py7zr.SevenZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(content, name)
    return out.getvalue()


def unpacked(folder: Path, files: dict[str, bytes], limits: UnpackLimits | None = None) -> dict[str, bytes]:
    """What comes out of a source folder with these files, by relative path."""
    source, target = folder / "source", folder / "raw"
    for name, content in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    target.mkdir()
    done = unpack(source, target, limits=limits)
    found = {path.relative_to(target).as_posix(): path.read_bytes() for path in files_below(target)}
    assert (done.files, done.bytes) == (len(found), sum(map(len, found.values())))
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    return found


A, B = {"x.csv": b"1"}, {"x.csv": b"2"}


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("a.zip", zipped({"x.csv": "1"})),
        ("A.ZIP", zipped({"x.csv": "1"})),
        ("a.7z", seven(A)),
        ("a.tar", tarred(A, "w")),
        ("a.tar.gz", tarred(A)),
        ("a.tgz", tarred(A)),
        ("a.tar.bz2", tarred(A, "w:bz2")),
        ("a.tar.xz", tarred(A, "w:xz")),
        ("x.csv.gz", gzip.compress(b"1")),
        ("x.csv.bz2", bz2.compress(b"1")),
        ("x.csv.xz", lzma.compress(b"1")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # an archive holds the time it was made at
)
def test_an_archive_alone_becomes_the_raw_data(name: str, packed: bytes, tmp_path: Path) -> None:
    assert unpacked(tmp_path, {name: packed}) == {"x.csv": b"1"}


def test_archives_with_equal_members_stay_apart(tmp_path: Path) -> None:
    files = {"train.zip": zipped({"x.csv": "1"}), "test.7z": seven(B), "plain.csv": b"3"}
    assert unpacked(tmp_path, files) == {"train/x.csv": b"1", "test/x.csv": b"2", "plain.csv": b"3"}


def test_archives_within_archives_are_unpacked_to_the_innermost(tmp_path: Path) -> None:
    inner = tarred({"deep/x.csv": b"1"})
    packed = zipped({"data/more.tar.gz": inner, "train.csv.zip": zipped({"train.csv": "2"}), "readme": "3"})
    assert unpacked(tmp_path, {"all.zip": packed}) == {
        "data/more/deep/x.csv": b"1",
        "train.csv": b"2",
        "readme": b"3",
    }


def test_a_folder_of_the_archives_own_name_is_left_out(tmp_path: Path) -> None:
    files = {"train.zip": zipped({"train/1.png": "a", "train/2.png": "b"}), "y.csv": b"1"}
    assert unpacked(tmp_path, files) == {"train/1.png": b"a", "train/2.png": b"b", "y.csv": b"1"}


def test_a_file_that_only_bears_an_archives_name_stays_as_it_is_inside_of_one(tmp_path: Path) -> None:
    packed = zipped({"x.gz": "no archive", "y": "1"})
    assert unpacked(tmp_path, {"all.zip": packed}) == {"x.gz": b"no archive", "y": b"1"}


def link_in_tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        member = tarfile.TarInfo("shadow")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/shadow"
        tar.addfile(member)
    return out.getvalue()


def link_in_zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        member = zipfile.ZipInfo("shadow")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(member, "/etc/shadow")
    return out.getvalue()


def nameless_in_zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(zipfile.ZipInfo(""), "1")
    return out.getvalue()


def twice_in_zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.csv", "1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("x.csv", "2")
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "pack", "said"),
    [
        ("a.zip", lambda: zipped({"../x.csv": "1"}), "'../x.csv': leads out"),
        ("a.zip", lambda: zipped({"/etc/x.csv": "1"}), "'/etc/x.csv': leads out"),
        ("a.zip", lambda: zipped({"..\\x.csv": "1"}), "leads out"),
        ("a.zip", lambda: zipped({"C:/x.csv": "1"}), "leads out"),
        ("a.tar", lambda: tarred({"b/../../x.csv": b"1"}, "w"), "'b/../../x.csv': leads out"),
        ("a.tar", link_in_tar, "shadow: a link"),
        ("a.zip", link_in_zip, "shadow: a link"),
        ("a.zip", twice_in_zip, "x.csv: collides"),
        ("a.zip", nameless_in_zip, "'': a member without a name"),
        ("a.tar", lambda: tarred({"x": b"1", "y": b"2"}, "w")[:1024], "cut or damaged at byte 1024"),
        (
            "a.tar",
            lambda: b"".join([(t := tarred({"x": b"1", "y": b"2"}, "w"))[:1024], b"?" * 512, t[1536:]]),
            "byte 1024",
        ),
        (
            "a.tar.bz2",
            lambda: tarred({"x": b"1"}, "w:bz2")[:40],
            "cannot be unpacked: file could not be opened successfully",
        ),
        ("a.zip", lambda: zipped({"x": "1", "x/y": "2"}), "y: collides"),
        ("a.zip", lambda: b"PK\x03\x04 nothing", "a.zip: cannot be unpacked"),
        ("a.7z", lambda: b"7z\xbc\xaf\x27\x1c nothing", "a.7z: cannot be unpacked"),
        ("a.tar.gz", lambda: gzip.compress(b"1")[:12], "a.tar.gz: cannot be unpacked"),
        ("a.zip", lambda: zipped({"zero": bytes(50_000)}), "zero: 50000 bytes come out of"),
        ("a.gz", lambda: gzip.compress(bytes(50_000)), "50000 bytes come out of"),
        ("a.7z", lambda: seven({"zero": bytes(50_000)}), "refused as a bomb"),
    ],
)
def test_what_is_wrong_in_an_archive_is_refused_by_name(
    name: str, pack: Callable[[], bytes], said: str, tmp_path: Path
) -> None:
    limits = UnpackLimits(ratio=20.0, ratio_from_bytes=10_000)
    with pytest.raises(PackageError, match=f"^{name}") as refused:
        unpacked(tmp_path, {name: pack()}, limits)
    assert said in str(refused.value)


def test_limits_hold_over_all_archives_together(tmp_path: Path) -> None:
    files = {"a.zip": zipped({"x": "123"}), "b.zip": zipped({"x": "456"})}
    with pytest.raises(PackageError, match="more than 5 bytes"):
        unpacked(tmp_path, files, UnpackLimits(bytes=5))


def test_too_many_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="more than 2 files"):
        unpacked(tmp_path, {"a.zip": zipped({"x": "", "y": "", "z": ""})}, UnpackLimits(files=2))


def test_archives_too_deep_are_refused(tmp_path: Path) -> None:
    packed = zipped({"c.zip": zipped({"b.zip": zipped({"x": "1"})})})
    with pytest.raises(PackageError, match=r"b\.zip: an archive 3 deep"):
        unpacked(tmp_path, {"a.zip": packed}, UnpackLimits(depth=2))


def test_an_archive_whose_place_is_taken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"train\.zip: collides with train"):
        unpacked(tmp_path, {"train/x.csv": b"1", "train.zip": zipped({"y": "1"})})


def test_an_archive_with_a_password_says_so(tmp_path: Path) -> None:
    out = io.BytesIO()
    with py7zr.SevenZipFile(out, "w", password="secret") as archive:
        archive.writestr(b"1", "x.csv")
    with pytest.raises(PackageError, match=r"a\.7z: needs a password"):
        unpacked(tmp_path, {"a.7z": out.getvalue()})


def test_a_link_in_the_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "x.csv").symlink_to("/etc/passwd")
    with pytest.raises(PackageError, match=r"x\.csv: a link"):
        unpack(tmp_path / "source", tmp_path / "raw")


@pytest.mark.parametrize(
    ("name", "suffix"), [("a.TAR.GZ", ".tar.gz"), ("a.csv", ""), (".zip", ""), ("b.csv.xz", ".xz")]
)
def test_suffixes_of_archives(name: str, suffix: str) -> None:
    assert archive_suffix(name) == suffix
