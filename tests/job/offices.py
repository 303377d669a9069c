"""Processes of a job for tests. Each answers on the role "control", on a thread of its own."""

import socket
import threading
from collections.abc import Callable
from typing import Any, Self

from megaflow.control.coordinator.base.events import Asked, Gone
from megaflow.control.messages import Accepted, Done, JobSettings
from megaflow.job.worker.control.connection_handlers import ControlDoor
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.rendezvous import PeerAddress
from megaflow.timely.communication.tcp_allocator import TcpAllocator
from megaflow.timely.communication.tcp_fabric import TcpFabric

SECRET = b"known to the test only"


class Office:
    """A process with a door. Its coordinator, if it has it, accepts every request. Ends with its block."""

    def __init__(self, elsewhere: tuple[str, int] | None = None, leaves: str = "") -> None:
        """`elsewhere` is the coordinator's address; None: here. The process `leaves` when "asked" or "accepted"."""
        self.asked: list[Any] = []  # bodies of requests
        self._leaves = leaves
        self.door = ControlDoor(elsewhere, JobSettings("job", 1, None, "replace", (("", "records"),)))
        if elsewhere is None:
            self.door.serve(self._serve)
        listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = listener.getsockname()
        self._fabric = TcpFabric(listener, [0], SECRET, {"control": self.door})
        self._fabric.connect([PeerAddress(0, *self.address, (0,))], 0, 2)
        self._ending = threading.Event()
        self._calls: list[Callable[[], None]] = []  # run on the thread
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End like a process that leaves the job."""
        if not self._ending.is_set():
            self._ending.set()
            self._thread.join()
            self._fabric.close()

    def redirect(self, other: "Office") -> None:
        """Make the other process the coordinator. Returns once clients were informed."""
        self._calls.append(lambda: self.door.redirect(*other.address))
        while self._calls:
            self._ending.wait(0.01)

    def client(self) -> Client:
        """Return a connection to this process."""
        return connect(*self.address)

    def _run(self) -> None:
        allocator = TcpAllocator(self._fabric, 0)
        while not self._ending.is_set():
            allocator.park(0.02)
            allocator.receive()
            for call in self._calls:
                call()
            self._calls.clear()

    def _serve(self, event: Asked | Gone) -> None:
        if isinstance(event, Asked):
            self.asked.append(event.request.body)
            client: Any = event.client
            if self._leaves != "asked":
                client.send(Accepted(event.request.id, 7))
            if self._leaves:
                client.connection.close()
            else:
                client.send(Done(event.request.id, "yes"))


def connect(host: str, port: int) -> Client:
    """A connection to an office."""
    return Client.connect(host, port, SECRET, "control", {})
