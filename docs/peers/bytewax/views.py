"""Views of a page per minute on Bytewax, with late views as a stream of their own."""

import json
from datetime import UTC, datetime, timedelta

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.connectors.files import FileSource
from bytewax.connectors.stdio import StdOutSink
from bytewax.dataflow import Dataflow

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(view):
    return EPOCH + timedelta(seconds=view["at"])


clock = win.EventClock(at, wait_for_system_duration=timedelta(seconds=30))
minutes = win.TumblingWindower(length=timedelta(minutes=1), align_to=EPOCH)

flow = Dataflow("views")
views = op.map("parse", op.input("lines", flow, FileSource("views.jsonl", batch_size=1)), json.loads)
counted = win.count_window("count", views, clock, minutes, key=lambda view: view["page"])
op.output("out", op.map("text", counted.down, str), StdOutSink())
op.output("late", op.map("late_text", counted.late, lambda late: f"late: {late}"), StdOutSink())
