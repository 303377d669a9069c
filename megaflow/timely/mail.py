"""Mail: messages between workers outside dataflows, sorted by topic as they come."""

from collections.abc import Callable
from typing import Any

from megaflow.errors import BuildError


class Mailbox:
    """Who on this worker reads what. Written and read by the worker's thread."""

    def __init__(self) -> None:
        self._handlers: dict[str, Callable[[int, Any], None]] = {}  # topic -> handler
        self._unread: dict[str, list[tuple[int, Any]]] = {}  # topic without a handler yet -> (source, body)

    def serve(self, topic: str, handler: Callable[[int, Any], None]) -> None:
        """Call `handler(source, body)` for each message on `topic`, those that came before included."""
        if topic in self._handlers:
            raise BuildError(f"on_mail: {topic!r} has a handler already")
        self._handlers[topic] = handler
        for source, body in self._unread.pop(topic, []):
            handler(source, body)

    def deliver(self, source: int, message: tuple[str, Any]) -> None:
        """Hand a message to its reader, or keep it for the one to come."""
        topic, body = message
        handler = self._handlers.get(topic)
        if handler is None:
            self._unread.setdefault(topic, []).append((source, body))
        else:
            handler(source, body)
