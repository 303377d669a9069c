"""The partitions of sources that one worker has open, and the order in which it reads them.

1. The worker reads the partitions of one source in turn, one batch each, if they have something to read;
   `reading_turns` decides which source is next. An idle partition is passed over until something wakes it: a file
   descriptor (`FileWatch`), a call from any thread, or the end of its wait. The call only notes the partition's number
   and makes the operator run; the worker's thread does the rest. A superfluous call costs one `read`.
2. A batch is always taken whole. So the rest of a partition is known without a call to its source: it begins before the
   batch that was looked up but not taken, or after the last batch.
3. A partition is opened when its turn comes, on the worker's thread. So the source raises its errors there, with a note
   that names the source, the partition and the position.
4. Readers of followed files have `expect_sight`. They compare what they open with the position, or with what the source
   said when the partition was new (a *sight*). See rule 11 of `megaflow.control.coordinator.reading.partitions`.
"""

import os
import select
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from threading import Lock, Thread
from typing import Any, Final

from megaflow.connect.source_protocol import Exhausted, Gone, Idle, NotHere, OpenPartition, Source
from megaflow.control.reading_messages import PartitionMissing, PartitionSeen, SplitRead
from megaflow.control.reports import PartitionLag
from megaflow.control.wording import printable
from megaflow.durable.commits import ANEW, SourcePartition
from megaflow.errors import CannotTravel, SourceError
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.dataflow.error_notes import noting

IDLE_SECONDS: Final = 0.1
"""Interval of reads of an idle partition that has not named what wakes it."""
SHOWN_MAX: Final = 100  # characters of a partition or position in errors and status


class FileWatch:
    """A thread that waits for file descriptors of one worker's sources; it starts with the first. To be closed.

    It does not use the poller of the process: that belongs to one worker, and other workers must not close what it
    watches. Each descriptor is watched once. When it becomes readable, or breaks, this thread forgets it and makes its
    calls. A source that closes a descriptor must forget it first, as its number may then stand for another file: a wait
    that is under way with the old number finds no call.
    """

    def __init__(self) -> None:
        self._lock = Lock()  # guards the next two
        self._calls: dict[int, list[Callable[[], None]]] = {}  # descriptor -> calls to make when it becomes readable
        self._closed = False
        self._pipe: tuple[int, int] | None = None  # wakes the thread; None: it has not started

    def add(self, fd: int, call: Callable[[], None]) -> None:
        """Call `call` once, from a thread, when the descriptor becomes readable; at once if it is invalid."""
        with self._lock:
            self._calls.setdefault(fd, []).append(call)
        if self._pipe is None:
            self._pipe = os.pipe()
            Thread(target=self._run, name="megaflow-sources", daemon=True).start()
        self._wake()

    def forget(self, fd: int, call: Callable[[], None]) -> None:
        """Cancel this call; harmless if it was made."""
        with self._lock:
            calls = self._calls.get(fd, [])
            if call in calls:
                calls.remove(call)
            if not calls:
                self._calls.pop(fd, None)

    def close(self) -> None:
        """End the thread."""
        with self._lock:  # until the thread is woken: once it sees `_closed`, it closes the pipe
            self._closed = True
            if self._pipe is not None:
                self._wake()

    def _wake(self) -> None:
        assert self._pipe is not None, "the thread has begun"
        os.write(self._pipe[1], b"\0")

    def _run(self) -> None:
        assert self._pipe is not None, "it was made for the thread"
        near, far = self._pipe
        while True:
            with self._lock:
                if self._closed:
                    break
                watched = list(self._calls)
            poller = select.poll()
            for fd in (near, *watched):
                poller.register(fd, select.POLLIN)
            for fd, _ in poller.poll():
                if fd == near:
                    os.read(near, 4096)
                    continue
                with self._lock:
                    calls = self._calls.pop(fd, [])
                for call in calls:
                    call()
        os.close(near)
        os.close(far)


class PartitionReader:
    """One partition, read from a position on. To be closed."""

    def __init__(self, partition: SourcePartition, source: Source[Any], sight: bytes | None = None) -> None:
        """`sight`: see rule 4; b"" if there is none, None to compare nothing."""
        self.unread = partition
        self._sight = sight
        self._watched: tuple[int, Callable[..., None]] | None = None  # its descriptor, and the call that wakes it
        self._source = source
        self._partition = decode(partition.partition)
        self._position = None if partition.position is None else decode(partition.position)  # after the last batch
        self._before = self._position  # before the last batch
        self._opened: OpenPartition[Any] | None = None
        self.empty_since: float | None = None  # seconds, since when it has nothing; None: not empty, or not asked
        self.asked = 0.0  # seconds, of the last time when it had nothing
        self.missing: PartitionMissing | None = None  # why this process could not open it when it last tried
        self.stays = False  # no process can open it

    def read(self, limit: int) -> list[Any] | Idle | Exhausted | NotHere | Gone:
        """Return the next batch, perhaps empty, or why there is none. Raises the source's errors, with a note."""
        try:
            if self._opened is None:
                self._opened = self._source.open(self._partition, self._position)
                if self._sight is not None and (expect := getattr(self._opened, "expect_sight", None)) is not None:
                    expect(decode(self._sight) if self._sight else None)
                if self.stays:
                    self.stay()
            answer: Any = self._opened.read(limit)
        except Exception as error:
            error.add_note(self.title)
            raise
        if isinstance(answer, Idle | Exhausted | NotHere | Gone):
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
        """Prepare the wake-up of the partition, except by time."""
        if idle.fd is not None:
            self._watched = idle.fd, wake
            watch.add(*self._watched)
        if idle.on_ready is not None:
            with noting(lambda: self.title):
                idle.on_ready(wake)

    def rouse(self, watch: FileWatch) -> None:
        """Stop waiting for the descriptor, which may be closed now."""
        if self._watched is not None:
            watch.forget(*self._watched)
            self._watched = None

    def rest(self, untaken: bool = False) -> SourcePartition:
        """Return the rest, with the last batch if it is `untaken`. Raises CannotTravel if its position cannot travel.
        """
        position = self._before if untaken else self._position
        try:
            return replace(self.unread, position=None if position is None else encode(position))
        except CannotTravel as error:
            error.add_note(self.title)
            raise

    def settle(self) -> None:
        """Note in the position what the source's reader knows now; another one will open the partition there."""
        if (settled := getattr(self._opened, "settled", None)) is not None:
            self._before, self._position = settled(self._before), settled(self._position)

    @property
    def title(self) -> str:
        """The text that names the partition in errors."""
        where = "its beginning" if self._position is None else f"position {self._describe(self._position)}"
        return printable(f"in source {self.unread.input!r}, partition {self.name}, at {where}")

    def lag(self) -> PartitionLag:
        """Return the partition's entry in a status."""
        ask = getattr(self._opened, "lag", None)
        position = "" if self._position is None else self._describe(self._position)
        lag = None if ask is None else ask()
        return PartitionLag(self.unread.input, self.name, position, None if lag is None else int(lag))

    @property
    def name(self) -> str:
        """The text of the partition."""
        text: str = getattr(self._source, "describe_partition", shown)(self._partition)
        return text

    def _describe(self, position: Any) -> str:
        text: str = getattr(self._source, "describe_position", shown)(position)
        return text

    def stay(self) -> None:
        """Note that no process finds the partition."""
        self.stays = True
        if self._opened is not None and (stay := getattr(self._opened, "stay", None)) is not None:
            stay()

    def close(self) -> None:
        """Close the source's reader."""
        opened, self._opened = self._opened, None
        if opened is not None:
            with noting(lambda: self.title):
                opened.close()


class OpenPartitions:
    """The open partitions of one worker. All methods except `_wake` run on its thread."""

    def __init__(self) -> None:
        self.sources: dict[str, Source[Any]] = {}  # name -> source; filled while the dataflow is built
        self.activate: Callable[[], None] = lambda: None  # makes the operator run; any thread; set when it is built
        self._ready: dict[str, deque[PartitionReader]] = {}  # source -> its readers, the next one first
        self._idle: dict[int, tuple[PartitionReader, float]] = {}  # number -> reader, and its next read at the latest
        self._woken: deque[int] = deque()  # numbers; put by any thread
        self._watch = FileWatch()

    def __len__(self) -> int:
        return sum(map(len, self._ready.values())) + len(self._idle)

    def add(self, partitions: Iterable[SourcePartition], sights: Mapping[int, bytes] | None = None) -> None:
        """Also read these partitions. `sights` are those of rule 4, by number; None: nothing is compared."""
        for each in partitions:
            sight = None if sights is None else sights.get(each.number, b"")
            self._is_ready(PartitionReader(each, self.sources[each.input], sight))

    def ready(self, input: str) -> list[int]:
        """Return the numbers of a source's partitions that may have something to read."""
        return [reader.unread.number for reader in self._ready.get(input, ())]

    def read(
        self, input: str, limit: int, now: float, report: Callable[[SplitRead | PartitionMissing | PartitionSeen], None]
    ) -> tuple[PartitionReader, list[Any]] | None:
        """Return a batch of the source's partition whose turn it is; None if all are idle. Raises the source's errors.

        `report` receives a report on each partition that is read to its end, with its rest if it is resumable or gone,
        and on each that is missing here or was found again.
        """
        self._rouse(now)
        ready = self._ready.get(input, deque())
        for _ in range(len(ready)):
            reader = ready.popleft()
            answer = reader.read(limit)
            missing = None
            if isinstance(answer, NotHere):
                missing = PartitionMissing(reader.unread.number, answer.why, answer.unread, answer.differs)
                answer = Idle(after_seconds=answer.after_seconds, is_held=answer.is_held or not reader.stays)
            if missing != reader.missing:
                report(PartitionSeen(reader.unread.number) if missing is None else missing)
                reader.missing = missing
            match answer:
                case Idle() as idle:
                    self._lie_down(reader, idle, now)
                case Exhausted(resumable):
                    left = (reader.rest(),) if resumable else ()
                    reader.close()
                    report(SplitRead(reader.unread.number, left))
                case Gone():
                    reader.close()
                    end = replace(reader.unread, position=None, ended_in=ANEW)
                    report(SplitRead(end.number, (end,)))
                case records:
                    ready.append(reader)
                    reader.empty_since = None if records else reader.empty_since
                    if records:
                        return reader, records
        return None

    def wait(self, now: float) -> float | None:
        """Return the seconds until a partition may have something to read unless it is woken; None: not by itself."""
        if self._woken or any(self._ready.values()):
            return 0.0
        due = min((due for _, due in self._idle.values()), default=float("inf"))
        return None if due == float("inf") else max(0.0, due - now)

    def empty(self, now: float) -> Iterator[tuple[int, float]]:
        """Yield the number of each partition that had nothing to read when it was last asked, and since when.

        While a partition waits for its turn to be asked again, its state is unknown, so the time since it was last
        asked does not count. So a partition on a worker with long steps becomes idle in the end, and a partition that
        is held back does not.
        """
        for reader in self._readers():
            if reader.empty_since is not None:
                number = reader.unread.number
                sleeps = number in self._idle and self._idle[number][1] > now and number not in self._woken
                yield number, reader.empty_since + (0.0 if sleeps else now - reader.asked)

    def describe(self, partition: SourcePartition) -> str:
        """Return the text by which a status names a partition, also one that is read by another worker."""
        return PartitionReader(partition, self.sources[partition.input]).name

    def rest(self, untaken: PartitionReader | None) -> tuple[SourcePartition, ...]:
        """Return the rest of each partition; the last batch of the one with reader `untaken` belongs to its rest."""
        return tuple(reader.rest(reader is untaken) for reader in self._readers())

    def numbers(self) -> list[int]:
        """Return the numbers of all open partitions."""
        return [reader.unread.number for reader in self._readers()]

    def lags(self) -> tuple[PartitionLag, ...]:
        """Return the entries of all partitions in a status."""
        return tuple(reader.lag() for reader in self._readers())

    def stay(self, number: int) -> None:
        """Note that no process finds a partition. Do nothing if it is not here."""
        idle, _ = self._idle.get(number, (None, 0.0))
        for reader in chain.from_iterable(self._ready.values()) if idle is None else [idle]:
            if reader.unread.number == number:
                reader.stay()

    def settle(self, numbers: Collection[int] | None) -> None:
        """Prepare the positions of these partitions, or of all, for other readers. `close` follows."""
        for reader in self._readers():
            if numbers is None or reader.unread.number in numbers:
                reader.settle()

    def close(self, numbers: Collection[int]) -> None:
        """Stop reading these partitions."""
        for reader in self._readers():
            if reader.unread.number in numbers:
                if self._idle.pop(reader.unread.number, None) is None:
                    self._ready[reader.unread.input].remove(reader)
                reader.rouse(self._watch)
                reader.close()

    def end(self) -> None:
        """Close all partitions and the watch; none can be added after that."""
        self.close([reader.unread.number for reader in self._readers()])
        self._watch.close()

    def _readers(self) -> Sequence[PartitionReader]:
        ready = chain.from_iterable(self._ready.values())
        readers = [*ready, *(reader for reader, _ in self._idle.values())]
        return sorted(readers, key=lambda reader: -reader.unread.number)

    def _lie_down(self, reader: PartitionReader, idle: Idle, now: float) -> None:
        reader.asked = now
        empty_since = now if reader.empty_since is None else reader.empty_since
        reader.empty_since = None if idle.is_held else empty_since
        by_itself = idle.fd is None and idle.on_ready is None
        seconds = IDLE_SECONDS if by_itself and idle.after_seconds is None else idle.after_seconds
        number = reader.unread.number
        self._idle[number] = reader, float("inf") if seconds is None else now + seconds
        reader.sleep(idle, self._watch, partial(self._wake, number))

    def _wake(self, number: int, *_: object) -> None:
        self._woken.append(number)
        self.activate()

    def _rouse(self, now: float) -> None:
        """Make partitions ready again that were woken, or whose wait is over."""
        if not self._idle:
            self._woken.clear()
            return
        woken = [self._woken.popleft() for _ in range(len(self._woken))]
        for number in (*woken, *[number for number, (_, due) in self._idle.items() if due <= now]):
            if number in self._idle:
                reader, _ = self._idle.pop(number)
                reader.rouse(self._watch)
                self._is_ready(reader)

    def _is_ready(self, reader: PartitionReader) -> None:
        self._ready.setdefault(reader.unread.input, deque()).append(reader)


def shown(value: object) -> str:
    """Return a partition or position as text for an error or a status.

    >>> shown(("orders", 3)), len(shown("x" * 1_000))
    ("('orders', 3)", 100)
    """
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"
