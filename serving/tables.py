"""Tables for spreadsheets. Pure functions."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
_ROWS_AT_ONCE = 500


def csv_pieces(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """The table as CSV (RFC 4180), piece by piece; an empty header is left out, as of rows that go on with a table.
    Texts that a spreadsheet would take for a formula begin with an apostrophe (OWASP, "CSV Injection")."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    if header:
        writer.writerow(header)
    for number, row in enumerate(rows, start=1):
        writer.writerow([_harmless(cell) for cell in row])
        if number % _ROWS_AT_ONCE == 0:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


def _harmless(cell: object) -> object:
    # Leading blanks do not keep a spreadsheet from it.
    is_formula = isinstance(cell, str) and cell.lstrip(" ").startswith(_FORMULA_STARTS)
    return f"'{cell}" if is_formula else cell
