"""A port of the launcher for connections from other processes, and the thread that serves it.

Agents of processes connect to one such port. Readers of the job's results connect to another.

1. Only the port's thread touches connections. Other threads give it work by `call`.
2. As at a worker's port, a client must prove that it knows the job's secret before the port accepts it.
"""

import logging
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from megaflow.errors import ConfigMismatch
from megaflow.job.agent_messages import AGENT_ROLE
from megaflow.job.reachable import interfaces
from megaflow.timely.communication.acceptor import HANDSHAKE_SECONDS, Acceptor
from megaflow.timely.communication.handshake import welcome
from megaflow.timely.communication.poller import Poller
from megaflow.timely.communication.role_handlers import Connection, RoleHandler
from megaflow.timely.communication.tcp import Link

FAREWELL_SECONDS = 5.0  # for the thread to end

log = logging.getLogger("megaflow.job.launcher")


class AgentDoor:
    """A port and its thread, which runs until `close` and reports connections to `handler`."""

    def __init__(
        self, is_local: bool, driver: str, secret: bytes, handler: RoleHandler, role: str = AGENT_ROLE
    ) -> None:
        """Listen and serve. Clients must name `role` as theirs. Raises OSError.

        `is_local`: all clients are on this machine. The others know it as `driver`, if Spark is right.
        """
        listener = socket.create_server(("127.0.0.1" if is_local else "", 0))
        hosts = ["127.0.0.1"] if is_local else list(dict.fromkeys([driver, *interfaces()]))
        self.addresses = tuple((host, int(listener.getsockname()[1])) for host in hosts)  # the likeliest first
        self._handler = handler
        self._role = role
        self._poller = Poller()
        self._calls: deque[Callable[[], object]] = deque()  # any thread appends, this one pops
        self._is_closing = False
        self._acceptor = Acceptor(self._poller, listener, secret, self._admit, HANDSHAKE_SECONDS)
        self._thread = threading.Thread(target=self._run, name="megaflow-agents", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], object]) -> None:
        """Make the thread call a function. Any thread may ask; after the thread has ended, nothing happens."""
        self._calls.append(function)
        self._poller.wake()

    def close(self) -> None:
        """Make the remaining calls, close all connections, and end the thread."""
        self._is_closing = True
        self._poller.wake()
        self._thread.join(FAREWELL_SECONDS)

    def _run(self) -> None:
        try:
            while not (self._is_closing and not self._calls):
                self._poller.poll(None)
                while self._calls:
                    self._calls.popleft()()
            self._poller.poll(0.0)
        finally:
            self._acceptor.close()
            self._poller.close()

    def _admit(self, link: Link, role: str, hello: dict[str, Any]) -> None:
        if role != self._role:
            raise ConfigMismatch(f"This launcher's port serves {self._role!r}, not the role {role!r:.50}.")
        connection = Connection(self._poller, link, self._handler, log.info)
        self._handler.connected(connection, hello)
        link.owner = connection
        link.queue(0, [welcome({})])
