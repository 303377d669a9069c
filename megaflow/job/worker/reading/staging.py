"""Lines or rows of Spark task attempts, kept aside at one worker until a commit names the attempt.

1. A task attempt is open until its `StageEnd` arrives with the right count; then it is whole. If its connection is
   lost, an open attempt is discarded and a whole one stays.
2. A `CommitBatch` makes the whole attempts that it names ready to be taken, in the order of their partitions. It
   discards all other attempts of that batch and of the query's earlier batches.
3. Batches of a query are committed in increasing order. If lines of a committed batch are staged or committed again,
   the worker counts and answers them, and drops them. So a replay changes nothing.
4. At most `limit_bytes` of lines are kept in memory. Further lines go to a temporary file of their attempt. It has no
   name, so not even a crash leaves it behind.
5. Messages are kept as they arrive (`staged_units`). They become lines or rows when they are taken: until then a line
   costs neither time nor an object, and the fold reads the strings of a batch soon after they are made.
6. After the source has closed, open attempts and new arrivals are also counted, answered and dropped: the job ends or
   the worker leaves, and that is no error of a task.

One thread stages (the poller of the process, by `stage`, `end` and `lost`). Another thread takes (the worker's own, by
`commit`, `take` and `take_finished`). A lock keeps them apart.
"""

import sys
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from threading import RLock
from typing import Any, TypeAlias

from megaflow.control.messages import CommitBatch, CommitTaken, Refused
from megaflow.control.shapes import conforms
from megaflow.control.staging_messages import Staged, StageEnd, StageLines
from megaflow.errors import ProtocolError
from megaflow.job.worker.reading.staged_units import (
    OpenLines,
    OpenRows,
    StagedAttempt,
    StagedUnit,
    Unpack,
    mark_of,
    no_rows,
    open_unit,
    records_in,
)
from megaflow.job.worker.reading.untaken_lines import LinesCopy
from megaflow.timely.communication.role_handlers import Connection

MEMORY_LIMIT_BYTES = 64 << 20  # about one default batch of small files; a worker needs its memory for other things

Key: TypeAlias = tuple[str, str, int, int, int]  # query, run, batch, partition, attempt


class Staging:
    """The staged lines of one worker.

    Invariant: `held_bytes` is the sum over all attempts, staged and ready.
    """

    def __init__(self, worker: int, limit_bytes: int = MEMORY_LIMIT_BYTES, folder: str | None = None) -> None:
        self.worker = worker
        self._limit_bytes = limit_bytes
        self._folder = folder
        self._lock = RLock()
        self._attempts: dict[Key, StagedAttempt] = {}  # open or whole, not yet committed
        self._committed: dict[str, int] = {}  # query -> newest committed batch
        self._ready: deque[tuple[StagedAttempt, CommitTaken | None]] = deque()  # a batch's last: with its receipt
        self._finished: list[CommitTaken] = []
        self._closed = False
        self._last: OpenLines | OpenRows | None = None  # the chunk from which records were last taken, perhaps all
        self.query = ""  # of the lines or rows that were taken last
        self.unpack: Unpack = no_rows  # makes rows of a chunk; set by the code that builds the dataflow
        self.held_bytes = 0  # of lines in memory without the chunk being taken; written here, under the lock
        self.pending_lines = 0  # committed but not taken; also written under the lock

    def stage(self, message: StageLines, sender: Hashable) -> None:
        """Keep lines aside; `sender` is the connection by which they came.

        Raises ProtocolError, with nothing changed, if the message is not what an executor sends.
        """
        key, content = self._key(message), message.text
        try:
            mark = mark_of(content, message.separator, message.lines)
        except ProtocolError as error:
            raise ProtocolError(f"Worker {self.worker} received a message that no Spark task sends: {error}") from None
        size = sys.getsizeof(content)
        with self._lock:
            attempt = self._attempt(key, sender)
            if not attempt.dropped:
                if self.held_bytes + size <= self._limit_bytes:
                    attempt.chunks.append(StagedUnit(content, mark, 0, size))
                    self.held_bytes += size
                else:
                    attempt.spill(content, mark, self._folder)
            attempt.lines += message.lines

    def end(self, message: StageEnd, sender: Hashable) -> Staged | Refused:
        """Close an attempt; return the answer to send: `Staged`, or `Refused` if the count is wrong.

        Raises ProtocolError like `stage`.
        """
        key = self._key(message)
        with self._lock:
            attempt = self._attempt(key, sender)
            if attempt.lines != message.lines:
                self._discard(key)
                return Refused(
                    message.attempt,
                    f"Task attempt {message.attempt} reports {message.lines} lines staged at worker "
                    f"{self.worker}, but {attempt.lines} arrived.",
                )
            if attempt.dropped:
                self._discard(key)
            attempt.whole = True
        return Staged(message.attempt, message.lines)

    def restore(self, messages: Iterable[StageLines | StageEnd]) -> None:
        """Stage what the previous incarnation of the job left. Raises the errors of the iterator `messages`."""
        for message in messages:
            if isinstance(message, StageLines):
                self.stage(message, None)
            else:
                answer = self.end(message, None)
                assert isinstance(answer, Staged), answer

    def lost(self, sender: Hashable) -> None:
        """Discard the open attempts of a lost connection."""
        with self._lock:
            for key in [k for k, a in self._attempts.items() if a.sender == sender and not a.whole]:
                self._discard(key)

    def missing(self, command: CommitBatch) -> str | None:
        """Return how the staged attempts differ from a batch's announcement; None if they agree or it was committed."""
        with self._lock:
            if command.batch <= self._committed.get(command.query, -1):
                return None
            for key, lines in self._winners(command):
                found = self._attempts.get(key)
                if found is None or not found.whole or found.lines != lines:
                    return (
                        f"worker {self.worker} had to commit {lines} lines of attempt {key[4]} (query "
                        f"{command.query}, batch {command.batch}, partition {key[3]}), but it has "
                        f"{'none' if found is None else f'{found.lines}, whole: {found.whole}'}"
                    )
            return None

    def commit(self, command: CommitBatch) -> None:
        """Make the named attempts ready to be taken, and discard the others of the batch.

        Does nothing if the batch was committed before. Raises ProtocolError, with nothing changed, if the staged
        attempts differ from the announcement.
        """
        winners = self._winners(command)
        with self._lock:
            if command.batch <= self._committed.get(command.query, -1):
                return
            if missing := self.missing(command):
                raise ProtocolError(missing)
            self._committed[command.query] = command.batch
            receipt = CommitTaken(command.query, command.batch)
            for key, lines in winners:
                self._ready.append((self._attempts.pop(key), receipt if key == winners[-1][0] else None))
                self.pending_lines += lines
            for key in [k for k in self._attempts if k[0] == command.query and k[2] <= command.batch]:
                self._drop(key)

    def take(self, limit_bytes: int) -> list[Any]:
        """Return committed records in order, about `limit_bytes` of them, and at least one if there are any.

        If they are rows, all are of one input, `self.input`. Raises the errors of `unpack`.
        """
        taken: list[Any] = []
        with self._lock:
            while limit_bytes > 0 and (self._is_open or self._next_chunk()):
                assert self._last is not None
                some, size = self._last.take(limit_bytes)
                taken += some
                limit_bytes -= size
            self.pending_lines -= len(taken)
            self._finish_attempts()
        return taken

    @property
    def has_committed(self) -> bool:
        """Whether committed records are not taken, or batches not reported. For the thread that takes."""
        return bool(self._ready or self._finished)

    @property
    def input(self) -> str:
        """The input of the rows that were taken last; "" for lines."""
        return "" if self._last is None else self._last.input

    @property
    def _is_open(self) -> bool:
        return self._last is not None and not self._last.is_taken

    def copy(self, ahead: Sequence[Any] = ()) -> LinesCopy:
        """Return a copy of `ahead`, which was taken last, and of all that `take` would return from now on.

        Cost: linear in the number of messages.
        """
        with self._lock:
            copy = LinesCopy(self.pending_lines + len(ahead), {}, [])
            if self._last is not None:
                copy.add(self.query, self._last.rest(ahead))
            for attempt, _ in self._ready:
                copy.add(attempt.query, attempt.copy(copy.files))
        return copy

    def take_finished(self) -> list[CommitTaken]:
        """Return the batches whose part on this worker was completely taken since the last call, each once."""
        with self._lock:
            self._finish_attempts()
            finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """Forget everything, and drop all later arrivals."""
        with self._lock:
            self._closed = True
            for key in list(self._attempts):
                self._drop(key)
            for attempt, _ in self._ready:
                attempt.clear()
            self._ready.clear()
            self._last, self.held_bytes, self.pending_lines = None, 0, 0

    def _winners(self, command: CommitBatch) -> list[tuple[Key, int]]:
        """Return the attempts that a batch commits here, in the order of their partitions, with their line counts."""
        return [
            ((command.query, command.run, command.batch, partition, attempt), lines)
            for partition, (worker, attempt, lines) in sorted(command.winners.items())
            if worker == self.worker
        ]

    def _key(self, message: StageLines | StageEnd) -> Key:
        """Return the name of the attempt, checked."""
        key = (message.query, message.run, message.batch, message.partition, message.attempt)
        if tuple(map(type, key)) != (str, str, int, int, int):
            raise ProtocolError(
                f"Worker {self.worker} received lines of a task attempt with an invalid name: {key!r:.200}"
            )
        if message.worker != self.worker:
            raise ProtocolError(f"Worker {self.worker} received lines for worker {message.worker!r:.50}.")
        return key

    def _attempt(self, key: Key, sender: Hashable) -> StagedAttempt:
        attempt = self._attempts.get(key)
        if attempt is None:
            dropped = self._closed or key[2] <= self._committed.get(key[0], -1)
            attempt = self._attempts[key] = StagedAttempt(sender, dropped, key[0])
        elif attempt.whole or attempt.sender != sender:
            raise ProtocolError(f"Worker {self.worker} received task attempt {key[4]} twice.")
        return attempt

    def _discard(self, key: Key) -> None:
        attempt = self._attempts.pop(key)
        self.held_bytes -= attempt.held_bytes()
        attempt.clear()

    def _drop(self, key: Key) -> None:
        """Discard an attempt, but continue to count an open one, so that its task ends without an error."""
        attempt = self._attempts[key]
        self._discard(key)
        if not attempt.whole:
            attempt.dropped = True
            self._attempts[key] = attempt

    def _next_chunk(self) -> bool:
        """Open the next ready chunk; return False if there is none."""
        self._finish_attempts()
        if not self._ready:
            return False
        attempt, _ = self._ready[0]
        chunk = attempt.chunks.popleft()
        self.query = attempt.query
        self._last = open_unit(attempt.load(chunk), chunk.mark, self.unpack)
        if chunk.content is not None:
            self.held_bytes -= chunk.size
        return True

    def _finish_attempts(self) -> None:
        """Remove the ready attempts that have no further chunk, once the open chunk is taken."""
        while not self._is_open and self._ready and not self._ready[0][0].chunks:
            attempt, receipt = self._ready.popleft()
            attempt.clear()
            if receipt is not None:
                self._finished.append(receipt)

    def _check(self) -> None:
        with self._lock:
            everything = [*self._attempts.values(), *(attempt for attempt, _ in self._ready)]
            assert self.held_bytes == sum(attempt.held_bytes() for attempt in everything)
            assert self.held_bytes <= self._limit_bytes
            kept = [a for a in everything if not a.dropped]
            assert all(a.file is not None or a.file_bytes == 0 for a in kept)  # an empty line takes no byte there
            assert all(not a.chunks and a.file is None for a in everything if a.dropped)
            assert all(a.whole for a, _ in self._ready)
            rest = sum(records_in(a.load(chunk), chunk.mark) for a, _ in self._ready for chunk in a.chunks)
            rest += sum(records_in(*each) for each in (() if self._last is None else self._last.rest(())))
            assert self.pending_lines == rest


class IngestDoor:
    """Role "ingest": Spark's executors stage lines for workers of this process."""

    def __init__(self, stagings: Mapping[int, Staging]) -> None:
        self._stagings = stagings  # by worker

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Accept any executor that knows the secret."""

    def received(self, connection: Connection, value: Any) -> None:
        """Stage lines, and answer the end of an attempt. Raises ProtocolError for anything else."""
        if not conforms(value, StageLines | StageEnd):
            raise ProtocolError(f"an executor sent an object of type {type(value).__name__} that it must not send")
        staging = self._stagings.get(value.worker)
        if staging is None:
            raise ProtocolError(f"an executor sent lines for worker {value.worker}, which is not in this process")
        if isinstance(value, StageLines):
            staging.stage(value, connection)
        else:
            connection.send(staging.end(value, connection))

    def lost(self, connection: Connection) -> None:
        """Discard the open attempts of the connection."""
        for staging in self._stagings.values():
            staging.lost(connection)
