"""Totals of customers on PyFlink, with checkpoints: totals.py [PARALLELISM [CHECKPOINT]]."""

import os
import sys

from pyflink.common import Configuration, Encoder, Types, WatermarkStrategy
from pyflink.datastream import ExternalizedCheckpointRetention, KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSink, FileSource, StreamFormat
from pyflink.datastream.state import ValueStateDescriptor


class Add(KeyedProcessFunction):
    def open(self, context):
        self.total = context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, order, context):
        total = (self.total.value() or 0) + order[1]
        self.total.update(total)
        yield f"{order[0]},{total}"


here = f"file://{os.getcwd()}"
config = Configuration()
config.set_string("execution.checkpointing.dir", f"{here}/checkpoints")
if sys.argv[2:]:
    config.set_string("execution.state-recovery.path", f"{here}/{sys.argv[2]}")

env = StreamExecutionEnvironment.get_execution_environment(config)
env.set_parallelism(int(sys.argv[1]) if sys.argv[1:] else 2)
env.enable_checkpointing(1000)
env.get_checkpoint_config().set_externalized_checkpoint_retention(
    ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)

source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), f"{here}/orders.csv").build()
lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "orders").uid("orders")
orders = lines.filter(lambda line: line != "customer,cents").map(
    lambda line: (line.split(",")[0], int(line.split(",")[1])), Types.TUPLE([Types.STRING(), Types.LONG()]))
totals = orders.key_by(lambda order: order[0]).process(Add(), Types.STRING()).uid("add")
sink = FileSink.for_row_format(f"{here}/totals", Encoder.simple_string_encoder()).build()
totals.sink_to(sink).uid("totals")
env.execute("totals")
