"""Slow and obvious windows: every record is put into each of its windows, and sessions are recomputed each time."""

from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

from megaflow.event_time.windows import AlignedWindows
from megaflow.megaphone.base.event_unit import INFINITE, NEVER

Stamped: TypeAlias = tuple[int, Any]
Span: TypeAlias = tuple[int, int]  # start and end of a window
Bounds: TypeAlias = Mapping[Any, int]  # value of a record -> its bound, if that is lower
Result: TypeAlias = tuple[int, int, list[Stamped]]  # start, end, records in order of arrival


def aligned(windows: AlignedWindows) -> Callable[[int], list[Span]]:
    """Return a function from a timestamp to its windows of one size."""

    def spans(time: int) -> list[Span]:
        size, every, offset = windows.size, windows.every, windows.offset
        around = range((time - size - offset) // every - 1, (time - offset) // every + 2)
        starts = [offset + number * every for number in around]
        return [(start, start + size) for start in starts if start <= time < start + size]

    return spans


def days_in(zone: str) -> Callable[[int], list[Span]]:
    """Return a function from a timestamp to its day, for a zone in which midnight comes once each day."""
    info = ZoneInfo(zone)

    def midnight(day: date) -> int:
        return round(datetime(day.year, day.month, day.day, tzinfo=info).timestamp()) * 1_000_000

    def spans(time: int) -> list[Span]:
        day = datetime.fromtimestamp(time // 1_000_000, info).date()
        return [(midnight(day), midnight(day + timedelta(days=1)))]

    return spans


class NaiveWindows:
    """One key's windows, of one size or of the calendar."""

    def __init__(self, spans: Callable[[int], list[Span]], lateness: int) -> None:
        """`spans` gives the windows of a timestamp."""
        self.spans = spans
        self.lateness = lateness
        self.open: dict[Span, list[Stamped]] = {}  # window -> its records
        self.watermark = NEVER

    def take(self, records: list[Stamped], bounds: Bounds) -> tuple[list[Stamped], list[Result]]:
        """Add an epoch's records; return the late ones, and the windows that have changed."""
        late, changed = [], set()
        for record in records:
            limit = furthest(bounds.get(record[1], NEVER), self.watermark)
            spans = [span for span in self.spans(record[0]) if limit < span[1] + self.lateness]
            for span in spans:
                self.open.setdefault(span, []).append(record)
            changed |= set(spans)
            if not spans:
                late.append(record)
        return late, [(*span, list(self.open[span])) for span in sorted(changed)]

    def rise(self, watermark: int) -> list[Result]:
        """Return the windows that a watermark closes, by end."""
        self.watermark = watermark
        due = sorted(span for span in self.open if span[1] + self.lateness <= watermark)
        return [(*span, self.open.pop(span)) for span in due]


class NaiveSessions:
    """One key's sessions."""

    def __init__(self, gap: int, lateness: int) -> None:
        self.gap = gap
        self.lateness = lateness
        self.records: list[Stamped] = []  # of open sessions, in order of arrival
        self.watermark = NEVER

    def sessions(self) -> list[Result]:
        """Return the open sessions, by start."""
        found: list[list[Stamped]] = []
        for record in sorted(self.records, key=lambda record: record[0]):
            if found and record[0] - found[-1][-1][0] < self.gap:
                found[-1].append(record)
            else:
                found.append([record])
        return [(some[0][0], some[-1][0] + self.gap, some) for some in found]

    def take(self, records: list[Stamped], bounds: Bounds) -> tuple[list[Stamped], list[Result]]:
        """Add an epoch's records; return the late ones, and the sessions that contain some of the others."""
        late, times = [], set()
        for record in records:
            limit = furthest(bounds.get(record[1], NEVER), self.watermark)
            if record[0] + self.lateness < limit:
                late.append(record)
            else:
                self.records.append(record)
                times.add(record[0])
        return late, [each for each in self.sessions() if any(each[0] <= time < each[1] for time in times)]

    def rise(self, watermark: int) -> list[Result]:
        """Return the sessions that a watermark closes, by end."""
        self.watermark = watermark
        due = [each for each in self.sessions() if each[1] + self.lateness <= watermark]
        for _, _, records in due:
            self.records = [record for record in self.records if record not in records]
        return due


def furthest(bound: int, watermark: int) -> int:
    """Return the bound of a record."""
    return bound if watermark == INFINITE else max(bound, watermark)
