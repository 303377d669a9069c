"""Stable hashes of times, including the times of numpy and pandas, which equal those of Python.

`stable_hash` uses this module for dates and times (see `megaflow.megaphone.base.bins`).

1. A time is hashed as its whole microseconds, because a datetime has no smaller unit and may equal a Timestamp or
   datetime64.
2. A time with a fraction of a microsecond equals no datetime. It is hashed as its nanoseconds, or as its attoseconds if
   nanoseconds do not suffice. So the unit in which numpy and pandas count does not matter.
3. A month has no fixed length. A timedelta64 of months or years is hashed as its number of months, and a Period as its
   number.
4. NaT and NA are refused, as NaN is.
"""

import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from typing import Any, Final

from megaflow.errors import UsageError
from megaflow.timely.dataflow.folds import NAN_IN_KEY

MASK: Final = 2**64 - 1
ODD: Final = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio: spreads runs of integers evenly
_MICROSECOND: Final = timedelta(microseconds=1)
_UNTIL_1970: Final = (datetime(1970, 1, 1) - datetime.min) // _MICROSECOND
_SECOND: Final = 10**18
_ATTOSECONDS: Final = {
    "W": 604_800 * _SECOND, "D": 86_400 * _SECOND, "h": 3600 * _SECOND, "m": 60 * _SECOND, "s": _SECOND,
    "ms": 10**15, "us": 10**12, "ns": 10**9, "ps": 10**6, "fs": 1000, "as": 1,
}  # fmt: skip
"""Unit of numpy or pandas -> its length."""
_MONTHS: Final = {"Y": 12, "M": 1}


def mix(value: int) -> int:
    """Return 64 bits that each depend on all bits of the value, so that the high bits may select a bin.

    >>> len({mix(value) >> 56 for value in range(9000)})
    256
    """
    value = value * ODD & MASK
    value = (value ^ (value >> 32)) * ODD & MASK
    return value ^ (value >> 32)


def _hash_datetime(key: datetime) -> int:
    """Return the hash of a datetime: by its time in UTC if it has a zone."""
    clock = key.replace(fold=0)  # equality within one zone ignores the fold
    since = clock.replace(tzinfo=None) - datetime.min
    return mix((since - (clock.utcoffset() or timedelta())) // _MICROSECOND)


def _hash_time(key: time) -> int:
    """Return the hash of a time of day."""
    since = timedelta(hours=key.hour, minutes=key.minute, seconds=key.second, microseconds=key.microsecond)
    return mix((since - (key.replace(fold=0).utcoffset() or timedelta())) // _MICROSECOND)


def _of_attoseconds(attoseconds: int, start: int = 0) -> int:
    """Return the hash of a duration after `start`, which is in microseconds."""
    micros, rest = divmod(attoseconds, 10**12)
    if not rest:
        return mix(start + micros)
    nanos, rest = divmod(attoseconds, 10**9)
    return mix(attoseconds if rest else nanos)


def _hash_timestamp(key: Any) -> int:
    if key.nanosecond or not 1 <= key.year <= 9999:
        return _of_attoseconds(int(key.asm8.view("i8")) * _ATTOSECONDS[key.unit], _UNTIL_1970)
    return _hash_datetime(key.replace(fold=0).to_pydatetime())  # pandas' own hash also ignores the fold


def _hash_datetime64(key: Any) -> int:
    if key != key:
        return _refuse(key)
    unit, count = sys.modules["numpy"].datetime_data(key.dtype)
    if unit in _MONTHS:
        key, unit, count = key.astype("M8[D]"), "D", 1
    return _of_attoseconds(int(key.astype("i8")) * count * _ATTOSECONDS[unit], _UNTIL_1970)


def _hash_timedelta64(key: Any) -> int:
    if key != key:
        return _refuse(key)
    unit, count = sys.modules["numpy"].datetime_data(key.dtype)
    number = int(key.astype("i8")) * count
    if unit in _MONTHS:
        return mix(number * _MONTHS[unit])
    if unit not in _ATTOSECONDS:
        raise UsageError(f"stable_hash({key!r}): a timedelta64 without a unit cannot be a key; give it a unit")
    return _of_attoseconds(number * _ATTOSECONDS[unit])


def _refuse(key: Any) -> int:
    raise UsageError(f"stable_hash({key!r}): {NAN_IN_KEY}")


TIMES: Final[dict[type, Callable[[Any], int]]] = {
    datetime: _hash_datetime,
    date: lambda key: mix(key.toordinal()),  # a date equals no datetime
    time: _hash_time,
    timedelta: lambda key: mix(key // _MICROSECOND),
}  # class -> how its values are hashed; datetime, a subclass of date, before date

LIBRARY_TIMES: Final[dict[tuple[str, str], Callable[[Any], int]]] = {
    ("numpy", "datetime64"): _hash_datetime64,
    ("numpy", "timedelta64"): _hash_timedelta64,
    ("pandas", "Timestamp"): _hash_timestamp,
    ("pandas", "Timedelta"): lambda key: _of_attoseconds(int(key.asm8.view("i8")) * _ATTOSECONDS[key.unit]),
    ("pandas", "Period"): lambda key: mix(key.ordinal),
    ("pandas", "NaTType"): _refuse,
    ("pandas", "NAType"): _refuse,
}  # library and name of a class -> how its values are hashed
