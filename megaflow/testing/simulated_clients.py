"""Clients of a simulated job: those that steer it, and a Spark query that feeds it.

Each client is a generator that yields where it waits. Requests are values, sent through the doors of the job's
processes. The client's own code plans them, as in `megaflow control`. These clients find the coordinator and handle
lost connections as `megaflow.control.client.conversation` does, which would block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

from megaflow.control.client.conversation import Stopped
from megaflow.control.client.move_request import Plan, Selection, make_plan, plan_removal
from megaflow.control.client.planner import plan
from megaflow.control.messages import (
    NO_REQUEST,
    Accepted,
    AddProcesses,
    BeginPlan,
    CommandProgress,
    CommitBatch,
    CommitRequest,
    Done,
    IngestPorts,
    Moved,
    Reconfigure,
    Refused,
    RemoveWorker,
    Request,
    SourceEnded,
    StatusQuery,
    StopJob,
)
from megaflow.control.reports import JobStatus
from megaflow.control.staging_messages import Staged, StageEnd, StageLines
from megaflow.errors import ClusterError, CommandRefused, ConfigMismatch, MegaflowError, PeerLost
from megaflow.job.spec import Address
from megaflow.testing.simulated_links import SimulatedClient
from megaflow.testing.simulated_process import World

Waits: TypeAlias = Generator[float | None, None, Any]
"""Yields seconds to wait, or None to wait until something has arrived."""
RETRY_SECONDS = 0.1
RETRIES_MAX = 50
SPARK_SECONDS = 5.0  # from a failed task to the query's failure


class Talk:
    """One client's requests, one after another, to the coordinator, wherever it is by then."""

    def __init__(self, world: World, is_stopping: Callable[[], bool] = lambda: False) -> None:
        self.client: SimulatedClient | None = None
        self.world = world
        self.answered = 0  # number of requests that the job has carried out
        self._is_stopping = is_stopping
        self._address: Address | None = None  # where to ask next; None: at the address in the job's file
        self._arrived: deque[Any] = deque()
        self._id = 0

    @property
    def is_ready(self) -> bool:
        """Whether an answer or the connection's end has arrived."""
        return self.client is not None and (bool(self._arrived) or self.client.is_ready)

    def ask(self, body: object) -> Waits:
        """Send a request; return its result. Raises CommandRefused; PeerLost if the job ends first."""
        for _ in range(RETRIES_MAX):
            begun = False
            try:
                yield from self._connect()
                self._id += 1
                assert self.client is not None
                self.client.send(Request(self._id, body))
                while True:
                    match (yield from self._next()):
                        case Refused(id, reason) if id == self._id:
                            raise CommandRefused(reason)
                        case Accepted(id) | CommandProgress(id) if id == self._id:
                            begun = True
                        case Done(id, result) if id == self._id:
                            self.answered += 1
                            return result
                        case Moved(id, host, port) if id == self._id:
                            self.hang_up((host, port))
                            break
                        case Moved(id, host, port) if id == NO_REQUEST:
                            self._address = (host, port)
            except PeerLost:
                self.hang_up(self._address)
                if begun and not isinstance(body, IngestPorts | CommitRequest | SourceEnded):
                    raise
                yield RETRY_SECONDS
        raise PeerLost("the job is nowhere")

    def hang_up(self, address: Address | None = None) -> None:
        """Close the connection; the next one goes to this address."""
        if self.client is not None:
            self.client.close()
        self.client, self._address = None, address
        self._arrived.clear()

    def _connect(self) -> Waits:
        if self.client is None:
            address, self._address = self._address or self.world.published, None
            try:
                self.client = self.world.dial(address, "control", {})
            except (OSError, ConfigMismatch) as error:
                raise PeerLost(str(error)) from error
            yield 0.0

    def _next(self) -> Waits:
        assert self.client is not None
        while not self._arrived:
            while not self.client.is_ready:
                if self._is_stopping():
                    raise Stopped
                yield None
            self._arrived.extend(self.client.receive_available())
        return self._arrived.popleft()


def status_of(talk: Talk) -> Generator[float | None, None, JobStatus]:
    """Request the status, with tables."""
    status = yield from talk.ask(StatusQuery(True))
    assert isinstance(status, JobStatus)
    return status


def run_plan(talk: Talk, plan: Plan) -> Waits:
    """Carry out a plan, one step after another."""
    number = None
    if plan.steps:
        begin = BeginPlan(plan.table, plan.target, plan.strategy, plan.batch, plan.gap, "simulated", plan.removes)
        number = (yield from talk.ask(begin)).number
    for step in plan.steps:
        yield from talk.ask(Reconfigure(tuple(step), number))


def move(talk: Talk) -> Waits:
    """Move random bins to a random worker."""
    random = talk.world.random
    status = yield from status_of(talk)
    first = random.randrange(status.operators[0].bins)
    last = random.randrange(first, status.operators[0].bins)
    target = random.choice([each.id for each in status.workers])
    strategy = random.choice(["fluid", "all-at-once", "optimized"])
    yield from run_plan(talk, make_plan(status, Selection(bins=f"{first}-{last}", to=target, strategy=strategy)))


def add(talk: Talk) -> Waits:
    """Add one or two processes, and give them their share of the bins."""
    yield from talk.ask(AddProcesses(talk.world.random.choice([1, 1, 2])))
    yield from balance(talk)


def balance(talk: Talk) -> Waits:
    """Give each worker the same number of bins."""
    status = yield from status_of(talk)
    yield from run_plan(talk, make_plan(status, Selection(balance=True, strategy="optimized")))


def remove(talk: Talk, worker: int | None = None, strategy: str = "fluid") -> Waits:
    """Move a worker's bins away, then make its process leave. None: any worker."""
    status = yield from status_of(talk)
    if worker is None:
        worker = talk.world.random.choice([each.id for each in status.workers])
    yield from talk.ask(RemoveWorker(worker, ask_only=True))
    removal = plan_removal(status, worker)
    steps = plan(removal.table, removal.target, strategy) if removal.steps else []
    yield from run_plan(talk, replace(removal, steps=steps, strategy=strategy))
    yield from talk.ask(RemoveWorker(worker))


def remove_first(talk: Talk) -> Waits:
    """Make the oldest process leave. It is the coordinator's."""
    status = yield from status_of(talk)
    yield from remove(talk, min(each.id for each in status.workers))


def stop(talk: Talk) -> Waits:
    """Stop the job."""
    yield from talk.ask(StopJob())


class SimulatedQuery:
    """Spark query with given batches, each a list of partitions. The loop uses it in place of a `SparkFeed`."""

    message_lines = 1  # that an executor sends at once
    name = "query"
    after: tuple[str, ...] = ()  # queries whose batches enter before these

    def __init__(self, world: World, batches: Sequence[Sequence[Sequence[str]]], change: Callable[[], None]) -> None:
        self.error: Exception | None = None
        self.done = False
        self.waits = self._run()
        self.talk = Talk(world, lambda: self._stopping and self._may_stop)
        self._may_stop = False  # whether a stop may interrupt the present wait
        self._world = world
        self._batches = batches
        self._change = change
        self._stopping = False
        self._executor: SimulatedClient | None = None
        self._attempts = 0

    def start(self) -> None:
        """Do nothing: the simulation steps it."""

    def stop(self) -> None:
        """Read no further batches."""
        self._stopping = True

    def join(self, timeout_seconds: float | None = None) -> bool:
        """Return True: there is no thread to wait for."""
        return True

    def move(self, coordinator: Address) -> None:
        """Do nothing: when its connection is lost, it asks at the address in the job's file."""

    @property
    def is_ready(self) -> bool:
        """Whether it can continue."""
        stops = self._stopping and self._may_stop
        return stops or self.talk.is_ready or (self._executor is not None and self._executor.is_ready)

    def _run(self) -> Waits:
        try:
            for number, batch in enumerate(self._batches):
                if not self._stopping:
                    with suppress(Stopped):
                        yield from self._feed(number, batch)
            yield from self.talk.ask(SourceEnded(self.name))
        except MegaflowError as error:
            self.error = None if self._stopping else error
        self.done = True
        self._change()

    def _feed(self, number: int, batch: Sequence[Sequence[str]]) -> Waits:
        """Stage and commit a batch. Sometimes an attempt or a commit is repeated, as Spark may do."""
        random = self._world.random
        ports = yield from self._ask(IngestPorts())
        winners = {}
        for partition, lines in enumerate(batch):
            if not lines:
                continue
            worker, host, port = ports[(number + partition) % len(ports)]
            while random.random() < 0.2:  # an attempt that does not count
                yield from self._stage((host, port), worker, number, partition, lines[: random.randint(1, len(lines))])
            attempt = yield from self._stage((host, port), worker, number, partition, lines)
            winners[partition] = worker, attempt, len(lines)
        commit = CommitRequest(self.commit_of(number, winners), after=self.after)
        yield from self._ask(commit)
        if random.random() < 0.1:
            yield from self._ask(commit)  # a repeated commit changes nothing

    def commit_of(self, number: int, winners: dict[int, tuple[int, int, int]]) -> CommitBatch:
        """Return the commit of a batch."""
        return CommitBatch(self.name, "run", number, winners)

    def content(self, lines: Sequence[str]) -> tuple[str | bytes, str]:
        """Return the content of a message with these lines, and its separator."""
        return "\n".join(lines), "\n"

    def _ask(self, body: object) -> Waits:
        """Send a request, but stop waiting when the query is stopped."""
        self._may_stop = True
        try:
            return (yield from self.talk.ask(body))
        finally:
            self._may_stop = False

    def _stage(self, address: Address, worker: int, number: int, partition: int, lines: Sequence[str]) -> Waits:
        self._attempts += 1
        attempt = self._attempts
        name = self.name, "run", number, partition, attempt, worker
        try:
            client = self._executor = self._world.dial(address, "ingest", {})
            for start in range(0, len(lines), self.message_lines):
                some = lines[start : start + self.message_lines]
                client.send(StageLines(*name, len(some), *self.content(some)))
            client.send(StageEnd(*name, len(lines)))
            while not client.is_ready:
                yield None
            [answer] = client.receive_available()
            client.close()
        except (OSError, ConfigMismatch, PeerLost) as error:
            yield SPARK_SECONDS
            raise PeerLost(f"an executor: {error}") from error
        self._executor = None
        if answer != Staged(attempt, len(lines)):
            raise ClusterError(f"Worker {worker} should acknowledge {len(lines)} lines, but answered {answer!r:.200}.")
        return attempt
