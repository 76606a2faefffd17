"""The deterministic profile of raw data: what every file is, what the tables hold, how they are related.

The same files give the same profile, byte for byte; no model has a part in it.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from openmle_gym.build.columns import Candidates, ColumnProfile, find_candidates, profile_column
from openmle_gym.build.media_files import IMAGES, SOUNDS, FileGroup, image_facts, sound_facts
from openmle_gym.build.state import files_below
from openmle_gym.build.tables import FORMATS, NotATable, Sample, read_samples
from openmle_gym.build.text_files import detect_encoding, read_head
from openmle_gym.build.unpack import archive_suffix
from openmle_gym.contracts import Contract

MOST_TABLES = 40
MOST_COLUMNS = 400
"""Columns of a table that are profiled one by one."""
_TEXTS = frozenset([".txt", ".md", ".rst", ".html", ".xml", ".yaml", ".yml", ".names", ".log", ".readme"])
_TEXT_BYTES = 2**20
_HEAD = 1500
_TEXT_FILES = 12


class TableProfile(Contract):
    """One table: a file, or a sheet of a workbook."""

    path: str
    """Relative to the raw data."""
    sheet: str = ""
    format: str
    encoding: str = ""
    delimiter: str = ""
    bytes: int
    rows: int
    exact: bool = True
    """Whether the rows were counted to the end."""
    ragged: int = 0
    """Rows that have not as many cells as the header."""
    column_count: int
    columns: tuple[ColumnProfile, ...]
    candidates: Candidates = Candidates()
    twin: str = ""
    """The table with the same columns but a few: the unlabelled rows of this one."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the profiled columns."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> ColumnProfile | None:
        """A column by its name."""
        return next((column for column in self.columns if column.name == name), None)


class TextProfile(Contract):
    """A text that somebody may have written about the data."""

    path: str
    bytes: int
    encoding: str
    head: str


class Profile(Contract):
    """All that is known of the raw data."""

    files: int
    bytes: int
    tables: tuple[TableProfile, ...] = ()
    texts: tuple[TextProfile, ...] = ()
    groups: tuple[FileGroup, ...] = ()
    """The files that are no tables, by folder and suffix."""
    unreadable: dict[str, str] = Field(default_factory=dict)
    """Files that should be tables and cannot be read as such, and why."""
    packed: tuple[str, ...] = ()
    """Archives that are still packed."""
    class_folder: str = ""
    """The folder whose sub-folders each hold the images or sounds of one class; `.` for the top, empty for none."""

    def table(self, path: str) -> TableProfile | None:
        """The first table of a file."""
        return next((table for table in self.tables if table.path == path), None)


def profile_folder(root: Path) -> Profile:
    """Profiles every file below a folder. Files are streamed; what is kept of one is bounded."""
    files = files_below(root)
    tables: list[TableProfile] = []
    texts: list[TextProfile] = []
    unreadable: dict[str, str] = {}
    grouped: dict[tuple[str, str], list[Path]] = defaultdict(list)
    many = _many_of_a_kind(files)
    for path in files:
        name, suffix = path.relative_to(root).as_posix(), path.suffix.casefold()
        if suffix in FORMATS and (path.parent, suffix) not in many and len(tables) < MOST_TABLES:
            try:
                tables += [_table(name, path, sample) for sample in read_samples(path)]
                continue
            except NotATable as reason:
                unreadable[name] = str(reason)
        elif (suffix in _TEXTS or not suffix) and path.stat().st_size <= _TEXT_BYTES and len(texts) < _TEXT_FILES:
            encoding = detect_encoding(path)
            if encoding is not None and (path.parent, suffix) not in many:
                head = read_head(path, encoding, _HEAD)
                texts.append(TextProfile(path=name, bytes=path.stat().st_size, encoding=encoding, head=head))
                continue
        folder = path.parent.relative_to(root).as_posix()
        grouped["" if folder == "." else folder, suffix].append(path)
    groups = tuple(_group(folder, suffix, paths) for (folder, suffix), paths in sorted(grouped.items()))
    return Profile(
        files=len(files),
        bytes=sum(path.stat().st_size for path in files),
        tables=tuple(relate_tables(tables)),
        texts=tuple(texts),
        groups=groups,
        unreadable=unreadable,
        packed=tuple(path.relative_to(root).as_posix() for path in files if archive_suffix(path.name)),
        class_folder=_class_folder(groups),
    )


def _many_of_a_kind(files: Sequence[Path]) -> set[tuple[Path, str]]:
    """Folders in which so many files have one suffix that each is a row rather than a table."""
    counts: dict[tuple[Path, str], int] = defaultdict(int)
    for path in files:
        counts[path.parent, path.suffix.casefold()] += 1
    return {place for place, count in counts.items() if count > MOST_TABLES}


def _table(name: str, path: Path, sample: Sample) -> TableProfile:
    columns = tuple(
        profile_column(column, sample.frame[column], delimiter=sample.delimiter)
        for column in sample.columns[:MOST_COLUMNS]
    )
    if len(sample.columns) > MOST_COLUMNS:
        last = sample.columns[-1]
        columns += (profile_column(last, sample.frame[last], delimiter=sample.delimiter),)
    return TableProfile(
        path=name,
        sheet=sample.sheet,
        format=sample.format,
        encoding=sample.encoding,
        delimiter=sample.delimiter,
        bytes=path.stat().st_size,
        rows=sample.rows,
        exact=sample.exact,
        ragged=sample.ragged,
        column_count=len(sample.columns),
        columns=columns,
        candidates=find_candidates(columns),
    )


def relate_tables(tables: Sequence[TableProfile]) -> list[TableProfile]:
    """Finds unlabelled twins and sample submissions; what only the labelled table has is the likeliest target."""
    related = []
    for table in tables:
        names = set(table.names)
        twin: TableProfile | None = None
        for other in tables:
            mine, theirs = names - set(other.names), set(other.names) - names
            if other is not table and not theirs and 0 < len(mine) <= max(1, len(names) // 3) and len(names) > 2:
                twin = other if twin is None or len(other.names) > len(twin.names) else twin
        asked = [name for name in table.names if twin is not None and name not in twin.names]
        for other in tables:
            if other is not table and other is not twin and "submission" in other.path.casefold():
                asked += [name for name in other.names if name in names and name not in table.candidates.ids]
        candidates = table.candidates.model_copy(
            update={"targets": tuple(dict.fromkeys([*asked, *table.candidates.targets]))}
        )
        related.append(
            table.model_copy(update={"candidates": candidates, "twin": twin.path if twin is not None else ""})
        )
    return related


def _group(folder: str, suffix: str, paths: Sequence[Path]) -> FileGroup:
    kind, facts, unreadable = "other", "", 0
    if suffix in IMAGES:
        kind = "image"
        facts, unreadable = image_facts(paths)
    elif suffix in SOUNDS:
        kind = "audio"
        facts, unreadable = sound_facts(paths)
    elif suffix in _TEXTS:
        kind = "text"
    return FileGroup(
        folder=folder,
        suffix=suffix,
        kind=kind,
        files=len(paths),
        bytes=sum(path.stat().st_size for path in paths),
        examples=tuple(path.name for path in paths[:3]),
        facts=facts,
        unreadable=unreadable,
    )


def _class_folder(groups: Sequence[FileGroup]) -> str:
    """See `Profile.class_folder`."""
    children: dict[str, set[str]] = defaultdict(set)
    counts: dict[str, int] = defaultdict(int)
    for group in groups:
        if group.kind in ("image", "audio") and group.folder:
            parent = group.folder.rpartition("/")[0] or "."
            children[parent].add(group.folder)
            counts[parent] += group.files
    found = [parent for parent, folders in children.items() if len(folders) > 1 and counts[parent] >= 10 * len(folders)]
    train = [parent for parent in found if "train" in parent.casefold()]
    return next(iter(sorted(train) or sorted(found, key=lambda parent: (-counts[parent], parent))), "")
