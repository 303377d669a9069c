"""The launcher's own request that the job stop: to the coordinator, wherever that is by then."""

import selectors
from collections.abc import Callable, Iterable

from megaflow.control.messages import Moved, Refused, Request, StopJob
from megaflow.errors import PeerLost
from megaflow.job.spec import Address
from megaflow.timely.communication.client import Client

MOVES_MAX = 10  # a job that moves faster than it can be asked


class Stop:
    """One request, made once. One writer: the launcher's loop, which gives its selector."""

    def __init__(self, secret: bytes, selector: selectors.BaseSelector, report: Callable[[str], None]) -> None:
        """`report` tells the user."""
        self._secret = secret
        self._selector = selector
        self._report = report
        self._client: Client | None = None
        self._moves = 0

    def ask(self, addresses: Iterable[Address]) -> None:
        """Ask the first process of these that answers; each knows where the coordinator is."""
        failure: Exception | None = None
        for host, port in addresses:
            try:
                client = Client.connect(host, port, self._secret, "control", {})
                client.send(Request(0, StopJob()))
            except (PeerLost, OSError) as error:
                failure = failure or error
                continue
            self._client = client
            self._selector.register(client, selectors.EVENT_READ, self._hear)
            self._hear()  # what came with the handshake's last bytes
            return
        self._report(f"the job is ending already: {failure}")

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def _hear(self) -> None:
        client = self._client
        assert client is not None
        try:
            for message in client.receive_available():
                match message:
                    case Refused(_, reason):
                        self._report(f"the job was not stopped: {reason}")
                    case Moved(_, host, port):
                        self._selector.unregister(client)
                        client.close()
                        self._moves += 1
                        if self._moves > MOVES_MAX:
                            self._report(f"the job was not stopped: its coordinator has moved {self._moves} times")
                        else:
                            self.ask([(host, port)])
                        return
        except PeerLost:  # it ends with the job
            self._selector.unregister(client)
