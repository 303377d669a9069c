"""Which staged Spark batches were committed, at which epoch, and which of them sources have not taken in.

A batch is known by (query, batch) and is issued once: a replay gets the first one's epoch. Who asked for a commit
is kept waiting while too many batches are still to be taken in: that is how Spark is slowed down.

An ordered batch is issued only when all batches of its query that were issued are taken in. Meanwhile whoever asks for
its commit is in a queue, and Spark has staged it. So its lines have later epochs than theirs: see rule 6 of
`megaflow.job.worker.source_operator`. What is in the queue when the job is told to stop is never taken in; neither that
nor what is asked later is answered, as a refusal would be an error of the query, which the launcher ends with the job.

A batch that is to be durable is answered when it is, and Spark forgets it only then. A checkpoint at t names, of each
query, the newest batch that was issued before t; batches are issued in increasing order, so it has the batches up to
that one wholly, and nothing of later ones:
1. A batch is issued at e once all of its lines are staged (`staged_checks`), and each source obeys that command. A
   checkpoint at t > e has each of its lines once: what a source has taken before it obeys the checkpoint is stamped
   below t, the rest is ready in its staging then, and this it has written (`UntakenLines`). A checkpoint at t < e has
   none: what is staged only is in no checkpoint. None is at t = e, since a checkpoint has an epoch of its own.
2. So a job that goes on from that checkpoint first issues one command that makes the rest ready again, wherever that is
   by then, under the name of the newest batch. A batch up to that one that Spark replays is answered at once and enters
   no more, whatever of it was taken; a later one was never answered, enters as if it were the first time, and nothing
   of it is there. Which one the crash came in does not matter: while the batch was staged, before its command or
   after, half taken, in a checkpoint that was abandoned or not committed, or committed and not yet answered.
3. That Spark's own record of which lines a batch has is on the disk before its commit is asked for is seen to by
   `megaflow.spark.kept_query`: else a batch that is answered could come with more lines than those that are in.
4. What is left is written whole by each checkpoint, and counts for that one only: an abandoned one leaves no gap.
5. A batch that is wholly taken in and waits to be durable asks for a checkpoint; one that is half taken waits for the
   next that is due, which has the rest, and then Spark can stage the next one.
6. A leaver takes in what it was given before it goes (`concern`), so it hands nothing of it on; from then until it is
   gone there is no checkpoint. A joiner is named by commits that are issued after it has joined, so what a checkpoint
   before that waits for is none of its.
7. A hand-over does not wait for the answer of a batch that is taken in: none could come, as no checkpoint is begun. It
   is asked again of the next coordinator, which knows what was issued, and how far that is durable.
8. After a stop nothing is issued, so the last checkpoint has all that was, and is what answers.
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

    def __init__(self, queries: int = 0, durable: Iterable[tuple[str, int]] | None = None) -> None:
        """`queries` is how many Spark queries feed the job, `durable` the newest batch of each that is.

        None: nothing is to be.
        """
        self._queries = queries  # still to end
        self._ended: set[str] = set()  # queries
        self._epochs: dict[tuple[str, int], int] = {}  # (query, batch) -> epoch, oldest first
        self._newest = dict(durable or ())  # query -> newest batch that is issued
        self._durable = None if durable is None else dict(durable)  # query -> newest batch that is
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
        waits = self._durable is None and self._waiting
        return not (self._untaken or waits or self._staging or self._queue)

    @property
    def asked(self) -> list[Asked]:
        """Who waits for an answer, though the batch is issued."""
        return [asked for asked, _ in self._waiting]

    @property
    def newest(self) -> tuple[tuple[str, int], ...]:
        """The newest batch of each query that is issued, or was before this job began."""
        return tuple(sorted(self._newest.items()))

    @property
    def ended(self) -> frozenset[str]:
        """The queries that have said that they are over."""
        return frozenset(self._ended)

    def taken_up_to(self, query: str) -> int:
        """Return the newest batch such that it, and all before it that were issued, are taken in; -1: none."""
        untaken = (batch for name, batch in self._untaken if name == query)
        return min(untaken, default=self._newest.get(query, -1) + 1) - 1

    def newest_of(self, query: str) -> int:
        """Return the newest batch of a query that is issued, or was before this job began; -1: none."""
        return self._newest.get(query, -1)

    def has_batches(self, query: str) -> bool:
        """Tell whether a batch of a query is to be taken in, issued or not."""
        queued = (_name(asked)[0] for asked in self._queue)
        return query in queued or any(name == query for name, _ in self._untaken)

    @property
    def wait_for_a_checkpoint(self) -> bool:
        """Whether a batch is to be durable that is wholly taken in."""
        untaken = self._untaken
        return any(not (self._is_durable(*batch) or batch in untaken) for batch in map(_name, self.asked))

    def kept(self, newest: Iterable[tuple[str, int]]) -> None:
        """Note that the batches of each query up to these are durable."""
        assert self._durable is not None
        self._durable.update(newest)

    def _is_durable(self, query: str, batch: int) -> bool:
        return self._durable is None or batch <= self._durable.get(query, -1)

    def state(self) -> CommitsState:
        """Return what whoever goes on with these must know; they are at rest."""
        epochs = tuple((query, batch, epoch) for (query, batch), epoch in self._epochs.items())
        durable = None if self._durable is None else tuple(sorted(self._durable.items()))
        return CommitsState(self._queries, tuple(sorted(self._ended)), epochs, self.newest, durable)

    def resume(self, state: CommitsState) -> None:
        """Go on from there."""
        self._queries, self._ended = state.queries, set(state.ended)
        self._epochs = {(query, batch): epoch for query, batch, epoch in state.epochs}
        self._newest, self._durable = dict(state.newest), None if state.durable is None else dict(state.durable)

    def end(self, query: str) -> None:
        """Note that a query is over; hearing it twice does no harm."""
        if query not in self._ended:
            self._ended.add(query)
            self._queries -= 1

    def epoch_of(self, commit: CommitBatch) -> int | None:
        """Return the epoch at which this batch was committed before, None if it was not.

        0 stands for epochs before this job began, which went on from a checkpoint that has the batch.
        """
        if not _is_named(commit):
            return None
        epoch = self._epochs.get((commit.query, commit.batch))
        was_before = epoch is None and self._durable is not None and self._is_durable(commit.query, commit.batch)
        return 0 if was_before else epoch

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
        newest = self._newest.get(commit.query, -1)
        if commit.batch <= newest:
            raise CommandRefused(f"{name} comes too late: batch {newest} is already committed")
        if self._durable is not None and commit.batch > newest + 1:
            raise CommandRefused(f"{name} does not follow batch {newest}, the last committed batch")
        if (waiting := len(self._waiting) + len(self._queue)) >= WAITING_MAX:
            raise CommandRefused(f"{waiting} commits are already waiting; try again later")
        for partition, winner in commit.winners.items():
            match winner:
                case (int(worker), int(), int(lines)) if worker in workers and lines >= 0:
                    continue
            raise CommandRefused(
                f"{name}: partition {partition} needs (worker, attempt, lines), not {winner!r}; the workers are "
                f"{sorted(workers)}"
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
        self._newest[commit.query] = commit.batch
        if workers := {worker for worker, _, lines in commit.winners.values() if lines}:
            self._untaken[key] = workers
        if len(self._epochs) > COMMITS_KNOWN_MAX:
            del self._epochs[next(iter(self._epochs))]

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
        if not ((ended and self._durable is None) or len(self._untaken) <= COMMITS_AHEAD_MAX):
            return
        waiting, self._waiting = self._waiting, deque[tuple[Asked, int]]()
        for each in waiting:
            if self._is_durable(*_name(each[0])):
                yield each
            else:
                self._waiting.append(each)


def _is_named(commit: CommitBatch) -> bool:
    """Whether the name of a batch that came over the wire is one."""
    return isinstance(commit.query, str) and isinstance(commit.batch, int)


def _name(asked: Asked) -> tuple[str, int]:
    """The query and the batch of a commit that is asked for."""
    commit = asked.request.body.commit
    return commit.query, commit.batch
