"""Numbers as people write them, as Python reads them."""

import re

import pandas as pd

MISSING = frozenset(["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "none", "<NA>", "?"])
"""Cells that hold no value."""
_COMMAS_GROUP = re.compile(r"[-+]?(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d+)?")
_COMMA_IS_POINT = re.compile(r"[-+]?(?:[1-9]\d{0,2}(?:[. \u00a0\u202f]\d{3})+|\d+)(?:,\d+)?")


def plain_numbers(cells: pd.Series, *, delimiter: str = "") -> pd.Series:
    """A column of numbers with commas in them without; any other column as it is.

    A comma is a decimal sign or stands between thousands: what all cells of the column allow. Where they allow both, as
    `12,345` alone does, it is a decimal sign, but not in a table whose cells commas separate.

    Args:
        cells: Text; those that hold no value stay as they are.
    """
    known = cells.str.strip()
    known = known[~known.isin(MISSING)]
    if not known.str.contains(",", regex=False).any():
        return cells
    groups, points = (known.str.fullmatch(form).all() for form in (_COMMAS_GROUP, _COMMA_IS_POINT))
    if groups and (delimiter == "," or not points):
        return cells.str.replace(",", "", regex=False)
    if points:
        return cells.str.replace(r"[. \u00a0\u202f]", "", regex=True).str.replace(",", ".", regex=False)
    return cells
