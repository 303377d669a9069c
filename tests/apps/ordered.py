"""Customers' orders in a file, drawn from a seed, and the expected rows of their tables, computed by plain Python."""

from pathlib import Path
from random import Random

HEADER = "number,customer,cents"


class Ordered:
    """A file of orders, and the rows of both tables in order."""

    def __init__(self, path: Path, orders: int, customers: int = 40, seed: int = 0) -> None:
        random = Random(seed)
        rows = [
            (number, f"customer {random.randrange(customers)}", random.randint(1, 9_999)) for number in range(orders)
        ]
        totals: dict[str, tuple[int, int]] = {}
        for _, customer, cents in rows:
            count, total = totals.get(customer, (0, 0))
            totals[customer] = count + 1, total + cents
        self.orders = rows
        self.totals = sorted((customer, *total) for customer, total in totals.items())
        self.path = path
        self.lines = [HEADER, *(",".join(map(str, row)) for row in rows)]
        path.write_text("".join(f"{line}\n" for line in self.lines))


ALL_ORDERS = "SELECT number, customer, cents FROM orders ORDER BY number"
ALL_TOTALS = "SELECT customer, orders, cents FROM totals ORDER BY customer"
