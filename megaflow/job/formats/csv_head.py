"""Head of a CSV file: the lines before its rows, and the names of its columns.

1. The first `skip_lines` lines are not part of the table. A line `sep=;` after them, which spreadsheets write, sets the
   delimiter of the file, whatever the program says.
2. With `header=True`, the first row that is not blank names the columns. With `skip_header=True`, the names that the
   program gives replace it. Comments and blank lines before it are skipped.
3. An empty name becomes `column_N`, where N is the place of the column, counted from 1. A repeated name gets the first
   of the suffixes `_2`, `_3`, … that makes it different from the names of all other columns.
4. Without names, a row has as many fields as the first two rows that agree in their number. So one odd row at the
   beginning does not make the others faulty, and the number does not depend on how the file is read.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from megaflow.errors import SourceError
from megaflow.job.formats.csv_parser import RowParser
from megaflow.quick_dataclass import dataclass

SEPARATOR: Final = re.compile(r'"?sep=(.)"?\r?\n?|"?sep=(.)"?\r')


@dataclass(frozen=True, slots=True)
class HeadRules:
    """The program's settings for the heads of its files."""

    names: tuple[str, ...] | None = None  # given by the program
    has_names: bool = True  # whether the first row has the names
    skips_first: bool = False  # whether to skip the first row, because the program gives the names
    skip_lines: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """The head of one file."""

    parser: RowParser  # of the rows after it
    names: tuple[str, ...] | None = None
    width: int | None = None  # fields of a row; None: any
    first: list[str] | None = None  # the row with the names
    lines: int = 0  # before the first row
    seen: int = 0  # number of lines from which all this follows


def find_head(
    lines: Sequence[str], is_all: bool, rules: HeadRules, parser: RowParser, redialect: Callable[[str], RowParser],
    name: str,
) -> Head | None:  # fmt: skip
    """Return the head of the file with these first lines, which have their ends. None if it needs more lines.

    `redialect` returns the parser for another delimiter. Raises SourceError, with the file's `name`, if the first row
    does not name columns.
    """
    if len(lines) <= rules.skip_lines:
        return Head(parser, rules.names, None, None, len(lines), len(lines)) if is_all else None
    start = rules.skip_lines
    if found := SEPARATOR.fullmatch(lines[start]):
        delimiter = found[1] or found[2]
        start += 1
        if delimiter != parser.delimiter:
            parser = redialect(delimiter)
    is_headed = rules.has_names or rules.skips_first
    if rules.names is not None and not is_headed:
        return Head(parser, rules.names, len(rules.names), None, start, rules.skip_lines + 1)
    widths = list[int]()
    for found_row in parser.walk(lines[start:], is_all):
        row = found_row.row
        if row is None and is_headed:
            raise SourceError(f"The first row of {name} does not name columns: {found_row.reason}.")
        if row and is_headed:
            names = rules.names if rules.names is not None else tuple(named(row))
            return Head(parser, names, len(names), row, start + found_row.end, start + found_row.end)
        if row and len(row) in widths:
            return Head(parser, None, len(row), None, start, start + found_row.end)
        if row:
            widths.append(len(row))
    if not is_all:
        return None
    width = widths[0] if widths else None
    return Head(parser, rules.names, width, None, len(lines) if is_headed else start, len(lines))


def named(row: Sequence[str]) -> list[str]:
    """Return the names of the columns for a first row.

    >>> named(["", "a", "a", "a_2", ""])
    ['column_1', 'a', 'a_3', 'a_2', 'column_5']
    """
    given = {*row}
    names: dict[str, None] = {}
    numbers: dict[str, int] = {}  # name -> its first suffix that may be free, so that each is tried once
    for place, name in enumerate(row, 1):
        base = made = name or f"column_{place}"
        number = numbers.get(base, 2)
        while made in names or (made != name and made in given):
            made = f"{base}_{number}"
            number += 1
        numbers[base] = number
        names[made] = None
    return [*names]


def maker(names: tuple[str, ...] | None, kind: Any, where: str) -> Callable[[Any], Any]:
    """Return a function that makes a record of a row. Raises SourceError if a NamedTuple's fields are not the columns.
    """
    if names is None or kind is tuple:
        return tuple
    if kind is dict:
        return lambda row: dict(zip(names, row))
    fields, make = kind._fields, kind._make
    if fields == names:
        return make  # type: ignore[no-any-return]
    if sorted(fields) != sorted(names):
        raise SourceError(
            f"flow.csv(): {where} has the columns {', '.join(names)}, but {kind.__qualname__} has the fields "
            f"{', '.join(fields)}. Make the fields match the columns."
        )
    place_of = {name: place for place, name in enumerate(names)}
    places = [place_of[field] for field in fields]
    return lambda row: make([row[place] for place in places])
