"""The outputs of a job on one worker.

output        output records on their way to the launcher
json_lines    records as JSON
csv_rows      records as CSV
open_sink     a single sink
open_outbox   a sink whose records wait in the store until it has taken them

A name below is loaded from its module when it is first used, so a job without sinks loads neither. Its type is in
`__init__.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {
    "megaflow.job.worker.writing.open_outbox": ("OpenOutbox",),
    "megaflow.job.worker.writing.open_sink": ("OpenSink",),
}  # module -> names that it offers

__getattr__, __dir__, __all__ = offer(globals(), _NAMES)
