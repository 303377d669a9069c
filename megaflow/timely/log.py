"""Events of a worker: typed reports of what it does while it runs, for subscribers.

    unsubscribe = worker.log.subscribe(print)

A callback receives the events of its own worker, on the worker's thread, in the order in which they happen. If it
raises, the worker stops, as after an operator's exception. Events carry no clock time: a callback that needs one calls
`worker.now()`. Subscribe before building a dataflow to see its operators and channels.

The engine checks `log.emit is not None` at each place. If there is no subscriber, it does nothing else.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import count
from typing import TypeAlias

from megaflow.errors import UsageError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.order import Time


@dataclass(frozen=True, slots=True)
class OperatorEvent:
    """Event of one operator."""

    dataflow: int
    operator: int  # within the dataflow, equal on all workers


@dataclass(frozen=True, slots=True)
class OperatorBuilt(OperatorEvent):
    """An operator is part of a dataflow that now runs."""

    name: str  # with the scopes around it: loop/Map
    where: str  # file:line of the user's declaration


@dataclass(frozen=True, slots=True)
class OperatorsFused(OperatorEvent):
    """Operators run as one. The first of them does the work of all; the others are never scheduled."""

    members: tuple[int, ...]  # in the order of building; the first is `operator`


@dataclass(frozen=True, slots=True)
class OperatorShut(OperatorEvent):
    """An operator will not run again: its dataflow is complete or was dropped. Reported once per built operator."""


@dataclass(frozen=True, slots=True)
class ChannelBuilt:
    """A channel for records leads from an operator's output to an operator's input."""

    dataflow: int
    channel: int  # within the dataflow, equal on all workers
    source: tuple[int, int]  # operator, output
    target: tuple[int, int]  # operator, input
    pact: str


@dataclass(frozen=True, slots=True)
class ScheduleStarted(OperatorEvent):
    """An operator starts to run. The next event of its kind reports that it stops."""


@dataclass(frozen=True, slots=True)
class ScheduleStopped(OperatorEvent):
    """An operator has run."""


@dataclass(frozen=True, slots=True)
class MessageMoved:
    """Event of one batch on its way over a channel."""

    dataflow: int
    channel: int
    source: int  # worker: this one, if it was sent
    target: int  # worker, perhaps the same
    number: int  # 0, 1, 2, … for each channel and pair of workers, from the first listener on
    records: int


@dataclass(frozen=True, slots=True)
class MessageSent(MessageMoved):
    """A batch was sent over a channel."""


@dataclass(frozen=True, slots=True)
class MessageReceived(MessageMoved):
    """A batch was queued at the input that a channel leads to."""


@dataclass(frozen=True, slots=True)
class RecordsDropped(OperatorEvent):
    """A buffer without room dropped records, as its policy demands."""

    records: int  # dropped at once


Change: TypeAlias = tuple[int, Time, int]
"""(location, time, delta), as `Graph.builder.names` names locations."""


@dataclass(frozen=True, slots=True)
class ProgressSent:
    """A progress batch was broadcast to the other workers and folded here."""

    dataflow: int
    number: int  # 0, 1, 2, …
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class ProgressReceived:
    """Another worker's progress batch was folded."""

    dataflow: int
    source: int  # worker
    number: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Parked:
    """The worker has no work and starts to wait."""

    seconds: float | None  # at most; None: without limit


@dataclass(frozen=True, slots=True)
class Unparked:
    """The worker has stopped waiting."""


Building: TypeAlias = OperatorBuilt | OperatorsFused | OperatorShut | ChannelBuilt
Running: TypeAlias = ScheduleStarted | ScheduleStopped | Parked | Unparked
Telling: TypeAlias = MessageSent | MessageReceived | RecordsDropped | ProgressSent | ProgressReceived
Event: TypeAlias = Building | Running | Telling


class Log:
    """Subscribers of one worker.

    >>> log, seen = Log(), []
    >>> unsubscribe = log.subscribe(seen.append)
    >>> log.moved(MessageSent, (0, 3), 0, 1, 700)
    >>> unsubscribe()
    >>> seen, log.emit
    ([MessageSent(dataflow=0, channel=3, source=0, target=1, number=0, records=700)], None)
    """

    __slots__ = ("_callbacks", "_numbers", "emit")

    def __init__(self) -> None:
        self.emit: Callable[[Event], None] | None = None  # None: no listener; the only test on the hot paths
        self._callbacks: tuple[Callable[[Event], object], ...] = ()
        # (kind of event, channel, source, target) -> the next numbers
        self._numbers: defaultdict[tuple[type[Event], tuple[int, int], int, int], Iterator[int]] = defaultdict(count)

    def subscribe(self, callback: Callable[[Event], object]) -> Callable[[], None]:
        """Call `callback(event)` for each event from now on.

        The returned function ends the subscription. A second call of it is harmless.
        """
        if not callable(callback):
            raise UsageError(f"subscribe({callback!r:.200}): give a function of an event")
        entry: Callable[[Event], object] = lambda event: callback(event)  # noqa: E731  # unique to this call
        self._set((*self._callbacks, entry))
        return lambda: self._set(tuple(each for each in self._callbacks if each is not entry))

    def moved(
        self, kind: type[MessageSent | MessageReceived], way: tuple[int, int], source: int, target: int, records: int
    ) -> None:
        """Report a batch that leaves or has arrived. `way` is (dataflow, channel)."""
        if self.emit is not None:
            number = next(self._numbers[kind, way, source, target])
            self.emit(kind(*way, source, target, number, records))

    def dropped(self, dataflow: int, operator: int, records: int) -> None:
        """Report records that a buffer has dropped."""
        if self.emit is not None:
            self.emit(RecordsDropped(dataflow, operator, records))

    def _set(self, callbacks: tuple[Callable[[Event], object], ...]) -> None:
        self._callbacks = callbacks
        self.emit = self._tell if callbacks else None
        if not callbacks:
            self._numbers.clear()

    def _tell(self, event: Event) -> None:
        for callback in self._callbacks:
            callback(event)
