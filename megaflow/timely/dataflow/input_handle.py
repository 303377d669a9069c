"""InputHandle: how a program sends records into dataflows, time by time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from megaflow.errors import BuildError, CapabilityError, TimeError
from megaflow.timely.dataflow.argument_checks import iterable
from megaflow.timely.dataflow.builder import BATCH_RECORDS, NodeBuilder, Output
from megaflow.timely.dataflow.capability import Capability, check_time
from megaflow.timely.dataflow.graph import Graph, Port, ScopeRef
from megaflow.timely.dataflow.scopes import describe
from megaflow.timely.dataflow.session import give_what_fits
from megaflow.timely.order import Time, alike, less_equal

T = TypeVar("T")


@dataclass(slots=True, eq=False, weakref_slot=True)
class Feed(Generic[T]):
    """One stream that a handle feeds. The operator owns it, because a closed handle must not keep a dataflow alive."""

    capability: Capability
    output: Output[T]
    graph: Graph


class InputHandle(Generic[T]):
    """The program's end of a stream: `send` at the current time, then `advance_to` the next.

    One handle may feed several dataflows. Sending does not block. The frontiers of all dataflows wait for `advance_to`
    and `close`.

    The handle's times are those of the first dataflow that it feeds, from the least time on. A handle whose times are
    not ints feeds one stream only.

    On a worker that joined, the handle may send once `worker.bootstrap()` has returned. It starts at the least time at
    which another member may still send. If there is none, it is closed.
    """

    def __init__(self) -> None:
        self.time: Time = 0  # of the next records; after `close`, of the last ones; written here only
        self._buffer: list[T] = []
        self._feeds: list[Feed[T]] = []  # those it may send to
        self._known: WeakSet[Feed[T]] = WeakSet()  # all feeds, in case it receives a right to send
        self.closed = False  # once True, nothing can be sent; written here only

    def to_stream(self, scope: Any) -> Any:
        """Return `scope.input_from(self)`."""
        return scope.input_from(self)

    def is_full(self) -> bool:
        """Return whether the operators after the handle have enough to do.

        `worker.step_while(handle.is_full)` waits until they have room. The answer is advice: `send` still works, and
        its records wait in memory.
        """
        return any(feed.output.is_full() for feed in self._feeds)

    def send(self, record: T) -> None:
        """Send one record at the current time. It leaves with its batch, at a time change or `flush`."""
        self._check_open("send")
        self._buffer.append(record)
        if len(self._buffer) >= BATCH_RECORDS:
            self.flush()

    def send_batch(self, records: Iterable[T]) -> None:
        """Send the records of a list, or of another iterable, at the current time. A list is copied."""
        self._check_open("send_batch")
        if not isinstance(records, list):
            records = list(iterable("send_batch", records, "a list of records"))
        self.flush()
        for start in range(0, len(records), BATCH_RECORDS):
            self._ship(records[start : start + BATCH_RECORDS])

    def try_send_batch(self, records: Iterable[T]) -> list[T]:
        """Send as many records as all dataflows have room for; return the others, to send later.

        Records that were sent before leave first, even without room for them. There is room again after steps of the
        worker.
        """
        self._check_open("try_send_batch")
        self.flush()
        return give_what_fits(records, lambda: min(feed.output.room() for feed in self._feeds), self._ship)

    def flush(self) -> None:
        """Send all buffered records."""
        if self._buffer:
            buffer, self._buffer = self._buffer, []
            self._ship(buffer)

    def advance_to(self, time: Time) -> None:
        """Promise to send nothing before `time`. Raises TimeError unless it is at or after the current time."""
        self._check_open("advance_to")
        check_time("advance_to", self.time, time)
        if not less_equal(self.time, time):
            raise TimeError(f"advance_to({time!r}): the input is already at {self.time!r}; time only moves forward")
        self.flush()
        self.time = time
        for feed in self._feeds:
            feed.capability.downgrade(time)

    def close(self) -> None:
        """Stop sending for good. A second call is harmless."""
        if not self.closed:
            self.flush()
            self.closed = True
            for feed in self._feeds:
                feed.capability.release()
            self._feeds.clear()

    def give_away(self) -> Time:
        """Give the right to send to a handle of another worker, which calls `receive`; return the time of the right.

        Sends and reports all earlier records first. Then this handle is closed, but downstream operators see no end.
        Raises CapabilityError if it is closed.
        """
        self._check_open("give_away")
        self.flush()
        for feed in self._feeds:
            if not feed.graph.over:
                feed.graph.progress.send(flush=True)  # everything done with the right so far: see `progcaster`
                feed.graph.progress.caster.give_capability(feed.output.location, feed.capability.time)
            feed.capability.give_away()
        self._feeds.clear()
        self.closed = True
        return self.time

    def receive(self, time: Time) -> None:
        """Open this closed handle, at that time, with the right that the handle of another worker gave away.

        Both handles feed the same dataflows. Only one handle may receive each right. Raises CapabilityError if this
        handle is open or feeds nothing.
        """
        running = [feed for feed in self._known if feed.graph.started and not feed.graph.over]
        feeds = sorted(running, key=lambda feed: feed.graph.number)
        if not self.closed or not feeds:
            why = "feeds no running dataflow" if self.closed else f"is open, at time {self.time!r}: close it first"
            raise CapabilityError(f"receive({time!r}): the input {why}")
        check_time("receive", self.time, time)
        for feed in feeds:
            feed.capability.fill(time)
            feed.graph.progress.caster.receive_capability(feed.output.location, time)
        self._feeds, self.time, self.closed = feeds, time, False

    def attach(self, capability: Capability, output: Output[T], graph: Graph) -> Feed[T]:
        """Feed one more stream, from the current time on. The caller keeps the result."""
        if not self._known and self.time == 0:
            self.time = graph.builder.least(graph.builder.root_depth)
        self.flush()
        feed = Feed(capability, output, graph)
        self._known.add(feed)
        capability.downgrade(self.time)
        if self.closed:
            capability.release()
        else:
            self._feeds.append(feed)
        return feed

    def check(self, scope: ScopeRef) -> None:
        """Raise BuildError unless this handle may also feed a stream of `scope`.

        The rights for several streams may reach a joining worker at different times. If the times are ints, the worker
        takes the greatest. Times of other kinds need not have a least common upper bound.
        """
        if not self._known and self.time == 0:
            return
        if not alike(self.time, scope.least):
            raise BuildError(
                f"input_from: the handle sends at times like {self.time!r}, but those of {describe(scope)} are like "
                f"{scope.least!r}; use another handle"
            )
        if self._known and type(self.time) is not int:
            raise BuildError(
                f"input_from: the handle already feeds a stream, and with times like {self.time!r} it cannot feed a "
                "second one; make a handle for each, or use the stream twice"
            )

    def take_over(self, time: Time | None) -> None:
        """Continue at `time`, at which a stream's capability was filled. None: it was not and never will be filled."""
        self._feeds = [feed for feed in self._feeds if feed.capability.held or feed.capability.absent]
        if not self._feeds:
            self.close()
        if time is not None and not less_equal(time, self.time):
            self.time = time
        for feed in self._feeds:
            feed.capability.downgrade(self.time)

    def _ship(self, batch: list[T]) -> None:
        for feed in self._feeds:
            feed.graph.check_started("send")
            feed.output.ship(self.time, batch)

    def _check_open(self, verb: str) -> None:
        if self.closed:
            raise CapabilityError(f"{verb}: the input was closed at time {self.time!r}; it can no longer send")
        if any(feed.capability.absent for feed in self._feeds):
            raise CapabilityError(f"{verb}: this worker is joining; call worker.bootstrap() first")


def input_from(scope: ScopeRef, handle: InputHandle[Any]) -> Port[Any]:
    """Return the stream of the records sent through `handle`. The handle closes when the worker's program ends."""
    if scope.rounds:
        raise BuildError(
            f"input_from: {describe(scope)} has times with rounds, but a program sends at times without rounds; make "
            "the input in the root scope and bring it in with enter()"
        )
    handle.check(scope)
    builder = NodeBuilder(scope, "Input")
    output, result = builder.new_output()

    def make(capabilities: list[Capability], info: object) -> Callable[[], None]:
        return partial(_nothing, handle.attach(capabilities[0], output, scope.graph))

    builder.build(make, joinable=True, stop=handle.close, filled=handle.take_over)
    return result


def _nothing(feed: Feed[Any]) -> None:
    """Do nothing: an input acts when the program calls its handle."""
