"""The launcher's own request that the job stop: to the coordinator, wherever that is by then.

A thread asks, as connecting and waiting would block the launcher's loop. What the request comes to is only reported:
if the job stops the loop sees it by the ends of its processes.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence

from megaflow.control.client.conversation import Conversation, Stopped
from megaflow.control.messages import StopJob
from megaflow.errors import JobNotFound, MegaflowError, PeerLost
from megaflow.job.spec import Address
from megaflow.timely.communication.client import Client

FAREWELL_SECONDS = 1.0  # for the thread to notice that nothing is to be asked any more


class Stop:
    """One request, made once. One writer: the launcher's loop."""

    def __init__(self, secret: bytes, report: Callable[[str], None]) -> None:
        """`report` tells the user; the thread calls it."""
        self._secret = secret
        self._report = report
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def ask(self, addresses: Iterable[Address]) -> None:
        """Ask the first process of these that answers; each knows where the coordinator is. Does not block."""
        self._thread = threading.Thread(target=self._ask, args=(tuple(addresses),), name="megaflow-stop", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the answer no longer, and report nothing more."""
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
            self._say(f"the job is already ending: {error}")
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
        """Connect to the first of these that answers. Raises JobNotFound if none does, with the first one's reason."""
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
