"""Makes a task's public and private files from the raw data; `openmle_gym.build.template` fills in the settings."""

import hashlib
import shutil
from pathlib import Path

import pandas as pd

TABLE = ""
READ = {}
ID = "row_id"
ID_IS_NEW = True
TARGETS = ["target"]
STRATEGY = "stratified"
GROUP = ""
GROUP_PATTERN = ""
TIME = ""
TEST_FRACTION = 0.2
SEED = 0
BASELINE = "mean"
FILES_COLUMN = ""
FILES_FOLDER = ""
MISSING = []


def rank(text: str) -> str:
    """A fixed, arbitrary place for a text."""
    return hashlib.sha256(f"{SEED}/{text}".encode()).hexdigest()


def read(raw: Path) -> pd.DataFrame:
    """All rows, each cell as text."""
    path = raw / TABLE
    kind = READ.get("format")
    if kind in ("json", "jsonl"):
        table = pd.read_json(path, lines=kind == "jsonl", dtype=False, convert_dates=False)
    elif kind == "parquet":
        table = pd.read_parquet(path)
    elif kind == "excel":
        table = pd.read_excel(path, sheet_name=READ["sheet"], dtype=str)
    else:
        options = {"sep": READ["delimiter"], "encoding": READ["encoding"], "dtype": str, "keep_default_na": False}
        table = pd.read_csv(path, **options, on_bad_lines="skip", skip_blank_lines=True)
    table.columns = [str(name).strip() for name in table.columns]
    return table.map(lambda cell: "" if cell is None or cell != cell else str(cell).strip())


def listed(raw: Path) -> pd.DataFrame:
    """One row for each file, its class the folder that it lies in; of equal files the first."""
    root = raw / FILES_FOLDER
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.parent != root)
    contents = pd.Series([hashlib.sha256(path.read_bytes()).hexdigest() for path in files])
    files = [path for path, again in zip(files, contents.duplicated(), strict=True) if not again]
    places = [path.relative_to(root).as_posix() for path in files]
    return pd.DataFrame({FILES_COLUMN: places, TARGETS[0]: [place.split("/")[0] for place in places]})


def pointed(cells: pd.Series) -> pd.Series:
    """Numbers with commas, decimal or between thousands, without; other cells as they are."""
    full = cells[~cells.isin(["", *MISSING])]
    if not full.str.contains(",").any():
        return cells
    grouped = full.str.fullmatch(r"[-+]?([1-9]\d{0,2}(,\d{3})+|\d+)(\.\d+)?").all()
    decimal = full.str.fullmatch(r"[-+]?([1-9]\d{0,2}([. \u00a0\u202f]\d{3})+|\d+)(,\d+)?").all()
    if grouped and (READ.get("delimiter") == "," or not decimal):
        return cells.str.replace(",", "")
    if decimal:
        plain = cells.str.replace(r"[. \u00a0\u202f]", "", regex=True).str.replace(",", ".")
        return plain.where(cells.isin(full), cells)
    return cells


def units(table: pd.DataFrame) -> pd.Series:
    """What stays on one side of the split: a group, or else rows with equal features."""
    if STRATEGY == "grouped":
        cells = table[GROUP]
        return cells.str.extract(GROUP_PATTERN, expand=False).fillna(cells) if GROUP_PATTERN else cells
    features = table.drop(columns=[name for name in (ID, *TARGETS) if name in table])
    return features.apply("\x1f".join, axis=1) if len(features.columns) else table.index.astype(str).to_series()


def choose_test(table: pd.DataFrame) -> pd.Series:
    """[rows] bool: whether a row is for the test."""
    wanted = TEST_FRACTION * len(table)
    if STRATEGY == "time":
        numbers = pd.to_numeric(table[TIME], errors="coerce")
        times = (
            numbers if numbers.notna().all() else pd.to_datetime(table[TIME], errors="coerce", format="mixed", utc=True)
        )
        ordered = times.sort_values(kind="stable")
        first = ordered.iloc[int(len(table) - wanted)]
        return (times >= first) & times.notna()
    unit = units(table).reset_index(drop=True)
    by_unit = table.assign(unit=unit.to_numpy()).groupby("unit", sort=False)[TARGETS[0]].agg(["first", "size"])
    numbers = pd.to_numeric(by_unit["first"], errors="coerce")
    target = numbers if numbers.notna().all() else by_unit["first"]
    stratified = STRATEGY == "stratified"
    ranks = [rank(str(name)) for name in by_unit.index]
    order = sorted(range(len(by_unit)), key=lambda n: (target.iloc[n] if stratified else 0, ranks[n]))
    chosen, seen, taken = set(), 0, 0
    for place in order:
        size = int(by_unit["size"].iloc[place])
        seen += size
        if taken + size <= seen * TEST_FRACTION + 0.5 * size:
            chosen.add(by_unit.index[place])
            taken += size
    return unit.isin(chosen).set_axis(table.index)


def guess(values: pd.Series) -> str:
    """What a submission says that knows nothing of a row."""
    if BASELINE == "most frequent":
        return str(values.mode().iloc[0])
    if BASELINE == "share":
        numbers = pd.to_numeric(values, errors="coerce")
        ordered = numbers if numbers.notna().all() else values
        return f"{(ordered == ordered.max()).mean():.6g}"
    return f"{values.astype(float).mean():.6g}"


def copy_files(table: pd.DataFrame, raw: Path, folder: Path) -> pd.DataFrame:
    """Copies the files that rows name, under names that say nothing; the rows then name those."""
    folder.mkdir()
    names = []
    for row, place in zip(table[ID], table[FILES_COLUMN], strict=True):
        source = raw / FILES_FOLDER / place
        name = f"{row}{source.suffix.lower()}"
        shutil.copyfile(source, folder / name)
        names.append(name)
    return table.assign(**{FILES_COLUMN: names})


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files."""
    table = (read(raw) if TABLE else listed(raw)).apply(pointed)
    table = table[~table[TARGETS].isin(MISSING).any(axis=1)].reset_index(drop=True)
    in_test = choose_test(table)
    keys = table.apply("\x1f".join, axis=1)
    order = sorted(table.index, key=lambda index: (rank(f"row {keys[index]}"), index))
    table, in_test = table.loc[order], in_test.loc[order]
    if ID_IS_NEW:
        table.insert(0, ID, [str(number) for number in range(1, len(table) + 1)])
    train, test = table[~in_test], table[in_test]
    if FILES_COLUMN:
        train = copy_files(train, raw, public / "train")
        test = copy_files(test, raw, public / "test")
    answers = test[[ID, *TARGETS]]
    sample = answers.assign(**{name: guess(train[name]) for name in TARGETS})
    train.to_csv(public / "train.csv", index=False, lineterminator="\n")
    test.drop(columns=TARGETS).to_csv(public / "test.csv", index=False, lineterminator="\n")
    sample.to_csv(public / "sample_submission.csv", index=False, lineterminator="\n")
    answers.to_csv(private / "test_answer.csv", index=False, lineterminator="\n")
