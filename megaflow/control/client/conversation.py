"""A client's questions to a job's coordinator, one after another, wherever the coordinator is by then.

The command line, the driver of Spark's queries and the launcher's own request to stop all ask this way.
 1. Each question has a number of its own. An answer with another number is to an earlier question, and is dropped.
 2. `Moved` names the coordinator's new address. The client connects there and asks again, up to MOVES_MAX times.
 3. When a connection ends before the answer, the client asks `find` where the job is by now, and goes on asking until
    its patience is over, as the new address may become known a little later than the old process ends. If there is no
    other address the job has ended: PeerLost. Before that it goes where the old process has told it to: that tells
    everybody who is connected where the coordinator is, also who has asked nothing yet.
 4. After a lost connection a question is asked again only if its command had not begun (neither `Accepted` nor
    `CommandProgress` was heard), or if it is REPEATABLE. If it may not be asked again: PeerLost.
 5. The client stops waiting after a time in which nothing was heard, or when its owner is `stopping`.

Why nothing is done twice. A coordinator hands over only at rest (see `megaflow.control.coordinator.job_state`): what it
has begun is finished and answered before. What it has not begun it answers with `Moved`, as does each process that
never was the coordinator; so rule 2 repeats only what had no effect. Rule 4 needs what a coordinator has sent to arrive
before the end of its connection does. It does: TCP discards it only if the process closes a connection from which it
has not read all, and a client whose question was accepted has sent nothing since. A coordinator that dies without
handing over ends its job, so nobody is left to repeat the question to. What is REPEATABLE has the same effect however
often it is asked, and of each successor, too, which is told of commits and ended queries when it takes over.

Why no question is lost when the coordinator moves between question and answer. The process that hands over keeps what
it is asked (`ControlDoor.keep`) until its successor serves, and then answers `Moved`; what it has not read when it ends
is told by the end of the connection, which is rule 3. So each question ends in an answer, in `Moved`, or in a lost
connection, and only the last of these can end in an error.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from megaflow.control import messages
from megaflow.control.messages import (
    Accepted,
    CommandProgress,
    CommitRequest,
    Done,
    ExplainQuery,
    GetState,
    IngestPorts,
    Moved,
    Refused,
    RemoveWorker,
    Request,
    SourceEnded,
    StatusQuery,
    TryBins,
)
from megaflow.errors import ClusterError, CommandRefused, JobNotFound, MegaflowError, PeerLost
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.tcp import address_text

QUIET_SECONDS: Final = 2.0
"""Without a word from the coordinator, until others are asked why it is silent."""
QUIET_AGAIN_SECONDS: Final = 10.0
"""Until they are asked again."""
MOVES_MAX: Final = 10
"""Addresses at which one question is asked: a coordinator that moves more often moves faster than it can be asked."""
POLL_SECONDS: Final = 0.1
"""How late a client without a timeout notices that it is to stop waiting, or that the job is elsewhere."""
REPEATABLE: Final = (IngestPorts, CommitRequest, SourceEnded)
"""Questions that may be asked again though they were accepted: ports are only told, a batch is committed once by its
query and number, and a query ends once."""
QUESTIONS: Final = (StatusQuery, ExplainQuery, TryBins, GetState)
"""What changes nothing, whether it is answered or not: the first that a command asks."""


class Stopped(Exception):
    """The answer was not waited for: the owner of the conversation is stopping."""


class Conversation:
    """One client's. One writer: the thread that asks."""

    def __init__(
        self,
        client: Client,
        timeout_seconds: float | None,
        connect: Callable[[str, int], Client] | None = None,
        find: Callable[[], Client | None] = lambda: None,
        *,
        patience_seconds: float = 0.0,
        stopping: Callable[[float], bool] | None = None,
        quiet: Callable[[], str] | None = None,
    ) -> None:
        """`client` belongs to this from now on.

        `connect` follows the coordinator to an address; without, a coordinator that has moved is an error. `find`
        connects to where the job is found by now, None if it is not; it is called until `patience_seconds` are over.
        Without `timeout_seconds` an answer is waited for until `stopping`, which waits for so many seconds at most (as
        `threading.Event.wait` does), says that it is time to stop. `quiet` is called when nothing was heard for
        QUIET_SECONDS, and says why; what it raises ends the question.
        """
        assert stopping is not None or not patience_seconds, "`stopping` is what waits between two calls of `find`"
        self._client = client
        self._timeout_seconds = timeout_seconds
        self._connect = connect
        self._find = find
        self._patience_seconds = patience_seconds
        self._stopping = stopping or (lambda seconds: False)
        self._quiet = quiet
        self._why = "a worker may be in a long step of user code"  # nothing is heard
        self._id = 0
        self._waits = ""  # what becomes of the last question if nothing is heard
        self.accepted: int | None = None  # the epoch of the last command, once it is accepted
        self._heard: CommandProgress | None = None  # of the last command
        self._told: Moved | None = None  # where the coordinator is, said to whoever was connected

    @property
    def address(self) -> str:
        """With whom the conversation is now, as HOST:PORT."""
        return self._client.address

    def ask(
        self, body: object, show: Callable[[CommandProgress], None] | None = None, grace_seconds: float = 0.0
    ) -> Any:
        """Return what the request is done with; `show` is told how far it has come.

        Raises CommandRefused with the reason, PeerLost if the job ends before, ClusterError if the coordinator cannot
        be caught, MegaflowError if nothing is heard for the time given, Stopped if this is stopping and
        `grace_seconds` more have not brought the answer, and what `connect` and `find` raise.
        """
        for _ in range(MOVES_MAX):
            self._id += 1
            self.accepted = self._heard = None
            changes = not (isinstance(body, QUESTIONS) or (isinstance(body, RemoveWorker) and body.ask_only))
            self._waits = "the request is queued there" if changes else "nothing has changed"
            try:
                self._client.send(Request(self._id, body))
                answer = self._await_answer(show, grace_seconds)
            except PeerLost as error:
                begun = self.accepted is not None or self._heard is not None
                if (begun and not isinstance(body, REPEATABLE)) or not self._find_again():
                    raise PeerLost(f"the job ended before it completed the request ({error})") from error
                continue
            if isinstance(answer, Done):
                return answer.result
            if self._connect is None:
                place = address_text((answer.host, answer.port))
                raise CommandRefused(f"the coordinator has moved to {place}: connect to that address")
            self.close()
            self._client, self._told = self._connect(answer.host, answer.port), None
        raise ClusterError(f"the job's coordinator moved {MOVES_MAX} times during one request: try again")

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def _await_answer(self, show: Callable[[CommandProgress], None] | None, grace_seconds: float) -> Done | Moved:
        waited, due = 0.0, QUIET_SECONDS  # since something was heard; until `quiet` is called
        while True:
            if self._stopping(0.0):
                if grace_seconds <= 0:
                    raise Stopped
                grace_seconds -= POLL_SECONDS
            patience = POLL_SECONDS if self._timeout_seconds is None else self._timeout_seconds - waited
            if self._quiet is not None:
                patience = min(patience, due - waited)
            try:
                answer = self._client.receive(max(0.0, patience))
            except TimeoutError as error:
                waited += patience
                if self._timeout_seconds is not None and waited >= self._timeout_seconds:
                    raise MegaflowError(self._overdue(f"within {self._timeout_seconds:g} s")) from error
                if self._quiet is not None and waited >= due:
                    self._why = self._quiet()
                    due += QUIET_AGAIN_SECONDS
                continue
            waited, due = 0.0, QUIET_SECONDS
            match answer:
                case Refused(id, reason) if id == self._id:
                    raise CommandRefused(reason)
                case Accepted(id, epoch) if id == self._id:
                    self.accepted = epoch
                case CommandProgress(id) if id == self._id:
                    self._heard = answer
                    if show is not None:
                        show(answer)
                case Done(id) | Moved(id) if id == self._id:
                    return answer
                case Moved(messages.NO_REQUEST):
                    self._told = answer

    def _follow(self) -> bool:
        """Connect to where the process whose connection has ended has said that the coordinator is, if it has."""
        with suppress(PeerLost):
            for word in self._client.receive_available():
                self._told = word if isinstance(word, Moved) else self._told
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
        """Connect to where the job is by now; False if that is nowhere, or where it was."""
        if self._follow():
            return True
        waited_seconds = 0.0
        while (client := self._find()) is None or client.address == self.address:
            if client is not None:
                client.close()
            if waited_seconds >= self._patience_seconds or self._stopping(POLL_SECONDS):
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
