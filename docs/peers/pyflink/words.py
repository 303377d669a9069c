"""Running counts of words on PyFlink."""

from pyflink.common import Types, WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), "lines.txt").build()
lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "lines")
pairs = lines.flat_map(lambda line: [(word, 1) for word in line.split()], Types.TUPLE([Types.STRING(), Types.LONG()]))
pairs.key_by(lambda pair: pair[0]).reduce(lambda total, pair: (total[0], total[1] + pair[1])).print()
env.execute("words")
