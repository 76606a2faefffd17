"""A deterministic profile of a package's public files, short enough for a prompt."""

from pathlib import Path

import pandas as pd

from openmle_gym.manifest import Columns

PROFILED_ROWS = 20_000
LISTED_COLUMNS = 60
"""By default."""
LISTED_FILES = 30


def preview_data(public_dir: Path, columns: Columns, *, listed: int = LISTED_COLUMNS) -> str:
    """Lists the public files, tables first; profiles the columns of each CSV: type, missing and distinct values, range or examples.

    Wide tables are shortened to their first columns, `listed` of them, and a count; the id and target columns are always
    shown.
    """
    files = [path for path in public_dir.rglob("*") if path.is_file() and path.name != "description.txt"]
    files.sort(key=lambda path: (path.suffix != ".csv", path))
    parts = []
    for path in files[:LISTED_FILES]:
        name = path.relative_to(public_dir).as_posix()
        if path.suffix == ".csv":
            parts.append(_profile_csv(path, name, [*columns.id, *columns.target], listed))
        else:
            parts.append(f"`{name}`: {path.stat().st_size} bytes")
    if len(files) > LISTED_FILES:
        parts.append(f"and {len(files) - LISTED_FILES} more files")
    return "\n\n".join(parts)


def _profile_csv(path: Path, name: str, always: list[str], listed: int) -> str:
    try:
        frame = pd.read_csv(path, nrows=PROFILED_ROWS, low_memory=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        return f"`{name}`: {path.stat().st_size} bytes; cannot be read as CSV: {error}"
    some = "first " if len(frame) == PROFILED_ROWS else ""
    lines = [f"`{name}`: {some}{len(frame)} rows, {frame.shape[1]} columns"]
    shown = [str(column) for column in frame.columns[:listed]]
    shown += [column for column in always if column in frame.columns and column not in shown]
    lines += [f"  - {column}: {_profile_column(frame[column])}" for column in shown]
    if frame.shape[1] > len(shown):
        lines.append(f"  - and {frame.shape[1] - len(shown)} more columns, the last of them {frame.columns[-1]}")
    return "\n".join(lines)


def _profile_column(values: pd.Series) -> str:
    distinct = values.nunique()
    facts = [f"{distinct} distinct"]
    if missing := int(values.isna().sum()):
        facts.append(f"{missing} missing")
    if pd.api.types.is_bool_dtype(values):
        return ", ".join(["boolean", *facts])
    if pd.api.types.is_numeric_dtype(values):
        kind = "integer" if pd.api.types.is_integer_dtype(values) else "number"
        return ", ".join([kind, *facts, f"{values.min():.6g} to {values.max():.6g}"])
    examples = ", ".join(repr(str(value)[:30]) for value in values.dropna().unique()[:3])
    return ", ".join(["text", *facts, f"such as {examples}"])
