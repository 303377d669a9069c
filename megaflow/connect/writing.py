"""Names of the modules of sinks, each loaded on first use, so that a job without sinks loads none of them.

The types of the names are in `writing.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {
    "megaflow.connect.sink": ("OutboxSink", "Sink"),
    "megaflow.connect.write_operator": ("WriteOperator", "write"),
}  # module -> names that it offers

__getattr__, __dir__, __all__ = offer(globals(), _NAMES)
