"""What the grading process gets as arrays is what `pandas.read_csv` would have read from a file."""

import io

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st
from openmle_gym.grading_child import read_columns
from openmle_gym.grading_tables import Column, coded_column, pack, text_column

KINDS = st.sampled_from(
    [
        ["1", "2", "007", "-3"],
        ["1", "", "2"],
        ["0.1", "5e-324", "1e308", "-0.0", "3"],
        ["True", "False"],
        ["True", "", "False"],
        ["a", "b", "NA", 'say "b, c"', "two\nlines", ""],
        ["1", "x"],
        ["99999999999999999999", "1"],
        ["18446744073709551615", "0"],
        ["", "nan"],
        [" a", "a ", "é"],
    ]
)


@given(KINDS.flatmap(lambda cells: st.lists(st.sampled_from(cells), min_size=1, max_size=12)))
@settings(max_examples=200)
def test_a_column_of_text_arrives_as_pandas_would_read_it(cells: list[str]) -> None:
    table = pd.DataFrame({"x": cells, "id": [str(n) for n in range(len(cells))]}, dtype=str)
    expected = pd.read_csv(io.StringIO(table.to_csv(index=False)), low_memory=False)
    header, columns = read_columns(io.BytesIO(pack({name: text_column(table[name]) for name in table}, note="n")))
    pd.testing.assert_frame_equal(pd.DataFrame(columns), expected)
    assert header["note"] == "n"


def test_numbers_and_further_arrays_arrive_exactly() -> None:
    values = np.array([0.1 + 0.2, -0.0, 5e-324])
    rows = np.array([True, False, True])
    file = io.BytesIO(pack({"y": Column(values=values)}, [rows]))
    _, columns = read_columns(file)
    assert columns["y"].tobytes() == values.tobytes()
    assert np.load(file, allow_pickle=False).tolist() == [True, False, True]


def test_labels_arrive_from_their_codes() -> None:
    _, columns = read_columns(io.BytesIO(pack({"y": coded_column(np.array([1, 0, 1]), ["0", "1"])})))
    assert columns["y"].tolist() == [1, 0, 1]
    _, columns = read_columns(io.BytesIO(pack({"y": coded_column(np.array([1, 0, 1]), ["b", "a"])})))
    assert columns["y"].tolist() == ["a", "b", "a"]
