"""Columns of times, decimals and UUIDs as columns of plain values, and back.

A datetime takes 0.5 µs each way instead of 2 to 3. The others take about half as long as one by one.

1. Values of exactly one of these types become ints, strs or bytes of one type. None stays None.
2. Datetimes become microseconds since EPOCH on the clock of their zone. Python adds and subtracts datetimes with the
   same tzinfo object without calling it, so no code of a zone runs. A column has one tzinfo object, or none. This
   arithmetic loses `fold=1`, so a column that contains such a datetime travels one by one.
3. Only columns change (rows, objects and dicts of equal shape). The bytes of a single value stay the same from version
   to version, because a store recognizes the partitions of a source by their bytes.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta, tzinfo
from decimal import Decimal
from itertools import repeat
from operator import add, attrgetter, floordiv, mul, sub
from typing import Any, Final, NamedTuple
from uuid import UUID

from megaflow.errors import ProtocolError
from megaflow.timely.communication.codec import tags

EPOCH: Final = datetime(1970, 1, 1)
MICROSECOND: Final = timedelta(microseconds=1)
NONE: Final = type(None)


class PlainForm(NamedTuple):
    """How values of a type become plain values. Datetimes all have the zone that the functions receive."""

    tag: int  # of a single value
    plain: type  # of the plain values
    take_apart: Callable[[Iterable[Any], tzinfo | None], Iterable[Any]]
    restore: Callable[[Iterable[Any], tzinfo | None], Iterable[Any]]


def _microseconds(spans: Iterable[timedelta]) -> Iterable[int]:
    return map(floordiv, spans, repeat(MICROSECOND))


def _spans(microseconds: Iterable[int]) -> Iterable[timedelta]:
    return map(mul, repeat(MICROSECOND), microseconds)


FORMS: Final[dict[type, PlainForm]] = {
    date: PlainForm(
        tags.DATE, int, lambda values, _: map(date.toordinal, values), lambda days, _: map(date.fromordinal, days)
    ),
    datetime: PlainForm(
        tags.DATETIME,
        int,
        lambda values, zone: _microseconds(map(sub, values, repeat(EPOCH.replace(tzinfo=zone)))),
        lambda numbers, zone: map(add, repeat(EPOCH.replace(tzinfo=zone)), _spans(numbers)),
    ),
    timedelta: PlainForm(
        tags.TIMEDELTA, int, lambda values, _: _microseconds(values), lambda numbers, _: _spans(numbers)
    ),
    Decimal: PlainForm(tags.DECIMAL, str, lambda values, _: map(str, values), lambda texts, _: map(Decimal, texts)),
    UUID: PlainForm(
        tags.UUID,
        bytes,
        lambda values, _: map(attrgetter("bytes"), values),
        lambda parts, _: [UUID(bytes=part) for part in parts],
    ),
}
OF_TAG: Final = {form.tag: form for form in FORMS.values()}


def take_apart(values: Sequence[Any]) -> tuple[int, list[Any], tzinfo | None] | None:
    """Return the tag of a value, the plain values and the zone of datetimes; None if they have no common plain form.

    >>> take_apart([date(1, 1, 2), None])
    (16, [2, None], None)
    >>> take_apart([date(1, 1, 2), 2])
    """
    kind = next((kind for kind in map(type, values) if kind is not NONE), NONE)
    form = FORMS.get(kind)
    if form is None or not {*map(type, values)} <= {kind, NONE}:
        return None
    present = [value for value in values if value is not None]
    zone = present[0].tzinfo if kind is datetime else None
    if kind is datetime and (
        any(map(attrgetter("fold"), present)) or any(value.tzinfo is not zone for value in present)
    ):
        return None
    return form.tag, _between(form.take_apart(present, zone), values, len(present)), zone


def restore(tag: int, plain: Sequence[Any], zone: tzinfo | None) -> list[Any]:
    """Return the values of a column. Raises ProtocolError or the first other error if it is not valid."""
    form = OF_TAG[tag]
    if not {*map(type, plain)} <= {form.plain, NONE}:  # a value of another type could run its own methods
        raise ProtocolError(f"a column with tag {tag} arrived that has not only {form.plain.__name__}")
    present = [value for value in plain if value is not None]
    return _between(form.restore(present, zone), plain, len(present))


def _between(made: Iterable[Any], column: Sequence[Any], count: int) -> list[Any]:
    """Return the values made from a column, with its Nones between them."""
    if count == len(column):
        return [*made]
    rest = iter(made)
    return [None if value is None else next(rest) for value in column]
