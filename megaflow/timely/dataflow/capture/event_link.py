"""EventLink: events in memory. Also the protocols of captures and replays."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from megaflow.errors import BuildError
from megaflow.timely.dataflow.capture.event_format import Event, Messages
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.record_copies import copies_of


class EventPusher(Protocol):
    """Protocol of the destination of a capture."""

    def push(self, event: Event) -> None:
        """Receive the next event. Must not block."""


class EventSource(Protocol):
    """Protocol of the source of a replay. Errors name it by its `str()`."""

    def attach(self, wake: Callable[[], None]) -> bool:
        """Start the only replay. Return True if `wake` will be called after each new event; if False, `read` is polled.
        """

    def read(self) -> Event | None:
        """Return the next event, or None if it has not arrived. Must not block. Raises SourceError if it cannot arrive.
        """

    def close(self) -> None:
        """Release all resources: the stream is complete."""


class EventLink:
    """Events of one capture for a replay in the same process, on any worker. They are kept until they are replayed."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()  # pushed, but not yet read through this link
        self._queues = [self._events]  # of this link and its clones, shared by all of them
        self._wakers: list[Callable[[], None]] = []  # one per replay; also shared
        self.used = False  # a capture writes into it; set by `capture_into`
        self._replayed = False

    def clone(self) -> "EventLink":
        """Return a second link with the present and future events of this link, for a second replay.

        Call it before the dataflow runs: no lock keeps the two links in step.
        """
        made = EventLink()
        made._events.extend(map(_own, self._events))
        self._queues.append(made._events)
        made._queues, made._wakers = self._queues, self._wakers
        return made

    def push(self, event: Event) -> None:
        """Add an event to this link and its clones. Each link receives its own copies of records."""
        for queue in self._queues[1:]:
            queue.append(_own(event))
        self._queues[0].append(event)
        for wake in self._wakers:
            wake()

    def attach(self, wake: Callable[[], None]) -> bool:
        """Start a replay of this link. Raises BuildError for a second replay."""
        if self._replayed:
            raise BuildError(f"replay ({user_line()}): {self} is already being replayed; replay a clone() of it")
        self._replayed = True
        self._wakers.append(wake)
        return True

    def read(self) -> Event | None:
        """Return the next event, or None if it has not been pushed yet."""
        return self._events.popleft() if self._events else None

    def close(self) -> None:
        """Do nothing: a link holds no resources."""

    def __str__(self) -> str:
        return "an EventLink"


def _own(event: Event) -> Event:
    """Return an event with copies of those records that can change."""
    return Messages(event.time, copies_of(event.data)) if isinstance(event, Messages) and event.data else event
