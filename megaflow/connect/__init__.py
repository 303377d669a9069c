"""Connectors: what a job reads and writes beside lines and Spark's rows.

    from megaflow.connect import DatabaseSink, Delete, QuerySource
    from megaflow.connect import Exhausted, Found, Idle, OutboxSink, Sink, SinkPlace, Source

source_protocol    what `flow.read(source, name)` reads: partitions, positions, what wakes a reader
sink               what `stream.write(sink, name)` writes to: prepared, and committed after a checkpoint
write_operator     what hands a stream to a sink, and where each checkpoint cuts
database_sink      rows into a table of any DB-API 2 database
row_check          which values a driver cannot bind, or a column cannot take
query_source       the rows of a query, in the order of a column
database           a connection to one, its secrets and its patience · sql_statements: what is said to it

A name below is loaded from its module when it is first used. Its type stands in `__init__.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {
    "megaflow.connect.database_sink": ("DatabaseSink", "Delete"),
    "megaflow.connect.query_source": ("QuerySource",),
    "megaflow.connect.sink": ("OutboxSink", "Sink", "SinkPlace"),
    "megaflow.connect.source_protocol": ("Exhausted", "Found", "Idle", "OpenPartition", "Source"),
}  # module -> what it offers

__getattr__, __dir__, __all__ = offer(globals(), _NAMES)
