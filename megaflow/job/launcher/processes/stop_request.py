"""The launcher's own request to the coordinator, wherever that is, to stop the job.

A thread makes the request, because connecting and waiting would block the launcher's loop. The thread only reports the
result: if the job stops, the loop notices that by the ends of the processes.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence

from megaflow.control.client.conversation import Conversation, Stopped
from megaflow.control.messages import StopJob
from megaflow.control.wording import Notice
from megaflow.errors import JobNotFound, MegaflowError, PeerLost
from megaflow.job.spec import Address
from megaflow.timely.communication.client import Client

FAREWELL_SECONDS = 1.0  # for the thread to notice `close`


class Stop:
    """A single request. One writer: the launcher's loop."""

    def __init__(self, secret: bytes, report: Callable[[str], None]) -> None:
        """`report` prints for the user; the thread calls it."""
        self._secret = secret
        self._report = report
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def ask(self, addresses: Iterable[Address]) -> None:
        """Ask the first of these processes that answers; each knows where the coordinator is. Does not block."""
        self._thread = threading.Thread(target=self._ask, args=(tuple(addresses),), name="megaflow-stop", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop waiting for the answer, and report nothing more."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(FAREWELL_SECONDS)

    def _ask(self, addresses: Sequence[Address]) -> None:
        try:
            first = self._first_of(addresses)
            with contextlib.closing(
                Conversation(first, None, self._connect, lambda: self._find(addresses[1:]), stopping=self._closed.wait)
            ) as talk:
                talk.ask(StopJob())
        except JobNotFound as error:
            self._say(Notice(f"the job is already ending: {error}"))
        except (PeerLost, Stopped):
            pass  # the connection ends with the job
        except MegaflowError as error:
            self._say(f"the job was not stopped: {error}")

    def _say(self, text: str) -> None:
        if not self._closed.is_set():
            self._report(text)

    def _connect(self, host: str, port: int) -> Client:
        try:
            return Client.connect(host, port, self._secret, "control", {})
        except (PeerLost, OSError) as error:
            raise JobNotFound(str(error)) from error

    def _first_of(self, addresses: Sequence[Address]) -> Client:
        """Connect to the first address that answers. If none does, raises JobNotFound with the first one's reason."""
        failure: JobNotFound | None = None
        for address in addresses:
            try:
                return self._connect(*address)
            except JobNotFound as error:
                failure = failure or error
        raise failure or JobNotFound("none of its processes is left")

    def _find(self, others: Sequence[Address]) -> Client | None:
        with contextlib.suppress(JobNotFound):
            return self._first_of(others)
        return None
