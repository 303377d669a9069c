"""Orders without a payment within ten minutes, on Bytewax: a join of two streams in session windows."""

import json
from datetime import UTC, datetime, timedelta

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.connectors.files import FileSource
from bytewax.connectors.stdio import StdOutSink
from bytewax.dataflow import Dataflow


def at(line):
    return datetime.fromtimestamp(line["at"], UTC)


def read(name):
    lines = op.map(f"parse_{name}", op.input(name, flow, FileSource(f"{name}.jsonl")), json.loads)
    return op.key_on(f"key_{name}", lines, lambda line: line["order"])


def unpaid(found):
    order, (_window, (_order, payment)) = found
    return f"unpaid: {order}" if payment is None else None


flow = Dataflow("unpaid")
clock = win.EventClock(at, wait_for_system_duration=timedelta(seconds=30))
visits = win.SessionWindower(gap=timedelta(minutes=10))
joined = win.join_window("join", clock, visits, read("orders"), read("payments"), emit_mode="final")
op.output("out", op.filter_map("unpaid", joined.down, unpaid), StdOutSink())
