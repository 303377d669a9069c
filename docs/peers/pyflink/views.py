"""Views of a page per minute on PyFlink, with late views as a side output."""

import json
import time

from pyflink.common import Duration, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import OutputTag, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
from pyflink.datastream.functions import ProcessWindowFunction
from pyflink.datastream.window import Time, TumblingEventTimeWindows


class At(TimestampAssigner):
    def extract_timestamp(self, view, record_timestamp):
        return view[1] * 1000


class Count(ProcessWindowFunction):
    def process(self, page, context, views):
        yield page, context.window().start // 1000, len(list(views))


def parse(line):
    time.sleep(0.5)                # watermarks advance by the clock, every 200 ms: without a wait, no view is late
    view = json.loads(line)
    return view["page"], view["at"]


LATE = OutputTag("late", Types.TUPLE([Types.STRING(), Types.LONG()]))

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), "views.jsonl").build()
lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "views")
waits = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(30)).with_timestamp_assigner(At())
views = lines.map(parse, Types.TUPLE([Types.STRING(), Types.LONG()])).assign_timestamps_and_watermarks(waits)
minutes = views.key_by(lambda view: view[0]).window(TumblingEventTimeWindows.of(Time.minutes(1)))
counts = minutes.side_output_late_data(LATE).process(Count())
counts.print()
counts.get_side_output(LATE).map(lambda view: f"late: {view}", Types.STRING()).print()
env.execute("views")
