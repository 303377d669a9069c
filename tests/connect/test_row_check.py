"""The check of a row finds all values that its driver refuses, without a server."""

import sqlite3
from datetime import UTC, datetime
from decimal import Decimal
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from megaflow.connect.row_check import INTEGERS, row_check

needs_psycopg = pytest.mark.skipif(find_spec("psycopg") is None, reason="needs psycopg")
INT4, TEXT = 23, 25


def of_postgresql(*codes: int) -> Any:
    """Return the check of columns of these types, for a simulated connection."""
    import psycopg

    made: Any = object.__new__(psycopg.Cursor)
    kind = type("Cursor", (), {"__module__": "psycopg.cursor"})
    cursor = kind()
    cursor.connection = SimpleNamespace(adapters=psycopg.adapters)
    cursor.description = [("column", code) for code in codes]
    assert made is not cursor
    return row_check(cursor, len(codes))


@needs_psycopg
@pytest.mark.parametrize(("code", "bounds"), INTEGERS.items())
def test_an_integer_fits_into_its_column_in_postgresql(code: int, bounds: tuple[int, int]) -> None:
    check = of_postgresql(code, TEXT)
    least, greatest = bounds
    assert check(0, least) is None and check(0, greatest) is None
    assert check(0, least - 1) is not None and f"to {greatest}" in check(0, greatest + 1)
    assert check(1, greatest + 1) is None, "another type of column has no such bounds"


@needs_psycopg
def test_postgresql_keeps_no_nul_in_a_text() -> None:
    check = of_postgresql(TEXT)
    assert "NUL" in check(0, "a\0b") and check(0, b"a\0b") is None and "UTF-8" in check(0, "\udfff")
    assert "NUL" in check(0, ["a\0b"])


@needs_psycopg
def test_psycopg_says_what_it_cannot_adapt() -> None:
    check = of_postgresql(TEXT)
    good = ["é", 1.5, True, None, Decimal("1.5"), datetime(2024, 1, 1, tzinfo=UTC), UUID(int=7), [1, 2]]
    assert [check(0, value) for value in good] == [None] * len(good)
    assert "cannot adapt type 'dict'" in check(0, {"a": 1}) and "cannot adapt" in check(0, object())


def test_adapters_of_the_program_count_in_sqlite() -> None:
    class Point:
        def __conform__(self, protocol: object) -> str:
            return "0;0"

    check = row_check(sqlite3.connect(":memory:").execute("SELECT 1"), 1)
    assert check is not None and check(0, Point()) is None and check(0, object()) is not None


def test_of_another_driver_nothing_is_known() -> None:
    assert row_check(SimpleNamespace(description=[("a", 3)]), 1) is None
