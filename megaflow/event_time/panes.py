"""Panes: the windows of one size of one key, from its first record until its last window is closed.

    state = [alarm, due, panes]       panes: start of a pane, or (start, end) -> accumulations

`due` is the end of the first window that is not closed and has a record. `alarm` is kept here for the code that sets
timers. A key has an entry for each pane with records, and none for its windows, which follow from the panes:
 1. A record is late for a window exactly if its bound (`record_bounds`), or the watermark, has reached the window's end
    plus the allowed lateness. It is late for all windows of its pane if it is late for the last. Then no pane gets it.
 2. Otherwise it counts in the first window of its pane that it is not late for, and in all later ones. It does so even
    if windows before that are still open. If that first window is not the first of the pane, its records are kept
    apart, under (start, end), where `end` is that of the window. When windows close, they read the records that count
    in them.
 3. Windows close in the order of their ends. A pane is dropped with its last window. So no pane outlives its windows,
    and a key without panes has no state.
 4. An infinite watermark makes no record late. Records that come then are in all windows of their pane, which close at
    once. A window may then close a second time, with only the records since.
Decisions about a record depend only on its timestamp, its bound and the watermark, not on earlier records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Final, Generic, TypeAlias, TypeVar

from megaflow.event_time.accumulators import Accumulators
from megaflow.event_time.record_bounds import apart, limit_of
from megaflow.event_time.windows import AlignedWindows
from megaflow.megaphone.base.event_unit import GREATEST, INFINITE, NEVER
from megaflow.megaphone.folds.ranking import Stamped

W = TypeVar("W")
Closed: TypeAlias = tuple[int, int, list[Any]]  # start, end, accumulations
State: TypeAlias = list[Any] | None  # of a key: the alarm and the rest; None: it has no windows
Pane: TypeAlias = int | tuple[int, int]  # start, and the end of the first window that its records count in


NONE_LATE: Final[list[Stamped]] = []
"""The list of late records if there are none. All calls share it, and no code changes it."""


class KeyWindows(ABC, Generic[W]):
    """The windows of one operator. The caller passes the state of a key, a list that begins with the alarm."""

    def __init__(self, windows: W, accumulators: Accumulators, lateness: int) -> None:
        """`lateness`: microseconds for which a window takes records after its end."""
        self._windows = windows
        self._lateness = lateness
        self._accumulators = accumulators

    joins: int = 1
    """Microseconds after a record within which another window cannot begin apart from it: see `WindowFold`, rule 7."""

    @property
    @abstractmethod
    def reach(self) -> int:
        """Microseconds after a record until all of its windows are over, and those that begin within `joins` of it."""

    def deadline(self, state: list[Any]) -> int:
        """Return the watermark at which the key's next window closes, as far as is known now."""
        return self._closes_at(state[1])

    def _closes_at(self, end: int) -> int:
        end += self._lateness
        return end if end < GREATEST else GREATEST  # what would end after the year 9999 ends with it

    @abstractmethod
    def take(self, state: State, records: list[Stamped], watermark: int) -> tuple[State, list[Stamped], int]:
        """Put in stamped records of one key and epoch.

        Return the state, the records that are late for all their windows, and how many are late by the watermark alone.
        """

    @abstractmethod
    def close(self, state: list[Any], watermark: int) -> tuple[State, list[Closed]]:
        """Close the windows that the watermark has reached, in the order of ends.

        Return the state, None for none, and the closed windows.
        """

    @abstractmethod
    def count(self, state: list[Any]) -> int:
        """Return the number of open windows that have records."""

    @abstractmethod
    def so_far(self, state: list[Any], records: Iterable[Stamped], watermark: int) -> list[Closed]:
        """Return the accumulations of the open windows that have some of these records, by their ends."""

    def replaced(self, state: list[Any], records: Iterable[Stamped], watermark: int) -> list[Closed]:
        """Return the open windows that will have other bounds once `take` has put in these records, by their ends."""
        return []

    def lengthened(self, state: list[Any]) -> tuple[list[Closed], list[Closed]]:
        """Return the open windows that another gap has lengthened since the last run: as they were, as they are now.

        A second call returns none.
        """
        return [], []


class FixedWindows(KeyWindows[W]):
    """Windows whose bounds do not depend on the records. A state is the alarm, the first open end, and the panes."""

    @abstractmethod
    def _first_open(self, pane: Any, limit: int) -> int | None:
        """Return the end of the first window that takes the records of a pane at this event time; None if none does."""

    def _put(
        self, state: State, groups: Mapping[Any, list[Stamped]], late: list[Stamped], watermark: int
    ) -> tuple[State, list[Stamped], int]:
        """Put records into their panes; `late` are other records of the epoch. Return as `take` does."""
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


class Panes(FixedWindows[AlignedWindows]):
    """The windows of one size."""

    def __init__(self, windows: AlignedWindows, accumulators: Accumulators, lateness: int) -> None:
        super().__init__(windows, accumulators, lateness)
        self._width = windows.pane

    @property
    def reach(self) -> int:
        return self._windows.size

    def take(self, state: State, records: list[Stamped], watermark: int) -> tuple[State, list[Stamped], int]:
        """Put stamped records of one key and epoch into their panes, see `KeyWindows.take`.

        Cost per record, if all are in one pane, as usual: two comparisons and the addition; otherwise also a lookup.
        """
        offset, width, micros = self._windows.offset, self._width, records[0][0]
        start = micros - (micros - offset) % width
        end = start + width if micros <= INFINITE else NEVER
        for micros, _ in records:
            if micros < start or micros >= end:  # or it is below its bound: then its stamp is above all
                return self._put(state, *self._by_pane(records), watermark)
        if state is not None and (accumulated := state[2].get(start)) is not None:
            self._accumulators.add_to(accumulated, records)
            return state, NONE_LATE, 0
        return self._put(state, {start: records}, NONE_LATE, watermark)

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
                each = micros, each[1]  # from here on only a watermark ahead of its bound can make it late
            if pane in groups:
                groups[pane].append(each)
            else:
                groups[pane] = [each]
        return groups, late

    def _first_open(self, pane: Pane, limit: int) -> int | None:
        first, last = self._first_of(pane), self._windows.last_end_of(_start_of(pane))
        while limit >= self._closes_at(first):
            first += self._windows.every
            if first > last:
                return None
        return first

    def close(self, state: list[Any], watermark: int) -> tuple[State, list[Closed]]:
        """Close windows, see `KeyWindows.close`.

        Cost per window: linear in the key's panes, plus the combination of its own panes.
        """
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
        windows = self._windows
        if windows.every == windows.size:
            return len(state[2])
        ends: set[int] = set()
        for pane in state[2]:
            first = max(self._first_of(pane), state[1])
            ends.update(range(first, windows.last_end_of(_start_of(pane)) + 1, windows.every))
        return len(ends)

    def _first_of(self, pane: Pane) -> int:
        """Return the end of the first window that takes the records of a pane."""
        return pane[1] if isinstance(pane, tuple) else self._windows.first_end_after(pane)

    def _together(self, panes: dict[Pane, list[Any]], start: int, end: int) -> list[Any]:
        within = [pane for pane in panes if start <= _start_of(pane) < end and self._first_of(pane) <= end]
        return self._accumulators.together([panes[pane] for pane in sorted(within, key=_start_of)])

    def so_far(self, state: list[Any], records: Iterable[Stamped], watermark: int) -> list[Closed]:
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
