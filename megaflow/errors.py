"""Every error megaflow raises, sorted by whose fault it is.

    Interrupted               Ctrl-C, no error: a KeyboardInterrupt, with what came until then
    MegaflowError
    ├── ProgramError          the user's program is wrong: change it
    │   ├── BuildError        the dataflow graph cannot be built
    │   ├── CapabilityError   a capability was misused
    │   ├── TimeError         a time would move backwards
    │   ├── CannotTravel      a value has a type that cannot cross a process
    │   └── UsageError        wrong arguments on the command line or in a call
    ├── CommandRefused        a command on a running job is refused; nothing changed
    │   └── JobNotFound       there is no such job, or several match
    ├── SourceError           an input cannot be read
    ├── StoreError            a store of durable state cannot be used
    │   ├── StoreDamaged      what is in it is not what was written
    │   ├── StoreFenced       another launcher has taken it over
    │   ├── StoreUnfit        what is in it does not fit the program, or cannot be read: a worker says so
    │   └── CommitInDoubt     whether a commit is durable is not known
    ├── OutputError           an output cannot be written
    │   └── RecordRefused     a system takes all that is to be written but for one record
    ├── StateKept             a durable job has ended early: the same command goes on where its state is
    ├── NoAnswer              a job or worker did not answer in time
    │   └── JobRecovers       a durable job has lost a process, and is about to go on
    └── ClusterError          the cluster cannot go on: stop
        ├── ProtocolError     a peer (or a stranger) broke the protocol
        ├── SourceLost        what reads an input has ended; a SourceError, too
        ├── PeerLost          a connection ended without a goodbye
        ├── PeerFailed        another worker raised; carries its report
        ├── ConnectTimeout    a peer did not connect in time
        ├── ConfigMismatch    processes were started with different settings
        ├── GraphMismatch     workers built different dataflows
        └── JoinDenied        a running cluster did not take this process in

Each carries one message, so all survive `copy` and `pickle`. A message says what was
asked, with which value, where, and what to do instead.
"""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while `megaflow.run` was at work; `records` are the outputs until then."""

    def __init__(self, records: list[object]) -> None:
        super().__init__(records)
        self.records = records

    def __str__(self) -> str:
        return f"interrupted; {len(self.records)} records until then are the `records` of this exception"


class MegaflowError(Exception):
    """The base of all errors that megaflow raises."""


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


class CommandRefused(MegaflowError):
    """A command on a running job is refused; nothing has changed."""


class JobNotFound(CommandRefused):
    """There is no such job, or several match."""


class SourceError(MegaflowError):
    """An input cannot be read: a missing file, invalid text, an ended Spark query."""


class StoreError(MegaflowError):
    """A store of durable state cannot be used: it is in use, damaged, of another version, or none."""


class StoreDamaged(StoreError):
    """What is in a store is not what was written."""


class StoreFenced(StoreError):
    """Another launcher has taken the store over: this one has no part in the job any more."""


class StoreUnfit(StoreError):
    """A worker cannot begin with what is in a store; the same command would not help."""


class CommitInDoubt(StoreError):
    """A disk failed so that a commit may be durable or not: it can be neither acknowledged nor given up."""


class OutputError(MegaflowError):
    """An output cannot be written: the disk is full, or fails."""


class RecordRefused(OutputError):
    """A system refuses one of the records that it is to have; nothing of them is written.

    `deliver` of an `OutboxSink` raises it; `position` is that of the record among those it was given, from 0 on.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message, position)
        self.message = message
        self.position = position

    def __str__(self) -> str:
        return self.message


class StateKept(MegaflowError):
    """A durable job has ended early, by no fault of the program's; its last checkpoint is what it can go on from."""


class NoAnswer(MegaflowError):
    """A job or worker did not answer in time; it may only be busy. Nothing has changed."""


class JobRecovers(NoAnswer):
    """A durable job has lost a process: it goes on from its last checkpoint, and was asked nothing since."""


class ClusterError(MegaflowError):
    """The cluster cannot go on."""


class SourceLost(SourceError, ClusterError):
    """What reads an input has ended unexpectedly; started again, it may succeed."""


class ProtocolError(ClusterError):
    """Received bytes or messages break the protocol."""


class PeerLost(ClusterError):
    """A connection to another process ended without a goodbye; `workers`: those of the process, if it was a member."""

    def __init__(self, message: str, workers: tuple[int, ...] = ()) -> None:
        super().__init__(message, *([workers] if workers else ()))
        self.workers = workers

    def __str__(self) -> str:
        return str(self.args[0])


class PeerFailed(ClusterError):
    """Another worker raised; the message carries its report."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows of it: the report, alone."""
        return str(self).splitlines()


class ConnectTimeout(ClusterError):
    """A peer did not connect in time."""


class ConfigMismatch(ClusterError):
    """Processes of one cluster were started with different settings."""


class GraphMismatch(ClusterError):
    """Workers built different dataflows."""


class JoinDenied(ClusterError):
    """A running cluster did not take this process in; the cluster is unaffected."""
