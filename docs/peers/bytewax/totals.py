"""Totals of customers on Bytewax, with a recovery store."""

import bytewax.operators as op
from bytewax.connectors.files import CSVSource, FileSink
from bytewax.dataflow import Dataflow


def add(total, cents):
    total = (total or 0) + cents
    return total, total


flow = Dataflow("totals")
orders = op.input("orders", flow, CSVSource("orders.csv"))
spent = op.map("pairs", orders, lambda order: (order["customer"], int(order["cents"])))
totals = op.stateful_map("add", spent, add)
rows = op.map("rows", totals, lambda item: (item[0], f"{item[0]},{item[1]}"))
op.output("out", rows, FileSink("totals.csv"))
