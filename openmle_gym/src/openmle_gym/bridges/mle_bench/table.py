"""A competition's train rows: a CSV file, every cell as it is written, or a JSON list of objects."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from openmle_gym.errors import PackageError
from openmle_gym.json_file import read_json
from openmle_gym.text_table import read_text_table


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTable:
    """Rows that can be written back in the form that they were read in."""

    frame: pd.DataFrame
    is_json: bool

    def text(self, rows: np.ndarray | None = None) -> str:
        """Some rows, or all, as the file's text.

        Args:
            rows: [rows] bool.
        """
        frame = self.frame if rows is None else self.frame[rows]
        return json.dumps(frame.to_dict("records"), indent=4) if self.is_json else frame.to_csv(index=False)


def read_table(path: Path) -> TrainTable:
    """Reads a table.

    Raises:
        PackageError: The file is missing, or cannot be read.
    """
    if path.suffix != ".json":
        return TrainTable(frame=read_text_table(path), is_json=False)
    found = read_json(path)
    records = [record for record in found if isinstance(record, dict)] if isinstance(found, list) else []
    if not isinstance(found, list) or len(records) < len(found):
        raise PackageError(f"{path}: is no list of objects")
    columns = list(dict.fromkeys(name for record in records for name in record))
    cells = {name: pd.Series([record.get(name) for record in records], dtype=object) for name in columns}
    return TrainTable(frame=pd.DataFrame(cells), is_json=True)
