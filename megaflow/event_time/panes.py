"""Panes: what one key has in windows of one size, from its first record until its last window is closed.

    state = [alarm, due, panes]       panes: start of a pane -> its accumulations

`due` is the end of the first window that is not closed and has a record; `alarm` is kept here for who sets timers. So a
key has an entry for each pane with records and nothing for its windows, which follow from the panes:
 1. A record is late for a window iff the watermark has come to the window's end and the allowed lateness; for all
    windows of its pane iff it is so for the last one. Then it goes nowhere. Otherwise its pane has it, and so have all
    windows of the pane that are not closed: they read their panes when they close.
 2. Windows close in the order of their ends. A pane goes with the last window that it is in. So no pane is left of
    which all windows are closed, and a key without panes has no state.
 3. Under an infinite watermark nothing is late: what comes is in all windows of its pane, which close at once. They may
    be there a second time, then with what came since.
What is decided about a record depends on its timestamp and on the watermark alone, not on what came before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from megaflow.event_time.accumulators import Accumulators, Stamped
from megaflow.event_time.windows import AlignedWindows
from megaflow.megaphone.event_unit import GREATEST, INFINITE

NONE_LATE: Final[list[Stamped]] = []
"""As good as a list of its own, which nobody changes."""

Closed: TypeAlias = tuple[int, int, list[Any]]  # start, end, accumulations


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

    def take(self, state: list[Any] | None, records: list[Stamped], watermark: int) -> tuple[Any, list[Stamped]]:
        """Put records of one key and epoch into their panes; return the state, and which are late for all windows.

        Cost for each record of a single pane, as mostly: two comparisons and the addition; else a dict lookup more.
        """
        offset, width, micros = self._windows.offset, self._width, records[0][0]
        start = micros - (micros - offset) % width
        end = start + width
        for micros, _ in records:
            if micros < start or micros >= end:
                groups = self._by_pane(records)
                break
        else:
            if state is not None and (accumulated := state[2].get(start)) is not None:
                self._accumulators.add_to(accumulated, records)
                return state, NONE_LATE
            groups = {start: records}
        late: list[Stamped] = []
        for start, group in groups.items():
            if state is not None and (accumulated := state[2].get(start)) is not None:
                self._accumulators.add_to(accumulated, group)  # `due` is not after its first open window
                continue
            first = self._first_open(start, watermark)
            if first is None:
                late += group
                continue
            if state is None:
                state = [None, first, {}]
            elif first < state[1]:
                state[1] = first
            state[2][start] = self._accumulators.begin(group)
        return state, late

    def _by_pane(self, records: list[Stamped]) -> dict[int, list[Stamped]]:
        offset, width = self._windows.offset, self._width
        groups: dict[int, list[Stamped]] = {}
        for each in records:
            start = each[0] - (each[0] - offset) % width
            if start in groups:
                groups[start].append(each)
            else:
                groups[start] = [each]
        return groups

    def _first_open(self, pane: int, watermark: int) -> int | None:
        """Return the end of the first window of a pane that is not closed; None if all are."""
        first: int = self._windows.first_end_after(pane)
        if watermark == INFINITE or watermark < self._closes_at(first):
            return first
        last = self._windows.last_end_of(pane)
        while first < last:
            first += self._windows.every
            if watermark < self._closes_at(first):
                return first
        return None

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
                for gone in [pane for pane in panes if pane < start + windows.every]:
                    del panes[gone]
            if panes:
                state[1] = windows.first_end_after(max(due, min(panes)))
        return (state if panes else None), closed

    def _together(self, panes: dict[int, list[Any]], start: int, end: int) -> list[Any]:
        return self._accumulators.together([panes[pane] for pane in sorted(panes) if start <= pane < end])

    def so_far(self, state: list[Any] | None, records: Iterable[Stamped], watermark: int) -> list[Closed]:
        """Return what there is of the windows that have some of these records and are not closed, by their ends."""
        if state is None:
            return []
        offset, windows = self._windows.offset, self._windows
        ends: set[int] = set()
        for pane in {micros - (micros - offset) % self._width for micros, _ in records}:
            first = self._first_open(pane, watermark)
            if first is not None:
                ends.update(range(first, windows.last_end_of(pane) + 1, windows.every))
        return [(end - windows.size, end, self._together(state[2], end - windows.size, end)) for end in sorted(ends)]
