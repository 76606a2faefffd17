"""Tables are read a piece at a time, and what is kept of them is bounded."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from openmle_gym.check.tables import common_range, hash_rows, read_chunks, scan, sketch


def write_numbers(path: Path, rows: int, first: int = 0) -> Path:
    with open(path, "w") as file:
        file.write("id,x,y\n")
        file.writelines(f"{n},{n * 7919 % 1000},{n % 5}\n" for n in range(first, first + rows))
    return path


def test_a_file_comes_in_chunks_of_the_rows_asked_for(tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "t.csv", 25)
    assert [len(chunk.rows) for chunk in read_chunks(path, 10)] == [10, 10, 5]
    path.write_text("id\n\n1\n \n2\n\n")
    assert [chunk.rows for chunk in read_chunks(path)] == [[["1"], ["2"]]]


def test_what_is_kept_of_a_file_does_not_grow_with_it(tmp_path: Path) -> None:
    peaks = []
    for rows in (5_000, 40_000):
        path = write_numbers(tmp_path / f"{rows}.csv", rows)
        tracemalloc.start()
        table = scan(path, ["id"], sample_rows=500, chunk_rows=500)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (table.rows, len(table.sample), table.repeated_ids()) == (rows, 500, 0)
    assert peaks[1] - peaks[0] < 8 * 35_000 * 3  # ids' hashes, and twice that while they are put together


def test_samples_of_two_files_are_about_the_same_ids(tmp_path: Path) -> None:
    first = scan(write_numbers(tmp_path / "a.csv", 3000), ["id"], sample_rows=200)
    second = scan(write_numbers(tmp_path / "b.csv", 3000), ["id"], sample_rows=200)
    assert first.sample.index.equals(second.sample.index)
    assert first.digests == second.digests
    assert first.ids_digest() == second.ids_digest()


def test_the_share_of_common_rows_is_estimated_from_bounded_sketches(tmp_path: Path) -> None:
    train = write_numbers(tmp_path / "a.csv", 12_000)
    test = write_numbers(tmp_path / "b.csv", 4_000, first=10_000)  # half of them are in train
    by_id = (sketch(path, lambda frame: hash_rows(frame[["id"]]), ["id"], sample_rows=1000) for path in (train, test))
    left, right = common_range(*by_id, sample_rows=1000)
    assert 200 < len(right) < 1000
    assert np.mean(right.index.isin(left.index)) == pytest.approx(0.5, abs=0.1)


def test_ragged_rows_and_repeated_ids_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,x\n1,2\n3\n1,4\n5,6,7\n")
    table = scan(path, ["id"])
    assert (table.rows, table.ragged, table.first_ragged, table.repeated_ids()) == (4, 2, [2, 4], 1)


@pytest.mark.parametrize(
    ("text", "rows", "said"),
    [
        ('id,x\n1,"2\n3,4\n5,6\n', 1, "the row that begins in line 2, up to line 4: unexpected end of data"),
        ('id,x\n1,2\n3,"4\n5,"6"\n7,8\n', 3, "the row that begins in line 3, up to line 4: ',' expected after '\"'"),
        ('id,x\n1,"2\n3"\n5,"6 ""x"""\n7,8"\n', 3, ""),
    ],
    ids=["to the end", "to the next", "none"],
)
def test_a_quote_that_swallows_rows_is_found_where_it_opens(tmp_path: Path, text: str, rows: int, said: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    table = scan(path, ["id"])
    assert (table.ragged, table.loose_quote) == (0, said)
    assert table.rows == rows


def test_a_long_cell_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,x\n1," + "y" * 300_000 + "\n")
    assert scan(path, ["id"]).rows == 1


def test_what_is_not_text_is_said_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"id,x\n1,\xff\n")
    with pytest.raises(ValueError, match="row 1"):
        scan(path, ["id"])
