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

What programs call:
    stream, scope, program   the fluent face of operators; where streams begin; how workers are started
    operator_builder         operators of one's own, of any shape
    errors                   every error, sorted by whose fault it is
What is below:
    timely                   the engine: timely dataflow, with workers that join and leave
    megaphone                state in bins that move between workers
    durable                  what is written of states, and where
What is above:
    control                  commands on a running job: moves, joins, leaves, load, status
    spark                    lines from Spark Structured Streaming
    job                      what `megaflow run` is: processes, lines, epochs, outputs
    cli                      the command line
    testing                  a simulated cluster, for tests of programs and of megaflow

The function of a job, `dataflow(flow)`, is given a `Flow`. Keys and states are plain values (None, numbers, texts,
times, the usual collections of them), numpy's and pandas' values, and objects of the program's own classes, by their
fields; the README has the list under "What can be a key or a state", and `register` adds to it.

A name below is loaded from its module when it is first used. Its type stands in `__init__.pyi`.
"""

from importlib import import_module
from typing import Any

from megaflow import timely as timely

__version__ = "0.1.0.dev0"

_NAMES = {
    "megaflow.job.kept_states": ("read_state",),
    "megaflow.job.launcher.python_function": ("run",),
    "megaflow.job.worker.flow": ("Flow",),
    "megaflow.megaphone.bins": ("stable_hash",),
    "megaflow.megaphone.routing": ("Bootstrap", "Map", "Move"),
    "megaflow.megaphone.timers": ("Timers",),
    "megaflow.stream": ("Stream",),
    "megaflow.timely.communication.codec.encode": ("register",),
}  # module -> what it offers
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOMES, "__version__", "timely"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
