"""Channels of messages between workers, without dataflows: the communication layer, usable by itself.

    def main(allocator):
        pushers, puller = allocator.allocate()
        for index, pusher in enumerate(pushers):
            pusher.push(f"hello, {index}")
            pusher.done()
        ...                                          # messages = puller.pull() until all expected ones have arrived

    initialize(Config.process(2), main)

This layer knows no times and no frontiers: a receiver must decide by itself when it has all messages. It guarantees:
1. Messages of one channel from one worker to another arrive once, in the order in which they were pushed.
2. The order of allocation identifies a channel, so all workers must allocate alike. Messages for a channel that is not
   yet allocated wait for it.
3. Within a process, a message is passed by reference and must not be changed afterwards. Another process receives an
   equal copy. None is not a message: it stands for "nothing", at both ends.
4. Only `park` and the end block. A worker that has returned keeps helping to send until all processes are done. Then
   messages that were never pulled are dropped. Waiting messages are not bounded: the program must bound them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from megaflow.errors import CannotTravel, ProtocolError, UsageError
from megaflow.timely.communication.allocator import Allocator
from megaflow.timely.communication.channel import Channel, Lane
from megaflow.timely.runtime import Config, check_start, connected, local_ends, run_threads

T = TypeVar("T")
R = TypeVar("R")

_MESSAGES = -3  # stands in place of a dataflow's number


class Push(Generic[T]):
    """End of a channel at which one worker sends to another, or to itself."""

    def __init__(self, end: Allocator, target: int, channel: int) -> None:
        self._end = end
        self._target = target
        self._channel = Channel(Lane.DATA, _MESSAGES, channel)

    def push(self, message: T | None) -> None:
        """Send a message; None acts as `done`. Does not block. Raises CannotTravel if it cannot cross a process."""
        if message is None:
            self._end.flush()
            return
        try:
            self._end.send(self._target, self._channel, message)
        except CannotTravel as error:
            error.add_note(f"in a message pushed into channel {self._channel.number} to worker {self._target}")
            raise

    def done(self) -> None:
        """Announce a pause: pushed messages leave now, as far as there is room.

        The others follow when this worker pulls, parks or returns.
        """
        self.push(None)


class Pull(Generic[T]):
    """End of a channel at which a worker receives the messages of all workers."""

    def __init__(self, queue: deque[T], receive: Callable[[], None]) -> None:
        self._queue = queue
        self._receive = receive

    def pull(self) -> T | None:
        """Return the next message, or None if there is none. Does not block. Raises PeerFailed or PeerLost."""
        if not self._queue:
            self._receive()
        return self._queue.popleft() if self._queue else None


class ChannelAllocator:
    """A worker's index among all workers and its channels to them; `main` of `initialize` receives one."""

    def __init__(self, end: Allocator, peers: int, args: Sequence[str] = ()) -> None:
        self.index = end.index  # of this worker, from 0
        self.peers = peers  # number of workers, including this one
        self.args = list(args)  # of the command line: positionals and everything after --
        self._end = end
        self._allocated = 0  # number of channels
        self._queues: dict[int, deque[Any]] = {}  # channel -> messages that arrived and were not pulled
        self._fresh = False  # a message has arrived since the last `park`

    def allocate(self) -> tuple[list[Push[Any]], Pull[Any]]:
        """Make the next channel: a `Push` per worker, by its index, and a `Pull` for the messages that they send here.

        All workers must make the same number of channels. Their n-th channels belong together.
        """
        channel, self._allocated = self._allocated, self._allocated + 1
        pushers: list[Push[Any]] = [Push(self._end, target, channel) for target in range(self.peers)]
        return pushers, Pull(self._queues.setdefault(channel, deque()), self._receive)

    def park(self, seconds: float | None = None) -> None:
        """Block until a message arrives on any channel, or for so many seconds. None: without limit.

        Returns at once if a message has arrived since the last call, and occasionally without one: call `pull` again.
        """
        if seconds is not None and not isinstance(seconds, int | float):
            raise UsageError(f"park({seconds!r:.200}): give a number of seconds, or None")
        if not self._fresh:
            self._end.park(seconds)
            self._receive()
        self._fresh = False

    def _receive(self) -> None:
        """Put arrived messages into their queues."""
        for channel, source, message in self._end.receive():
            if channel.dataflow != _MESSAGES:
                raise ProtocolError(f"worker {source} runs a program with dataflows, which this worker does not")
            self._queues.setdefault(channel.number, deque()).append(message)
            self._fresh = True


def initialize(config: Config, main: Callable[[ChannelAllocator], R], args: Sequence[str] = ()) -> list[R]:
    """Run `main(allocator)` on every worker of this process and return the results. Blocks until all are done.

    An exception in one worker stops the whole cluster, as in `execute`. It is raised here if the worker is in this
    process; otherwise PeerFailed is raised with its report. Raises UsageError for `Config.join`, because the number of
    workers is fixed.
    """
    check_start("initialize", config, main)
    if config.contacts:
        raise UsageError(
            "initialize: channels of messages connect the workers that start together; no process can join"
        )
    peers = config.workers * max(1, len(config.addresses))

    def live(end: Allocator) -> R:
        return main(ChannelAllocator(end, peers, args))

    if not config.addresses:
        return run_threads(live, local_ends(config))
    with connected(config) as (ends, _):
        return run_threads(live, ends, config.addresses[config.index])
