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
    stream_pass, stream_end  the methods of streams that pass records on, and those that end a stream
    keyed_state              the stateful operators behind the methods of streams
    scope, program           sources of streams; the start of workers
    operator_builder         custom operators of any shape
    synchronization          workers that wait for each other, or agree on an order
    errors                   all errors, sorted by cause
    front_door               lazy loading of the names below, and of the names that packages offer
    quick_dataclass          frozen dataclasses, made in a tenth of the time
    environment              the environment variables that megaflow reads
    python_executable        the Python that runs the processes that megaflow starts
    own_files                open files that forks of a process do not get
Below:
    timely                   the engine: timely dataflow, with workers that join and leave
    connect                  sources and sinks: their protocols, and the built-in ones
    event_time               windows of streams with timestamps
    megaphone                state in bins that move between workers
    durable                  stored states: files and formats
Above:
    rows                     rows of named, typed columns, as Spark has them
    control                  commands on a running job: moves, joins, leaves, load, status
    spark                    all code that knows Spark; `spark.run` starts a job between its DataFrames
    web                      the live page of a job
    job                      the implementation of `megaflow run`: processes, lines, epochs, outputs
    cli                      the command line
    testing                  a simulated cluster, for tests of programs and of megaflow

The function of a job, `dataflow(flow)`, receives a `Flow`. Keys and states may be plain values (None, numbers, texts,
times, the usual collections of them), values of numpy and pandas, and objects of the program's own classes, which
travel by their fields. `docs/keys-and-states.md` lists them; `register` adds to them.

Each name below is loaded from its module on first use. Its type is in `__init__.pyi`.
"""

from importlib import import_module
from typing import Any

from megaflow import timely as timely
from megaflow.front_door import offer

_NAMES = {
    "megaflow.job.kept_states": ("read_state",),
    "megaflow.job.launcher.run.python_function": ("run", "start"),
    "megaflow.job.launcher.run.job_control": ("JobControl", "RunningJob", "jobs"),
    "megaflow.job.launcher.run.started_job": ("JobHandle",),
    "megaflow.job.formats.text_lines": ("Line",),
    "megaflow.job.worker.process.flow": ("Flow",),
    "megaflow.event_time.windows": ("EarlyWindow", "Window", "WindowResult", "session", "sliding", "tumbling"),
    "megaflow.megaphone.base.bins": ("stable_hash",),
    "megaflow.megaphone.base.routing": ("Bootstrap", "Map", "Move"),
    "megaflow.megaphone.base.timers": ("Timers",),
    "megaflow.stream": ("EventStream", "Stream", "WindowedStream"),
    "megaflow.timely.communication.codec.encode": ("register",),
}  # module -> what it offers

_load, __dir__, __all__ = offer(globals(), _NAMES, "__version__", "connect", "spark", "timely")


def _version() -> str:
    """Return the version that is installed. Its metadata takes longer to load than megaflow, so few should ask."""
    metadata = import_module("importlib.metadata")
    try:
        return str(metadata.version("megaflow"))
    except metadata.PackageNotFoundError:  # on PYTHONPATH, not installed
        return "0+unknown"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    return import_module(f"megaflow.{name}") if name in ("connect", "spark") else _load(name)
