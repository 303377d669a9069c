"""What one worker does with what arrives: one table, channel -> handler; mail is told further by its topic.

The way of a message from a peer process, with what decides at each place where it goes on:

1. `tcp.Link` reads bytes and cuts messages from them; its owner takes each.
2. `peers.Peer` decodes the body and puts the envelope into the inbox of the target. A message of this process begins
   here.
3. The worker empties its inbox once in a step and looks each channel up in this table. A worker that joins, and one
   whose commit of a join is still under way, keep back what they cannot use yet (see `Member.takes`).
4. The handler acts: `ChannelEnd.receive` queues records at an operator's input, `GraphProgress.receive` folds
   progress, `Handoffs.hear` takes credit back, `Member.hear_lane` follows a change of the membership, `Dispatch` itself
   reads mail.

What no handler takes is for a dataflow that does not run here: `Dataflows.take_unclaimed` keeps it, drops it or raises.
"""

from collections.abc import Callable
from typing import Any

from megaflow.errors import BuildError
from megaflow.timely.communication.allocator import Allocator
from megaflow.timely.communication.channel import MAIL, Channel, Handler


class Dispatch:
    """Which handler reads each channel, and each topic of the mail. Written and read by the worker's thread."""

    def __init__(self, allocator: Allocator) -> None:
        self.handlers: dict[Channel, Handler] = {MAIL: self._read_mail}
        self._allocator = allocator
        self._topics: dict[str, Handler] = {}
        self._unread: dict[str, list[tuple[int, Any]]] = {}  # topic without a handler yet -> (source, body)

    def post(self, target: int, topic: str, body: object) -> None:
        """Send mail to a worker, this one included; FIFO for each pair of workers. Does not block."""
        self._allocator.send(target, MAIL, (topic, body))

    def on_mail(self, topic: str, handler: Callable[[int, Any], None]) -> None:
        """Call `handler(source, body)` for each message on `topic`, those that came before included."""
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
