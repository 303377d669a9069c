"""The types of the names that this module loads on first use."""

from megaflow.connect.sink import OutboxSink as OutboxSink
from megaflow.connect.sink import Sink as Sink
from megaflow.connect.write_operator import WriteOperator as WriteOperator
from megaflow.connect.write_operator import write as write
