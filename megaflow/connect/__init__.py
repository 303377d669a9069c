"""Connectors: sources and sinks of a job, beside its lines and Spark's rows.

    from megaflow.connect import DatabaseSink, Delete, QuerySource
    from megaflow.connect import Exhausted, Found, Idle, OutboxSink, Sink, SinkPlace, Source

source_protocol    the source of `flow.read(source, name)`: partitions, positions, waking a reader
sink               the sink of `stream.write(sink, name)`: prepared, then committed after a checkpoint
write_operator     the operator that hands a stream to a sink and cuts it at each checkpoint
database_sink      rows into a table of any DB-API 2 database
row_check          values that a driver cannot bind or a column cannot take
query_source       the rows of a query, in the order of a column
database           a connection with its secrets and retries
sql_statements     the statements that are sent on it

A name below is loaded from its module when it is first used. Its type is in `__init__.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {
    "megaflow.connect.database_sink": ("DatabaseSink", "Delete"),
    "megaflow.connect.query_source": ("QuerySource",),
    "megaflow.connect.sink": ("OutboxSink", "Sink", "SinkPlace"),
    "megaflow.connect.source_protocol": ("Exhausted", "Found", "Idle", "OpenPartition", "Source"),
}  # module -> what it offers

__getattr__, __dir__, __all__ = offer(globals(), _NAMES)
