"""Orders in CSV into two tables: each order a row, and each customer's total. With --state, each is written once."""

from megaflow import Flow, Stream
from megaflow.connect import DatabaseSink

DATABASE = "sqlite:shop.db"  # or "postgresql://user@host/shop", with pip install 'megaflow[postgres]'

ORDERS = "CREATE TABLE IF NOT EXISTS orders (number BIGINT PRIMARY KEY, customer TEXT, cents BIGINT)"
TOTALS = "CREATE TABLE IF NOT EXISTS totals (customer TEXT PRIMARY KEY, orders BIGINT, cents BIGINT)"

Order = tuple[int, str, int]  # number, customer, cents
Total = tuple[str, int, int]  # customer, orders, cents


def order_of(row: dict[str, str]) -> Order:
    """Return a row of the table of orders."""
    return int(row["number"]), row["customer"], int(row["cents"])


def add(customer: str, cents: int, total: Total | None) -> tuple[Total, list[Total]]:
    """Add an order to its customer's total, which is None before the first. Return the new total, and outputs."""
    _, orders, before = total or (customer, 0, 0)
    total = customer, orders + 1, before + cents
    return total, [total]


def dataflow(flow: Flow) -> Stream[Total]:
    """Write both tables. Without `key`, each record is a new row; with it, a key's newest record replaces its row."""
    orders = flow.csv().map(order_of)
    orders.write(DatabaseSink(DATABASE, "orders", ["number", "customer", "cents"], create=ORDERS), "orders")
    totals = orders.map(lambda order: (order[1], order[2])).stateful_state_machine(add)
    table = DatabaseSink(DATABASE, "totals", ["customer", "orders", "cents"], key="customer", create=TOTALS)
    return totals.write(table, "totals")
