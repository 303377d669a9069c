"""Bins of one operator as the page draws them: owner, move under way, rate, keys and bytes of each.

Bins are sent in rows of 64. A row of one field is a text with one character per bin, see `cell`, so 65,536 bins are
64 kB a field at most. Numbers are coarse, see `coarse`: the page shows them as "about 1,300".

1. Only rows that have changed are sent, owners and moves first. A later call of `drain` sends the rest. So the
   feed stays within its limit however many bins change, and the page shows each bin's newest value in the end.
2. A rate is kept while the new one is close to it. Otherwise the noise of a steady load would change most rows.
3. A row of zeros is absent.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import ceil
from typing import Any, Final

from megaflow.control.reports import OperatorLoad
from megaflow.web.patches import rounded

ROW_BINS: Final = 64
OWNERS: Final = "owners"  # worker + 1; 0: not known
TARGETS: Final = "targets"  # of a bin in flight: worker + 1; 0: not in flight
RATES: Final = "rates"  # records per second, coarse
KEYS: Final = "keys"  # coarse
BYTES: Final = "bytes"  # coarse
FIELDS: Final = (TARGETS, OWNERS, RATES, KEYS, BYTES)  # in the order in which they are sent
STEADY_CODES: Final = 4  # a rate may differ by so many codes, about a third, without being sent
HOT_KEYS: Final = 8
HEAVIEST: Final = 12
KEY_CHARACTERS: Final = 60
_FIRST: Final = 35  # the code points before it are controls, space, exclamation and quotation mark
_BACKSLASH: Final = 92
_LAST: Final = 0xD7FF  # before the surrogates


def cell(code: int) -> str:
    """Return the character of a code that is not negative; JSON escapes none of them.

    >>> cell(0), cell(1), cell(56), cell(57)
    ('#', '$', '[', ']')
    """
    point = _FIRST + code
    return chr(min(point if point < _BACKSLASH else point + 1, _LAST))


def coarse(value: float) -> int:
    """Return the code of a number that is not negative: rounded up below 16, then eight codes for each doubling.

    >>> [coarse(value) for value in (0, 0.01, 15, 16, 17, 18, 1000, 1 << 30)]
    [0, 1, 15, 16, 16, 17, 63, 224]
    """
    whole = ceil(value)
    if whole < 16:
        return whole
    shift = whole.bit_length() - 4
    return 8 * shift + (whole >> shift)


_SMALL: Final = 1 << 14
_COARSE: Final = [coarse(value) for value in range(_SMALL)]


def coarse_codes(values: Iterable[float]) -> list[int]:
    """Return the code of each number. With 65,536 bins, the table saves a quarter of the time that a status takes."""
    return [_COARSE[whole] if (whole := ceil(value)) < _SMALL else coarse(value) for value in values]


_CELLS: Final = [cell(code) for code in range(1024)]


def row_text(codes: Sequence[int]) -> str:
    """Return a row of codes as text."""
    if max(codes) < len(_CELLS):
        return "".join([_CELLS[code] for code in codes])
    return "".join(map(cell, codes))


class BinGrid:
    """Bins of one operator. One thread uses it."""

    def __init__(self) -> None:
        self._codes: dict[str, list[int]] = {field: [] for field in FIELDS}  # field -> one code per bin
        self._flights: dict[int, int] = {}  # bin in flight -> worker + 1 of its target
        self._rows: dict[str, dict[str, str]] = {field: {} for field in FIELDS}  # what a snapshot contains
        self._unsent: dict[str, dict[str, None]] = {field: {} for field in FIELDS}  # rows, in order

    @property
    def bins(self) -> int:
        return len(self._codes[OWNERS])

    def resize(self, bins: int) -> None:
        """Begin anew with this number of bins, unless it is the present one."""
        if bins == self.bins:
            return
        self._flights = {}
        for field in FIELDS:
            self._codes[field] = [0] * bins
            self._unsent[field].update(dict.fromkeys(self._rows[field]))
            self._rows[field] = {}

    def take_table(self, table: Sequence[int]) -> None:
        """Take the owner of each bin. A bin in flight keeps its old owner: the table already names the new one."""
        codes = [worker + 1 for worker in table]
        if len(codes) != self.bins:
            return
        for bin, target in self._flights.items():
            if target == codes[bin]:
                codes[bin] = self._codes[OWNERS][bin]
        self._replace(OWNERS, codes)

    def take_moves(self, moves: Iterable[tuple[int, int, int]]) -> None:
        """Show bins in flight: (bin, from worker, to worker)."""
        moves = [move for move in moves if move[0] < self.bins]
        self._set(OWNERS, {bin: source + 1 for bin, source, _ in moves})
        targets = {bin: target + 1 for bin, _, target in moves}
        self._flights.update(targets)
        self._set(TARGETS, targets)

    def arrive(self, bins: Iterable[int], worker: int) -> None:
        """Show bins at their new owner."""
        self._land(dict.fromkeys(bins, worker + 1))

    def land(self) -> None:
        """Show all bins in flight at their new owners."""
        self._land(dict(self._flights))

    def _land(self, owners: Mapping[int, int]) -> None:
        for bin in owners:
            self._flights.pop(bin, None)
        self._set(OWNERS, owners)
        self._set(TARGETS, dict.fromkeys(owners, 0))

    def take_load(self, load: OperatorLoad) -> None:
        """Take rate, keys and bytes of each bin."""
        old = self._codes[RATES]
        bins = len(old)
        rates, keys, sizes = [0] * bins, [0] * bins, [0] * bins
        columns = load.records_per_second, load.keys, load.bytes
        for bin, code, key_code, size_code in zip(load.bins, *map(coarse_codes, columns)):
            if bin < bins:
                before = old[bin]
                rates[bin] = before if before and code and -STEADY_CODES <= code - before <= STEADY_CODES else code
                keys[bin] = key_code
                sizes[bin] = size_code
        self._replace(RATES, rates)
        self._replace(KEYS, keys)
        self._replace(BYTES, sizes)

    def _set(self, field: str, values: Mapping[int, int]) -> None:
        codes = self._codes[field]
        touched = set()
        for bin, code in values.items():
            if bin < len(codes) and codes[bin] != code:
                codes[bin] = code
                touched.add(bin // ROW_BINS)
        for row in sorted(touched):
            self._show(field, row)

    def _replace(self, field: str, codes: list[int]) -> None:
        old = self._codes[field]
        if codes == old or len(codes) != len(old):
            return
        self._codes[field] = codes
        for row, start in enumerate(range(0, len(codes), ROW_BINS)):
            if codes[start : start + ROW_BINS] != old[start : start + ROW_BINS]:
                self._show(field, row)

    def _show(self, field: str, row: int) -> None:
        codes = self._codes[field][row * ROW_BINS : (row + 1) * ROW_BINS]
        if any(codes):
            self._rows[field][str(row)] = row_text(codes)
        else:
            self._rows[field].pop(str(row), None)
        self._unsent[field][str(row)] = None

    def forget(self) -> None:
        """Send no row that has changed until now."""
        for unsent in self._unsent.values():
            unsent.clear()

    def rows(self) -> dict[str, dict[str, str]]:
        """Return all rows by field."""
        return {field: dict(self._rows[field]) for field in FIELDS}

    def drain(self, budget: int) -> tuple[dict[str, dict[str, str | None]], int]:
        """Return changed rows by field that have not been sent, within a number of bytes; and the bytes that are left.

        Each row is sent once. The first row is sent even if it is longer than the budget.
        """
        patch: dict[str, dict[str, str | None]] = {}
        for field in FIELDS:
            unsent = self._unsent[field]
            while unsent and budget > 0:
                row = next(iter(unsent))
                del unsent[row]
                text = self._rows[field].get(row)
                patch.setdefault(field, {})[row] = text
                budget -= 10 + len((text or "null").encode())
        return patch, budget


def heaviest(load: OperatorLoad) -> list[list[Any]]:
    """Return the bins with the most work: bin, records per second, milliseconds of work per second, keys, bytes."""
    rows = zip(load.bins, load.records_per_second, load.busy_ms_per_second, load.keys, load.bytes)
    return [[bin, rounded(rate), rounded(busy), keys, size] for bin, rate, busy, keys, size in islice(rows, HEAVIEST)]


def hot_keys(load: OperatorLoad) -> list[list[Any]]:
    """Return the most frequent keys: key as text, bin, records per second."""
    return [[key[:KEY_CHARACTERS], bin, rounded(rate)] for key, bin, rate, _ in load.hot_keys[:HOT_KEYS]]
