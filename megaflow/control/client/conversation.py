"""A client's questions to a job's coordinator, one after another, even while the coordinator moves between processes.

The command line, the driver of Spark's queries and the launcher's own request to stop all ask through this module.
 1. Each question has its own number. The client drops answers with other numbers: they belong to earlier questions.
 2. `Moved` names the coordinator's new address. The client connects there and asks again. It sends one question at most
    MOVES_MAX times.
 3. If a connection ends before the answer, the client first connects to the address that the old process has announced.
    Before it ends, that process tells all connected clients where the coordinator is, even those that have asked
    nothing yet. If there is no such address, or it cannot be reached, the client calls `find` for the job's current
    address. It repeats this until its patience is over, because the new address may become known a little after the old
    process ends. If there is no other address, the job has ended: PeerLost.
 4. After a lost connection the client repeats a question only if its command had not begun (it had received neither
    `Accepted` nor `CommandProgress`), or if the question is REPEATABLE. If it must not repeat it: PeerLost.
 5. The client stops waiting when it has received nothing for a given time, or when its owner is `stopping`.

Why no command takes effect twice. A coordinator hands over only at rest (see
`megaflow.control.coordinator.base.job_state`): it first finishes and answers all commands that it has begun. It answers
the others with `Moved`, as does each process that never was the coordinator. So rule 2 repeats only questions without
effect. Rule 4 requires that all messages of a coordinator arrive before the end of its connection. They do: TCP
discards them only if the process closes a connection with unread data, and a client whose question was accepted has
sent nothing since. If a coordinator dies without handing over, its job ends, so there is no process that could receive
the question again. A REPEATABLE question has the same effect however often it is asked. That includes each successor,
which learns of commits and ended queries when it takes over.

Why no question is lost when the coordinator moves between question and answer. The process that hands over keeps new
questions (`ControlDoor.keep`) until its successor serves, and then answers `Moved`. For questions that it has not read
when it ends, the end of the connection is the answer, see rule 3. So each question ends in an answer, in `Moved`, or in
a lost connection, and only a lost connection can end in an error.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from megaflow.control import messages
from megaflow.errors import ClusterError, CommandRefused, JobNotFound, MegaflowError, PeerLost
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.address import address_text
from megaflow.timely.communication.client import Client

QUIET_SECONDS: Final = 2.0
"""Time without a message from the coordinator, after which the client asks others why it is silent."""
QUIET_AGAIN_SECONDS: Final = 10.0
"""Time after which the client asks them again."""
MOVES_MAX: Final = 10
"""Addresses at which one question is asked. A coordinator that moves more often cannot be caught."""
POLL_SECONDS: Final = 0.1
"""Time within which a client without a timeout notices that it must stop waiting, or that the job has moved."""
REPEATABLE: Final = (messages.IngestPorts, messages.CommitRequest, messages.RaiseWatermark, messages.SourceEnded)
"""Questions that a client may repeat after they were accepted. Ports are only reported. A batch, identified by its
query and number, is committed once, and a query ends once."""
QUESTIONS: Final = (
    messages.StatusQuery, messages.ExplainQuery, messages.WatchQuery, messages.TryBins, messages.GetState,
)  # fmt: skip
"""Questions that change nothing, answered or not. A command asks one of them first."""

Show: TypeAlias = Callable[[messages.CommandProgress], None]
"""Receives reports of a request's progress."""


class Stopped(Exception):
    """The client has stopped waiting for the answer, because its owner is stopping."""


@dataclass(eq=False, repr=False)
class Conversation:
    """Conversation of one client with a job's coordinator. One writer: the thread that asks.

    The conversation owns its client. `_connect` follows the coordinator to an address; without it, a coordinator that
    has moved is an error. `_find` connects to the job's current address, or returns None if it finds none; it is called
    until `patience_seconds` are over. Without `_timeout_seconds`, an answer may take any time, until `stopping` returns
    true. `stopping` waits for at most the given number of seconds, like `threading.Event.wait`. `quiet` is called after
    QUIET_SECONDS without a message and returns the reason; an error that it raises ends the question.
    """

    _client: Client
    _timeout_seconds: float | None
    _connect: Callable[[str, int], Client] | None = None
    _find: Callable[[], Client | None] = lambda: None
    patience_seconds: float = 0.0
    stopping: Callable[[float], bool] = lambda seconds: False
    quiet: Callable[[], str] | None = None
    _why: str = "a worker may be in a long step of user code"  # the reason for the silence
    _id: int = 0
    _waits: str = ""  # the fate of the last question if no answer comes
    accepted: int | None = None  # the epoch of the last command, once it is accepted
    _heard: messages.CommandProgress | None = None  # the last one received about the current command
    _told: messages.Moved | None = None  # the coordinator's new address, announced by the connected process

    @property
    def address(self) -> str:
        """Address of the process behind the connection, as HOST:PORT."""
        return self._client.address

    def ask(self, body: object, show: Show | None = None, grace_seconds: float = 0.0) -> Any:
        """Return the result of a request; `show` receives reports of its progress.

        Raises CommandRefused with the reason, PeerLost if the job ends before, ClusterError if the coordinator cannot
        be caught, and MegaflowError after the given time without a message. Raises Stopped if the owner is stopping and
        `grace_seconds` more have not brought the answer. Errors of `connect` and `find` pass through.
        """
        for _ in range(MOVES_MAX):
            self._id += 1
            self.accepted = self._heard = None
            changes = not (isinstance(body, QUESTIONS) or (isinstance(body, messages.RemoveWorker) and body.ask_only))
            self._waits = "the request is queued there" if changes else "nothing has changed"
            try:
                self._client.send(messages.Request(self._id, body))
                answer = self._await_answer(show, grace_seconds)
            except PeerLost as error:
                begun = self.accepted is not None or self._heard is not None
                if (begun and not isinstance(body, REPEATABLE)) or not self._find_again():
                    raise PeerLost(f"the job ended before it completed the request ({error})") from error
                continue
            if isinstance(answer, messages.Done):
                return answer.result
            if self._connect is None:
                place = address_text((answer.host, answer.port))
                raise CommandRefused(f"the coordinator has moved to {place}: connect to that address")
            self.close()
            self._client, self._told = self._connect(answer.host, answer.port), None
        raise ClusterError(f"the job's coordinator moved {MOVES_MAX} times during one request: try again")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _await_answer(self, show: Show | None, grace_seconds: float) -> messages.Done | messages.Moved:
        waited, due = 0.0, QUIET_SECONDS  # since the last message; until `quiet` is called
        while True:
            if self.stopping(0.0):
                if grace_seconds <= 0:
                    raise Stopped
                grace_seconds -= POLL_SECONDS
            patience = POLL_SECONDS if self._timeout_seconds is None else self._timeout_seconds - waited
            if self.quiet is not None:
                patience = min(patience, due - waited)
            try:
                answer = self._client.receive(max(0.0, patience))
            except TimeoutError as error:
                waited += patience
                if self._timeout_seconds is not None and waited >= self._timeout_seconds:
                    raise MegaflowError(self._overdue(f"within {self._timeout_seconds:g} s")) from error
                if self.quiet is not None and waited >= due:
                    self._why = self.quiet()
                    due += QUIET_AGAIN_SECONDS
                continue
            waited, due = 0.0, QUIET_SECONDS
            match answer:
                case messages.Refused(id, reason) if id == self._id:
                    raise CommandRefused(reason)
                case messages.Accepted(id, epoch) if id == self._id:
                    self.accepted = epoch
                case messages.CommandProgress(id) if id == self._id:
                    self._heard = answer
                    if show is not None:
                        show(answer)
                case messages.Done(id) | messages.Moved(id) if id == self._id:
                    return answer
                case messages.Moved(messages.NO_REQUEST):
                    self._told = answer

    def _follow(self) -> bool:
        """Connect to the address that the process behind the ended connection announced; return whether that worked."""
        with suppress(PeerLost):
            for word in self._client.receive_available():
                self._told = word if isinstance(word, messages.Moved) else self._told
        told, self._told = self._told, None
        if told is None or self._connect is None:
            return False
        with suppress(JobNotFound):
            client = self._connect(told.host, told.port)
            self.close()
            self._client = client
            return True
        return False

    def _find_again(self) -> bool:
        """Connect to the job's current address; return False if there is none, or only the old one."""
        if self._follow():
            return True
        waited_seconds = 0.0
        while (client := self._find()) is None or client.address == self.address:
            if client is not None:
                client.close()
            if waited_seconds >= self.patience_seconds or self.stopping(POLL_SECONDS):
                return False
            waited_seconds += POLL_SECONDS
        self.close()
        self._client = client
        return True

    def _overdue(self, waited: str) -> str:
        if self._heard is not None:
            what = f"{self._heard.what} ({self._heard.done} of {self._heard.steps} steps)"
            return f"no progress {waited}; last report: {what}; the request goes on"
        if self.accepted is None:
            return f"the job did not answer {waited}; {self._why}; {self._waits}"
        return f"the command was accepted for epoch {self.accepted} but has not taken effect {waited}; it still will"
