"""Who answers on a process's port: the launcher, those who steer the job, and those who stage lines.

All are called by the thread that polls, which is the first worker of the process. They keep no
state of the job; they hand what comes to whoever owns it, and wake the worker.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import field
from threading import Lock
from typing import Any, Protocol

from megaflow.control import messages
from megaflow.control.checkpoint_messages import CommitFailed, Committed, CommittedAtEnd
from megaflow.control.coordinator.events import Asked, Gone, LauncherWord
from megaflow.control.launcher_messages import HoldOutput, Lines, LinesEnded, Started, StartFailed, StartWaits
from megaflow.control.shapes import conforms
from megaflow.control.staging_messages import Staged, StageEnd, StageLines
from megaflow.errors import ConfigMismatch, ProtocolError
from megaflow.megaphone.routing import Map, Move
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.role_handlers import Connection

OUTPUT_BYTES_MAX = 8 << 20  # kept for a launcher that is slow; beyond that outputs wait in the dataflow


class LinesTaker(Protocol):
    """Takes the launcher's lines."""

    def push(self, lines: list[str] | list[bytes], input: str) -> None:
        """Take some lines, or encoded items."""

    def end_pushed(self, elsewhere: bool) -> None:
        """Learn that there are no more, or that the others go elsewhere."""


class Stager(Protocol):
    """Keeps the lines of task attempts for one worker."""

    def stage(self, message: StageLines, sender: Hashable) -> None:
        """Keep some lines."""

    def end(self, message: StageEnd, sender: Hashable) -> Staged | messages.Refused:
        """Close an attempt and return the answer."""

    def lost(self, sender: Hashable) -> None:
        """Discard what a lost connection has left open."""


class LauncherDoor:
    """Role "launcher": lines come in, outputs go out; the coordinator asks it for processes. One launcher, once."""

    def __init__(self) -> None:
        self.gone = False  # it was here and has left
        self.last: CommittedAtEnd | None = None  # the last checkpoint is committed
        self._connection: Connection | None = None
        self._is_held = False  # the launcher wants no outputs for a while
        self._taker: LinesTaker | None = None  # from `serve` to the end of the lines that come here
        self._wake: Callable[[], None] = lambda: None  # nobody is to be woken yet
        self._early: deque[Lines | LinesEnded] = deque()  # what came while there was no taker
        self._launched: Callable[[LauncherWord], None] | None = None  # told what the launcher says to the coordinator
        self._lock = Lock()  # guards the next
        self._unsent: list[object] = []  # for a launcher that has not come; little, as there is no room yet

    @property
    def has_room(self) -> bool:
        """Whether the launcher is there, keeps up and wants outputs; any thread may ask."""
        connection = self._connection
        return connection is not None and not self._is_held and connection.pending_bytes < OUTPUT_BYTES_MAX

    @property
    def is_here(self) -> bool:
        """Whether the launcher has come."""
        return self._connection is not None

    @property
    def is_drained(self) -> bool:
        """Whether everything sent has left, or the launcher has."""
        return self.gone or (not self._unsent and (self._connection is None or self._connection.is_drained))

    def send(self, message: object) -> None:
        """Send to the launcher when it is here; nothing happens if it is gone. Does not block; any worker's thread."""
        with self._lock:
            if self._connection is not None:
                self._connection.send(message)
            else:
                self._unsent.append(message)

    def serve(self, taker: LinesTaker, wake: Callable[[], None]) -> None:
        """Give lines to `taker` from now on, those that have come already included. The polling thread calls it."""
        self._taker, self._wake = taker, wake
        self._hand_on()

    def coordinate(self, launched: Callable[[LauncherWord], None]) -> None:
        """Tell `launched` what the launcher has started or committed, and what it could not."""
        self._launched = launched

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Welcome the first launcher; refuse any other."""
        if self._connection is not None:
            raise ConfigMismatch("this job already has a launcher")
        with self._lock:
            self._connection = connection
            for message in self._unsent:
                connection.send(message)
            self._unsent.clear()
        self._wake()

    def received(self, connection: Connection, value: Any) -> None:
        """Take lines, and what was started or is committed. Raises ProtocolError for anything else."""
        match value:
            case LinesEnded(bool()):
                self._early.append(value)
                self._hand_on()
            case Lines(list(lines), str()) if {*map(type, lines)} <= {str} or {*map(type, lines)} <= {bytes}:
                self._early.append(value)
                self._hand_on()
            case HoldOutput(bool(hold)):
                self._is_held = hold
            case CommittedAtEnd() if conforms(value, CommittedAtEnd):
                self.last = value
            case Started() | StartFailed() | StartWaits() | Committed() | CommitFailed() if self._launched is not None:
                if not conforms(value, type(value)):
                    raise ProtocolError(f"the launcher sent a {type(value).__name__} with a value of a wrong type")
                self._launched(value)
            case _:
                raise ProtocolError(f"the launcher sent an object of type {type(value).__name__} that it must not send")

    def lost(self, connection: Connection) -> None:
        """Note that the launcher has closed its connection."""
        self.gone = True
        self._wake()

    def _hand_on(self) -> None:
        while self._taker is not None and self._early:
            message = self._early.popleft()
            if isinstance(message, Lines):
                self._taker.push(message.lines, message.input)
            else:
                self._taker.end_pushed(message.elsewhere)
                self._taker = None  # what comes from elsewhere later waits for the word that it is its turn
        self._wake()


REQUEST_BYTES = 4096  # of a client, in a poll: a hundred short requests, which take some milliseconds
OPEN_MAX = 4  # requests of one connection under way at the coordinator; the others wait, most of them with the sender
ANSWERS_BYTES_MAX = 64 << 20  # for a client that does not read them; a status with the loads of all bins is a few MB
KEPT_MAX = 1_000  # requests, while it is not known who coordinates; those that had been asked before come on top


@dataclass(eq=False, slots=True)
class ControlClient:
    """One connection of role "control", and those of its requests that the coordinator has or is to get."""

    connection: Connection
    answered: Callable[["ControlClient"], None]
    open: int = 0  # requests that the coordinator has
    waiting: deque[messages.Request] = field(default_factory=deque)  # the others that were read, in order
    is_served: bool = False  # some that waited are being passed on

    def send(self, message: object) -> None:
        """Send an answer, the last one to its request or not."""
        self.connection.send(message)
        if isinstance(message, messages.Done | messages.Refused | messages.Moved):
            self.open -= 1
            self.answered(self)


class ControlDoor:
    """Role "control": requests for the coordinator; elsewhere, directions to it. Tells the job's settings itself.

    It gives requests to the coordinator if that is here, sends them elsewhere (`Moved`) if that is known, and else
    keeps them. Nobody is sent to a process before the coordinator there serves, so nobody is sent in circles. Who is
    connected and has asked nothing is told, too, where the coordinator is: this process may end before it asks.

    One connection has few requests under way, so that nobody's questions keep the others' waiting. Further ones wait in
    their order, and meanwhile nothing is read of it: what waits here came with a single read.
    """

    def __init__(self, coordinator: tuple[str, int] | None, settings: messages.JobSettings) -> None:
        """`coordinator` is where another process listens that knows more; None if the coordinator is to be here."""
        self._coordinator = coordinator
        self._settings = settings
        self._ask: Callable[[Asked | Gone], None] | None = None
        self._early: list[Asked | Gone] = []
        self._clients: dict[Connection, ControlClient] = {}  # those that have sent something
        self._silent: set[Connection] = set()  # those that have not

    def serve(self, ask: Callable[[Asked | Gone], None]) -> None:
        """Give requests to `ask` from now on, those that have come already included, and who hangs up."""
        self._ask, self._coordinator = ask, None
        for event in self._early:
            ask(event)
        self._early.clear()

    def keep(self, asked: Iterable[Asked]) -> None:
        """Keep these requests, which nobody has answered, and all that come, until it is known where to send them."""
        self._ask = None
        self._early += asked

    def redirect(self, host: str, port: int) -> None:
        """Send everybody there from now on, those whose requests were kept included."""
        self._ask, self._coordinator = None, (host, port)
        idle = {*self._silent, *self._clients}
        for event in self._early:
            if isinstance(event, Asked):
                asker: Any = event.client  # a ControlClient
                asker.send(messages.Moved(event.request.id, host, port))
                idle.discard(asker.connection)
        self._early.clear()
        for connection in idle:
            connection.send(messages.Moved(messages.NO_REQUEST, host, port))

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Welcome anybody who knows the secret."""
        self._silent.add(connection)
        connection.read_little(REQUEST_BYTES)

    def received(self, connection: Connection, value: Any) -> None:
        """Answer a request or pass it on, perhaps when others are answered. Raises ProtocolError for anything else."""
        if not conforms(value, messages.Request):
            raise ProtocolError(f"a control client sent an object of type {type(value).__name__}, not a request")
        if connection.pending_bytes > ANSWERS_BYTES_MAX:
            raise ProtocolError("a control client sends requests but does not read the answers")
        client = self._clients.get(connection)
        if client is None:
            client = self._clients[connection] = ControlClient(connection, self._serve)
            self._silent.discard(connection)
        client.waiting.append(value)
        self._serve(client)

    def lost(self, connection: Connection) -> None:
        """Say so: what it asked for goes on, and the answers go nowhere."""
        self._silent.discard(connection)
        client = self._clients.pop(connection, None)
        if client is not None:
            client.waiting.clear()
            if self._coordinator is None:
                self._pass_on(Gone(client))

    def _serve(self, client: ControlClient) -> None:
        """Take up its requests until so many are under way; read of it again when none waits."""
        if client.is_served:  # an answer at once, from within the loop
            return
        client.is_served = True
        while client.waiting and client.open < OPEN_MAX:
            self._take_up(client, client.waiting.popleft())
        client.is_served = False
        client.connection.hold(len(client.waiting) > 0)

    def _take_up(self, client: ControlClient, request: messages.Request) -> None:
        """Answer a request or pass it on."""
        connection = client.connection
        if not _is_sound(request.body):
            what = type(request.body).__name__
            reason = f"this {what} is not a known request, or a value in it is of a wrong type"
            connection.send(messages.Refused(request.id, reason))
        elif isinstance(request.body, messages.SettingsQuery):
            connection.send(messages.Done(request.id, self._settings))
        elif self._coordinator is not None:
            connection.send(messages.Moved(request.id, *self._coordinator))
        elif self._ask is None and len(self._early) >= KEPT_MAX:
            reason = f"{KEPT_MAX} requests already wait for the coordinator: try again later"
            connection.send(messages.Refused(request.id, reason))
        else:
            client.open += 1
            self._pass_on(Asked(client, request))

    def _pass_on(self, event: Asked | Gone) -> None:
        if self._ask is not None:
            self._ask(event)
        elif isinstance(event, Asked) or any(kept.client is event.client for kept in self._early):
            self._early.append(event)  # who is gone and has asked nothing is nobody's concern


def _is_sound(body: object) -> bool:
    """Whether the body of a request is one."""
    commands = body.commands if isinstance(body, messages.Reconfigure) else ()
    return conforms(body, messages.Command) and conforms(commands, tuple[Move | Map, ...])


class IngestDoor:
    """Role "ingest": Spark's executors stage lines for workers of this process."""

    def __init__(self, stagers: Mapping[int, Stager]) -> None:
        self._stagers = stagers  # worker -> its staging

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Welcome anybody who knows the secret."""

    def received(self, connection: Connection, value: Any) -> None:
        """Stage, and answer the end of an attempt. Raises ProtocolError for anything else."""
        if not conforms(value, StageLines | StageEnd):
            raise ProtocolError(f"an executor sent an object of type {type(value).__name__} that it must not send")
        stager = self._stagers.get(value.worker)
        if stager is None:
            raise ProtocolError(f"an executor sent lines for worker {value.worker}, which is not in this process")
        if isinstance(value, StageLines):
            stager.stage(value, connection)
        else:
            connection.send(stager.end(value, connection))

    def lost(self, connection: Connection) -> None:
        """Discard what it has left open."""
        for stager in self._stagers.values():
            stager.lost(connection)
