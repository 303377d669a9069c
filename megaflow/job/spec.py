"""What the launcher tells a worker process before it starts: one value, sent over the child's standard input.

The message is 8 bytes of length (big endian) and a pickle. It comes from the parent over a pipe that no other process
can write to; nothing that arrives at a port is ever unpickled.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from megaflow.control.messages import Split
from megaflow.durable.incarnation import CHECKPOINTS_KEPT, DurablePart
from megaflow.errors import UsageError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.encode import Registration
from megaflow.timely.communication.tcp import HIGHEST_PORT, is_port, may_be_host

BACKLOG = 128
GC_VARIABLE = "MEGAFLOW_GC_THRESHOLD"
INSTALLED = ("site-packages", "dist-packages")  # folders of libraries, in whatever environment

Address: TypeAlias = tuple[str, int]  # host and port

Form: TypeAlias = str
"""The form in which a writer takes outputs, one of FORMS: nothing, the records themselves, lines of text, packed rows.
Rows are `rows:SCHEMA`, with the schema as JSON; CSV is `csv:COLUMNS` as JSON, or `csv` if the records name them."""
FORMS = ("nothing", "records", "text", "jsonl", "csv", "rows")


@dataclass(frozen=True, slots=True)
class AppFile:
    """A function in a Python file, or in a module.

    >>> file, module = AppFile("/a/pkg/app.py", "dataflow"), AppFile("/a/pkg/app.py", "dataflow", "pkg.app")
    >>> file.root, file.name, module.root, module.name, module.shipped
    ('/a/pkg', 'app.py:dataflow', '/a', 'pkg.app:dataflow', '/a/pkg')
    """

    path: str  # absolute
    function: str
    module: str = ""  # by which it is imported, as `import` would

    @property
    def root(self) -> str:
        """From where its module is imported: the folder of the file, or that of its outermost package."""
        is_package = bool(self.module) and os.path.basename(self.path) == "__init__.py"
        above = [os.pardir] * (self.module.count(".") + is_package)
        return os.path.normpath(os.path.join(os.path.dirname(self.path), *above))

    @property
    def name(self) -> str:
        """What a store of durable state calls it."""
        return f"{self.module or os.path.basename(self.path)}:{self.function}"

    @property
    def shipped(self) -> str:
        """The file, or the folder of the whole package, that a process elsewhere needs."""
        below = os.path.relpath(self.path, self.root).split(os.sep)
        return os.path.join(self.root, below[0]) if self.module else self.path

    @property
    def folder(self) -> str:
        """What is in it and below is the program's code: `root`, or the package, if that is installed."""
        is_installed = os.path.basename(self.root) in INSTALLED and os.path.isdir(self.shipped)
        return self.shipped if is_installed else self.root


@dataclass(frozen=True, slots=True)
class PickledFunction:
    """A function that was made in the launcher's own process, pickled by cloudpickle."""

    data: bytes  # load it only after sys.path is set
    path: tuple[str, ...]  # the launcher's sys.path; elsewhere, what comes before that of the process
    name: str = ""  # of the function, as a store of durable state knows it
    file: str = ""  # its module's, or the folder of the package that has it; "" if there is none to be sent along
    elsewhere: bool = False  # the process runs where the launcher may not


@dataclass(frozen=True, slots=True)
class WithTypes:
    """A pickled function together with classes that it does not refer to."""

    function: Callable[..., Any]
    types: Mapping[str, type]  # those of items, by their names in the function's module
    registered: Mapping[type, Registration]  # those that the main module has registered


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """Where a profile is to be written, and how much of it."""

    folder: str  # absolute
    calls: bool = False  # with the functions of each operator, by cProfile


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What to run and how, but for the lines."""

    app: AppFile | PickledFunction
    processes: int = 1  # at the start
    workers: int = 1  # in each process
    args: tuple[str, ...] = ()  # for `flow.args`
    rate: float | None = None  # lines per second, of all sources together
    name: str | None = None  # None: made from the app's
    listen: str = "127.0.0.1"  # host, or host:port: that of process 0, whose neighbours follow
    encoding_errors: str = "strict"  # or "replace"
    debug: bool = False  # whether tracebacks keep the engine's frames
    connect_timeout_seconds: float = 30.0
    join_timeout_seconds: float = 30.0  # that a process has to join
    profile: ProfileSpec | None = None
    drain_timeout: float | None = None  # seconds from when it is told to stop until it is ended; None: without limit
    oversubscribe: bool = False  # whether there may be many more processes than cores
    state: str | None = None  # absolute: the folder of the store; None: nothing is durable
    checkpoint_every: float = 1.0  # seconds from a commit to the next checkpoint, at least
    checkpoints_kept: int = CHECKPOINTS_KEPT
    restarts: int = 3  # after lost processes, without a checkpoint between
    shrink: bool = False  # whether the others go on then without a new process
    take_over: bool = False  # whether to take the store from a launcher that has it
    allow_loss: bool = False  # whether to go on without lines of followed files that are gone
    renamed: tuple[tuple[str, str], ...] = ()  # operators: (name in the store, name in the program)
    dropped: tuple[str, ...] = ()  # operators of the store whose states are not wanted any more
    origin: tuple[str, str] | None = None  # folder of a store and checkpoint in it, with which a new store begins
    on: str | None = None  # Spark's master, "" for that of a session that is there; None: the processes run here
    conf: tuple[tuple[str, str], ...] = ()  # Spark's settings
    start_timeout_seconds: float = 120.0  # for Spark to start the processes
    shipped: tuple[str, ...] = ()  # files and folders that the program needs where its processes run
    results: bool = False  # whether Spark reads the output
    idle_timeout: float = 5.0  # seconds without a record until a partition holds event time back no longer
    follow: bool = False  # whether files of lines grow, and new ones come
    close_windows: bool = False  # whether the end closes them, and fires all timers, also if the job keeps its state


@dataclass(frozen=True, slots=True)
class Founder:
    """The process is one of those that the job starts with; at first process 0 coordinates the job."""

    process: int  # which of them
    addresses: tuple[Address, ...]  # of each, this one included
    kept: tuple[tuple[int, ...], ...] = ()  # worker -> bins that it begins with; empty: these are dealt round


@dataclass(frozen=True, slots=True)
class JoiningProcess:
    """The process joins the running job, which then gives it its number and its workers' ids."""

    contact: Address  # of some member
    server: int | None = None  # the worker to be bootstrapped by; None: the coordinator chooses
    wishes: bool = False  # whether its workers wish for their routing tables; else that is somebody else's to see to
    other_code: bool = False  # whether it may run other code than the job


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """All that a worker process must know."""

    job: JobSpec
    name: str  # of the job, as it is published
    part: Founder | JoiningProcess
    address: Address  # where others reach this process
    listener_fd: int  # bound and listening there, inherited
    secret: bytes
    splits: tuple[Split, ...] = ()  # of all workers; the coordinator assigns them
    pushed: tuple[str, ...] = ()  # the inputs whose lines or items the launcher sends; "": they have no name
    piped: tuple[str, ...] = ()  # those of these whose lines are of a file: see `megaflow.job.text_lines.piped_lines`
    spark_queries: int = 0  # how many `SourceEnded` to wait for
    rows: tuple[str, ...] = ()  # the names of the inputs that these feed; none: they feed lines
    lines: tuple[str, ...] = ()  # the names of the inputs of lines and items; none: the lines have no name
    items: tuple[str, ...] = ()  # those of these that are of items
    followed: tuple[tuple[str, str, str], ...] = ()  # as in JobInput
    ordered: tuple[str, ...] = ()  # inputs, likewise, whose files are begun in the order of their names
    unordered: tuple[str, ...] = ()  # inputs, likewise, whose files are cut, so that several workers read one
    has_input: bool = True  # whether the job was given any input at all
    outputs: tuple[tuple[str, Form], ...] = (("", "records"),)  # name -> what the launcher is sent of it
    durable: DurablePart | None = None  # None: nothing is
    report_fd: int | None = None  # for the exit report, inherited; None if no launcher reads it
    sign_fd: int | None = None  # for the signs of life, likewise

    @property
    def kept(self) -> dict[int, tuple[int, ...]]:
        """Worker -> bins that it begins with, in a job that begins."""
        return dict(enumerate(self.part.kept)) if isinstance(self.part, Founder) else {}


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """All that a process must know which builds a program to see whether it can go on with its states."""

    job: JobSpec
    part: DurablePart  # its `commit` is what the job would go on from
    has_lines: bool  # that are to be read
    rows: tuple[str, ...] = ()  # the names of its inputs of rows
    lines: tuple[str, ...] = ()  # and of those of lines
    outputs: tuple[str, ...] | None = None  # the names of its outputs beside the returned stream; None: not known
    followed: tuple[str, ...] = ()  # the names of its inputs of lines whose files grow
    opened: tuple[tuple[str, int], ...] = ()  # files of the store that may be removed meanwhile, and their descriptors


def gc_threshold() -> int:
    """Return the allocations between two garbage collections of a worker. Raises UsageError for what is no number."""
    given = os.environ.get(GC_VARIABLE) or "1000000"
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise UsageError(f"{GC_VARIABLE}={given}: must be a number of allocations below 10^9, such as 1000000.")
    return int(given)


@contextlib.contextmanager
def listening(place: str, count: int, *, skipping: bool = False) -> Iterator[list[socket.socket]]:
    """Give `count` sockets that listen at `place`: HOST's free ports, or HOST:PORT and the following ports.

    Ports that are taken are left out if `skipping`. Raises UsageError if the sockets cannot be had.
    """
    host, first = listen_place(place)
    ports = iter([0] * count if first is None else range(first, HIGHEST_PORT + 1))
    with contextlib.ExitStack() as stack:
        listeners: list[socket.socket] = []
        where = place  # for the error
        try:
            family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
            while len(listeners) < count:
                if (port := next(ports, None)) is None:
                    raise UsageError(
                        f"--listen {place}: {count} processes need that many ports from there on, but ports end at "
                        "65535."
                    )
                where = place if port in (0, first) else f"{place}: port {port}"
                try:
                    listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
                except OSError as error:
                    if skipping and error.errno == errno.EADDRINUSE:
                        continue
                    raise
                listeners.append(stack.enter_context(listener))
        except OSError as error:
            raise UsageError(f"--listen {where}: {error.strerror or error}") from error
        yield listeners


def listen_place(text: str) -> tuple[str, int | None]:
    """Return the host and, if there is one, the port of what `--listen` says. Raises UsageError for what is neither.

    >>> listen_place("::1"), listen_place("[::1]:2101"), listen_place("0.0.0.0:2101")
    (('::1', None), ('::1', 2101), ('0.0.0.0', 2101))
    """
    host, colon, port = text.rpartition(":")
    if text.endswith("]") or not colon or (":" in host and not host.endswith("]")):  # an IPv6 address alone, or a name
        host, found = text, None
    else:
        found = int(port) if is_port(port) else 0
    host = host.removeprefix("[").removesuffix("]")
    if not may_be_host(host) or found == 0:
        raise UsageError(f"--listen {text}: must be HOST or HOST:PORT, such as 127.0.0.1:2101.")
    return host, found


def address_of(listener: socket.socket) -> Address:
    """Return where to reach a listening socket; from this machine, if it listens on all addresses."""
    host, port = listener.getsockname()[:2]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port
