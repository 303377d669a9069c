"""Sources of the program from which a job pulls: an iterable, a queue, or a source fed by an event loop.

The LineReader's thread pulls; another thread calls `end`.

1. An iterable is only asked for its next item. If it blocks, the thread is left behind in its `next()`.
2. A `queue.Queue`, or a similar one of `multiprocessing`, is asked with a timeout. So an item that arrives after the
   end stays in the queue. Its `shutdown()` (Python 3.13) ends the source.
3. A source fed by an event loop is a LoopSource (see `megaflow.job.launcher.inputs.loop_sources`). Only programs have
   such sources. So this module does not import asyncio: a launcher on the command line would need longer to load that
   than to load most of megaflow.
"""

import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from megaflow.errors import CannotTravel, UsageError
from megaflow.timely.communication.codec.encode import encode

POLL_SECONDS: Final = 0.1  # between two checks whether to keep asking a queue


class LoopSource(ABC):
    """Source that an event loop feeds; iterated once, by one thread."""

    def __init__(self) -> None:
        self.taken: deque[Any] = deque()  # pulled, until the reader asks for the next item
        self._is_ended = False
        self._lock = threading.Lock()  # guards `_is_ended`, and actions allowed only before the end

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    @abstractmethod
    def end(self) -> None:
        """Pull nothing after this; items already pulled still come."""


def is_pulled(source: object) -> bool:
    """Return whether the job can pull items from this."""
    return isinstance(source, Iterable) or is_queue(source)


def is_queue(source: object) -> bool:
    """Return whether this is a queue that threads or processes share."""
    methods = (getattr(source, name, None) for name in ("get", "put", "empty"))
    return all(map(callable, methods)) and not isinstance(source, Iterable)


class PulledSource:
    """Items pulled one by one from a source; iterated once, by one thread."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._is_ended = False

    def __iter__(self) -> Iterator[Any]:
        return self._from_queue() if is_queue(self._source) else iter(self._source)

    @property
    def taken(self) -> Sequence[Any]:
        """Items pulled from a LoopSource, until the reader asks for the next one."""
        return self._source.taken if isinstance(self._source, LoopSource) else ()

    def end(self) -> None:
        """Pull nothing after this; items already pulled still come."""
        self._is_ended = True
        if isinstance(self._source, LoopSource):
            self._source.end()

    def _from_queue(self) -> Iterator[Any]:
        while not self._is_ended:
            try:
                item = self._source.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            except Exception as error:
                if type(error).__name__ == "ShutDown":  # of Python 3.13
                    return
                raise
            yield item


def packed(item: Any) -> bytes:
    """Return the encoded item, so later changes of the object have no effect. Raises CannotTravel."""
    try:
        return encode(item)
    except CannotTravel as error:
        column = unsendable_column(item)
        what = "an item of items=" if column is None else f"the value of {column!r:.80} in an item of items="
        raise CannotTravel(f"Cannot send {what} to a worker: {error}; it is {item!r:.200}") from None


def unsendable_column(item: Any) -> Any:
    """Return the key or field of the first value in a dict or NamedTuple that cannot travel; None if there is none.

    >>> unsendable_column({"id": 7, "lock": object()}), unsendable_column(object())
    ('lock', None)
    """
    names = item if isinstance(item, dict) else getattr(item, "_fields", ()) if isinstance(item, tuple) else ()
    for name, value in zip(names, item.values() if isinstance(item, dict) else item) if names else ():
        try:
            encode(value)
        except CannotTravel:
            return name
    return None


def without_end(line: Any) -> str:
    """Return a line of an iterable without its line end. Raises UsageError if it is not a str.

    >>> without_end("a\\r\\n")
    'a'
    """
    if not isinstance(line, str):
        raise UsageError(f"lines must be an iterable of str, but it has {line!r:.80} ({type(line).__name__}).")
    return line.removesuffix("\n").removesuffix("\r")


class PulledLines(PulledSource):
    """Source of str, pulled only as far as needed."""

    form = staticmethod(without_end)


class PulledItems(PulledSource):
    """Source of values of any type, pulled only as far as needed."""

    form = staticmethod(packed)
