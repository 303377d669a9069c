"""Connectors: sources and sinks of a job, beside its lines and Spark's rows.

    from megaflow.connect import DatabaseSink, Delete, QuerySource
    from megaflow.connect import Exhausted, Found, Idle, OutboxSink, Sink, SinkPlace, Source

source_protocol    the source of `flow.read(source, name)`: partitions, positions, waking a reader
sink               the sink of `stream.write(sink, name)`: prepared, then committed after a checkpoint
write_operator     the operator that hands a stream to a sink and cuts it at each checkpoint
sink_host          what a job lends to the sinks of its dataflow; writing: names of these modules, loaded on first use
database_sink      rows into a table of any DB-API 2 database
table_rows         records as rows of its columns, in bounded chunks, without those that a later row replaces
postgres_rows      rows as PostgreSQL takes them fastest
json_text          dicts and lists in columns that hold JSON
row_check          values that a driver cannot bind or a column cannot take
query_source       the rows of a query, in the order of columns; sql_query: the statements for pages and ranges of them
exact_values       values that a driver would change
database           a connection with its retries; database_address: addresses, and the secrets in them
transactions       how a connection begins and ends transactions, and the probe that it undoes rows
transient_errors   errors that may pass, and refused logins, which do not
sql_statements     the statements that are sent on it

A name below is loaded from its module when it is first used. Its type is in `__init__.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {
    "megaflow.connect.database_sink": ("DatabaseSink",),
    "megaflow.connect.query_source": ("QuerySource",),
    "megaflow.connect.sink": ("OutboxSink", "Sink", "SinkPlace"),
    "megaflow.connect.source_protocol": ("Exhausted", "Found", "Idle", "OpenPartition", "Source"),
    "megaflow.connect.table_rows": ("Delete",),
}  # module -> what it offers

__getattr__, __dir__, __all__ = offer(globals(), _NAMES)
