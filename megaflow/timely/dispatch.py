"""Dispatch of messages that arrive at one worker: a table from channel to handler; mail also has topics.

The path of a message from a peer process, and the part that decides at each point where it goes next:

1. `tcp.Link` reads bytes and cuts them into messages. Its owner receives each one.
2. `peers.Peer` decodes the body and puts the envelope into the target's inbox. A message of this process begins here.
3. The worker empties its inbox once per step and looks each channel up in this table. A joining worker, and a worker
   whose commit of a join is still under way, keep back messages that they cannot use yet (see `Member.takes`).
4. The handler acts: `ChannelEnd.receive` queues records at an operator's input, `GraphProgress.receive` folds progress,
   `Handoffs.hear` takes credit back, `Member.hear_lane` follows a membership change, `Dispatch` itself reads mail.

A message without a handler is for a dataflow that does not run here. `Dataflows.take_unclaimed` keeps it, drops it or
raises.
"""

from collections.abc import Callable
from typing import Any

from megaflow.errors import BuildError
from megaflow.timely.communication.allocator import Allocator
from megaflow.timely.communication.channel import MAIL, Channel, Handler


class Dispatch:
    """Handlers of the channels, and of the topics of the mail. Only the worker's thread reads and writes them."""

    def __init__(self, allocator: Allocator) -> None:
        self.handlers: dict[Channel, Handler] = {MAIL: self._read_mail}
        self._allocator = allocator
        self._topics: dict[str, Handler] = {}
        self._unread: dict[str, list[tuple[int, Any]]] = {}  # topic without a handler yet -> (source, body)

    def post(self, target: int, topic: str, body: object) -> None:
        """Send mail to a worker, which may be this one. FIFO for each pair of workers. Does not block."""
        self._allocator.send(target, MAIL, (topic, body))

    def on_mail(self, topic: str, handler: Callable[[int, Any], None]) -> None:
        """Call `handler(source, body)` for each message on `topic`, including those that have already arrived."""
        if topic in self._topics:
            raise BuildError(f"on_mail: {topic!r} already has a handler")
        self._topics[topic] = handler
        for source, body in self._unread.pop(topic, []):
            handler(source, body)

    def _read_mail(self, source: int, message: tuple[str, Any]) -> None:
        topic, body = message
        handler = self._topics.get(topic)
        if handler is None:
            self._unread.setdefault(topic, []).append((source, body))
        else:
            handler(source, body)
