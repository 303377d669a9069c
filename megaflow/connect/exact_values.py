"""Values of a query that a driver would change on their way to Python: they arrive as they are, or are refused.

1. An interval of months has no fixed length: drivers make 30 days of a month. Such an interval is refused, and of
   drivers that cannot tell, each column of intervals.
2. JSON has decimal numbers: psycopg makes floats of them, and 1.10 would become 1.1. They become Decimals here.
Settings that a program makes for its own connection stay. Other values are as the driver gives them.
"""

import importlib
import json
from collections.abc import Iterable
from decimal import Decimal
from functools import cache, partial
from typing import Any, Final

from megaflow.connect.transactions import driver_of

INTERVALS: Final = {"duckdb": "INTERVAL", "psycopg2": "1186"}  # driver -> what a column says
OIDS: Final = (1186, 114, 3802)  # of PostgreSQL's interval, json and jsonb
DRIVERS_OWN: Final = ("psycopg.types.", "psycopg_binary.", "psycopg_c.")  # the modules of psycopg's loaders
REMEDY: Final = "cast it in the query, as in CAST(… AS VARCHAR)"


def prepare(cursor: Any) -> None:
    """Set a cursor of psycopg to return the exact values of its query."""
    if driver_of(type(cursor)) != "psycopg":
        return
    for (oid, is_binary), loader in _loaders().items():
        known = cursor.adapters.get_loader(oid, is_binary)
        is_own = known.__module__.startswith(DRIVERS_OWN) and known.__name__ == loader.__name__
        if is_own and getattr(known, "_loads", json.loads) is json.loads:
            cursor.adapters.register_loader(oid, loader)


def check(cursor: Any) -> None:
    """Raise ValueError for a column of the query that was run of which the driver gives no exact values."""
    kind = INTERVALS.get(driver_of(type(cursor)))
    for column in cursor.description if kind is not None else ():
        if str(column[1]) == kind:
            raise ValueError(
                f"the column {column[0]!r} has intervals, and the driver makes 30 days of a month; {REMEDY}"
            )


@cache
def _loaders() -> dict[tuple[int, int], Any]:
    """Return loaders of the names that psycopg's own have, by the type's number, and whether its form is binary."""
    times, documents = (importlib.import_module(f"psycopg.types.{name}") for name in ("datetime", "json"))

    class IntervalLoader(times.IntervalLoader):  # type: ignore[name-defined,misc]
        """Interval as text, such as '1 year 2 mons 3 days 04:05:06'."""

        def load(self, data: Any) -> Any:
            """Return the interval. Raises ValueError if it has months."""
            text = bytes(data)
            _check_months(b"mon" in text or b"year" in text, text.decode(errors="replace"))
            return super().load(data)

    class IntervalBinaryLoader(times.IntervalBinaryLoader):  # type: ignore[name-defined,misc]
        """Interval as numbers: microseconds, days, months."""

        def load(self, data: Any) -> Any:
            """Return the interval. Raises ValueError if it has months."""
            months = int.from_bytes(bytes(data)[-4:], signed=True)
            _check_months(months != 0, f"{months} mons and more")
            return super().load(data)

    parse = partial(json.loads, parse_float=Decimal)
    names = "JsonLoader", "JsonBinaryLoader", "JsonbLoader", "JsonbBinaryLoader"
    exact = [type(name, (getattr(documents, name),), {"_loads": staticmethod(parse)}) for name in names]
    of_oids: Iterable[tuple[Any, Any]] = ((IntervalLoader, IntervalBinaryLoader), exact[:2], exact[2:])  # type: ignore[assignment]
    return {(oid, form): loader for oid, both in zip(OIDS, of_oids) for form, loader in enumerate(both)}


def _check_months(has_months: bool, text: str) -> None:
    if has_months:
        raise ValueError(f"the interval '{text}' has months, whose lengths differ, so no timedelta equals it; {REMEDY}")
