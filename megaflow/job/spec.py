"""What the launcher sends to a worker process before it starts: one value, over the child's standard input.

The message is 8 bytes of length (big endian) and a pickle. It comes from the parent over a pipe that no other process
can write to. Nothing that arrives at a port is ever unpickled.
"""

import contextlib
import errno
import os
import pickle
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Final, TypeAlias

from megaflow.control.messages import InputNames, Split
from megaflow.durable.incarnation import CHECKPOINTS_KEPT, DurablePart
from megaflow.errors import UsageError
from megaflow.job.formats.text_lines import LINE_BYTES_MAX
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.address import HIGHEST_PORT, is_port, may_be_host
from megaflow.timely.communication.codec.encode import Registration

ENGINE: Final = "megaflow"
"""The place in the program of the operators that a worker adds to it."""

BACKLOG = 128
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # ask a job, or a process that joined, to stop
GC_VARIABLE = "MEGAFLOW_GC_THRESHOLD"
INSTALLED = ("site-packages", "dist-packages")  # folders of libraries, in any environment

Address: TypeAlias = tuple[str, int]  # host and port

Form: TypeAlias = str
"""The form in which a writer receives outputs, one of FORMS: nothing, the records themselves, lines of text, packed
rows. Rows are `rows:SCHEMA`, with the schema as JSON. CSV is `csv:COLUMNS` as JSON, or `csv` if records name them."""
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
    module: str = ""  # the name by which `import` finds it

    @property
    def root(self) -> str:
        """The folder from which its module is imported: that of the file, or that of its outermost package."""
        is_package = bool(self.module) and os.path.basename(self.path) == "__init__.py"
        above = [os.pardir] * (self.module.count(".") + is_package)
        return os.path.normpath(os.path.join(os.path.dirname(self.path), *above))

    @property
    def name(self) -> str:
        """Its name in a store of durable state."""
        return f"{self.module or os.path.basename(self.path)}:{self.function}"

    @property
    def shipped(self) -> str:
        """The file, or the folder of the whole package, that a process on another machine needs."""
        below = os.path.relpath(self.path, self.root).split(os.sep)
        return os.path.join(self.root, below[0]) if self.module else self.path

    @property
    def folder(self) -> str:
        """The folder that contains the program's code: `root`, or the package if it is installed."""
        is_installed = os.path.basename(self.root) in INSTALLED and os.path.isdir(self.shipped)
        return self.shipped if is_installed else self.root


@dataclass(frozen=True, slots=True)
class PickledFunction:
    """A function that was made in the launcher's own process, pickled by cloudpickle."""

    data: bytes  # load it only after sys.path is set
    path: tuple[str, ...]  # the launcher's sys.path; on other machines, the part before that of the process
    name: str = ""  # of the function, in a store of durable state
    file: str = ""  # of its module, or the folder of its package; "" if there is nothing to send along
    elsewhere: bool = False  # the process may run on another machine than the launcher
    logs: bytes = b""  # the script's logging setup; see `megaflow.job.script_logging`
    libraries: tuple[str, ...] = ()  # libraries whose values travel, if the launcher's program has imported them
    files: tuple[tuple[str, str], ...] = ()  # of imported modules: path and digest; see `megaflow.job.program_code`


@dataclass(frozen=True, slots=True)
class ModuleChange:
    """Variable of a module, or attribute of one of its classes, that differs from what the module's file makes it."""

    module: str
    holder: str  # the class; "": the module itself
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class WithTypes:
    """Pickled function together with classes that it does not refer to."""

    function: Callable[..., Any]
    types: Mapping[str, type]  # classes of items, by their names in the function's module
    registered: Mapping[type, Registration]  # classes that the main module has registered
    changes: tuple[ModuleChange, ...] = ()  # changes that the launcher's process has made in imported modules


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """Where to write a profile, and how much of it."""

    folder: str  # absolute
    calls: bool = False  # with the functions of each operator, by cProfile


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What to run and how, without the lines."""

    app: AppFile | PickledFunction
    processes: int = 1  # at the start
    workers: int = 1  # in each process
    args: tuple[str, ...] = ()  # for `flow.args`
    rate: float | None = None  # lines per second, of all sources together
    name: str | None = None  # None: derived from the title, or from the app's name
    title: str = ""  # a valid name, to which a number is added while another job has it
    listen: str = "127.0.0.1"  # host, or host:port of process 0; the others use the following ports
    encoding_errors: str = "strict"  # or "replace"
    line_size_max: int = LINE_BYTES_MAX  # bytes of a line, or of another record that a reader reads as a whole
    debug: bool = False  # whether tracebacks keep the engine's frames
    log_level: str | None = None  # one of `log_records.LEVELS`; None: as the program sets it up
    log_format: str = "text"  # one of `log_records.FORMATS`
    connect_timeout_seconds: float = 30.0
    join_timeout_seconds: float = 30.0  # for a process to join
    profile: ProfileSpec | None = None
    drain_timeout: float | None = None  # seconds from a stop until the job is ended by force; None: no limit
    oversubscribe: bool = False  # whether there may be many more processes than cores
    state: str | None = None  # absolute: the folder of the store; None: nothing is durable
    checkpoint_every: float = 1.0  # least seconds from a commit to the next checkpoint
    checkpoints_kept: int = CHECKPOINTS_KEPT
    restarts: int = 3  # after lost processes, without a checkpoint in between
    shrink: bool = False  # whether the others then continue without a new process
    take_over: bool = False  # whether to take the store from a launcher that holds it
    allow_loss: bool = False  # whether to continue without lines of followed files that are gone
    forget_missing: bool = False  # whether to continue without files that were not read to their ends
    same_files: tuple[tuple[str, str], ...] = ()  # input files: (path in the store, path of a copy), absolute
    renamed: tuple[tuple[str, str], ...] = ()  # operators: (name in the store, name in the program)
    relocated: tuple[tuple[str, str], ...] = ()  # files or folders: (path in the store, path now), absolute
    dropped: tuple[str, ...] = ()  # operators of the store whose states are no longer wanted
    partial_windows: str = "leave-out"  # or "emit": what is done with results of windows that lack records
    accept_rows: tuple[str, ...] = ()  # sinks whose rows are taken as they are, though the store does not know them
    origin: tuple[str, str] | None = None  # folder of a store and checkpoint in it, from which a new store begins
    on: str | None = None  # Spark's master, "" for that of an existing session; None: the processes run here
    conf: tuple[tuple[str, str], ...] = ()  # Spark's settings
    start_timeout_seconds: float = 120.0  # for Spark to start the processes
    shipped: tuple[str, ...] = ()  # files and folders that the program needs on the machines of its processes
    results: bool = False  # whether Spark reads the output
    idle_timeout: float = 5.0  # seconds without a record after which a partition no longer holds event time back
    follow: bool = False  # whether files of lines grow, and new files appear
    max_skew: float | None = None  # seconds of event time that files of an input may be ahead of other inputs
    close_windows: bool = False  # whether the end closes them and fires all timers, even if the job keeps its state


@dataclass(frozen=True, slots=True)
class Founder:
    """The process is a founder, one that the job starts with. At first, process 0 coordinates the job."""

    process: int  # its number
    addresses: tuple[Address, ...]  # of all founders, including this one
    kept: tuple[tuple[int, ...], ...] = ()  # worker -> bins that it begins with; empty: bins are dealt out


@dataclass(frozen=True, slots=True)
class JoiningProcess:
    """The process joins the running job, which then gives it its number and its workers' ids."""

    contact: Address  # of any member
    server: int | None = None  # the worker that bootstraps it; None: the coordinator chooses
    wishes: bool = False  # whether its workers ask for their routing tables; otherwise another command has to
    other_code: bool = False  # whether it may run other code than the job


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """All facts that a worker process needs."""

    job: JobSpec
    name: str  # of the job, as published
    part: Founder | JoiningProcess
    address: Address  # where others reach this process
    listener_fd: int  # bound and listening there, inherited
    secret: bytes
    splits: tuple[Split, ...] = ()  # of all workers; the coordinator assigns them
    pushed: tuple[str, ...] = ()  # inputs whose lines or items the launcher sends; "": inputs have no name
    piped: tuple[str, ...] = ()  # whose lines are of a file: `megaflow.job.formats.text_lines.piped_lines`
    spark_queries: int = 0  # number of `SourceEnded` to wait for
    inputs: InputNames = InputNames()  # without rows, the queries feed lines
    outputs: tuple[tuple[str, Form], ...] = (("", "records"),)  # name -> form in which the launcher receives it
    durable: DurablePart | None = None  # None: nothing is durable
    report_fd: int | None = None  # for the exit report, inherited; None if no launcher reads it
    sign_fd: int | None = None  # for the heartbeats, inherited; None if no launcher reads them
    dropped_fd: int | None = None  # for the end of what it could not print, inherited; None if no launcher reads it
    on_terminal: bool = False  # whether the launcher shows its prints on a terminal

    @property
    def kept(self) -> dict[int, tuple[int, ...]]:
        """Worker -> bins that it begins with, in a new job."""
        return dict(enumerate(self.part.kept)) if isinstance(self.part, Founder) else {}


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """All facts for a process that builds a program to check whether it can continue with its states."""

    job: JobSpec
    part: DurablePart  # its `commit` is the one that the job would continue from
    has_lines: bool  # whether there are lines to read
    inputs: InputNames = InputNames()
    outputs: tuple[str, ...] | None = None  # names of its outputs besides the returned stream; None: unknown
    opened: tuple[tuple[str, int], ...] = ()  # files of the store that may be removed meanwhile, and their descriptors


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """The outcome of a rehearsal that finds no fault."""

    sources: frozenset[str] = frozenset()  # names of what the program reads, without files
    given_up: tuple[tuple[str, int], ...] = ()  # (operator whose states the user gives up, its keys at most)
    newer: tuple[tuple[str, str], ...] = ()  # (sink that has delivered more than the store knows, what the user reads)
    found: tuple[str, ...] = ()  # sinks whose deliveries are there
    rewindowed: tuple[str, ...] = ()  # operators whose windows an `upgrade` changes
    converts: bool = False  # whether an `upgrade` converts the states of each operator

    @property
    def texts(self) -> list[str]:
        """What the user should know."""
        lost = [f"--drop-state {name} gives up the states of at most {keys} keys" for name, keys in self.given_up]
        return [*lost, *(text for _, text in self.newer)]


def send_spec(stdin: IO[bytes] | None, spec: ChildSpec) -> None:
    """Send a process its part over its standard input, which then stays open."""
    data = pickle.dumps(spec)
    assert stdin is not None
    with contextlib.suppress(BrokenPipeError):  # the process has died, as connecting will show
        stdin.write(len(data).to_bytes(8, "big") + data)
        stdin.flush()


def gc_threshold() -> int:
    """Return the allocations between two garbage collections of a worker. Raises UsageError if it is not a number."""
    given = os.environ.get(GC_VARIABLE) or "1000000"
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise UsageError(f"{GC_VARIABLE}={given}: must be a number of allocations below 10^9, such as 1000000.")
    return int(given)


@contextlib.contextmanager
def listening(place: str, count: int, *, skipping: bool = False) -> Iterator[list[socket.socket]]:
    """Yield `count` sockets that listen at `place`: HOST's free ports, or HOST:PORT and the following ports.

    With `skipping`, ports in use are skipped. Raises UsageError if the sockets cannot be opened.
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
    """Return the host and, if given, the port of `--listen`. Raises UsageError if the text is neither.

    >>> listen_place("::1"), listen_place("[::1]:2101"), listen_place("0.0.0.0:2101")
    (('::1', None), ('::1', 2101), ('0.0.0.0', 2101))
    """
    if is_port(text):  # a number is also an address to the system: 17556 is 0.0.68.148
        raise UsageError(f"--listen {text}: must be HOST or HOST:PORT, such as 127.0.0.1:{text}.")
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
    """Return the address of a listening socket: one on this machine if it listens on all addresses."""
    host, port = listener.getsockname()[:2]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port
