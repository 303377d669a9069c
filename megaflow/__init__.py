"""Stateful streams whose state moves between workers while the stream runs.

    >>> from megaflow.timely import example
    >>> def count(word, n, total):
    ...     total = (total or 0) + n
    ...     return total, [(word, total)]
    >>> def dataflow(scope):
    ...     words = scope.to_stream(["a", "rose", "is", "a", "rose"])
    ...     return words.map(lambda word: (word, 1)).stateful_state_machine(count).capture()
    >>> example(dataflow)
    [(0, [('a', 1), ('a', 2), ('is', 1), ('rose', 1), ('rose', 2)])]

Called by programs:
    stream                   streams and their methods, one per operator
    stream_pass, stream_end  the methods of streams that pass records on; those that end a stream
    keyed_state              the stateful operators behind the methods of streams
    scope, program           sources of streams; the start of workers
    operator_builder         custom operators of any shape
    errors                   all errors, sorted by cause
    front_door               lazy loading of the names below, and of those that packages offer
    quick_dataclass          frozen dataclasses, made in a tenth of the time
    environment              the names of the environment variables that are read
Below:
    timely                   the engine: timely dataflow, with workers that join and leave
    connect                  sources and sinks: their protocols, and the built-in ones
    event_time               windows of streams with timestamps
    megaphone                state in bins that move between workers
    durable                  stored states: files and formats
Above:
    control                  commands on a running job: moves, joins, leaves, load, status
    spark                    all code that knows Spark; `spark.run` starts a job between its DataFrames
    job                      the implementation of `megaflow run`: processes, lines, epochs, outputs
    cli                      the command line
    testing                  a simulated cluster, for tests of programs and of megaflow

The function of a job, `dataflow(flow)`, receives a `Flow`. Keys and states are plain values (None, numbers, texts,
times, the usual collections of them), values of numpy and pandas, and objects of the program's own classes, by their
fields. `docs/keys-and-states.md` lists them; `register` adds to them.

A name below is loaded from its module when it is first used. Its type is in `__init__.pyi`.
"""

from importlib import import_module
from typing import Any

from megaflow import timely as timely
from megaflow.front_door import offer

__version__ = "0.1.0.dev0"

_NAMES = {
    "megaflow.job.kept_states": ("read_state",),
    "megaflow.job.launcher.python_function": ("run", "start"),
    "megaflow.job.launcher.started_job": ("JobHandle",),
    "megaflow.job.worker.flow": ("Flow",),
    "megaflow.event_time.windows": ("Window", "session", "sliding", "tumbling"),
    "megaflow.megaphone.bins": ("stable_hash",),
    "megaflow.megaphone.routing": ("Bootstrap", "Map", "Move"),
    "megaflow.megaphone.timers": ("Timers",),
    "megaflow.stream": ("EventStream", "Stream"),
    "megaflow.timely.communication.codec.encode": ("register",),
}  # module -> what it offers

_load, __dir__, __all__ = offer(globals(), _NAMES, "__version__", "connect", "spark", "timely")


def __getattr__(name: str) -> Any:
    return import_module(f"megaflow.{name}") if name in ("connect", "spark") else _load(name)
