"""Commits of Spark batches: the epoch of each committed batch, and the batches that sources have not taken in.

A batch is known by (query, batch) and is issued once; a replay gets the epoch of the first commit. A client that
requested a commit gets no answer while too many batches are still to be taken in. That slows Spark down.

An ordered batch is issued only when sources have taken in all issued batches of its query. Until then the request for
its commit is in a queue, and Spark has staged the batch. So its lines have later epochs than those of earlier batches:
see rule 6 of `megaflow.job.worker.reading.source_operator`. When the job stops, batches in the queue are never taken
in. Neither these requests nor later ones are answered, because a refusal would fail the query, which the launcher ends
with the job.

Batches of different queries are not ordered by each other, unless a request names queries in `after`. Its batch is
issued only when sources have taken in all issued batches of these queries. So its lines have later epochs than theirs,
by the same rule 6. A query that was over before the request has no later batch, so the lines of the whole query come
first. A job that resumes first issues the rests of those batches, so the rule holds across restarts.

In a job with a store, a batch is answered once it is durable, and Spark forgets it only then. A checkpoint at t names
the newest batch of each query that was issued before t. Batches are issued in increasing order. So the checkpoint has
all batches up to that one completely, and nothing of later ones:
1. A batch is issued at e once all of its lines are staged (`staged_checks`), and each source obeys that command. A
   checkpoint at t > e has each of its lines once. Lines that a source took before it obeys the checkpoint are stamped
   below t. The rest is then ready in its staging, and the source has it written (`UntakenLines`). A checkpoint at t < e
   has none of its lines, because lines that are only staged are in no checkpoint. No checkpoint is at t = e, because
   each has an epoch of its own.
2. So a job that resumes from that checkpoint first issues one command for each query. It makes the query's rest ready
   again at the job's present workers, under the name of the query's newest batch. If Spark replays a batch up to that
   one, it is answered at once and does not enter again, no matter how much of it was taken. A later batch was never
   answered; it enters as if for the first time, because none of it is in the checkpoint. The moment of the crash does
   not matter: while the batch was staged, before or after its command, half taken, in a checkpoint that was abandoned
   or not committed, or committed and not yet answered.
3. `megaflow.spark.kept_query` makes sure that Spark's own record of a batch's lines is on the disk before its commit is
   requested. Otherwise a batch that was answered could be replayed with more lines than those that were taken in.
4. Each checkpoint writes the whole rest, which counts for that checkpoint only. So an abandoned one leaves no gap.
5. A batch that is wholly taken in and waits to be durable asks for a checkpoint. A half-taken batch waits for the next
   checkpoint that is due, which has the rest. Then Spark can stage its next batch.
6. A leaving worker first takes in the lines that it was given (`concern`), so it passes none on. From then until it has
   left there is no checkpoint. Commits name a joiner only after it has joined, so an earlier checkpoint waits for
   nothing from it.
7. A hand-over does not wait for the answer of a batch that is taken in. None could come, because no checkpoint begins.
   The client repeats its request at the next coordinator, which knows the issued batches and how far they are durable.
8. After a stop nothing is issued. So the last checkpoint has all issued batches, and its commit answers them.
9. A *whole* batch enters at one epoch, that of its commit: see rule 8 of `source_operator`. So an operator that folds a
   key's records of one time together gets those of the batch in one call. Its commit may carry a watermark, which is
   issued at the same epoch. So timers that it reaches fire at the owner of their key after the batch's records, and
   before those of the next batch. Between two batches the query raises the watermark by a request of its own.
   Such a job has no other watermarks. It keeps its timers at its end, because its query may continue.
"""

from collections.abc import Collection, Hashable, Iterable

from megaflow.control.coordinator.base.epoch_clock import CommandStream
from megaflow.control.coordinator.base.events import Asked
from megaflow.control.coordinator.base.job_state import CommitsState
from megaflow.control.coordinator.base.roster import Roster
from megaflow.control.messages import CommitBatch, CommitRequest, IngestPorts, RaiseWatermark, SourceEnded
from megaflow.errors import CommandRefused
from megaflow.megaphone.base.event_unit import GREATEST, LEAST
from megaflow.megaphone.base.routing import Watermark

COMMITS_AHEAD_MAX = 2  # committed batches not yet taken in; with more of them, Spark waits
COMMITS_KNOWN_MAX = 10_000  # far more than needed: Spark replays only the newest one or two batches
WAITING_MAX = 1_000


class Commits:
    """The commits of one job. One writer: the controller."""

    def __init__(
        self, roster: Roster, stream: CommandStream, queries: int = 0, durable: Iterable[tuple[str, int]] | None = None
    ) -> None:
        """`queries`: how many Spark queries feed the job. `durable`: the newest durable batch of each query.

        Without a store `durable` is None.
        """
        self.state = CommitsState(queries, dict(durable or ()), None if durable is None else dict(durable))
        self.untaken: dict[tuple[str, int], set[int]] = {}  # (query, batch) -> workers with lines to take in
        self.raised_at: float | None = None  # seconds, when a query has last raised the watermark
        self._roster = roster
        self._stream = stream
        self._waiting: list[tuple[Asked, int]] = []  # (request that waits for its answer, epoch)
        self._queue: list[Asked] = []  # requests for batches that will be issued later
        self._staging: dict[Hashable, set[int]] = {}  # client that has received ports -> workers where it may stage

    @property
    def over(self) -> bool:
        """Whether all queries have ended and everything is taken in."""
        return self.state.queries <= 0 and not self.untaken

    @property
    def at_rest(self) -> bool:
        """Whether no batch must be taken in or answered, is queued, or may be in staging.

        Answers that wait for durability do not count: see rule 7.
        """
        waits = self.state.durable is None and self._waiting
        return not (self.untaken or waits or self._staging or self._queue)

    @property
    def asked(self) -> list[Asked]:
        """The requests whose batches are issued, but that are not answered."""
        return [asked for asked, _ in self._waiting]

    @property
    def newest(self) -> tuple[tuple[str, int], ...]:
        """The newest issued batch of each query, also from before this attempt of the job."""
        return tuple(sorted(self.state.newest.items()))

    def taken_up_to(self, query: str) -> int:
        """Return the newest batch up to which all issued batches are taken in; -1 if there is none."""
        untaken = (batch for name, batch in self.untaken if name == query)
        return min(untaken, default=self.newest_of(query) + 1) - 1

    def newest_of(self, query: str) -> int:
        """Return the newest issued batch of a query, also from before this attempt; -1 if there is none."""
        return self.state.newest.get(query, -1)

    def has_batches(self, query: str) -> bool:
        """Tell whether sources must still take in a batch of a query, issued or not."""
        queued = (_name(asked)[0] for asked in self._queue)
        return query in queued or any(name == query for name, _ in self.untaken)

    @property
    def wait_for_a_checkpoint(self) -> bool:
        """Whether a batch that is wholly taken in waits to be durable."""
        return any(not (self._is_durable(*batch) or batch in self.untaken) for batch in map(_name, self.asked))

    def kept(self, newest: Iterable[tuple[str, int]]) -> None:
        """Record that the batches of each query up to these are durable."""
        assert self.state.durable is not None
        self.state.durable.update(newest)

    def _is_durable(self, query: str, batch: int) -> bool:
        return self.state.durable is None or batch <= self.state.durable.get(query, -1)

    # Requests of Spark queries

    def epoch_of(self, commit: CommitBatch) -> int | None:
        """Return the epoch at which this batch was committed before; None if it was not.

        0 stands for all epochs of earlier attempts: the job resumed from a checkpoint that has the batch.
        """
        if not _is_named(commit):
            return None
        epoch = self.state.epochs.get((commit.query, commit.batch))
        was_before = epoch is None and self.state.durable is not None and self._is_durable(commit.query, commit.batch)
        return 0 if was_before else epoch

    def is_known(self, body: object) -> bool:
        """Return whether a request begins nothing new: it is not a commit, or its batch was committed before."""
        return not isinstance(body, CommitRequest) or self.epoch_of(body.commit) is not None

    def ask(self, asked: Asked) -> None:
        """Handle a request of a Spark query. Raises CommandRefused."""
        match asked.request.body:
            case IngestPorts():
                ports = self._roster.ports
                self._staging[asked.client] = {worker for worker, _, _ in ports}
                self._stream.out.append(asked.done(ports))
            case RaiseWatermark(micros):
                _check_time(micros)
                if raised := self._raised(micros):
                    self._stream.issue(*raised)
                self._stream.out.append(asked.done(None))
            case SourceEnded(query):
                if query not in self.state.ended:  # a second report does no harm
                    self.state.ended.add(query)
                    self.state.queries -= 1
                self._staging.pop(asked.client, None)
                self._stream.out.append(asked.done(None))
            case CommitRequest(commit) as request:
                epoch = self.epoch_of(commit)
                if epoch is None:  # a replay is answered like the first commit, and not issued again
                    self._check_new(request, self._roster.stagers)
                    if not self.is_next(request):
                        self._queue.append(asked)
                        return
                    epoch = self.issue(commit)
                self._staging.pop(asked.client, None)
                self._stream.out.append(asked.accepted(epoch))
                self._waiting.append((asked, epoch))

    def _check_new(self, request: CommitRequest, workers: Collection[int]) -> None:
        """Raise CommandRefused unless this new batch can be committed."""
        commit = request.commit
        name = f"batch {commit.batch!r} of query {commit.query!r}"
        if not (_is_named(commit) and isinstance(commit.winners, dict) and isinstance(request.after, tuple)):
            raise CommandRefused(f"{name} is malformed")
        if commit.watermark is not None:
            _check_time(commit.watermark)
        newest = self.newest_of(commit.query)
        if commit.batch <= newest:
            raise CommandRefused(f"{name} comes too late: batch {newest} is already committed")
        if self.state.durable is not None and commit.batch > newest + 1:
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

    def is_next(self, request: CommitRequest) -> bool:
        """Return whether all issued batches that must enter before this one are taken in."""
        own = request.commit.query if request.ordered else None
        return all(query != own and query not in request.after for query, _ in self.untaken)

    def issue(self, commit: CommitBatch) -> int:
        """Issue the command that takes a batch in; return its epoch."""
        key = commit.query, commit.batch
        epoch = self.state.epochs[key] = self._stream.issue(commit, *self._raised(commit.watermark))
        self.state.newest[commit.query] = commit.batch
        if workers := {worker for worker, _, lines in commit.winners.values() if lines}:
            self.untaken[key] = workers
        if len(self.state.epochs) > COMMITS_KNOWN_MAX:
            del self.state.epochs[next(iter(self.state.epochs))]
        return epoch

    def _raised(self, micros: int | None) -> list[Watermark]:
        """Return the watermark that a query gives, if it is greater than those before it."""
        before = self.state.watermark
        if micros is None or (before is not None and micros <= before):
            return []
        self.state.watermark, self.raised_at = micros, self._stream.now
        return [Watermark(micros)]

    def take_queue(self) -> list[Asked]:
        """Return and forget the requests to repeat, after a batch has been taken in."""
        asked, self._queue = self._queue, []
        return asked

    def gone(self, client: Hashable) -> None:
        """Record that the client has disconnected: its staged lines that are not issued never will be."""
        self._staging.pop(client, None)
        self._queue = [asked for asked in self._queue if asked.client != client]

    # Progress of the batches

    def concern(self, ids: tuple[int, ...]) -> bool:
        """Return whether one of these workers may have staged lines that its source has not taken in."""
        return any(not some.isdisjoint(ids) for some in (*self._staging.values(), *self.untaken.values()))

    def taken(self, query: str, batch: int, worker: int) -> None:
        """Record that a worker has taken in its part of a batch."""
        workers = self.untaken.get((query, batch))
        if workers is not None:
            workers.discard(worker)
            if not workers:
                del self.untaken[query, batch]

    def release(self, ended: bool) -> None:
        """Answer the requests that need not wait any longer. `ended`: the job has."""
        if not ((ended and self.state.durable is None) or len(self.untaken) <= COMMITS_AHEAD_MAX):
            return
        waiting, self._waiting = self._waiting, []
        for asked, epoch in waiting:
            if self._is_durable(*_name(asked)):
                self._stream.out.append(asked.done(epoch))
            else:
                self._waiting.append((asked, epoch))


def _is_named(commit: CommitBatch) -> bool:
    """Return whether a batch that came over the wire has a valid name."""
    return isinstance(commit.query, str) and isinstance(commit.batch, int)


def _check_time(micros: object) -> None:
    """Raise CommandRefused unless a watermark that came over the wire is a time."""
    if type(micros) is not int or not LEAST <= micros <= GREATEST:
        raise CommandRefused(f"a watermark must be a time in microseconds, not {micros!r:.50}")


def _name(asked: Asked) -> tuple[str, int]:
    """Return the query and the batch of a requested commit."""
    commit = asked.request.body.commit
    return commit.query, commit.batch
