"""Sources of the program from which a job pulls: an iterable, a queue, or a source fed by an event loop.

The LineReader's thread pulls; another thread calls `end`.

1. An iterable is only asked for its next item. If it blocks, it is left behind in its `next()`.
2. A `queue.Queue` (or one like it, of `multiprocessing`) is asked with a timeout, so an item that arrives after the end
   stays in it. Its `shutdown()`, of Python 3.13, ends it.
3. A source fed by an event loop is a LoopSource (see `megaflow.job.launcher.loop_sources`). Only programs have such
   sources. So this module does not import asyncio, which takes a launcher on the command line longer to load than most
   of megaflow.
"""

import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from megaflow.errors import CannotTravel, UsageError
from megaflow.timely.communication.codec.encode import encode

POLL_SECONDS: Final = 0.1  # until it is looked whether a queue is still to be asked


class LoopSource(ABC):
    """What an event loop feeds; iterated by one thread, once."""

    def __init__(self) -> None:
        self.taken: deque[Any] = deque()  # what was pulled, as long as nobody has asked for what follows it
        self._is_ended = False
        self._lock = threading.Lock()  # guards that it is ended, and what is done only if it is not

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    @abstractmethod
    def end(self) -> None:
        """Pull no more; what has been pulled still comes."""


def is_pulled(source: object) -> bool:
    """Return whether items can be pulled from this."""
    return isinstance(source, Iterable) or is_queue(source)


def is_queue(source: object) -> bool:
    """Return whether this is a queue that threads or processes share."""
    methods = (getattr(source, name, None) for name in ("get", "put", "empty"))
    return all(map(callable, methods)) and not isinstance(source, Iterable)


class PulledSource:
    """What is pulled from something, item by item; iterated by one thread, once."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._is_ended = False

    def __iter__(self) -> Iterator[Any]:
        return self._from_queue() if is_queue(self._source) else iter(self._source)

    @property
    def taken(self) -> Sequence[Any]:
        """What was pulled of a LoopSource, as long as nobody has asked for what follows it."""
        return self._source.taken if isinstance(self._source, LoopSource) else ()

    def end(self) -> None:
        """Pull no more; what has been pulled still comes."""
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
    """Return an item as it travels; what becomes of the object later is not seen. Raises CannotTravel."""
    try:
        return encode(item)
    except CannotTravel as error:
        raise CannotTravel(f"Cannot send an item of items= to a worker: {error}; it is {item!r:.200}") from None


def without_end(line: Any) -> str:
    """Return a line of an iterable without its end. Raises UsageError for what is no str.

    >>> without_end("a\\r\\n")
    'a'
    """
    if not isinstance(line, str):
        raise UsageError(f"lines must be an iterable of str, but it has {line!r:.80} ({type(line).__name__}).")
    return line.removesuffix("\n").removesuffix("\r")


class PulledLines(PulledSource):
    """What str come from, pulled only as far as needed."""

    form = staticmethod(without_end)


class PulledItems(PulledSource):
    """What values of any type come from, pulled only as far as needed."""

    form = staticmethod(packed)
