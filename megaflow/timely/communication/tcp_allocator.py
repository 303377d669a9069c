"""One worker's end of the TCP transport.

Progress for all workers of another process leaves as one message, addressed to EVERYBODY, and that process puts it into
each worker's inbox. The message takes its place in the same lane as messages to single workers of that process, and
each inbox gets it in the same read. So messages of one lane, from one worker to another, stay in the order in which
they were sent. Progress for only some of those workers, or after this worker has forgotten some, leaves as one message
for each.
"""

import time
from collections.abc import Collection, Iterable

from megaflow.timely.communication.allocator import FailureReport
from megaflow.timely.communication.channel import Channel, Envelope, Lane
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.tcp import Link
from megaflow.timely.communication.tcp_fabric import TcpFabric
from megaflow.timely.communication.wire import EVERYBODY, pack_message

EAGER_BYTES = 1024 * 1024  # queued in one lane: with more, the socket is tried before the step ends
POLL_INTERVAL_SECONDS = 0.0002  # while there is other work; a poll of the sockets takes some 5 µs


class TcpAllocator:
    """An Allocator on a TcpFabric; it keeps the rules of the protocol `Allocator`."""

    def __init__(self, fabric: TcpFabric, index: int) -> None:
        self.index = index
        self._fabric = fabric
        self._inbox = fabric.inboxes[index]
        self._forgotten: set[int] = set()  # workers; messages to them are dropped
        self._polled_at = 0.0  # seconds, monotonic

    @property
    def neighbours(self) -> Collection[int]:
        """Return the ids of this process's workers."""
        return self._fabric.inboxes.keys()

    @property
    def pending_bytes(self) -> int:
        """Return the largest number of DATA bytes queued for one peer process."""
        return max((link.pending[Lane.DATA] for link in self._fabric.peers.links.values()), default=0)

    def send(self, target: int, channel: Channel, body: object) -> None:
        """Deliver to a worker of this process, or encode and queue; raises CannotTravel."""
        if target in self._fabric.inboxes:
            self._deliver(target, Envelope(channel, self.index, body))
        else:
            encoded = encode(body)
            if target not in self._forgotten:
                self._queue(self._fabric.peers.links[target], target, channel, encoded)

    def send_all(self, targets: Iterable[int], channel: Channel, body: object) -> None:
        """Call `send` for each target, but encode only once.

        Progress for all workers of another process goes there once, and they share it.
        """
        away: dict[Link, list[int]] = {}
        for target in targets:
            if target in self._fabric.inboxes:
                self._deliver(target, Envelope(channel, self.index, body))
            elif target not in self._forgotten:
                away.setdefault(self._fabric.peers.links[target], []).append(target)
        if not away:
            return
        encoded = encode(body)
        here = len(self._fabric.inboxes)  # all processes have the same number of workers
        for link, there in away.items():
            once = channel.lane is Lane.PROGRESS and 1 < len(there) == here
            for target in (EVERYBODY,) if once else there:
                self._queue(link, target, channel, encoded)

    def flush(self) -> None:
        """Try once to send the queued bytes, or let the polling worker do it."""
        if self._polls():
            self._fabric.flush()
        elif self._fabric.poller.dirty:
            self._fabric.poller.wake()

    def receive(self, busy: bool = False) -> list[Envelope]:
        """Return the messages that have arrived; raises once the cluster has failed."""
        fabric = self._fabric
        fabric.check()
        if not self._polls():
            if not busy:
                self.flush()
        elif not busy or time.monotonic() >= self._polled_at + POLL_INTERVAL_SECONDS:
            fabric.poll(0, flush=not busy)
            self._polled_at = time.monotonic()
            fabric.check()
        return self._inbox.drain()

    def park(self, seconds: float | None) -> None:
        """Block until something arrives, `wake` is called or the time is up; raises once the cluster has failed."""
        self._fabric.check()
        if self._polls():
            self._fabric.poll(0 if self._inbox.is_due() else seconds)
            self._polled_at = time.monotonic()
            self._inbox.is_due()
        else:
            self.flush()
            self._inbox.wait(seconds)
        self._fabric.check()

    def wake(self) -> None:
        """Make the present or next `park` return. Any thread and signal handlers may call it."""
        self._inbox.wake()
        if self._polls():
            self._fabric.poller.wake()

    def promote(self, ids: Collection[int]) -> None:
        """Make these newcomers members; raises if the cluster has failed, as it has if they are lost by now."""
        self._fabric.promote(ids)

    def forget(self, ids: Collection[int]) -> None:
        """Permanently disconnect from workers, newcomers or members; the process does so when its last worker does."""
        self._forgotten |= set(ids) - self._fabric.inboxes.keys()
        self._fabric.forget(self.index, ids)
        self.flush()

    def finish(self) -> None:
        """Take this worker out. The last one of the process waits until every member's process is done."""
        self._fabric.finish(self.index)

    def abort(self, report: FailureReport) -> None:
        """Make every other worker, here and elsewhere, raise PeerFailed with the report."""
        self._fabric.abort(report)

    def _polls(self) -> bool:
        return self._fabric.polling == self.index

    def _deliver(self, target: int, envelope: Envelope) -> None:
        self._fabric.inboxes[target].deliver(envelope)
        if target != self.index and target == self._fabric.polling:
            self._fabric.poller.wake()

    def _queue(self, link: Link, target: int, channel: Channel, encoded: bytes) -> None:
        if link.queue(channel.lane, pack_message(self.index, target, channel, encoded)) > EAGER_BYTES:
            self.flush()
