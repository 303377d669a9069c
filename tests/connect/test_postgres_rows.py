"""Rows that go to PostgreSQL by COPY, and their order relative to other rows."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from megaflow.connect import postgres_rows
from megaflow.connect.postgres_rows import PostgresRows

INT4, TEXT, TIMESTAMP, TIMESTAMPTZ, JSONB = 23, 25, 1114, 1184, 3802
NAIVE, AWARE = datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)


class Written:
    """A cursor that notes the rows of each statement."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, list[Any]]] = []

    def execute_each(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        self.statements.append((statement, [*rows]))

    copy_each = execute_each


def written(code: int, *values: Any, copy: str = "COPY") -> list[tuple[str, list[Any]]]:
    cursor = Written()
    PostgresRows([code], copy).write(cursor, "INSERT", [[(value,) for value in values]])
    return [(statement, [value for (value,) in rows]) for statement, rows in cursor.statements]


@pytest.mark.parametrize(
    ("code", "value", "statement"),
    [
        (INT4, 1, "COPY"),
        (INT4, "1", "COPY"),
        (INT4, None, "COPY"),
        (INT4, 2.5, "INSERT"),
        (INT4, True, "INSERT"),
        (INT4, Decimal(1), "INSERT"),
        (TEXT, True, "INSERT"),
        (TEXT, 1e15, "INSERT"),
        (TIMESTAMP, NAIVE, "COPY"),
        (TIMESTAMP, AWARE, "INSERT"),
        (TIMESTAMPTZ, NAIVE, "COPY"),
        (TIMESTAMPTZ, AWARE, "COPY"),
        (1005, [1, 2], "INSERT"),
    ],
)
def test_rows_are_copied_if_copy_means_the_same(code: int, value: Any, statement: str) -> None:
    assert written(code, value) == [(statement, [value])]
    assert written(code, value, copy="") == [("INSERT", [value])]


def test_copied_and_inserted_rows_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_rows, "PART_ROWS", 2)
    assert written(INT4, 1, 2, 3, 4, 5, 6.5, 7, 8) == [
        ("COPY", [1, 2, 3, 4]),
        ("INSERT", [5, 6.5]),
        ("COPY", [7, 8]),
    ]
    assert written(INT4, 1.5, 2.5, 3.5) == [("INSERT", [1.5, 2.5]), ("INSERT", [3.5])], "in bounded lists"
    assert written(INT4) == []


def test_chunks_are_copied_by_one_statement() -> None:
    cursor = Written()
    PostgresRows([INT4], "COPY").write(cursor, "INSERT", iter([[(1,), (2,)], [(3,)], [(4.5,)]]))
    assert cursor.statements == [("COPY", [(1,), (2,), (3,)]), ("INSERT", [(4.5,)])]


def test_dicts_and_lists_are_json_in_its_columns() -> None:
    assert written(JSONB, {"a": Decimal("1.10")}, [1], '"text"', None) == [
        ("COPY", ['{"a": 1.10}', "[1]", '"text"', None])
    ]
    assert written(JSONB, {"a": 1}, copy="") == [("INSERT", ['{"a": 1}'])]
    assert written(TEXT, [1]) == [("INSERT", [[1]])]
