"""Orders in CSV into tables of a database: each order a row, and each customer's total, each exactly once.

    megaflow run apps/orders_to_table.py --lines orders.csv --output none --state kept -- sqlite:shop.db

The first line names the columns `number,customer,cents`. The argument after `--` is a place of `DatabaseSink`: a file
of SQLite, a server of PostgreSQL whose password is elsewhere, or `env:SHOP` with a place that may contain it.
"""

from typing import Any

from megaflow.connect.database_sink import DatabaseSink
from megaflow.job.worker.process.flow import Flow
from megaflow.stream import Stream

ORDERS = "CREATE TABLE IF NOT EXISTS orders (number BIGINT PRIMARY KEY, customer TEXT, cents BIGINT)"
TOTALS = "CREATE TABLE IF NOT EXISTS totals (customer TEXT PRIMARY KEY, orders BIGINT, cents BIGINT)"

Total = tuple[str, int, int]  # customer, orders, cents


def order_of(row: dict[str, str]) -> dict[str, Any]:
    """Return an order as a row of its table."""
    return {"number": int(row["number"]), "customer": row["customer"], "cents": int(row["cents"])}


def add(customer: str, cents: int, total: Total | None) -> tuple[Total, list[Total]]:
    """Add an order to its customer's total."""
    _, orders, before = total or (customer, 0, 0)
    total = customer, orders + 1, before + cents
    return total, [total]


def dataflow(flow: Flow) -> Stream[Any]:
    [place] = flow.args
    orders = flow.csv().map(order_of)
    orders.write(DatabaseSink(place, "orders", ["number", "customer", "cents"], create=ORDERS), "orders")
    totals = orders.map(lambda order: (order["customer"], order["cents"])).stateful_state_machine(add)
    table = DatabaseSink(place, "totals", ["customer", "orders", "cents"], key="customer", create=TOTALS)
    return totals.write(table, "totals")
