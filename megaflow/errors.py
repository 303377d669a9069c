"""Every error that megaflow raises, sorted by cause.

    Interrupted               Ctrl-C, not an error: a KeyboardInterrupt that carries the results so far
    EndedBySignal             a signal that ends the program at once, not an error: a KeyboardInterrupt
    MegaflowError
    ├── ProgramError          the user's program is wrong: change it
    │   ├── BuildError        the dataflow graph cannot be built
    │   ├── CapabilityError   a capability was misused
    │   ├── TimeError         a time would move backwards
    │   ├── CannotTravel      a value has a type that cannot cross a process
    │   └── UsageError        wrong arguments on the command line or in a call
    │       └── NoPrivateFolder    no folder for the files of running jobs can be made
    ├── CommandRefused        a command on a running job is refused; nothing changed
    │   └── JobNotFound       no such job, or several jobs match
    ├── SourceError           an input cannot be read
    ├── StoreError            a store of durable state cannot be used
    │   ├── StoreDamaged      its content is not what was written
    │   ├── StoreFenced       another launcher has taken it over
    │   ├── StoreUnfit        a worker cannot read its content, or it does not fit program or input
    │   └── CommitInDoubt     a commit may or may not be durable
    ├── OutputError           an output cannot be written
    │   ├── RecordRefused     an external system refuses one of the records
    │   └── Outage            an external system was out of reach for too long; also a SourceError
    ├── StateKept             a durable job ended early: the same command resumes it
    ├── LimitReached          a limit on files, processes or memory is reached
    ├── NoAnswer              a job or worker did not answer in time
    │   └── JobRecovers       a durable job has lost a process and is about to resume
    └── ClusterError          the cluster cannot continue: stop
        ├── ProtocolError     a peer, or a stranger, broke the protocol
        ├── KeepsFailing      processes of a durable job end by themselves again and again
        ├── SourceLost        the reader of an input ended; also a SourceError
        ├── PeerLost          a connection ended without a goodbye
        ├── PeerFailed        another worker raised; carries its report
        ├── ConnectTimeout    a peer did not connect in time
        ├── ConfigMismatch    processes were started with different settings
        ├── GraphMismatch     workers built different dataflows
        └── JoinDenied        a running cluster did not admit this process

Each error carries one message, so all errors survive `copy` and `pickle`. A message states what was asked, with which
value, where, and what to do instead. If a name is wrong, `similar` finds the name that was meant.
"""

import os
from collections.abc import Iterable

SIGNAL_WORDS = {1: "ended by SIGHUP", 2: "interrupted", 15: "ended by SIGTERM"}


class EndedBySignal(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP, if it ends a command at once."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        return SIGNAL_WORDS.get(self.number, f"ended by signal {self.number}")

    @property
    def exit_code(self) -> int:
        """Exit code that shells report for a program that the signal has ended."""
        return 128 + self.number


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during `megaflow.run`. `records` holds the outputs so far."""

    def __init__(self, records: list[object]) -> None:
        super().__init__(records)
        self.records = records

    def __str__(self) -> str:
        return f"interrupted; this exception has the {len(self.records)} records so far in `records`"

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows: a traceback would show only megaflow's own code."""
        return [f"KeyboardInterrupt: {self}; next cell: sys.last_value.records"]


class MegaflowError(Exception):
    """Base class of all errors that megaflow raises."""


def notes_of(error: BaseException | None) -> list[str]:
    """Return the notes of an error and of its causes. They have the last lines that a lost worker has printed.

    >>> cause, error = ClusterError("lost"), StateKept("lost; run it again")
    >>> cause.add_note("its last lines: ...")
    >>> error.__cause__ = cause
    >>> notes_of(error)
    ['its last lines: ...']
    """
    notes: list[str] = []
    while error is not None:
        notes += getattr(error, "__notes__", [])
        error = error.__cause__
    return notes


class ProgramError(MegaflowError):
    """The user's program is wrong."""


class BuildError(ProgramError):
    """The dataflow graph cannot be built as asked."""


class CapabilityError(ProgramError):
    """A capability was used after release, on another output, or where none is held."""


class TimeError(ProgramError):
    """A time would move backwards."""


class CannotTravel(ProgramError):
    """A value has a type that cannot cross from one process to another."""


class UsageError(ProgramError):
    """Wrong arguments on the command line or in a call."""


class NoPrivateFolder(UsageError):
    """No folder for the files of running jobs can be made. A job runs without one, but commands need its address."""


class CommandRefused(MegaflowError):
    """A command on a running job is refused. Nothing has changed."""


class JobNotFound(CommandRefused):
    """There is no such job, or several match."""


class SourceError(MegaflowError):
    """An input cannot be read: a missing file, invalid text, an ended Spark query."""


class StoreError(MegaflowError):
    """A store of durable state cannot be used: it is in use, damaged, missing, or of another version."""


class StoreDamaged(StoreError):
    """The content of a store is not what was written."""


class StoreFenced(StoreError):
    """Another launcher has taken the store over. This launcher no longer controls the job."""


class StoreUnfit(StoreError):
    """A job cannot start from the content of a store, or its input is not what was read.

    Running the same command again would not help.
    """


class CommitInDoubt(StoreError):
    """A disk failed during a commit, which may or may not be durable. The job can neither confirm it nor give it up."""


class OutputError(MegaflowError):
    """An output cannot be written: the disk is full or fails."""


class RecordRefused(OutputError):
    """An external system refuses one of the records that it should write. It writes none of them.

    `deliver` of an `OutboxSink` raises it. `position` is the index of the record in the list given to `deliver`, from
    0.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message, position)
        self.message = message
        self.position = position

    def __str__(self) -> str:
        return self.message


class Outage(SourceError, OutputError):
    """An external system, such as a database, was out of reach or locked for longer than a source or sink retries.

    It may be in reach again later. So a job with `--state` exits with 75: the same command resumes it.
    """


class StateKept(MegaflowError):
    """A durable job ended early, through no fault of the program. It can resume from its last checkpoint."""


class LimitReached(MegaflowError):
    """A limit of this machine on files, processes or memory is reached. Raise it before you try again."""


class NoAnswer(MegaflowError):
    """A job or worker did not answer in time. It may only be busy. Nothing has changed."""


class JobRecovers(NoAnswer):
    """A durable job has lost a process and resumes from its last checkpoint. It may have missed the request."""

    job = restart = ""  # its name, and what it waits for; set if the request was not sent


class ClusterError(MegaflowError):
    """The cluster cannot continue."""


class KeepsFailing(ClusterError):
    """Processes of a durable job end by themselves again and again. Running the same command again would not help."""


class SourceLost(SourceError, ClusterError):
    """The reader of an input ended unexpectedly. It may succeed if it is started again."""


class ProtocolError(ClusterError):
    """Received bytes or messages break the protocol."""


class PeerLost(ClusterError):
    """A connection to another process ended without a goodbye. `workers`: the process's workers, if it was a member."""

    def __init__(self, message: str, workers: tuple[int, ...] = ()) -> None:
        super().__init__(message, *([workers] if workers else ()))
        self.workers = workers

    def __str__(self) -> str:
        return str(self.args[0])


class PeerFailed(ClusterError):
    """Another worker raised; the message carries its report.

    In a program that started the job, it is also an error of the class that the worker raised, without the fields.
    """

    def __init__(self, text: str = "", raised: str = "") -> None:
        """`raised`: the class of the worker's exception, as "module:name"; "" if it is not known."""
        super().__init__(text)
        self.raised = raised

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[type["PeerFailed"], tuple[str]]:
        return PeerFailed, (str(self),)

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows: the report alone."""
        return str(self).splitlines()


class ConnectTimeout(ClusterError):
    """A peer did not connect in time."""


class ConfigMismatch(ClusterError):
    """Processes of one cluster were started with different settings."""


class GraphMismatch(ClusterError):
    """Workers built different dataflows."""


class JoinDenied(ClusterError):
    """A running cluster did not admit this process. The cluster is unaffected."""


class naming:
    """Raises an error of this class for each OSError of a block: it says what failed, the system's reason and `end`.

    It also names the file, unless the text has its name. A BrokenPipeError passes: the reader of an output has closed
    it, which is no failure.

    >>> with naming(StoreError, "Cannot read 'kept'"):
    ...     raise OSError(5, "Input/output error")
    Traceback (most recent call last):
    megaflow.errors.StoreError: Cannot read 'kept': Input/output error.
    >>> with naming(StoreError, "Cannot read 'kept'"):
    ...     raise OSError(13, "Permission denied", "000000000003.commit")
    Traceback (most recent call last):
    megaflow.errors.StoreError: Cannot read 'kept': 000000000003.commit: Permission denied.
    """

    def __init__(self, kind: type[MegaflowError], what: str, end: str = ".") -> None:
        self._kind, self._what, self._end = kind, what, end

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise the error."""
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            name = os.path.basename(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else ""
            where = f"{name}: " if name not in self._what else ""
            raise self._kind(f"{self._what}: {where}{error.strerror or error}{self._end}") from error


ERRORS_MAX = 3  # typing errors in a name
FAR = ERRORS_MAX + 1


def similar(wrong: str, names: Iterable[str]) -> str | None:
    """Return the name that a user who wrote a wrong one probably meant; None if no name is so near.

    A letter that is missing, wrong, too much or swapped with its neighbour is one typing error. A name may have one for
    each three letters, and at most ERRORS_MAX. Capital and small letters are the same. A name with other digits, or
    with quite another beginning, was not meant. Cost: linear in the names, as most differ in length or beginning.

    >>> similar("cuont", ["sum", "count"]), similar("Orders", ["order", "orders"]), similar("words", ["count"])
    ('count', 'orders', None)
    >>> similar("b.txt", ["a.txt"]), similar("part-2.csv", ["part-1.csv"]), similar("order", ["orders_late"])
    (None, None, None)
    """
    found: list[tuple[int, str]] = []
    one = wrong.casefold()
    for name in names:
        other = name.casefold()
        most = min(ERRORS_MAX, max(len(one), len(other)) // 3)
        if abs(len(one) - len(other)) > most or not (one[:1] in other[:2] or other[:1] in one[:2]):
            continue
        if (errors := _typing_errors(one, other)) <= most:
            found.append((errors, name))
    return min(found)[1] if found else None


def _typing_errors(one: str, other: str) -> int:
    """Return how many typing errors turn one text into another; an error in a digit counts as FAR."""
    weights = [FAR if letter.isdigit() else 1 for letter in other]
    before, row = [0], [0]  # row: of each beginning of `other`, for the letters of `one` so far
    for weight in weights:
        row.append(row[-1] + weight)
    for i, letter in enumerate(one):
        own = FAR if letter.isdigit() else 1
        earlier, before, row = before, row, [row[0] + own]
        for j, wanted in enumerate(other):
            wrong = 0 if letter == wanted else max(own, weights[j])
            least = min(before[j] + wrong, before[j + 1] + own, row[j] + weights[j])
            if i and j and letter == other[j - 1] and wanted == one[i - 1]:
                least = min(least, earlier[j - 1] + 1)
            row.append(least)
    return row[-1]
