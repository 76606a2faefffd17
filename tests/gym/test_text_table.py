"""Tables as they are written, and what two readers would see in different ways refused with its place."""

from pathlib import Path

import pytest
from openmle_gym.errors import PackageError
from openmle_gym.text_table import read_header, read_rows, read_text_table


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        b'id,note\n007,NaN\n1e3,"a\nb, c"\n',
        b'\xef\xbb\xbfid,note\r\n007,NaN\r\n1e3,"a\nb, c"\r\n',
        b'\nid,note\n\n007,NaN\n  \n1e3,"a\nb, c"',
    ],
)
def test_cells_are_as_they_are_written(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path, content)
    cells = [["007", "NaN"], ["1e3", "a\nb, c"]]
    assert list(read_rows(path)) == [["id", "note"], *cells]
    assert read_header(path) == ["id", "note"]
    assert read_text_table(path).to_dict("split", index=False) == {"columns": ["id", "note"], "data": cells}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"id,y\n1,2\n2\n3,4\n", "row 2 has 1 cells where the header has 2"),
        (b"id,y\n1,2,3\n2,3,4\n", "row 1 has 3 cells where the header has 2"),
        (b"id,y\n1,2,\n2,3,\n", "row 1 has 3 cells where the header has 2"),
        (b"id,y,y\n1,2,3\n", "the header has two columns 'y'"),
        (b'id,y\n1,2\n2,"3\n3,4\n', "row 2: not CSV"),
        (b"id,y\n1,2\n2,caf\xe9\n", "line 3 is not text in UTF-8"),
        ("id,y\n1,2\n".encode("utf-16"), "line 1 is not text in UTF-8"),
        (b"", "is empty"),
        (b"\n \n", "is empty"),
    ],
)
def test_what_readers_would_guess_at_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(PackageError, match=words) as caught:
        read_text_table(path)
    assert str(caught.value).startswith(str(path))


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"absent\.csv: cannot be read: No such file"):
        read_header(tmp_path / "absent.csv")
