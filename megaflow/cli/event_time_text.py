"""Texts about event time, for a status and `explain`: the watermark, the partition that holds it back, idle ones."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Final

from megaflow.control.watermark_messages import HoldsBack, IdlePartition, WatermarkStatus

IDLE_SHOWN: Final = 5  # partitions; --json has them all
YEAR: Final = timedelta(days=365)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def watermark_text(status: WatermarkStatus) -> str:
    """Return the watermark and the partition that holds it back.

    >>> held = HoldsBack("clicks", "", "b.json", None, 1)
    >>> print(watermark_text(WatermarkStatus(None, age_seconds=3.2, held_by=held)))
    no watermark for 3 s: clicks waits for b.json, which has no record yet (worker 1 reads it)
    >>> idle = (IdlePartition("", "a", 12.3, 0.0),)
    >>> print(watermark_text(WatermarkStatus(2_000_000, age_seconds=3.2, idle_partitions=idle, all_idle_seconds=12.3)))
    watermark: 2 s, for 3 s: all partitions have been idle for 12 s, so it is that of the furthest one
      idle for 12.3 s: a, the furthest one
    """
    if status.is_infinite:
        return "watermark: infinite, because all lines have been read"
    if status.micros is None:
        head = f"no watermark for {status.age_seconds:.0f} s"
    else:
        behind = "" if status.lag_seconds is None else f", {seconds_text(status.lag_seconds)} behind the newest record"
        head = f"watermark: {time_text(status.micros)}, for {status.age_seconds:.0f} s{behind}"
    held = "" if status.held_by is None else f": {held_text(status.held_by)}"
    if status.all_idle_seconds is not None and not status.held_by:
        so = "so it is that of the furthest one" if status.micros is not None else "and none has a record yet"
        held = f": all partitions have been idle for {status.all_idle_seconds:.0f} s, {so}"
    return "\n".join([f"{head}{held}", *idle_texts(status.idle_partitions)])


def held_text(held: HoldsBack) -> str:
    """Return which partition an operator waits for, and why.

    >>> print(held_text(HoldsBack("clicks", "a", "logs/b.json", 1_500_000, 2, lag_seconds=40.0)))
    clicks waits for logs/b.json of 'a', which is at 1.5 s, 40 s behind the furthest one (worker 2 reads it)
    >>> text = held_text(HoldsBack("clicks", "", "b.json", None, None, 0, True))
    >>> print(text.removeprefix("clicks waits for b.json, "))
    which has no record yet, and by the order of names none before 0 s (no worker reads it)
    """
    whose = f" of {held.input!r}" if held.input else ""
    if held.maximum is not None:
        lag = f", {seconds_text(held.lag_seconds)} behind the furthest one" if held.lag_seconds else ""
        why = f"which is at {time_text(held.maximum)}{lag}"
    elif held.bound is not None:
        by = "by the order of names" if held.in_order else "by its source's promise"
        why = f"which has no record yet, and {by} none before {time_text(held.bound)}"
    else:
        why = "which has no record yet"
    who = "no worker reads it" if held.worker is None else f"worker {held.worker} reads it"
    return f"{held.operator} waits for {held.partition}{whose}, {why} ({who})"


def idle_texts(idle: Sequence[IdlePartition]) -> list[str]:
    """Return the idle partitions: first those without a record, then those furthest behind.

    >>> print(*idle_texts([IdlePartition("", "a", 12.34, 40.0), IdlePartition("clicks", "b", 7.0)]), sep="\\n")
      idle for 7.0 s: b of 'clicks', which has no record yet
      idle for 12.3 s: a, 40 s behind the newest record
    """
    behind = sorted(idle, key=lambda each: inf if each.lag_seconds is None else each.lag_seconds, reverse=True)
    more = [f"  idle: {len(idle) - IDLE_SHOWN} more, see --json"] if len(idle) > IDLE_SHOWN else []
    return [*map(_idle_text, behind[:IDLE_SHOWN]), *more]


def _idle_text(idle: IdlePartition) -> str:
    whose = f" of {idle.input!r}" if idle.input else ""
    if idle.lag_seconds is None:
        where = "which has no record yet"
    else:
        where = f"{seconds_text(idle.lag_seconds)} behind the newest record" if idle.lag_seconds else "the furthest one"
    return f"  idle for {idle.idle_seconds:.1f} s: {idle.partition}{whose}, {where}"


def time_text(micros: int) -> str:
    """Return a time of an event: as seconds if it is within a year of 1970, as such programs count from elsewhere.

    >>> time_text(2_500_000), time_text(1_700_000_000_250_000)
    ('2.5 s', '2023-11-14T22:13:20.250000Z')
    """
    since = timedelta(microseconds=micros)
    if abs(since) < YEAR:
        return f"{micros / 1_000_000:.10g} s"
    return f"{(_EPOCH + since).replace(tzinfo=None).isoformat()}Z"


def plain_seconds(seconds: float) -> str:
    """Return a number of seconds to the microsecond.

    >>> plain_seconds(0.25), plain_seconds(7e-6), plain_seconds(1_000_000.0)
    ('0.25', '0.000007', '1000000')
    """
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def about_seconds(seconds: float) -> str:
    """Return a number of seconds in three digits.

    >>> about_seconds(11.010047), about_seconds(1_234_567.5)
    ('11', '1230000')
    """
    return plain_seconds(float(f"{seconds:.3g}"))


def seconds_text(seconds: float) -> str:
    """Return a duration.

    >>> seconds_text(0.25), seconds_text(4000)
    ('0.2 s', '4000 s')
    """
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
