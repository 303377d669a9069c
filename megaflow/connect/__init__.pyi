"""The types of this front door, whose names are loaded lazily."""

from megaflow.connect.database_sink import DatabaseSink as DatabaseSink
from megaflow.connect.query_source import QuerySource as QuerySource
from megaflow.connect.sink import OutboxSink as OutboxSink
from megaflow.connect.sink import Sink as Sink
from megaflow.connect.sink import SinkPlace as SinkPlace
from megaflow.connect.source_protocol import Exhausted as Exhausted
from megaflow.connect.source_protocol import Found as Found
from megaflow.connect.source_protocol import Idle as Idle
from megaflow.connect.source_protocol import OpenPartition as OpenPartition
from megaflow.connect.source_protocol import Source as Source
from megaflow.connect.table_rows import Delete as Delete
