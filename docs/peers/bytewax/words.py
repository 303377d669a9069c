"""Running counts of words on Bytewax."""

import bytewax.operators as op
from bytewax.connectors.files import FileSource
from bytewax.connectors.stdio import StdOutSink
from bytewax.dataflow import Dataflow


def count(total, n):
    total = (total or 0) + n
    return total, total


flow = Dataflow("words")
lines = op.input("lines", flow, FileSource("lines.txt"))
words = op.flat_map("split", lines, lambda line: [(word, 1) for word in line.split()])
counts = op.stateful_map("count", words, count)
op.output("out", op.map("text", counts, str), StdOutSink())
