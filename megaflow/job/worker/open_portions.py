"""The partitions of sources that one worker has open, and which of them is read next.

1. Those that have something to read are read in turn, a batch of one partition each. One that is idle is passed over
   until it is woken: by a file descriptor (`file_watch`), by a call from any thread, or when its time is over. A call
   only notes the number and has the operator run; the worker's thread does the rest. One too many costs a `read`.
2. A batch is handed out whole. So what is left of a partition is known without asking its source: from before the batch
   that was looked up and not taken, or from behind the last one.
3. A partition is opened when it is its turn, on the thread of the worker: what the source raises, it raises there, with
   a note that names the source, the partition and the position.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from megaflow.connect.source_protocol import Exhausted, Idle, OpenPartition, Source
from megaflow.control.reports import PartitionLag
from megaflow.durable.commits import Portion
from megaflow.errors import CannotTravel, SourceError
from megaflow.job.worker.file_watch import FileWatch
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

IDLE_SECONDS: Final = 0.1
"""After so long one is read again that has not said what will wake it."""
SHOWN_MAX: Final = 100  # characters of a partition or position in errors and status


class PortionReader:
    """One partition, from a position on. To be closed."""

    def __init__(self, portion: Portion, source: Source[Any]) -> None:
        self.portion = portion
        self._watched: tuple[int, Callable[..., None]] | None = None  # the descriptor that would wake it, and how
        self._source = source
        self._partition = decode(portion.partition)
        self._position = None if portion.position is None else decode(portion.position)  # behind the last batch
        self._before = self._position  # before that
        self._opened: OpenPartition[Any] | None = None
        self.empty_since: float | None = None  # seconds, when it had nothing first; None: it has, or nobody has asked
        self.asked = 0.0  # seconds, when it had nothing last

    def read(self, limit: int) -> list[Any] | Idle | Exhausted:
        """Return the next batch, perhaps an empty one, or why there is none. Raises what the source does, noted."""
        try:
            if self._opened is None:
                self._opened = self._source.open(self._partition, self._position)
            answer: Any = self._opened.read(limit)
        except Exception as error:
            error.add_note(self.title)
            raise
        if isinstance(answer, Idle | Exhausted):
            return answer
        if not (type(answer) is tuple and len(answer) == 2 and type(answer[0]) is list and answer[1] is not None):
            wrong = "must return a list of records and the position after them, Idle(…) or Exhausted()"
            raise SourceError(f"{self.title}: read({limit}) {wrong}, but it returned {answer!r:.100}.")
        records: list[Any]
        records, position = answer
        if len(records) > limit:
            raise SourceError(f"{self.title}: read({limit}) returned {len(records)} records.")
        self._before, self._position = self._position, position
        return records

    def sleep(self, idle: Idle, watch: FileWatch, wake: Callable[..., None]) -> None:
        """See that it is woken, but for the time."""
        if idle.fd is not None:
            self._watched = idle.fd, wake
            watch.add(*self._watched)
        if idle.on_ready is not None:
            try:
                idle.on_ready(wake)
            except Exception as error:
                error.add_note(self.title)
                raise

    def rouse(self, watch: FileWatch) -> None:
        """Wait for the descriptor no more, which may be closed now."""
        if self._watched is not None:
            watch.forget(*self._watched)
            self._watched = None

    def rest(self, untaken: bool = False) -> Portion:
        """Return what is left, with the last batch if that is `untaken`. Raises CannotTravel for its position."""
        position = self._before if untaken else self._position
        try:
            return replace(self.portion, position=None if position is None else encode(position))
        except CannotTravel as error:
            error.add_note(self.title)
            raise

    @property
    def title(self) -> str:
        """What an error says of it."""
        where = "its beginning" if self._position is None else f"position {self._describe(self._position)}"
        return f"in source {self.portion.input!r}, partition {shown(self._partition)}, at {where}"

    def lag(self) -> PartitionLag:
        """Return what a status says of it."""
        ask = getattr(self._opened, "lag", None)
        position = "" if self._position is None else self._describe(self._position)
        lag = None if ask is None else ask()
        return PartitionLag(self.portion.input, shown(self._partition), position, None if lag is None else int(lag))

    def _describe(self, position: Any) -> str:
        text: str = getattr(self._source, "describe_position", shown)(position)
        return text

    def close(self) -> None:
        """Have the source let go of it."""
        opened, self._opened = self._opened, None
        if opened is not None:
            try:
                opened.close()
            except Exception as error:
                error.add_note(self.title)
                raise


class OpenPortions:
    """What one worker may read of sources. All but `_wake` on its thread."""

    def __init__(self) -> None:
        self.sources: dict[str, Source[Any]] = {}  # name -> source; filled while the dataflow is built
        self.activate: Callable[[], None] = lambda: None  # has the operator run; any thread; set when that is built
        self._ready: deque[PortionReader] = deque()  # the next one to be read comes first
        self._idle: dict[int, tuple[PortionReader, float]] = {}  # number -> with when it is read again at the latest
        self._woken: deque[int] = deque()  # numbers; put by any thread
        self._watch = FileWatch()

    def __len__(self) -> int:
        return len(self._ready) + len(self._idle)

    def add(self, portions: Iterable[Portion]) -> None:
        """Read these, too."""
        self._ready.extend(PortionReader(each, self.sources[each.input]) for each in portions)

    def read(self, limit: int, now: float, ended: Callable[[int], None]) -> tuple[PortionReader, list[Any]] | None:
        """Return the next batch of a partition whose turn it is; None if all are idle. Raises what sources do.

        `ended` is told the number of each that has been read to its end.
        """
        self._rouse(now)
        for _ in range(len(self._ready)):
            reader = self._ready.popleft()
            match reader.read(limit):
                case Idle() as idle:
                    self._lie_down(reader, idle, now)
                case Exhausted():
                    reader.close()
                    ended(reader.portion.number)
                case records:
                    self._ready.append(reader)
                    reader.empty_since = None if records else reader.empty_since
                    if records:
                        return reader, records
        return None

    def wait(self, now: float) -> float | None:
        """Return in how many seconds one may have something to read, unless it is woken; None: not by itself."""
        if self._ready or self._woken:
            return 0.0
        due = min((due for _, due in self._idle.values()), default=float("inf"))
        return None if due == float("inf") else max(0.0, due - now)

    def empty(self, now: float) -> Iterator[tuple[int, float]]:
        """Yield the number of each that had nothing to read when it was asked last, and since when it has nothing.

        Of one that is to be asked again, and waits for its turn, nothing is known since then: that time does not count.
        So one whose worker has long steps is idle at last, and one that is held back is not.
        """
        for reader in self._readers():
            if reader.empty_since is not None:
                number = reader.portion.number
                sleeps = number in self._idle and self._idle[number][1] > now and number not in self._woken
                yield number, reader.empty_since + (0.0 if sleeps else now - reader.asked)

    def rest(self, untaken: PortionReader | None) -> tuple[Portion, ...]:
        """Return what is left of each; the last batch of one is `untaken`."""
        return tuple(reader.rest(reader is untaken) for reader in self._readers())

    def numbers(self) -> list[int]:
        """Return those of all that are open."""
        return [reader.portion.number for reader in self._readers()]

    def lags(self) -> tuple[PartitionLag, ...]:
        """Return what a status says of them."""
        return tuple(reader.lag() for reader in self._readers())

    def close(self, numbers: Collection[int]) -> None:
        """Read these no more."""
        for reader in self._readers():
            if reader.portion.number in numbers:
                if self._idle.pop(reader.portion.number, None) is None:
                    self._ready.remove(reader)
                reader.rouse(self._watch)
                reader.close()

    def end(self) -> None:
        """Close them, for ever."""
        self.close([reader.portion.number for reader in self._readers()])
        self._watch.close()

    def _readers(self) -> Sequence[PortionReader]:
        readers = [*self._ready, *(reader for reader, _ in self._idle.values())]
        return sorted(readers, key=lambda reader: -reader.portion.number)

    def _lie_down(self, reader: PortionReader, idle: Idle, now: float) -> None:
        reader.asked = now
        reader.empty_since = now if reader.empty_since is None else reader.empty_since
        by_itself = idle.fd is None and idle.on_ready is None
        seconds = IDLE_SECONDS if by_itself and idle.after_seconds is None else idle.after_seconds
        number = reader.portion.number
        self._idle[number] = reader, float("inf") if seconds is None else now + seconds
        reader.sleep(idle, self._watch, partial(self._wake, number))

    def _wake(self, number: int, *_: object) -> None:
        self._woken.append(number)
        self.activate()

    def _rouse(self, now: float) -> None:
        """Put back those that were woken, or whose time is over."""
        if not self._idle:
            self._woken.clear()
            return
        woken = [self._woken.popleft() for _ in range(len(self._woken))]
        for number in (*woken, *[number for number, (_, due) in self._idle.items() if due <= now]):
            if number in self._idle:
                reader, _ = self._idle.pop(number)
                reader.rouse(self._watch)
                self._ready.append(reader)


def shown(value: object) -> str:
    """Return what a partition or position looks like in an error or a status.

    >>> shown(("orders", 3)), len(shown("x" * 1_000))
    ("('orders', 3)", 100)
    """
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"
