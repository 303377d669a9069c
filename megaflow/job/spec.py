"""What the launcher tells a worker process before it starts: one value, sent over the child's stdin.

The message is 8 bytes of length (big endian) and a pickle. It comes from the parent over a pipe that nobody else
can write to; nothing that arrives at a port is ever unpickled.
"""

from dataclasses import dataclass
from typing import TypeAlias

from megaflow.control.messages import Split
from megaflow.job.rendering import Form

Address: TypeAlias = tuple[str, int]  # host and port


@dataclass(frozen=True, slots=True)
class AppFile:
    """A function in a Python file."""

    path: str  # absolute
    function: str


@dataclass(frozen=True, slots=True)
class PickledFunction:
    """A function that was made in the launcher's own process, pickled by cloudpickle."""

    data: bytes  # load it only after sys.path is set
    path: tuple[str, ...]  # the launcher's sys.path


@dataclass(frozen=True, slots=True)
class Founder:
    """The process is one of those that the job starts with; the first one coordinates it, to begin with."""

    process: int  # which of them
    addresses: tuple[Address, ...]  # of each, this one included


@dataclass(frozen=True, slots=True)
class Joiner:
    """The process joins while the job runs, and is told its number and its workers' ids then."""

    contact: Address  # of some member
    server: int | None = None  # the worker to be bootstrapped by; None: the coordinator chooses


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """Where a profile is to be written, and how much of it."""

    folder: str  # absolute
    calls: bool = False  # with the functions of each operator, by cProfile


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """All a worker process must know."""

    job: str
    part: Founder | Joiner
    workers: int  # in each process
    address: Address  # where others reach this process
    listener_fd: int  # bound and listening there, inherited
    secret: bytes
    app: AppFile | PickledFunction
    args: tuple[str, ...] = ()  # for `flow.args`
    splits: tuple[Split, ...] = ()  # of all workers; the coordinator assigns them
    pushed: bool = False  # whether the launcher sends `Lines`
    spark_queries: int = 0  # how many `SourceEnded` to wait for
    rate: float | None = None  # lines per second, of all sources together
    encoding_errors: str = "replace"  # or "strict"
    output: Form = "records"  # what the launcher is sent
    debug: bool = False  # whether tracebacks keep the engine's frames
    connect_timeout_seconds: float = 30.0
    profile: ProfileSpec | None = None
    word_fd: int | None = None  # for the last word, inherited; None if nobody listens
