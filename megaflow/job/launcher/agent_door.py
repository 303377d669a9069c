"""A port of the launcher for connections from elsewhere, and the thread that serves it: agents of processes connect to
one such port, readers of the job's results to another.

Only the thread touches connections; other threads give it work (`call`). A client must prove that it knows the job's
secret, as at the port of a worker. Only then it is accepted.
"""

import logging
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from megaflow.errors import ConfigMismatch
from megaflow.job.agent_messages import AGENT_ROLE
from megaflow.timely.communication.acceptor import HANDSHAKE_SECONDS, Acceptor
from megaflow.timely.communication.handshake import welcome
from megaflow.timely.communication.poller import Poller
from megaflow.timely.communication.role_handlers import Connection, RoleHandler
from megaflow.timely.communication.tcp import Link

FAREWELL_SECONDS = 5.0  # for the thread to end

log = logging.getLogger("megaflow.launcher")


class AgentDoor:
    """The thread, from `start` to `close`. `handler` is told of connections, on the thread."""

    def __init__(self, host: str, secret: bytes, handler: RoleHandler, role: str = AGENT_ROLE) -> None:
        """`host` is the address to listen on, "" for all, `role` what those say that they are who come; raises OSError.
        """
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.port: int = listener.getsockname()[1]
        self._handler = handler
        self._role = role
        self._poller = Poller()
        self._calls: deque[Callable[[], object]] = deque()  # any thread appends, ours pops
        self._is_closing = False
        self._acceptor = Acceptor(self._poller, listener, secret, self._admit, HANDSHAKE_SECONDS)
        self._thread = threading.Thread(target=self._run, name="megaflow-agents", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def call(self, function: Callable[[], object]) -> None:
        """Have something done by the thread; any thread. Nothing once it has ended."""
        self._calls.append(function)
        self._poller.wake()

    def close(self) -> None:
        """Do what was asked for, and close all connections."""
        self._is_closing = True
        self._poller.wake()
        if self._thread.ident is not None:
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
