"""The way in: what the port of each process does with processes that want to join.

A request comes on a connection of role "join". It is put into the mailbox of a worker of this process, which passes it
to the coordinator and brings the answer back; then the connection has done its duty.

Everything here happens on the thread of one worker: connections are served by the first worker of the process that
has not finished, and the same one is asked. When it finishes, whoever still waits for its answer is sent away.
"""

from collections.abc import Sequence
from itertools import count
from typing import Any

from megaflow.errors import ConfigMismatch, ProtocolError
from megaflow.timely.communication.role_handlers import Connection, Post
from megaflow.timely.membership import WorkerId
from megaflow.timely.rescale.messages import TOPIC, Admission, Denied, JoinAsk, LinkLost

ASKS_MAX = 64  # at a time; one change takes place after the other, so more would only wait


class JoinDoor:
    """Serves the role "join", and tells the workers of links that end while somebody is joining."""

    def __init__(self, local_workers: Sequence[WorkerId]) -> None:
        self._workers = list(local_workers)  # those that have not finished
        self._asks: dict[int, tuple[Connection, WorkerId]] = {}  # key -> who asks, the worker that will answer
        self._gone: dict[int, WorkerId] = {}  # key of an ask whose process has hung up -> the worker that will answer
        self._keys = count()
        self._post: Post | None = None

    def attach(self, post: Post) -> None:
        """Learn how to reach the workers of this process."""
        self._post = post

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Ask on behalf of a process; raises ConfigMismatch if nobody can answer any more."""
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
        """Refuse: a process that wants to join has nothing more to say."""
        self.lost(connection)
        raise ProtocolError(f"a {type(value).__name__} after a request to join")

    def lost(self, connection: Connection) -> None:
        """Note that a process has hung up."""
        for key in [key for key, ask in self._asks.items() if ask[0] is connection]:
            self._gone[key] = self._asks.pop(key)[1]

    def answer(self, key: int, answer: Admission | Denied) -> None:
        """Send the coordinator's answer, on the thread of the worker that was asked.

        If nobody waits for it any more the coordinator is told, who would wait for whom it has admitted.
        """
        worker = self._gone.pop(key, None)
        if worker is not None and self._post is not None and isinstance(answer, Admission):
            self._post(worker, TOPIC, LinkLost(answer.ids))
        connection, _ = self._asks.pop(key, (None, None))
        if connection is not None:
            connection.send(answer)
            connection.close()

    def link_lost(self, ids: tuple[WorkerId, ...]) -> None:
        """Tell every worker of this process."""
        assert self._post is not None, "links end after they are met"
        for worker in self._workers:
            self._post(worker, TOPIC, LinkLost(ids))

    def finished(self, worker: WorkerId) -> None:
        """Ask this worker nothing more, and send away those who wait for it."""
        self._workers.remove(worker)
        self._gone = {key: asked for key, asked in self._gone.items() if asked != worker}
        for key in [key for key, (_, asked) in self._asks.items() if asked == worker]:
            self.answer(key, Denied("the cluster has come to its end"))
