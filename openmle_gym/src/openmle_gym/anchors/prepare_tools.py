"""What the anchors' `prepare.py` have in common; it is copied into a package's, which so needs nothing of OpenMLE."""

import hashlib
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

Sample = Literal["mean", "median", "mode"]


class Text(NamedTuple):
    """What a task's description says; `{train}`, `{test}` and `{all}` stand for numbers of rows."""

    title: str
    about: str
    evaluation: str
    predict: str
    """What a submission holds for a row."""
    columns: Mapping[str, str]
    """What is said of each column, or of several, in order; ids and targets among them."""
    files: str = ""
    """Further lines of the list of files."""


def order_of(seed: str, key: object) -> str:
    """A fixed, arbitrary rank of a row or a group."""
    return hashlib.sha256(f"{seed}/{key}".encode()).hexdigest()


def shuffled(table: pd.DataFrame, seed: str, rows: int | None = None) -> pd.DataFrame:
    """The rows in the order of a fixed hash of their index, and the first few of them if so many are not wanted."""
    return table.loc[sorted(table.index, key=lambda index: order_of(seed, index))[:rows]]


def stratified(table: pd.DataFrame, target: str, rows: int) -> list[bool]:
    """Which rows are in train: so many, taken evenly from the rows in the order of the target."""
    place = {index: n for n, index in enumerate(table.index)}
    ranked = sorted(table.index, key=lambda index: (table[target][index], place[index]))
    share = rows / len(ranked)
    taken = {row for n, row in enumerate(ranked) if int((n + 1) * share + 1e-9) > int(n * share + 1e-9)}
    return [index in taken for index in table.index]


def whole_groups(groups: pd.Series, seed: str, rows: int) -> list[bool]:
    """Which rows are in train: whole groups in the order of a fixed hash, until there are so many rows."""
    sizes = groups.value_counts()
    ranked = sorted(sizes.index, key=lambda group: order_of(seed, group))
    before = np.cumsum([0, *(sizes[group] for group in ranked)])[:-1]
    taken = {group for group, count in zip(ranked, before, strict=True) if count < rows}
    return [group in taken for group in groups]


def publish(
    table: pd.DataFrame,
    in_train: Sequence[bool],
    text: Text,
    public: Path,
    private: Path,
    *,
    id: str,
    targets: Sequence[str],
    sample: Sample,
    digits: int = 4,
) -> None:
    """Writes the task's tables and its description; the rows stay in order and are numbered from 1.

    Args:
        sample: What the sample submission says of every row, of the training rows' targets.
        digits: To how many the sample is rounded.
    """
    features = [column for column in table.columns if column not in targets]
    table = table[[*features, *targets]].reset_index(drop=True)
    table.insert(0, id, np.arange(1, len(table) + 1))
    chosen = np.asarray(in_train)
    train, test = table[chosen], table[~chosen]
    answers = test[[id, *targets]]
    constants = {}
    for target in targets:
        values = train[target]
        value = values.mode().iloc[0] if sample == "mode" else values.mean() if sample == "mean" else values.median()
        constants[target] = value if sample == "mode" else round(value, digits)
    submission = answers.assign(**constants)
    parts = {"train.csv": train, "test.csv": test.drop(columns=list(targets)), "sample_submission.csv": submission}
    for name, part in parts.items():
        part.to_csv(public / name, index=False, lineterminator="\n")
    answers.to_csv(private / "test_answer.csv", index=False, lineterminator="\n")
    example = submission.head(3).to_csv(index=False, lineterminator="\n").strip()
    named = " and ".join(f"`{target}`" for target in targets)
    words = {"mean": "the training mean", "median": "the training median", "mode": "the most frequent training value"}
    lines = [
        f"# {text.title}\n\n## Description\n\n{text.about}\n\n## Evaluation\n\n{text.evaluation}\n",
        f"## Submission File\n\nFor every `{id}` in `test.csv`, predict {text.predict}:\n\n```\n{example}\n```\n",
        f"## Files\n\n- `train.csv`: {{train}} rows with {named}\n- `test.csv`: {{test}} rows without",
        f"- `sample_submission.csv`: a valid submission that predicts {words[sample]} for every row",
        *([text.files] if text.files else []),
        f"\n## Columns\n\n- `{id}`: number of the row",
        *(f"- {'`' + name + '`' if '`' not in name else name}: {said}" for name, said in text.columns.items()),
    ]
    numbers = {"train": str(len(train)), "test": str(len(test)), "all": str(len(table))}
    described = "\n".join(lines)
    for name, number in numbers.items():
        described = described.replace("{" + name + "}", number)
    (public / "description.txt").write_text(described + "\n", encoding="utf-8")


def write_png(path: Path, pixels: np.ndarray) -> None:
    """Writes a grey image, [height, width] uint8, as a PNG whose rows are not filtered."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    # Stored, not deflated: the bytes do not depend on the version of zlib.
    rows = zlib.compress(np.pad(pixels, ((0, 0), (1, 0))).tobytes(), 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
