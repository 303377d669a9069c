"""Which staged Spark batches were committed, at which epoch, and which of them sources have not taken in.

A batch is known by (query, batch) and is issued once: a replay gets the first one's epoch. Who asked for a commit
is kept waiting while too many batches are still to be taken in: that is how Spark is slowed down.

An ordered batch is issued only when all batches of its query that were issued are taken in. Meanwhile whoever asks for
its commit is in a queue, and Spark has staged it. So its lines have later epochs than theirs: see rule 6 of
`megaflow.job.worker.source_operator`. What is in the queue when the job is told to stop is never taken in; neither that
nor what is asked later is answered, as a refusal would be an error of the query, which the launcher ends with the job.
"""

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import Any, TypeAlias

from megaflow.control.coordinator.events import Asked, Instruction, Reply
from megaflow.control.coordinator.job_state import CommitsState
from megaflow.control.coordinator.request_progress import done
from megaflow.control.coordinator.roster import Roster
from megaflow.control.messages import Accepted, CommitBatch, CommitRequest, IngestPorts, SourceEnded
from megaflow.errors import CommandRefused

COMMITS_AHEAD_MAX = 2  # committed batches that sources may still have to take in before Spark has to wait
COMMITS_KNOWN_MAX = 10_000  # Spark replays the newest batch or two
WAITING_MAX = 1_000

Issue: TypeAlias = Callable[[Iterable[Any], list[Instruction], float], int]
"""Puts commands on the stream and returns their epoch."""


class Commits:
    """The commits of one job. One writer: the controller."""

    def __init__(self, queries: int = 0) -> None:
        """`queries` is how many Spark queries feed the job."""
        self._queries = queries  # still to end
        self._ended: set[str] = set()  # queries
        self._epochs: dict[tuple[str, int], int] = {}  # (query, batch) -> epoch, oldest first
        self._forgotten: dict[str, int] = {}  # query -> highest batch no longer in _epochs
        self._untaken: dict[tuple[str, int], set[int]] = {}  # (query, batch) -> workers with lines to take in
        self._waiting: deque[tuple[Asked, int]] = deque()  # (who waits, epoch)
        self._queue: deque[Asked] = deque()  # whose batches are to be issued later
        self._staging: dict[Hashable, set[int]] = {}  # client that was told ports -> workers where it may stage

    @property
    def all_taken(self) -> bool:
        """Whether no source has lines of a committed batch still to take in."""
        return not self._untaken

    @property
    def over(self) -> bool:
        """Whether everything is taken in and nothing more will come."""
        return self._queries <= 0 and self.all_taken

    @property
    def at_rest(self) -> bool:
        """Whether nothing is to be taken in, to be answered, or perhaps being staged."""
        return not (self._untaken or self._waiting or self._staging or self._queue)

    def state(self) -> CommitsState:
        """Return what whoever goes on with these must know; they are at rest."""
        epochs = tuple((query, batch, epoch) for (query, batch), epoch in self._epochs.items())
        return CommitsState(self._queries, tuple(sorted(self._ended)), epochs, tuple(self._forgotten.items()))

    def resume(self, state: CommitsState) -> None:
        """Go on from there."""
        self._queries, self._ended, self._forgotten = state.queries, set(state.ended), dict(state.forgotten)
        self._epochs = {(query, batch): epoch for query, batch, epoch in state.epochs}

    def end(self, query: str) -> None:
        """Note that a query is over; hearing it twice does no harm."""
        if query not in self._ended:
            self._ended.add(query)
            self._queries -= 1

    def epoch_of(self, commit: CommitBatch) -> int | None:
        """Return the epoch at which this batch was committed before, None if it was not."""
        return self._epochs.get((commit.query, commit.batch)) if _is_named(commit) else None

    def is_known(self, body: object) -> bool:
        """Return whether a request begins nothing new: it is no commit, or that of a batch that is committed."""
        return not isinstance(body, CommitRequest) or self.epoch_of(body.commit) is not None

    def stages(self, client: Hashable, ports: Iterable[tuple[int, str, int]]) -> None:
        """Note that a client was told where to stage its next batch."""
        self._staging[client] = {worker for worker, _, _ in ports}

    def staged(self, client: Hashable) -> None:
        """Note that what the client has staged is committed, or never will be."""
        self._staging.pop(client, None)

    def gone(self, client: Hashable) -> None:
        """Note that the client has hung up: what it has staged and is not issued never will be."""
        self.staged(client)
        self._queue = deque(asked for asked in self._queue if asked.client != client)

    def concern(self, ids: tuple[int, ...]) -> bool:
        """Return whether lines may be staged at one of these workers that its source has not taken in."""
        workers = {worker for some in (*self._staging.values(), *self._untaken.values()) for worker in some}
        return not workers.isdisjoint(ids)

    def check(self, commit: CommitBatch, workers: Collection[int]) -> None:
        """Raise CommandRefused unless this new batch can be committed."""
        name = f"batch {commit.batch!r} of query {commit.query!r}"
        if not _is_named(commit) or not isinstance(commit.winners, dict):
            raise CommandRefused(f"{name} is malformed")
        forgotten = self._forgotten.get(commit.query, -1)
        newest = max((batch for query, batch in self._epochs if query == commit.query), default=forgotten)
        if commit.batch <= newest:
            raise CommandRefused(f"{name} comes too late: batch {newest} was committed")
        if (waiting := len(self._waiting) + len(self._queue)) >= WAITING_MAX:
            raise CommandRefused(f"{waiting} commits are waiting already; try again later")
        for partition, winner in commit.winners.items():
            match winner:
                case (int(worker), int(), int(lines)) if worker in workers and lines >= 0:
                    continue
            raise CommandRefused(
                f"{name}: partition {partition} has no (worker, attempt, lines) but {winner!r}; "
                f"the workers are {sorted(workers)}"
            )

    def ask(self, asked: Asked, roster: Roster, issue: Issue, out: list[Instruction], now: float) -> None:
        """Answer what a Spark query asks. Raises CommandRefused."""
        match asked.request.body:
            case IngestPorts():
                self.stages(asked.client, roster.ports)
                out.append(done(asked, roster.ports))
            case SourceEnded(query):
                self.end(query)
                self.staged(asked.client)
                out.append(done(asked, None))
            case CommitRequest(commit, ordered):
                self._commit(asked, commit, ordered, roster.stagers, issue, out, now)

    def _commit(
        self, asked: Asked, commit: CommitBatch, ordered: bool, stagers: Collection[int], issue: Issue,
        out: list[Instruction], now: float,
    ) -> None:  # fmt: skip
        epoch = self.epoch_of(commit)
        if epoch is None:  # a replay is answered like the first time, and not issued again
            self.check(commit, stagers)
            if ordered and not self.is_next(commit):
                self.queue(asked)
                return
            epoch = issue([commit], out, now)
            self.add(commit, epoch)
        self.staged(asked.client)
        out.append(Reply(asked.client, Accepted(asked.request.id, epoch)))
        self.wait(asked, epoch)

    def add(self, commit: CommitBatch, epoch: int) -> None:
        """Note that the batch was issued at `epoch`."""
        key = (commit.query, commit.batch)
        self._epochs[key] = epoch
        if workers := {worker for worker, _, lines in commit.winners.values() if lines}:
            self._untaken[key] = workers
        if len(self._epochs) > COMMITS_KNOWN_MAX:
            query, batch = next(iter(self._epochs))
            del self._epochs[query, batch]
            self._forgotten[query] = max(batch, self._forgotten.get(query, batch))

    def is_next(self, commit: CommitBatch) -> bool:
        """Return whether all batches of the query that were issued are taken in."""
        return all(query != commit.query for query, _ in self._untaken)

    def queue(self, asked: Asked) -> None:
        """Keep a request until it is asked again, after a batch has been taken in."""
        self._queue.append(asked)

    def take_queue(self) -> Iterable[Asked]:
        """Return and forget the requests to be asked again."""
        asked, self._queue = self._queue, deque()
        return asked

    def wait(self, asked: Asked, epoch: int) -> None:
        """Put a request in line for its answer."""
        self._waiting.append((asked, epoch))

    def taken(self, query: str, batch: int, worker: int) -> None:
        """Note that a worker has taken in its part of a batch."""
        workers = self._untaken.get((query, batch))
        if workers is not None:
            workers.discard(worker)
            if not workers:
                del self._untaken[query, batch]

    def release(self, ended: bool) -> Iterator[tuple[Asked, int]]:
        """Yield and forget the requests, with their epochs, that need wait no longer."""
        while self._waiting and (ended or len(self._untaken) <= COMMITS_AHEAD_MAX):
            yield self._waiting.popleft()


def _is_named(commit: CommitBatch) -> bool:
    """Whether the name of a batch that came over the wire is one."""
    return isinstance(commit.query, str) and isinstance(commit.batch, int)
