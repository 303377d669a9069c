"""Every error that megaflow raises, sorted by cause.

    Interrupted               Ctrl-C, not an error: a KeyboardInterrupt that carries the results so far
    MegaflowError
    ├── ProgramError          the user's program is wrong: change it
    │   ├── BuildError        the dataflow graph cannot be built
    │   ├── CapabilityError   a capability was misused
    │   ├── TimeError         a time would move backwards
    │   ├── CannotTravel      a value has a type that cannot cross a process
    │   └── UsageError        wrong arguments on the command line or in a call
    ├── CommandRefused        a command on a running job is refused; nothing changed
    │   └── JobNotFound       no such job, or several jobs match
    ├── SourceError           an input cannot be read
    ├── StoreError            a store of durable state cannot be used
    │   ├── StoreDamaged      its content is not what was written
    │   ├── StoreFenced       another launcher has taken it over
    │   ├── StoreUnfit        a worker cannot read its content, or it does not fit the program
    │   └── CommitInDoubt     a commit may or may not be durable
    ├── OutputError           an output cannot be written
    │   └── RecordRefused     an external system refuses one of the records
    ├── StateKept             a durable job ended early: the same command resumes it
    ├── NoAnswer              a job or worker did not answer in time
    │   └── JobRecovers       a durable job has lost a process and is about to resume
    └── ClusterError          the cluster cannot continue: stop
        ├── ProtocolError     a peer, or a stranger, broke the protocol
        ├── SourceLost        the reader of an input ended; also a SourceError
        ├── PeerLost          a connection ended without a goodbye
        ├── PeerFailed        another worker raised; carries its report
        ├── ConnectTimeout    a peer did not connect in time
        ├── ConfigMismatch    processes were started with different settings
        ├── GraphMismatch     workers built different dataflows
        └── JoinDenied        a running cluster did not admit this process

Each error carries one message, so all errors survive `copy` and `pickle`. A message states what was asked, with which
value, where, and what to do instead.
"""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during `megaflow.run`. `records` holds the outputs so far."""

    def __init__(self, records: list[object]) -> None:
        super().__init__(records)
        self.records = records

    def __str__(self) -> str:
        return f"interrupted; this exception has the {len(self.records)} records so far in `records`"


class MegaflowError(Exception):
    """Base class of all errors that megaflow raises."""


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
    """A worker cannot start from the content of a store. Running the same command again would not help."""


class CommitInDoubt(StoreError):
    """A disk failed during a commit, which may or may not be durable. It can be neither acknowledged nor given up."""


class OutputError(MegaflowError):
    """An output cannot be written: the disk is full or fails."""


class RecordRefused(OutputError):
    """An external system refuses one of the records that it should write. None of them is written.

    `deliver` of an `OutboxSink` raises it. `position` is the index of the record in the list given to `deliver`, from
    0.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message, position)
        self.message = message
        self.position = position

    def __str__(self) -> str:
        return self.message


class StateKept(MegaflowError):
    """A durable job ended early, through no fault of the program. It can resume from its last checkpoint."""


class NoAnswer(MegaflowError):
    """A job or worker did not answer in time. It may only be busy. Nothing has changed."""


class JobRecovers(NoAnswer):
    """A durable job has lost a process and resumes from its last checkpoint. Nothing was asked of it since."""


class ClusterError(MegaflowError):
    """The cluster cannot continue."""


class SourceLost(SourceError, ClusterError):
    """The reader of an input ended unexpectedly. It may succeed if it is started again."""


class ProtocolError(ClusterError):
    """Received bytes or messages break the protocol."""


class PeerLost(ClusterError):
    """A connection to another process ended without a goodbye. `workers`: those of the process, if it was a member."""

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
    """A running cluster did not admit this process. The cluster is unaffected."""
