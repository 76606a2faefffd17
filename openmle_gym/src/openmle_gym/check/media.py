"""Images, sounds and other files that rows of the tables are about."""

from collections.abc import Iterator
from pathlib import Path

from openmle_gym.check.finding import Finding, error, warning
from openmle_gym.check.subject import Subject, file_sha256
from openmle_gym.check.tables import Table, read_chunks

MEDIA = {"image", "audio", "video"}
SUFFIXES = frozenset(
    [
        ".png",
        ".jpg",
        ".jpeg",
        ".gif",
        ".bmp",
        ".tif",
        ".tiff",
        ".webp",
        ".dcm",
        ".npy",
        ".wav",
        ".mp3",
        ".flac",
        ".ogg",
        ".m4a",
        ".aif",
        ".aiff",
        ".mp4",
        ".avi",
        ".mov",
        ".mkv",
        ".webm",
    ]
)
SHOWN = 5


def census(subject: Subject) -> Iterator[Finding]:
    """No media folder is empty, and a task that says it has media has some."""
    for folder in sorted(path for path in subject.public.rglob("*") if path.is_dir()):
        if not any(folder.iterdir()):
            name = folder.relative_to(subject.public).as_posix()
            yield error("media_folder_empty", f"the public folder {name}/ is empty", folder=name)
    if subject.package is None:
        return
    declared = MEDIA & {modality.casefold() for modality in subject.package.manifest.modality}
    if declared and not _media_files(subject) and not subject.features:
        yield error(
            "media_missing", f"a task with modality {', '.join(sorted(declared))} has no media files", referenced=0
        )


def coverage(subject: Subject) -> Iterator[Finding]:
    """Every file that a row names is there, and every file is named by a row."""
    files = _media_files(subject)
    by_name = {name: path for path in files for name in (path.name, path.relative_to(subject.public).as_posix())}
    by_stem = {path.stem: path for path in files}
    named: set[Path] = set()
    tables = [subject.tables[name] for name in ("train.csv", "test.csv") if name in subject.tables]
    for table in tables:
        missing: list[str] = []
        count = 0
        for column, known in _references(table, by_name, by_stem):
            place = table.columns.index(column)
            for chunk in read_chunks(table.path):
                for cells in chunk.rows:
                    cell = cells[place].strip()
                    found = known.get(cell) or known.get(cell.rpartition("/")[2])
                    if found is not None:
                        named.add(found)
                    elif cell:
                        count += 1
                        missing += [cell] if len(missing) < SHOWN else []
        if count:
            yield error(
                "media_missing",
                f"{table.name} names {count} files that are not there, such as {missing[0]!r}",
                file=table.name,
                referenced=count,
                first=list(missing),
            )
    if named and (spare := [path for path in files if path not in named]):
        name = spare[0].relative_to(subject.public).as_posix()
        yield warning(
            "media_unreferenced", f"{len(spare)} media files are in no table, such as {name}", files=len(spare)
        )


def strangers(subject: Subject) -> Iterator[Finding]:
    """No media file of the test data is one of the training data by another name."""
    sides: dict[str, dict[tuple[int, str], Path]] = {"train": {}, "test": {}}
    for path in _media_files(subject):
        side = next((part for part in path.relative_to(subject.public).parts[:-1] if part in sides), None)
        if side is not None:
            sides[side][path.stat().st_size, file_sha256(path)] = path
    shared = sides["train"].keys() & sides["test"].keys()
    if shared:
        name = sides["test"][min(shared)].relative_to(subject.public).as_posix()
        yield error(
            "media_train_test_duplicates",
            f"{len(shared)} media files are in train and in test, such as {name}",
            files=len(shared),
        )


def _media_files(subject: Subject) -> list[Path]:
    return [path for path in subject.public_files if path.suffix.casefold() in SUFFIXES]


def _references(
    table: Table, by_name: dict[str, Path], by_stem: dict[str, Path]
) -> Iterator[tuple[str, dict[str, Path]]]:
    """The columns that name files, and by what."""
    for column in table.sample.columns if len(table.sample) else ():
        cells = table.sample[column].str.strip()
        cells = cells[cells != ""]
        if not len(cells):
            continue
        if cells.map(lambda cell: Path(str(cell)).suffix.casefold() in SUFFIXES).mean() > 0.9:
            yield column, by_name
        elif by_stem and cells.is_unique and cells.isin(by_stem).mean() > 0.5:
            yield column, by_stem
