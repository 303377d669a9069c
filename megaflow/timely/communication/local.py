"""The transport among the threads of one process: inboxes of references, no bytes.

This order of actions loses no wake-up. A sender first adds the envelope, then sets the event. The receiver first clears
the event, then reads its inbox. So a sender that finds the event set need not set it again: the receiver has yet to
clear it, and reads the inbox after that, when it contains the envelope.
"""

import threading
from collections import deque
from collections.abc import Collection, Iterable

from megaflow.timely.communication.allocator import FailureReport
from megaflow.timely.communication.channel import Channel, Envelope

SIGNAL_SECONDS = 0.5
"""A thread that waits without limit wakes up this often. Otherwise a Ctrl-C just before the wait would be lost."""


class Inbox:
    """Messages that have arrived for one worker. Any thread delivers; the owner drains and parks."""

    def __init__(self) -> None:
        self._arrived: deque[Envelope] = deque()
        self._event = threading.Event()
        self._woken = False
        self._finished = False  # later envelopes are dropped

    def deliver(self, envelope: Envelope) -> None:
        """Add one envelope and end the owner's wait."""
        if not self._finished:
            self._arrived.append(envelope)
            if not self._event.is_set():
                self._event.set()

    def wake(self) -> None:
        """End the present or the next wait."""
        self._woken = True
        self._event.set()

    def finish(self) -> None:
        """Drop all envelopes, present and future."""
        self._finished = True
        self._arrived.clear()

    def drain(self) -> list[Envelope]:
        """Remove and return the envelopes that have arrived so far."""
        arrived = self._arrived
        return [arrived.popleft() for _ in range(len(arrived))] if arrived else []

    def is_due(self) -> bool:
        """Return whether a wait would end at once. A `wake` counts for one wait."""
        woken, self._woken = self._woken, False
        return woken or bool(self._arrived)

    def wait(self, seconds: float | None) -> None:
        """Block until an envelope arrives, `wake` is called or the time is up."""
        self._event.clear()
        if not self.is_due():
            if seconds is None:
                while not self._event.wait(SIGNAL_SECONDS):
                    pass
            else:
                self._event.wait(seconds)
            self._woken = False


class LocalAllocator:
    """One worker's end of the transport among threads."""

    def __init__(self, fabric: "LocalFabric", index: int) -> None:
        self.index = index
        self.pending_bytes = 0  # no bytes are queued here
        self._fabric = fabric
        self._inbox = fabric.inboxes[index]

    @property
    def neighbours(self) -> Collection[int]:
        """Return the ids of all workers: each is a thread of this process."""
        return self._fabric.inboxes.keys()

    def send(self, target: int, channel: Channel, body: object) -> None:
        """Put the body into the target's inbox."""
        self._fabric.inboxes[target].deliver(Envelope(channel, self.index, body))

    def send_all(self, targets: Iterable[int], channel: Channel, body: object) -> None:
        """Put the body into each target's inbox."""
        for target in targets:
            self._fabric.inboxes[target].deliver(Envelope(channel, self.index, body))

    def flush(self) -> None:
        """Do nothing: `send` has already delivered."""

    def receive(self, busy: bool = False) -> list[Envelope]:
        """Return the messages that have arrived; raises PeerFailed once another worker has failed."""
        self._fabric.check(self.index)
        return self._inbox.drain()

    def park(self, seconds: float | None) -> None:
        """Block until something arrives, `wake` is called or the time is up."""
        self._fabric.check(self.index)
        self._inbox.wait(seconds)
        self._fabric.check(self.index)

    def wake(self) -> None:
        """Make the present or next `park` return."""
        self._inbox.wake()

    def promote(self, ids: Collection[int]) -> None:
        """Do nothing: no worker joins a single process."""

    def forget(self, ids: Collection[int]) -> None:
        """Do nothing: no worker leaves a single process."""

    def finish(self) -> None:
        """Drop all further messages. Does not wait for the other workers."""
        self._fabric.check(self.index)
        self._inbox.finish()

    def abort(self, report: FailureReport) -> None:
        """Make every other worker's `receive` and `park` raise PeerFailed."""
        self._fabric.fail(report)


class LocalFabric:
    """The inboxes of all workers of a single-process cluster."""

    def __init__(self, ids: Iterable[int]) -> None:
        self.inboxes = {index: Inbox() for index in ids}  # worker -> its inbox, never changed
        self._lock = threading.Lock()
        self._failure: FailureReport | None = None  # the first one; written under the lock

    def allocator(self, index: int) -> LocalAllocator:
        """Return the allocator of worker `index`."""
        return LocalAllocator(self, index)

    def fail(self, report: FailureReport) -> None:
        """Remember the first failure and wake all workers."""
        with self._lock:
            if self._failure is None:
                self._failure = report
        for inbox in self.inboxes.values():
            inbox.wake()

    def check(self, index: int) -> None:
        """Raise PeerFailed if a worker other than `index` has failed."""
        if self._failure is not None and self._failure.worker != index:
            raise self._failure.error()
