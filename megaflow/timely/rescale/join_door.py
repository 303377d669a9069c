"""Requests to join a running cluster: the process that asks, and the port that it contacts.

Every process of the cluster has such a port. A request comes on a connection of role "join". The door posts it to the
mailbox of a worker of this process, which passes it to the coordinator and brings back the answer. The door sends the
answer and closes the connection.

In the door, all of this happens on the thread of one worker. The first worker of the process that has not finished
serves the connections, and the same worker receives the requests. When it finishes, the door denies the requests that
still wait for it.
"""

import time
from collections.abc import Sequence
from itertools import count
from typing import Any

from megaflow.errors import ConfigMismatch, ConnectTimeout, JoinDenied, PeerLost, ProtocolError
from megaflow.timely.communication.address import address_text
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.role_handlers import Connection, Post
from megaflow.timely.communication.tcp_fabric import JOIN_ROLE
from megaflow.timely.membership import WorkerId
from megaflow.timely.rescale.messages import TOPIC, Admission, Denied, JoinAsk, LinkLost

CONNECT_SECONDS = 5.0  # for each contact, before trying the next
ROUND_SECONDS = 0.1  # between two rounds over all contacts
ASKS_MAX = 64  # at a time; the cluster makes one change at a time, so more requests would only wait


def ask_to_join(
    contacts: Sequence[tuple[str, int]],
    secret: bytes,
    listens: tuple[str, int],
    workers: int,
    server: WorkerId | None,
    timeout_seconds: float,
) -> Admission:
    """Ask one process after another until one answers; return the coordinator's permission to join.

    `listens` is the address of this process, `server` the worker to be bootstrapped by (None: any). Blocks until the
    answer, for at most the timeout. Raises JoinDenied with the reason, ConnectTimeout with each contact and its error,
    or ConfigMismatch if a process refuses the connection, for example because of a different secret.
    """
    deadline = time.monotonic() + timeout_seconds
    hello = {"host": listens[0], "port": listens[1], "workers": workers, "server": server}
    troubles = dict.fromkeys(contacts, "not tried")
    while True:
        for contact in contacts:
            left = deadline - time.monotonic()
            if left <= 0:
                named = "; ".join(f"{address_text(contact)} ({trouble})" for contact, trouble in troubles.items())
                raise ConnectTimeout(
                    f"this process could not join within {timeout_seconds:g} s: {named}. Name running processes of a "
                    "cluster"
                )
            try:
                return _ask(contact, secret, hello, min(left, CONNECT_SECONDS), deadline)
            except ConfigMismatch as error:
                raise ConfigMismatch(f"this process cannot join: {error}") from error
            except (OSError, PeerLost, ProtocolError) as error:  # TimeoutError is an OSError
                troubles[contact] = getattr(error, "strerror", None) or str(error)
        time.sleep(max(0.0, min(ROUND_SECONDS, deadline - time.monotonic())))


def _ask(
    contact: tuple[str, int], secret: bytes, hello: dict[str, object], connect_seconds: float, deadline: float
) -> Admission:
    with Client.connect(*contact, secret, JOIN_ROLE, hello, connect_seconds) as client:
        answer = client.receive(max(0.0, deadline - time.monotonic()))
    match answer:
        case Admission():
            return answer
        case Denied(reason):
            raise JoinDenied(f"this process may not join: {reason}")
    raise ProtocolError(f"a {type(answer).__name__} where an answer to a request to join was expected")


class JoinDoor:
    """Handler of the role "join"; also reports lost links to the workers while a process joins."""

    def __init__(self, local_workers: Sequence[WorkerId]) -> None:
        self._workers = list(local_workers)  # those that have not finished
        self._asks: dict[int, tuple[Connection, WorkerId]] = {}  # key -> the asking process, the worker that answers
        self._gone: dict[int, WorkerId] = {}  # key of a request whose process has hung up -> the worker that answers
        self._keys = count()
        self._post: Post | None = None

    def attach(self, post: Post) -> None:
        """Set the function that posts to the workers of this process."""
        self._post = post

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Post the request of a process. Raises ConfigMismatch if no worker can answer, or too many requests wait."""
        match hello:
            case {"host": str() as host, "port": int() as port, "workers": int() as workers, "server": server}:
                if server is not None and not isinstance(server, int):
                    raise ProtocolError(f"a request to join names {server!r} as its server, which is not a worker id")
            case _:
                raise ProtocolError(f"a request to join of another shape: {list(hello)}")
        if not self._workers or self._post is None:
            raise ConfigMismatch("no process can join any longer: the workers here have finished")
        if len(self._asks) >= ASKS_MAX:
            raise ConfigMismatch(f"{ASKS_MAX} processes are already waiting to join: try again later")
        key, worker = next(self._keys), self._workers[0]
        self._asks[key] = connection, worker
        self._post(worker, TOPIC, JoinAsk(key, host, port, workers, server))

    def received(self, connection: Connection, value: Any) -> None:
        """Refuse the message: a process that wants to join sends nothing after its request."""
        self.lost(connection)
        raise ProtocolError(f"a {type(value).__name__} after a request to join")

    def lost(self, connection: Connection) -> None:
        """Note that a process has hung up."""
        for key in [key for key, ask in self._asks.items() if ask[0] is connection]:
            self._gone[key] = self._asks.pop(key)[1]

    def answer(self, key: int, answer: Admission | Denied) -> None:
        """Send the coordinator's answer, on the thread of the worker that received the request.

        If the process has hung up, report that to the coordinator. Otherwise the coordinator would wait for a process
        that it has admitted.
        """
        worker = self._gone.pop(key, None)
        if worker is not None and self._post is not None and isinstance(answer, Admission):
            self._post(worker, TOPIC, LinkLost(answer.ids))
        connection, _ = self._asks.pop(key, (None, None))
        if connection is not None:
            connection.send(answer)
            connection.close()

    def link_lost(self, ids: tuple[WorkerId, ...]) -> None:
        """Report to every worker of this process that a link has ended."""
        assert self._post is not None, "links end after they are met"
        for worker in self._workers:
            self._post(worker, TOPIC, LinkLost(ids))

    def finished(self, worker: WorkerId) -> None:
        """Give this worker no further requests, and deny those that wait for its answer."""
        self._workers.remove(worker)
        self._gone = {key: asked for key, asked in self._gone.items() if asked != worker}
        for key in [key for key, (_, asked) in self._asks.items() if asked == worker]:
            self.answer(key, Denied("the cluster has come to its end"))
