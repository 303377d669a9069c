"""Windows by the book, slow and obvious: every record is put into every window, and sessions are found anew."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from megaflow.event_time.windows import AlignedWindows
from megaflow.megaphone.event_unit import INFINITE, NEVER

Stamped: TypeAlias = tuple[int, Any]
Bounds: TypeAlias = Mapping[Any, int]  # value of a record -> the bound at it, if it is below that
Result: TypeAlias = tuple[int, int, list[Stamped]]  # start, end, records in the order in which they came


class NaiveAligned:
    """One key's windows of one size."""

    def __init__(self, windows: AlignedWindows, lateness: int) -> None:
        self.windows = windows
        self.lateness = lateness
        self.open: dict[int, list[Stamped]] = {}  # start -> its records
        self.watermark = NEVER

    def _starts(self, time: int) -> list[int]:
        size, every, offset = self.windows.size, self.windows.every, self.windows.offset
        around = range((time - size - offset) // every - 1, (time - offset) // every + 2)
        starts = [offset + number * every for number in around]
        return [start for start in starts if start <= time < start + size]

    def _is_late(self, start: int, limit: int) -> bool:
        return limit >= start + self.windows.size + self.lateness

    def take(self, records: list[Stamped], bounds: Bounds) -> tuple[list[Stamped], list[Result]]:
        """Put in an epoch's records; return which are late, and the windows that have changed."""
        late, changed = [], set()
        for record in records:
            limit = furthest(bounds.get(record[1], NEVER), self.watermark)
            starts = [start for start in self._starts(record[0]) if not self._is_late(start, limit)]
            for start in starts:
                self.open.setdefault(start, []).append(record)
            changed |= set(starts)
            if not starts:
                late.append(record)
        return late, [(start, start + self.windows.size, list(self.open[start])) for start in sorted(changed)]

    def rise(self, watermark: int) -> list[Result]:
        """Return what a watermark closes, by end."""
        self.watermark = watermark
        due = sorted(start for start in self.open if start + self.windows.size + self.lateness <= watermark)
        return [(start, start + self.windows.size, self.open.pop(start)) for start in due]


class NaiveSessions:
    """One key's sessions."""

    def __init__(self, gap: int, lateness: int) -> None:
        self.gap = gap
        self.lateness = lateness
        self.records: list[Stamped] = []  # of open sessions, in the order in which they came
        self.watermark = NEVER

    def _sessions(self) -> list[Result]:
        found: list[list[Stamped]] = []
        for record in sorted(self.records, key=lambda record: record[0]):
            if found and record[0] - found[-1][-1][0] < self.gap:
                found[-1].append(record)
            else:
                found.append([record])
        return [(some[0][0], some[-1][0] + self.gap, some) for some in found]

    def take(self, records: list[Stamped], bounds: Bounds) -> tuple[list[Stamped], list[Result]]:
        """Put in an epoch's records; return which are late, and the sessions that have some of their times."""
        late = []
        for record in records:
            limit = furthest(bounds.get(record[1], NEVER), self.watermark)
            (late if record[0] + self.lateness < limit else self.records).append(record)
        times = {time for time, _ in records}
        return late, [each for each in self._sessions() if any(each[0] <= time < each[1] for time in times)]

    def rise(self, watermark: int) -> list[Result]:
        """Return what a watermark closes, by end."""
        self.watermark = watermark
        due = [each for each in self._sessions() if each[1] + self.lateness <= watermark]
        for _, _, records in due:
            self.records = [record for record in self.records if record not in records]
        return due


def furthest(bound: int, watermark: int) -> int:
    """How far event time is for a record."""
    return bound if watermark == INFINITE else max(bound, watermark)
