"""Values that drivers would change are refused if there is no other remedy. `test_postgres` has the other values."""

from typing import Any

import pytest

from megaflow.connect.exact_values import check, prepare


def of_driver(module: str, *columns: tuple[str, Any]) -> Any:
    """Return a cursor of a driver that has run a query with these columns and their types."""
    return type("Cursor", (), {"__module__": module, "description": [(*column, None, None) for column in columns]})()


@pytest.mark.parametrize(("module", "kind"), [("_duckdb", "INTERVAL"), ("psycopg2.extensions", 1186)])
def test_intervals_of_drivers_that_count_months_as_days_are_refused(module: str, kind: Any) -> None:
    cursor = of_driver(module, ("id", "INTEGER"), ("length", kind))
    prepare(cursor)
    with pytest.raises(ValueError, match="the column 'length' has intervals"):
        check(cursor)
    check(of_driver(module, ("id", "INTEGER")))


def test_other_drivers_are_left_alone() -> None:
    cursor = of_driver("sqlite3", ("length", "INTERVAL"))
    prepare(cursor)
    check(cursor)
