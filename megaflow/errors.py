"""Every error megaflow raises, sorted by whose fault it is.

    MegaflowError
    ├── ProgramError          the user's program is wrong: change it
    │   ├── BuildError        the dataflow graph cannot be built
    │   ├── CapabilityError   a capability was misused
    │   ├── TimeError         a time went backwards
    │   ├── CannotTravel      a value has a type that cannot cross a process
    │   └── UsageError        wrong words on the command line or in a call
    ├── CommandRefused        a command on a running job is refused; nothing changed
    │   └── JobNotFound       there is no such job, or there are several
    ├── SourceError           an input cannot be read
    ├── NoAnswer              somebody did not answer in time
    └── ClusterError          the cluster cannot go on: stop
        ├── ProtocolError     a peer (or a stranger) broke the protocol
        ├── PeerLost          a connection ended without a goodbye
        ├── PeerFailed        another worker raised; carries its report
        ├── ConnectTimeout    a peer never came
        ├── ConfigMismatch    processes were started with different settings
        ├── GraphMismatch     workers built different dataflows
        └── JoinDenied        a running cluster does not take this process in

Each carries one message, so all survive `copy` and `pickle`. A message says what was
asked, with which value, where, and what to do instead.
"""


class MegaflowError(Exception):
    """Anything megaflow itself has to complain of."""


class ProgramError(MegaflowError):
    """The user's program is wrong."""


class BuildError(ProgramError):
    """The dataflow graph cannot be built as asked."""


class CapabilityError(ProgramError):
    """A capability was used after release, on another output, or where none is held."""


class TimeError(ProgramError):
    """A time was to move backwards."""


class CannotTravel(ProgramError):
    """A value has a type that cannot cross from one process to another."""


class UsageError(ProgramError):
    """Wrong words on the command line or wrong arguments in a call."""


class CommandRefused(MegaflowError):
    """A command on a running job is refused; nothing has changed."""


class JobNotFound(CommandRefused):
    """The job to steer does not exist, or is one of several."""


class SourceError(MegaflowError):
    """An input cannot be read: a missing file, invalid text, an ended Spark query."""


class NoAnswer(MegaflowError):
    """Somebody did not answer in time, which may have its reasons; nothing has changed."""


class ClusterError(MegaflowError):
    """The cluster cannot go on."""


class ProtocolError(ClusterError):
    """Received bytes or messages break the protocol."""


class PeerLost(ClusterError):
    """A connection to another process ended without a goodbye; `workers` are those of a lost member, if it was one."""

    def __init__(self, message: str, workers: tuple[int, ...] = ()) -> None:
        super().__init__(message, *([workers] if workers else ()))
        self.workers = workers

    def __str__(self) -> str:
        return str(self.args[0])


class PeerFailed(ClusterError):
    """Another worker raised; the message carries its report."""


class ConnectTimeout(ClusterError):
    """A peer did not come within the time to connect."""


class ConfigMismatch(ClusterError):
    """Processes of one cluster were started with different settings."""


class GraphMismatch(ClusterError):
    """Workers built different dataflows."""


class JoinDenied(ClusterError):
    """A running cluster did not take this process in; to the cluster nothing has happened."""
