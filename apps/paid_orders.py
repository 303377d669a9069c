"""Orders joined with their payments by number, in a stateful_binary: paid orders, and in the end unpaid ones.

    megaflow run apps/paid_orders.py --lines orders=orders.txt --lines payments='payments/*.txt'

Orders are lines `NUMBER,CUSTOMER,CENTS`, one for each number. Payments are `NUMBER,CENTS`: an order may be paid in
parts, and before it comes. Outputs depend only on the lines, in whatever order they come:

    ("paid", number, customer, cents)              once it is fully paid
    ("left", number, customer, cents, paid)        when all lines are read; customer is None if no order has come
"""

from typing import Any

from megaflow.job.worker.process.flow import Flow
from megaflow.stream import Stream

END = 1 << 60  # an epoch that no job reaches: what is due then is due when all lines are read
CLOSE = "close"  # what the timer brings

Account = tuple[str | None, int, int]  # customer, cents ordered and paid


def settle(
    number: str, time: int, orders: list[Any], payments: list[int], state: Account | None, timers: Any
) -> tuple[Account | None, list[tuple[Any, ...]]]:
    """Note the records of an order, and report it once it is paid. Timers bring CLOSE among the orders."""
    if state is None:
        timers.at(END, CLOSE)
    customer, ordered, paid = state or (None, 0, 0)
    was_paid = customer is not None and paid >= ordered
    paid += sum(payments)
    for order in orders:
        if order == CLOSE:
            return None, [] if was_paid else [("left", number, customer, ordered, paid)]
        customer, ordered = order
    is_paid = customer is not None and paid >= ordered
    return (customer, ordered, paid), [("paid", number, customer, ordered)] if is_paid and not was_paid else []


def order_of(line: str) -> tuple[str, tuple[str, int]]:
    """Return the number of an order, its customer and its cents."""
    number, customer, cents = line.split(",")
    return number, (customer, int(cents))


def payment_of(line: str) -> tuple[str, int]:
    """Return the number of the paid order, and how many cents were paid."""
    number, cents = line.split(",")
    return number, int(cents)


def dataflow(flow: Flow) -> Stream[Any]:
    payments = flow.lines("payments").map(payment_of)
    return flow.lines("orders").map(order_of).stateful_binary(payments, settle)
