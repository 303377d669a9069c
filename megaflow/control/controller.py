"""What the coordinator decides: which commands are right, when they happen, when they are done, when all ends.

A state machine of values. `handle` takes one event and the wall-clock time and returns what to do about it, in
order; whoever calls it (the agent) holds the sockets, the clock and the handle of the control stream.

1. One place numbers commands, consecutively from 0, so that no two operators can see them in different orders.
2. A request is checked as a whole before any of it is issued: all or nothing, and a refusal changes nothing.
3. Each request has an epoch of its own: it is issued at the control stream's present time, and that time is left
   at once. Nothing was read for that epoch yet (sources stamp what they read with less), so no command is late.
4. A reconfiguration is done when the probe behind the outputs has passed its epoch. Its account (bytes, keys) comes
   from the members' ledgers, which are asked for only then.
5. Time goes on whatever happens: ticks never wait for data. Only the end closes the control stream.
6. The end comes when all splits are read, pushed lines and Spark queries are over, every commit is taken in and no
   command is pending; or when somebody asks for it.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megaflow.control.assignment import spread
from megaflow.control.commits import Commits
from megaflow.control.events import (
    Advance,
    Asked,
    CloseControl,
    Event,
    Inject,
    Instruction,
    Mail,
    Mailed,
    Reply,
    Ticked,
)
from megaflow.control.messages import (
    Accepted,
    AssignSplits,
    Busy,
    CommitBatch,
    CommitRequest,
    CommitTaken,
    Done,
    EndOfLines,
    IngestPorts,
    LedgerEntry,
    PushedEnded,
    Reconfigure,
    Refused,
    SourceEnded,
    Split,
    SplitRead,
    StatusAsk,
    StatusQuery,
    StopJob,
    WorkerStatus,
)
from megaflow.control.status import status_record
from megaflow.errors import CommandRefused
from megaflow.routing import Map, Move, Numbered, RoutingTable, apply, difference, initial_table, validate
from megaflow.timely.membership import Membership

TICK_BUSY_SECONDS = 0.010  # the grain of epochs, and the least delay of a command
TICK_IDLE_SECONDS = 0.250  # an idle job shall cost nothing
BUSY_SECONDS = 0.200  # sources report data every 100 ms at most; two of those
LAG_EPOCHS = 3  # a probe this far behind is settled: the source and the way to the probe each hold one
PENDING_MAX = 1_000  # requests under way, of either kind
LEDGER_MAX = 10_000  # entries a status shows


@dataclass(slots=True)
class Pending:
    """A reconfiguration that has not been answered with Done."""

    client: Hashable
    id: int
    epoch: int
    bins: int  # that change owner
    start: float  # wall clock, seconds
    seconds: float | None = None  # until the probe had passed; None: it has not
    bytes: int = 0
    keys: int = 0


@dataclass(slots=True)
class Question:
    """A question that all members are answering."""

    about: Pending | Asked
    answers: dict[int, WorkerStatus]  # worker -> what it said


class Controller:
    """The coordinator's mind. One writer: the thread of the coordinating worker.

    `operators` are the stateful ones (name -> number of bins, all the same), `splits` what is to be
    assigned, `pushed` whether the launcher sends lines, `queries` how many Spark queries feed the job,
    `ports` where executors may stage.
    """

    def __init__(
        self,
        job: str,
        members: Membership,
        operators: Mapping[str, int],
        splits: Sequence[Split] = (),
        *,
        pushed: bool = False,
        queries: int = 0,
        ports: Sequence[tuple[int, str, int]] = (),  # (worker, host, port)
    ) -> None:
        self.epoch = 0  # the control stream's present time
        self.ended = False  # whether the control stream is closed
        self._state = "starting"  # then running; then ending or stopping
        self._frontier: int | None = 0
        self._job = job
        self._members = members
        self._operators = dict(operators)
        bins = next(iter(self._operators.values()), 0)
        self._table: RoutingTable = initial_table(bins, members.ids) if bins else ()  # all that was issued
        self._splits = tuple(splits)
        self._unread = {split.number for split in splits}
        self._pushed = pushed
        self._queries = queries  # still to end
        self._queries_ended: set[str] = set()
        self._ports = list(ports)
        self._commands = 0  # the next number
        self._pending: dict[int, Pending] = {}  # epoch -> reconfiguration
        self._questions: dict[int, Question] = {}  # id of StatusAsk -> question
        self._asked = 0  # the next id of a StatusAsk
        self._commits = Commits()
        self._stops: list[Asked] = []
        self._ledger: deque[LedgerEntry] = deque(maxlen=LEDGER_MAX)
        self._ticked_at = float("-inf")  # wall clock, seconds
        self._busy_until = float("-inf")

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take in one event at wall-clock time `now`; return what to do, in order."""
        out: list[Instruction] = []
        if self._state == "starting":
            self._start(out, now)
        match event:
            case Asked():
                self._answer(event, out, now)
            case Mailed(source, body):
                self._learn(source, body, out, now)
            case Ticked(frontier):
                self._tick(frontier, out, now)
        if not self.ended and self._is_over():
            self._end("ending", out, now)
        return out

    def seconds_to_tick(self, now: float) -> float:
        """Return how long the caller may wait before its next `Ticked`."""
        if self.ended:
            return TICK_IDLE_SECONDS
        return max(0.0, self._ticked_at + self._tick_seconds(now) - now)

    def _start(self, out: list[Instruction], now: float) -> None:
        self._state = "running"
        self._busy_until = now + BUSY_SECONDS
        if self._splits:
            self._issue([AssignSplits(spread(self._splits, self._members.ids))], out, now)

    # What clients ask

    def _answer(self, asked: Asked, out: list[Instruction], now: float) -> None:
        request, client = asked.request, asked.client
        try:
            match request.body:
                case StatusQuery():
                    self._ask(asked, out)
                case Reconfigure(commands):
                    self._reconfigure(asked, commands, out, now)
                case StopJob():
                    self._stops.append(asked)
                    out.append(Reply(client, Accepted(request.id, self.epoch)))
                    if not self.ended:
                        self._end("stopping", out, now)
                case CommitRequest(CommitBatch() as commit):
                    self._commit(asked, commit, out, now)
                case SourceEnded(str(query)):
                    if query not in self._queries_ended:
                        self._queries_ended.add(query)
                        self._queries -= 1
                    out.append(Reply(client, Done(request.id, None)))
                case IngestPorts():
                    out.append(Reply(client, Done(request.id, self._ports)))
                case body:
                    raise CommandRefused(f"there is no such request: {body!r:.100}")
        except CommandRefused as error:
            out.append(Reply(client, Refused(request.id, str(error))))

    def _refuse_if_ended(self) -> None:
        if self.ended:
            why = "all its lines are read" if self._state == "ending" else "it was told to stop"
            raise CommandRefused(f"too late: job {self._job!r} is ending, {why}")

    def _reconfigure(self, asked: Asked, commands: Sequence[Any], out: list[Instruction], now: float) -> None:
        self._refuse_if_ended()
        if not self._table:
            raise CommandRefused(f"job {self._job!r} has no stateful operator, so there are no bins to move")
        if not isinstance(commands, tuple | list) or not commands:
            raise CommandRefused("an empty reconfiguration: no bin is named")
        if len(self._pending) >= PENDING_MAX:
            raise CommandRefused(f"{len(self._pending)} reconfigurations are under way: wait for some to be done")
        for command in commands:
            if not isinstance(command, Move | Map):
                raise CommandRefused(f"a reconfiguration consists of Move and Map, not {command!r:.100}")
            validate(command, len(self._table), self._members.workers)
        table = apply(self._table, commands)
        moved = len(difference(self._table, table))
        self._table = table
        epoch = self._issue(commands, out, now)
        self._pending[epoch] = Pending(asked.client, asked.request.id, epoch, moved, now)
        out.append(Reply(asked.client, Accepted(asked.request.id, epoch)))

    def _commit(self, asked: Asked, commit: CommitBatch, out: list[Instruction], now: float) -> None:
        epoch = self._commits.epoch_of(commit)
        if epoch is None:  # a replay is answered like the first time, and not issued again
            self._refuse_if_ended()
            self._commits.check(commit, self._members)
            epoch = self._issue([commit], out, now)
            self._commits.add(commit, epoch)
        out.append(Reply(asked.client, Accepted(asked.request.id, epoch)))
        self._commits.wait(asked, epoch)
        self._release_commits(out)

    def _release_commits(self, out: list[Instruction]) -> None:
        for asked, epoch in self._commits.release(self.ended):
            out.append(Reply(asked.client, Done(asked.request.id, epoch)))

    # What workers report

    def _learn(self, source: int, body: Any, out: list[Instruction], now: float) -> None:
        match body:
            case Busy():
                self._busy_until = now + BUSY_SECONDS
            case SplitRead(number):
                self._unread.discard(number)
            case PushedEnded():
                self._pushed = False
            case CommitTaken(query, batch):
                self._commits.taken(query, batch, source)
                self._release_commits(out)
            case WorkerStatus():
                self._collect(body, out)
            case _:
                raise AssertionError(f"worker {source} mailed {body!r:.100}, which is not for the coordinator")

    def _ask(self, about: Pending | Asked, out: list[Instruction]) -> None:
        if len(self._questions) >= PENDING_MAX:
            raise CommandRefused(f"{len(self._questions)} questions are being answered already")
        self._questions[self._asked] = Question(about, {})
        out += [Mail(worker, StatusAsk(self._asked)) for worker in self._members.ids]
        self._asked += 1

    def _collect(self, status: WorkerStatus, out: list[Instruction]) -> None:
        for entry in status.ledger:
            self._ledger.append(entry)
            if pending := self._pending.get(entry.epoch):
                pending.bytes += entry.bytes
                pending.keys += entry.keys
        question = self._questions.get(status.id)
        if question is None:
            return
        question.answers[status.worker] = status
        if question.answers.keys() >= self._members.workers:
            del self._questions[status.id]
            self._conclude(question, out)

    def _conclude(self, question: Question, out: list[Instruction]) -> None:
        about = question.about
        if isinstance(about, Pending):
            self._finish(about, out)
            return
        body = about.request.body
        record = status_record(
            job=self._job, state=self._state, epoch=self.epoch, frontier=self._frontier,
            workers=question.answers.values(), operators=self._operators,
            table=self._table if body.bins else None,
            pending=[(pending.epoch, pending.bins) for pending in self._pending.values()], ledger=self._ledger,
        )  # fmt: skip
        out.append(Reply(about.client, Done(about.request.id, record)))

    # What time brings

    def _tick(self, frontier: int | None, out: list[Instruction], now: float) -> None:
        self._frontier = frontier
        for pending in list(self._pending.values()):
            if frontier is None:  # members are leaving and answer no more
                self._finish(pending, out)
            elif pending.seconds is None and frontier > pending.epoch:
                pending.seconds = now - pending.start
                if pending.bins and len(self._questions) < PENDING_MAX:
                    self._ask(pending, out)
                else:
                    self._finish(pending, out)
        if frontier is None:
            out += [Reply(asked.client, Done(asked.request.id, None)) for asked in self._stops]
            self._stops.clear()
        if not self.ended and now >= self._ticked_at + self._tick_seconds(now):
            self._advance(out, now)

    def _finish(self, pending: Pending, out: list[Instruction]) -> None:
        if self._pending.pop(pending.epoch, None):
            account = {"epoch": pending.epoch, "bins": pending.bins, "bytes": pending.bytes,
                       "keys": pending.keys, "seconds": pending.seconds}  # fmt: skip
            out.append(Reply(pending.client, Done(pending.id, account)))

    def _tick_seconds(self, now: float) -> float:
        lag = self._frontier is not None and self.epoch - self._frontier > LAG_EPOCHS
        busy = now < self._busy_until or lag or self._pending or not self._commits.all_taken
        return TICK_BUSY_SECONDS if busy else TICK_IDLE_SECONDS

    def _advance(self, out: list[Instruction], now: float) -> None:
        self.epoch += 1
        self._ticked_at = now
        out.append(Advance(self.epoch))

    def _issue(self, commands: Iterable[Any], out: list[Instruction], now: float) -> int:
        """Inject commands at the present time and leave it; return that time."""
        epoch = self.epoch
        for command in commands:
            out.append(Inject(Numbered(self._commands, command)))
            self._commands += 1
        self._advance(out, now)
        return epoch

    def _is_over(self) -> bool:
        reading = self._unread or self._pushed or self._queries > 0
        return not reading and not self._pending and self._commits.all_taken

    def _end(self, state: str, out: list[Instruction], now: float) -> None:
        self._issue([EndOfLines()], out, now)
        self._state, self.ended = state, True
        out.append(CloseControl())
        self._release_commits(out)
