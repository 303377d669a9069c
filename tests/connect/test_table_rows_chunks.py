"""Writing rows in chunks leaves the same table as writing all rows one by one, for any notion of equal keys."""

from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.connect import table_rows
from megaflow.connect.table_rows import Change, Row, latest_of_keys

AUTUMN = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
VALUES = ["a", "A", "b", b"a", 1, True, 1.0, Decimal("1.0"), Decimal("1.00"), 0.0, -0.0, AUTUMN, AUTUMN.replace(fold=1)]


def exactly(value: Any) -> Any:
    return type(value), value.timestamp() if isinstance(value, datetime) else str(value)


def without_case(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else exactly(value)


def as_numbers(value: Any) -> Any:
    return float(value) if isinstance(value, int | float | Decimal) else exactly(value)


def as_one(value: Any) -> Any:
    return None


def after(rows: Iterator[tuple[Row, Row | None]], equal: Callable[[Any], Any]) -> dict[Any, Any]:
    """Return the values of a table whose database compares keys by the result of a function."""
    table: dict[Any, Any] = {}
    for key, row in rows:
        place = tuple(map(equal, key))
        if row is None:
            table.pop(place, None)
        else:
            table[place] = row[-1]
    return table


@pytest.mark.parametrize("equal", [exactly, without_case, as_numbers, as_one])
@given(drawn=st.lists(st.tuples(st.sampled_from(VALUES), st.booleans(), st.booleans())), size=st.integers(1, 9))
def test_chunks_leave_what_all_rows_would(equal: Callable[[Any], Any], drawn: list[Any], size: int) -> None:
    changes: list[Change] = []
    for place, (value, is_pair, is_row) in enumerate(drawn):
        key = (value, is_pair)
        changes.append((place, (key, (*key, place) if is_row else None)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_rows, "CHUNK_ROWS", size)
        chunks = [*latest_of_keys(changes)]
        assert [*latest_of_keys(iter(changes))] == chunks
    assert all(len(chunk) <= size for chunk in chunks)
    written = (change for chunk in chunks for _, change in chunk)
    assert after(written, equal) == after(iter(change for _, change in changes), equal)


def test_rows_of_a_hot_key_are_one() -> None:
    changes = ((n, ((n % 7, "x"), (n % 7, "x", n))) for n in range(100_000))
    assert [len(chunk) for chunk in latest_of_keys(changes)] == [7]


def test_keys_that_cannot_be_encoded_are_all_written() -> None:
    key = (object(),)
    assert [len(chunk) for chunk in latest_of_keys([(0, (key, (*key, 1))), (1, (key, None))])] == [2]
