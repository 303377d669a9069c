"""Panes: what one key has in windows of one size, from its first record until its last window is closed.

    state = [alarm, due, panes]       panes: start of a pane, or (start, end) -> accumulations

`due` is the end of the first window that is not closed and has a record; `alarm` is kept here for who sets timers. So a
key has an entry for each pane with records and nothing for its windows, which follow from the panes:
 1. A record is late for a window iff its bound (`record_bounds`), or the watermark, has come to the window's end and
    the allowed lateness; for all windows of its pane iff it is so for the last one. Then it goes nowhere.
 2. Otherwise it counts in all windows of its pane from the first one on that it is not late for, also if windows before
    that are still open. So of a pane in several windows the records are kept apart by the end of that one, if it is not
    the first window of the pane: under (start, end). Windows read what counts in them when they close.
 3. Windows close in the order of their ends. A pane goes with the last window that it is in. So no pane is left of
    which all windows are closed, and a key without panes has no state.
 4. Under an infinite watermark nothing is late by it: what comes is in all windows of its pane, which close at once.
    They may be there a second time, then with what came since.
What is decided about a record depends on its timestamp, its bound and the watermark alone, not on what came before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from megaflow.event_time.accumulators import Accumulators, Stamped
from megaflow.event_time.windows import AlignedWindows
from megaflow.megaphone.event_unit import GREATEST, INFINITE, NEVER
from megaflow.megaphone.record_bounds import apart, limit_of

Closed: TypeAlias = tuple[int, int, list[Any]]  # start, end, accumulations
Pane: TypeAlias = int | tuple[int, int]  # start, and the end of the first window that its records count in


NONE_LATE: Final[list[Stamped]] = []
"""As good as a list of its own, which nobody changes."""


class Panes:
    """The windows of one size of an operator; the state of a key is handed in."""

    def __init__(self, windows: AlignedWindows, accumulators: Accumulators, lateness: int) -> None:
        """`lateness`: microseconds for which a window takes records after its end."""
        self._windows = windows
        self._width = windows.pane
        self._lateness = lateness
        self._accumulators = accumulators

    def deadline(self, state: list[Any]) -> int:
        """Return at which watermark the key's next window closes."""
        return self._closes_at(state[1])

    def _closes_at(self, end: int) -> int:
        end += self._lateness
        return end if end < GREATEST else GREATEST  # what would end after the year 9999 ends with it

    def take(
        self, state: list[Any] | None, records: list[Stamped], watermark: int
    ) -> tuple[list[Any] | None, list[Stamped], int]:
        """Put stamped records of one key and epoch into their panes.

        Return the state, which records are late for all their windows, and how many of these are so by the watermark
        alone. Cost for each record of a single pane, as mostly: two comparisons and the addition; else a dict lookup
        more.
        """
        offset, width, micros = self._windows.offset, self._width, records[0][0]
        start = micros - (micros - offset) % width
        end = start + width if micros <= INFINITE else NEVER
        late: list[Stamped] = NONE_LATE
        groups: dict[Pane, list[Stamped]] = {}
        for micros, _ in records:
            if micros < start or micros >= end:  # or it is below its bound: then its stamp is above all
                groups, late = self._by_pane(records)
                break
        else:
            if state is not None and (accumulated := state[2].get(start)) is not None:
                self._accumulators.add_to(accumulated, records)
                return state, NONE_LATE, 0
            groups[start] = records
        overtaken = 0
        limit = limit_of(NEVER, watermark)
        for pane, group in groups.items():
            if state is not None and (accumulated := state[2].get(pane)) is not None:
                self._accumulators.add_to(accumulated, group)  # `due` is not after its first open window
                continue
            first = self._first_open(pane, limit)
            if first is None:
                late = late + group
                overtaken += len(group)
                continue
            if state is None:
                state = [None, first, {}]
            elif first < state[1]:
                state[1] = first
            state[2][pane] = self._accumulators.begin(group)
        return state, late, overtaken

    def _by_pane(self, records: list[Stamped]) -> tuple[dict[Pane, list[Stamped]], list[Stamped]]:
        """Return records by their panes, with their timestamps; and those that are late by their bounds."""
        offset, width = self._windows.offset, self._width
        groups: dict[Pane, list[Stamped]] = {}
        late: list[Stamped] = []
        for each in records:
            micros = each[0]
            pane: Pane
            if micros <= INFINITE:
                pane = micros - (micros - offset) % width
            else:
                micros, bound = apart(micros)
                start = micros - (micros - offset) % width
                first = self._first_open(start, bound)
                if first is None:
                    late.append(each)
                    continue
                pane = start if first == self._windows.first_end_after(start) else (start, first)
                each = micros, each[1]  # should the watermark be ahead of its bound, that alone decides from now on
            if pane in groups:
                groups[pane].append(each)
            else:
                groups[pane] = [each]
        return groups, late

    def _first_open(self, pane: Pane, limit: int) -> int | None:
        """Return the end of the first window that takes what is in a pane, as event time is; None if none does."""
        first, last = self._first_of(pane), self._windows.last_end_of(_start_of(pane))
        while limit >= self._closes_at(first):
            first += self._windows.every
            if first > last:
                return None
        return first

    def close(self, state: list[Any], watermark: int) -> tuple[list[Any] | None, list[Closed]]:
        """Close what the watermark has come to, in the order of ends; return the state, None for none, and what is
        closed. Cost for each window: linear in the key's panes, and what it takes to put its own together."""
        windows, panes = self._windows, state[2]
        closed: list[Closed] = []
        while panes and self._closes_at(due := state[1]) <= watermark:
            start = due - windows.size
            if windows.every == windows.size:
                closed.append((start, due, panes.pop(start)))
            else:
                closed.append((start, due, self._together(panes, start, due)))
                for gone in [pane for pane in panes if _start_of(pane) < start + windows.every]:
                    del panes[gone]
            if panes:
                state[1] = max(windows.first_end_after(due), min(map(self._first_of, panes)))
        return (state if panes else None), closed

    def count(self, state: list[Any]) -> int:
        """Return how many windows are open that have records."""
        windows = self._windows
        if windows.every == windows.size:
            return len(state[2])
        ends: set[int] = set()
        for pane in state[2]:
            first = max(self._first_of(pane), state[1])
            ends.update(range(first, windows.last_end_of(_start_of(pane)) + 1, windows.every))
        return len(ends)

    def _first_of(self, pane: Pane) -> int:
        """Return the end of the first window that takes what is in a pane."""
        return pane[1] if isinstance(pane, tuple) else self._windows.first_end_after(pane)

    def _together(self, panes: dict[Pane, list[Any]], start: int, end: int) -> list[Any]:
        within = [pane for pane in panes if start <= _start_of(pane) < end and self._first_of(pane) <= end]
        return self._accumulators.together([panes[pane] for pane in sorted(within, key=_start_of)])

    def so_far(self, state: list[Any] | None, records: Iterable[Stamped], watermark: int) -> list[Closed]:
        """Return what there is of the windows that have some of these records and are not closed, by their ends."""
        if state is None:
            return []
        offset, windows = self._windows.offset, self._windows
        ends: set[int] = set()
        for stamp in {stamp for stamp, _ in records}:
            micros, bound = apart(stamp)
            start = micros - (micros - offset) % self._width
            first = self._first_open(start, limit_of(bound, watermark))
            if first is not None:
                ends.update(range(first, windows.last_end_of(start) + 1, windows.every))
        return [(end - windows.size, end, self._together(state[2], end - windows.size, end)) for end in sorted(ends)]


def _start_of(pane: Pane) -> int:
    return pane[0] if isinstance(pane, tuple) else pane
