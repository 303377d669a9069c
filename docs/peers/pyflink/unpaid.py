"""Orders without a payment within ten minutes, on PyFlink: two streams and a timer."""

import json

from pyflink.common import Duration, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedCoProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
from pyflink.datastream.state import ValueStateDescriptor


class At(TimestampAssigner):
    def extract_timestamp(self, line, record_timestamp):
        return line[1] * 1000


class Unpaid(KeyedCoProcessFunction):
    def open(self, context):
        self.due = context.get_state(ValueStateDescriptor("due", Types.LONG()))
        self.paid = context.get_state(ValueStateDescriptor("paid", Types.BOOLEAN()))

    def process_element1(self, order, context):
        self.due.update(context.timestamp() + 600_000)
        context.timer_service().register_event_time_timer(context.timestamp() + 600_000)

    def process_element2(self, payment, context):
        self.paid.update(True)     # a payment may come before its order

    def on_timer(self, timestamp, context):
        if not self.paid.value():
            yield f"unpaid: {context.get_current_key()}"
        self.due.clear()
        self.paid.clear()


def read(name):
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), f"{name}.jsonl").build()
    lines = env.from_source(source, WatermarkStrategy.no_watermarks(), name)
    waits = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(30)).with_timestamp_assigner(At())
    pairs = lines.map(lambda line: (json.loads(line)["order"], json.loads(line)["at"]),
                      Types.TUPLE([Types.STRING(), Types.LONG()]))
    return pairs.assign_timestamps_and_watermarks(waits).key_by(lambda line: line[0])


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
read("orders").connect(read("payments")).process(Unpaid(), Types.STRING()).print()
env.execute("unpaid")
