"""Combines submissions into one. Runs inside the isolation, as a part of the programs that `blend` writes.

Those programs begin with this file's text, so it needs nothing but the standard library.
"""

import csv
import io
import sys


def combine(
    contents: list[bytes], weights: list[int], ids: tuple[str, ...], targets: tuple[str, ...], method: str
) -> str:
    """One submission from several, as text: the first one's rows in its order, the targets combined.

    Args:
        contents: Whole submissions, as bytes; each has every row.
        weights: Whole numbers, so that a mean of numbers up to 1 is never above 1.
        ids: The columns that name a row.
        targets: The columns that are combined, each by itself.
        method: `mean`, `rank` (mean of ranks, ties shared, scaled to (0, 1]), `vote` (the label with the most weight,
            among equals the one that comes first), or `auto`: `vote` where a column holds nothing but text and whole numbers,
            else `mean`.
    """
    tables = [_read(content, ids, targets) for content in contents]
    rows = list(tables[0])
    aligned = [_aligned(table, rows) for table in tables]
    columns = [
        _combined([[cells[place] for cells in table] for table in aligned], weights, method)
        for place in range(len(targets))
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*ids, *targets])
    writer.writerows([*row, *(column[n] for column in columns)] for n, row in enumerate(rows))
    return out.getvalue()


def _combined(cells, weights, method):
    """One column of the result; `cells` is one list for each submission."""
    if method == "auto":
        numbers = [_number(cell) for column in cells for cell in column]
        method = "vote" if all(number is None or number.is_integer() for number in numbers) else "mean"
    if method == "vote":
        return [_vote(row, weights) for row in zip(*cells)]  # noqa: B905
    columns = [[float(cell) for cell in column] for column in cells]
    if method == "rank":
        columns = [_ranks(column) for column in columns]
    total = sum(weights)
    return [repr(sum(w * value for w, value in zip(weights, row)) / total) for row in zip(*columns)]  # noqa: B905


def _vote(row, weights):
    votes, spellings = {}, {}
    for cell, weight in zip(row, weights):  # noqa: B905
        label = _same(cell)
        votes[label] = votes.get(label, 0) + weight
        spellings.setdefault(label, cell)
    return spellings[max(votes, key=lambda label: votes[label])]


def _ranks(column):
    """Ranks from 1 for the least, equal values sharing the mean of theirs, divided by how many there are."""
    order = sorted(range(len(column)), key=column.__getitem__)
    ranks, start = [0.0] * len(column), 0
    while start < len(order):
        end = start
        while end < len(order) and column[order[end]] == column[order[start]]:
            end += 1
        for place in order[start:end]:
            ranks[place] = (start + 1 + end) / 2 / len(column)
        start = end
    return ranks


def _read(content, ids, targets):
    """The target cells by id cells."""
    text = content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    header = [cell.strip() for cell in next(reader)]
    id_places, target_places = _places(header, ids), _places(header, targets)
    return {
        tuple(cells[place].strip() for place in id_places): [cells[place].strip() for place in target_places]
        for cells in reader
        if any(cell.strip() for cell in cells)
    }


def _places(header, names):
    folded = [name.casefold() for name in header]
    return [header.index(name) if name in header else folded.index(name.casefold()) for name in names]


def _aligned(table, rows):
    """A submission's target cells in the order of another one's rows, which may spell the id 7 as 7.0."""
    if all(row in table for row in rows):
        return [table[row] for row in rows]
    loose = {tuple(map(_same, row)): cells for row, cells in table.items()}
    return [loose[tuple(map(_same, row))] for row in rows]


def _same(cell):
    """Equal for 1 and 1.0."""
    number = _number(cell)
    return cell if number is None else number


def _number(cell):
    """None for text, and for what is not finite."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if abs(number) != float("inf") and number == number else None
