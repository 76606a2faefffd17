"""A package to search on, carved out of the train rows of an official package; nothing of the official test is in it.

It has the official file names and columns, so that one program runs on both, and the official grader.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from openmle_gym.bridges.mle_bench.facts import Carving, CompetitionFacts, Details, Media
from openmle_gym.bridges.mle_bench.files import HiddenFiles, named_rows, pixel_rows, recorded_rows
from openmle_gym.bridges.mle_bench.official import PREPARE, ROW_ID, SAMPLE
from openmle_gym.bridges.mle_bench.rows import hidden_rows
from openmle_gym.bridges.mle_bench.table import TrainTable, read_table
from openmle_gym.bridges.placing import finish, link_file, link_tree, placed, write_file
from openmle_gym.errors import PackageError
from openmle_gym.manifest import HiddenSplit, Manifest
from openmle_gym.task import TaskPackage, load_package
from openmle_gym.text_table import read_text_table

NOTE = """
## Rows here

The train and test rows here are both taken from the competition's train rows; its own test rows are not here.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """What becomes of the hidden rows."""

    answers: pd.DataFrame
    """The answers, ids among them."""
    moved: Mapping[str, str]
    """Public files that go to the test side, to their new names."""
    replaced: Mapping[str, str]
    """Public files with new text."""
    left_out: frozenset[str]
    """Public files that are not copied, beside those that are moved or replaced."""


def carve_search(official: TaskPackage, facts: CompetitionFacts, destination: Path) -> TaskPackage:
    """Makes the search package: all of its hidden rows are for validation.

    Raises:
        PackageError: No protocol is known for this competition, or the official package is not as its protocol needs.
    """
    if facts.details is None:
        raise PackageError(f"{official.root}: no split protocol is known for {facts.id}; only Lite's 22 have one")
    carving = facts.details.carving
    hidden = _hidden(official, facts.details)
    gone = {*hidden.moved, *hidden.replaced, *hidden.left_out, SAMPLE, "description.txt", facts.details.sample}
    folders = tuple(f"{name}/" for name in (*carving.dropped, *(media.test for media in _divided(carving))))
    source = official.public_dir
    with placed(destination) as root:
        public = root / "data" / "public"
        link_tree(source, public, wanted=lambda name: name not in gone and not name.startswith(folders))
        for name, new_name in hidden.moved.items():
            link_file(source / name, public / new_name)
        for name, text in hidden.replaced.items():
            write_file(public / name, text)
        sample = _sample(official, hidden.answers)
        for name in {SAMPLE, facts.details.sample}:
            write_file(public / name, sample)
        write_file(public / "description.txt", official.description.rstrip() + "\n" + NOTE)
        write_file(root / "data" / "private" / "test_answer.csv", hidden.answers.to_csv(index=False))
        link_file(official.metric_path, root / "utils" / "metric.py")
        write_file(root / "utils" / "prepare.py", PREPARE)
        link_file(official.root / "info" / "leaderboard.csv", root / "info" / "leaderboard.csv")
        finish(_manifest(official, facts.details), root)
    return load_package(destination)


def _divided(carving: Carving) -> Iterator[Media]:
    """Media that are in one folder for train and one for test."""
    return (media for media in carving.media if media.train != media.test)


def _hidden(official: TaskPackage, details: Details) -> Hidden:
    forms = {"table": _from_table, "names": _from_names, "pixels": _from_pixels, "recordings": _from_recordings}
    return forms[details.carving.form](official, details)


def _from_table(official: TaskPackage, details: Details) -> Hidden:
    carving, public = details.carving, official.public_dir
    train = read_table(public / carving.table)
    hidden = hidden_rows(train.frame, carving.split)
    ids = official.manifest.columns.id
    rows = train.frame[hidden].reset_index(drop=True)
    if carving.row:
        rows[ids[0]] = [carving.row.format_map(record) for record in rows.to_dict("records")]
    elif ids == (ROW_ID,):
        rows[ROW_ID] = [str(number) for number in range(len(rows))]
    if (doubled := rows.duplicated(list(ids))).any():
        raise PackageError(f"{public / carving.table}: ids come twice, such as {rows[ids[0]][doubled].iloc[0]!r}")
    replaced = {carving.table: train.text(~hidden)}
    if carving.test:
        test = read_table(public / carving.test)
        replaced[carving.test] = TrainTable(frame=rows[list(test.frame.columns)], is_json=test.is_json).text()
    kept_ids = set(train.frame[ids[0]][~hidden]) if ids[0] in train.frame else set()
    for name in carving.side:
        side = read_text_table(public / name)
        replaced[name] = side[side[ids[0]].isin(kept_ids)].to_csv(index=False)
    moved = {
        f"{media.train}/{(name := media.name.format(id=row_id))}": f"{media.test}/{name}"
        for media in carving.media
        for row_id in rows[ids[0]]
    }
    for name in moved:
        if not (public / name).is_file():
            raise PackageError(f"{public / name}: no such file, and a row of {carving.table} needs it")
    return Hidden(answers=_answers(official, rows, carving.label), moved=moved, replaced=replaced, left_out=frozenset())


def _answers(official: TaskPackage, rows: pd.DataFrame, label: str) -> pd.DataFrame:
    """The hidden rows in the columns of the official answers, as far as the train rows have them."""
    ids, targets = official.manifest.columns.id, official.manifest.columns.target
    if label:
        known = {target: (rows[label].astype(str) == target).astype(int) for target in targets}
        answers = rows[list(ids)].assign(**known)
        if not (strange := answers[list(targets)].sum(axis=1) == 0).any():
            return answers
        raise PackageError(f"{official.root}: label {rows[label][strange].iloc[0]!r} is no column of the submission")
    header = [name for name in official.answers.columns if name in rows.columns]
    answers = rows[list(dict.fromkeys([*ids, *header]))].copy()
    for target in targets:
        if target not in answers:
            answers[target] = "0"  # as in the official answers: the grader does not look at it
        elif all(isinstance(cell, bool) for cell in answers[target]):
            answers[target] = answers[target].astype(int)
    return answers


def _from_names(official: TaskPackage, details: Details) -> Hidden:
    media = details.carving.media[0]
    names = sorted(path.name for path in (official.public_dir / media.train).glob(media.name))
    if not names:
        raise PackageError(f"{official.public_dir / media.train}: no files {media.name}")
    labels = [str(int(re.search(details.carving.positive, name) is not None)) for name in names]
    chosen = hidden_rows(pd.DataFrame({"label": labels}), details.carving.split.model_copy(update={"by": ("label",)}))
    return _hidden_files(official, named_rows(names, labels, chosen, details.carving))


def _from_pixels(official: TaskPackage, details: Details) -> Hidden:
    carving, public = details.carving, official.public_dir
    names = sorted(path.name for path in (public / carving.media[0].train).glob("*.png"))
    chosen = hidden_rows(pd.DataFrame({"name": names}), carving.split, names)
    return _hidden_files(
        official, pixel_rows(public, [name for name, take in zip(names, chosen, strict=True) if take], carving)
    )


def _from_recordings(official: TaskPackage, details: Details) -> Hidden:
    return _hidden_files(official, recorded_rows(official.public_dir, details.carving.split))


def _hidden_files(official: TaskPackage, found: HiddenFiles) -> Hidden:
    ids, targets = official.manifest.columns.id, official.manifest.columns.target
    answers = pd.DataFrame({ids[0]: found.ids, targets[0]: found.values})
    return Hidden(answers=answers, moved=found.moved, replaced=found.replaced, left_out=found.left_out)


def _sample(official: TaskPackage, answers: pd.DataFrame) -> str:
    """The sample submission: the ids, with the official sample's first prediction in every row."""
    first = read_text_table(official.public_dir / SAMPLE).head(1)
    ids = official.manifest.columns.id
    return pd.DataFrame({name: answers[name] if name in ids else first[name].iloc[0] for name in first}).to_csv(
        index=False
    )


def _manifest(official: TaskPackage, details: Details) -> Manifest:
    split = details.carving.split
    return official.manifest.model_copy(
        update={
            "hidden_split": HiddenSplit(validation_fraction=1.0),
            "provenance": official.manifest.provenance.model_copy(
                update={"train_test_split": f"carved out of the official train rows: {split.model_dump_json()}"}
            ),
        }
    )
