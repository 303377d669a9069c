"""Handlers of connections to a process's port: the launcher, and clients that steer the job.

The polling thread calls them; it is the first worker of the process. They keep no state of the job: they pass each
message to the part that owns the state, and wake the worker. The worker's program connects them to these parts
(`worker_program`). Executors of Spark have a handler beside the lines that they stage (`reading.staging`).
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import field
from threading import Lock
from typing import Any, Protocol

from megaflow.control import launcher_messages, messages
from megaflow.control.checkpoint_messages import CommittedAtEnd
from megaflow.control.coordinator.base.events import Asked, Gone, LauncherWord
from megaflow.control.launcher_messages import Lines, LinesEnded
from megaflow.control.shapes import conforms
from megaflow.control.wording import workers_text
from megaflow.errors import ConfigMismatch, ProtocolError
from megaflow.megaphone.base.routing import Map, Move
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.role_handlers import Connection
from megaflow.timely.rescale.messages import Joined, Left

OUTPUT_BYTES_MAX = 8 << 20  # kept for a slow launcher; further outputs wait in the dataflow


class LinesTaker(Protocol):
    """Receiver of the launcher's lines."""

    def push(self, lines: list[str] | list[bytes], input: str) -> None:
        """Take some lines, or encoded items."""

    def end_pushed(self, elsewhere: bool, cut: Collection[str]) -> None:
        """Note that all lines have come, or that the rest goes elsewhere. `cut`: inputs that a stop has cut off."""


class LauncherDoor:
    """Role "launcher": lines come in, outputs go out, and the coordinator requests processes. One launcher, once."""

    def __init__(self) -> None:
        self.gone = False  # the launcher was here and has left
        self.stopped: launcher_messages.JobStopped | None = None  # received by a process that joined by hand
        self.last: CommittedAtEnd | None = None  # received when the last checkpoint is committed
        self._connection: Connection | None = None
        self._is_held = False  # the launcher wants no outputs at present
        self._taker: LinesTaker | None = None  # from `serve` to the end of the lines for this process
        self._wake: Callable[[], None] = lambda: None  # no worker to wake yet
        self._early: deque[Lines | LinesEnded] = deque()  # received while there was no taker
        self.launched: Callable[[LauncherWord], None] | None = None  # gets the launcher's messages to the coordinator
        self._lock = Lock()  # guards `_unsent`
        self._unsent: list[object] = []  # until the launcher comes; little, because there is no room before

    @property
    def has_room(self) -> bool:
        """Whether the launcher is connected, keeps up and wants outputs. Any thread may ask."""
        connection = self._connection
        return connection is not None and not self._is_held and connection.pending_bytes < OUTPUT_BYTES_MAX

    @property
    def is_here(self) -> bool:
        """Whether the launcher has connected."""
        return self._connection is not None

    @property
    def is_drained(self) -> bool:
        """Whether everything that was sent has left, or the launcher is gone."""
        return self.gone or (not self._unsent and (self._connection is None or self._connection.is_drained))

    def send(self, message: object) -> None:
        """Send to the launcher once it is connected; do nothing if it is gone. Does not block; any worker's thread."""
        with self._lock:
            if self._connection is not None:
                self._connection.send(message)
            else:
                self._unsent.append(message)

    def serve(self, taker: LinesTaker, wake: Callable[[], None]) -> None:
        """Give lines to `taker` from now on, and first those that came earlier. The polling thread calls this."""
        self._taker, self._wake = taker, wake
        self._hand_on()

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Accept the first launcher; refuse any other."""
        if self._connection is not None:
            raise ConfigMismatch("this job already has a launcher")
        with self._lock:
            self._connection = connection
            for message in self._unsent:
                connection.send(message)
            self._unsent.clear()
        self._wake()

    def received(self, connection: Connection, value: Any) -> None:
        """Take lines, and reports of starts and commits. Raises ProtocolError for anything else."""
        match value:
            case LinesEnded() if conforms(value, LinesEnded):
                self._early.append(value)
                self._hand_on()
            case Lines(list(lines), str()) if {*map(type, lines)} <= {str} or {*map(type, lines)} <= {bytes}:
                self._early.append(value)
                self._hand_on()
            case launcher_messages.HoldOutput(bool(hold)):
                self._is_held = hold
            case CommittedAtEnd() if conforms(value, CommittedAtEnd):
                self.last = value
            case launcher_messages.JobStopped() if conforms(value, launcher_messages.JobStopped):
                self.stopped = value
                connection.send(launcher_messages.StopNoted())
            case _ if isinstance(value, LauncherWord) and self.launched is not None:
                if not conforms(value, type(value)):
                    raise ProtocolError(f"the launcher sent a {type(value).__name__} with a value of a wrong type")
                self.launched(value)
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
                self._taker.end_pushed(message.elsewhere, message.cut)
                self._taker = None  # later lines wait for the message that makes this process their reader again
        self._wake()


REQUEST_BYTES = 4096  # read from a client in one poll: a hundred short requests, which take some milliseconds
OPEN_MAX = 4  # requests of one connection at the coordinator. The others wait, most of them on the sender's side
ANSWERS_BYTES_MAX = 64 << 20  # unread by a client. A status with the loads of all bins is a few MB
KEPT_MAX = 1_000  # requests kept while the coordinator is unknown, without those that the hand-over brings


@dataclass(eq=False, slots=True)
class ControlClient:
    """One connection of role "control", with its requests that the coordinator has or will get."""

    connection: Connection
    answered: Callable[["ControlClient"], None]
    open: int = 0  # requests at the coordinator
    waiting: deque[messages.Request] = field(default_factory=deque)  # other requests, in order
    has_asked: bool = False
    is_served: bool = False  # some waiting requests are being passed on

    def send(self, message: object) -> None:
        """Send an answer, which may or may not be the last to its request."""
        self.connection.send(message)
        if isinstance(message, messages.Done | messages.Refused | messages.Moved):
            self.open -= 1
            self.answered(self)


class ControlDoor:
    """Role "control": requests for the coordinator; in other processes, directions to it.

    The door itself answers questions about the job's settings. If the coordinator is in this process, the door gives
    requests to it. If it is known to be elsewhere, the door answers `Moved`. Otherwise the door keeps the requests. It
    sends no client to a process before the coordinator there serves, so no client goes in circles. Connected clients
    without a request also learn where the coordinator is, because this process may end before they ask.

    One connection has few requests at the coordinator at a time, so it cannot delay other connections' questions. Its
    further requests wait in order, and meanwhile the door reads nothing from it: all waiting requests came in a single
    read.
    """

    def __init__(self, coordinator: tuple[str, int] | None, settings: messages.JobSettings) -> None:
        """`coordinator`: address of a process that knows more; None if the coordinator will be in this process."""
        self._coordinator = coordinator
        self._settings = settings
        self._ask: Callable[[Asked | Gone], None] | None = None
        self._early: list[Asked | Gone] = []
        self._clients: dict[Connection, ControlClient] = {}

    def serve(self, ask: Callable[[Asked | Gone], None]) -> None:
        """Give requests and hang-ups to `ask` from now on, and first those that came earlier."""
        self._ask, self._coordinator = ask, None
        for event in self._early:
            ask(event)
        self._early.clear()

    def keep(self, asked: Iterable[Asked]) -> None:
        """Keep these unanswered requests and all later ones until their destination is known."""
        self._ask = None
        self._early += asked

    def redirect(self, host: str, port: int) -> None:
        """Send all clients to this address from now on, and first those whose requests were kept."""
        self._ask, self._coordinator = None, (host, port)
        idle = {*self._clients}
        for event in self._early:
            if isinstance(event, Asked):
                asker: Any = event.client  # a ControlClient
                asker.send(messages.Moved(event.request.id, host, port))
                idle.discard(asker.connection)
        self._early.clear()
        for connection in idle:
            connection.send(messages.Moved(messages.NO_REQUEST, host, port))

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Accept any client that knows the secret."""
        self._clients[connection] = ControlClient(connection, self._serve)
        connection.read_little(REQUEST_BYTES)

    def received(self, connection: Connection, value: Any) -> None:
        """Answer a request, or pass it on now or after earlier ones. Raises ProtocolError for anything else."""
        if not conforms(value, messages.Request):
            raise ProtocolError(f"a control client sent an object of type {type(value).__name__}, not a request")
        if connection.pending_bytes > ANSWERS_BYTES_MAX:
            raise ProtocolError("a control client sends requests but does not read the answers")
        client = self._clients[connection]
        client.has_asked = True
        client.waiting.append(value)
        self._serve(client)

    def lost(self, connection: Connection) -> None:
        """Report the lost client. Its accepted commands continue without answers."""
        client = self._clients.pop(connection)
        client.waiting.clear()
        if client.has_asked and self._coordinator is None:
            self._pass_on(Gone(client))

    def _serve(self, client: ControlClient) -> None:
        """Take up waiting requests, at most OPEN_MAX at a time; read from the client again when none waits."""
        if client.is_served:  # called by an immediate answer within the loop below
            return
        client.is_served = True
        while client.waiting and client.open < OPEN_MAX:
            self._take_up(client, client.waiting.popleft())
        client.is_served = False
        client.connection.hold(len(client.waiting) > 0)

    def _take_up(self, client: ControlClient, request: messages.Request) -> None:
        """Answer a request or pass it on."""
        connection = client.connection
        if not is_sound(request.body):
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
            self._early.append(event)  # a lost client matters only if a request of it is kept


def is_sound(body: object) -> bool:
    """Return whether the body of a request is well-formed."""
    commands = body.commands if isinstance(body, messages.Reconfigure) else ()
    return conforms(body, messages.Command) and conforms(commands, tuple[Move | Map, ...])


def membership_news(event: Joined | Left, worker: int) -> launcher_messages.ProcessJoined | launcher_messages.ToldOnce:
    """Return the report of the coordinating `worker` to the launcher about a process that has joined or left."""
    if isinstance(event, Joined):
        return launcher_messages.ProcessJoined(*event.process)
    text = f"{workers_text(event.ids)} {'have' if len(event.ids) > 1 else 'has'} left"
    return launcher_messages.ToldOnce(worker, text, text)  # ids are never reused
