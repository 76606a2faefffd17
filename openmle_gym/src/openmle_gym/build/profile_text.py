"""A profile as words: what a model reads, and what a package keeps of raw data that it does not hold."""

from collections.abc import Sequence

from openmle_gym.build.columns import ColumnProfile
from openmle_gym.build.profile import Profile, TableProfile

MOST_CHARACTERS = 16_000
_COLUMNS = 80
_TABLES = 12
_GROUPS = 30
_TEXT = 1200


def profile_text(profile: Profile, *, most_characters: int = MOST_CHARACTERS) -> str:
    """The whole profile, cut at a length that fits a prompt; says where something is left out."""
    parts = [f"{profile.files} files, {profile.bytes} bytes"]
    tables = sorted(profile.tables, key=lambda table: (-table.rows * bool(table.candidates.targets), table.path))
    parts += [_table(table) for table in tables[:_TABLES]]
    parts += _rest([table.path for table in tables[_TABLES:]], "tables")
    for group in profile.groups[:_GROUPS]:
        line = f"{group.files} {group.kind} files {group.folder or '.'}/*{group.suffix}, {group.bytes} bytes"
        line += f", {group.facts}" if group.facts else ""
        line += f", {group.unreadable} unreadable" if group.unreadable else ""
        parts.append(f"{line}, such as {', '.join(group.examples)}")
    parts += _rest([group.folder for group in profile.groups[_GROUPS:]], "groups of files")
    if profile.class_folder:
        parts.append(f"each sub-folder of {profile.class_folder} holds one class")
    parts += [f"`{name}` cannot be read as a table: {why}" for name, why in sorted(profile.unreadable.items())[:10]]
    parts += [f"`{text.path}` ({text.encoding}) begins:\n{text.head[:_TEXT]}" for text in profile.texts]
    text = "\n\n".join(parts)
    return text if len(text) <= most_characters else f"{text[:most_characters]}\n[... profile cut here ...]"


def _rest(names: Sequence[str], what: str) -> list[str]:
    return [f"and {len(names)} more {what}, such as {names[0]}"] if names else []


def _table(table: TableProfile) -> str:
    place = f"`{table.path}`" + (f", sheet {table.sheet!r}" if table.sheet else "")
    about = "" if table.exact else "about "
    how = ", ".join(
        [table.format, *([f"{table.encoding}, separated by {table.delimiter!r}"] if table.delimiter else [])]
    )
    lines = [f"{place} ({how}): {about}{table.rows} rows, {table.column_count} columns"]
    if table.ragged:
        lines.append(f"  {table.ragged} rows have not as many cells as the header")
    if table.twin:
        lines.append(f"  `{table.twin}` has the same columns without {', '.join(_asked(table))}")
    lines += [f"  - {column.name}: {_column(column)}" for column in table.columns[:_COLUMNS]]
    if table.column_count > _COLUMNS:
        lines.append(f"  - and {table.column_count - _COLUMNS} more columns, the last of them {table.names[-1]}")
    for what, names in (
        ("id", table.candidates.ids),
        ("target", table.candidates.targets),
        ("group", table.candidates.groups),
        ("time", table.candidates.times),
    ):
        if names:
            lines.append(f"  {what} candidates: {', '.join(names[:8])}")
    return "\n".join(lines)


def _asked(table: TableProfile) -> Sequence[str]:
    return table.candidates.targets[:5]


def _column(column: ColumnProfile) -> str:
    facts = [column.kind, f"{column.distinct} distinct"]
    if column.missing:
        facts.append(f"{column.missing} of {column.rows} missing")
    if column.minimum:
        facts.append(f"{column.minimum} to {column.maximum}")
    elif column.examples:
        facts.append(f"such as {', '.join(map(repr, column.examples))}")
    return ", ".join(facts)
