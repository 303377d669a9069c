"""The routing table after the last command, and the reconfigurations that have not taken effect yet.

A reconfiguration is done when the probe behind the outputs has passed its epoch and the members have reported the bins
that they installed. Its account adds up these reports.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from megaflow.control.coordinator.base.events import Asked, Reply
from megaflow.control.coordinator.moves.plans import Plans
from megaflow.control.messages import Reconfigure
from megaflow.control.reports import LedgerEntry, StepReport
from megaflow.control.wording import quantity
from megaflow.errors import CommandRefused
from megaflow.megaphone.base.routing import Map, Move, RoutingTable, apply, difference
from megaflow.quick_dataclass import dataclass

PENDING_MAX = 1_000
LEDGER_MAX = 10_000  # entries that a status shows


@dataclass(slots=True)
class Pending:
    """A reconfiguration that has not been answered with Done."""

    asked: Asked
    epoch: int
    bins: int  # that change owner
    workers: frozenset[int]  # that it names, or that own bins it moves
    start: float  # monotonic clock, seconds
    seconds: float | None = None  # until the probe had passed; None: it has not
    missing: int = 0  # reports still to come: one for each bin that changes owner and each stateful operator
    bytes: int = 0
    keys: int = 0


class Reconfigurations:
    """The commanded routing table and the reconfigurations under way. One writer: the controller."""

    def __init__(self, table: RoutingTable, operators: int = 1) -> None:
        """`operators` is the number of stateful operators; all share the table."""
        self._operators = operators
        self.table = table  # after all issued commands; empty: there are no bins
        self.plans = Plans()
        self.ledger: deque[LedgerEntry] = deque(maxlen=LEDGER_MAX)  # the bins that moved last
        self.pending: dict[int, Pending] = {}  # under way, oldest first, by epoch

    def passed(self, frontier: int | None, now: float) -> Iterator[Pending]:
        """Yield the reconfigurations whose epoch the probe has passed since the last call; without a frontier, all.

        The caller may finish them meanwhile.
        """
        for pending in list(self.pending.values()):
            if frontier is None or (pending.seconds is None and frontier > pending.epoch):
                pending.seconds = now - pending.start if pending.seconds is None else pending.seconds
                yield pending

    def check(self, asked: Asked, body: Reconfigure) -> None:
        """Raise CommandRefused if the request is empty, too many are under way, or the client may not move bins now."""
        if not isinstance(body.commands, tuple | list) or not body.commands:
            raise CommandRefused("the reconfiguration names no bin: name at least one")
        self.plans.check_step(asked.client, body.plan)
        if len(self.pending) >= PENDING_MAX:
            raise CommandRefused(f"{len(self.pending)} reconfigurations are under way: wait until one is complete")

    def add(
        self, asked: Asked, commands: Iterable[Move | Map], epoch: int, now: float, plan: int | None = None
    ) -> Reply:
        """Record that these valid commands were issued at `epoch` as a step of `plan`; return the answer."""
        commands = tuple(commands)
        table = apply(self.table, commands)
        changes = difference(self.table, table)
        named = {command.worker for command in commands if isinstance(command, Move)}
        named |= {worker for command in commands if isinstance(command, Map) for worker in command.workers}
        named |= {source for _, source, _ in changes}
        self.table = table
        self.pending[epoch] = Pending(
            asked, epoch, len(changes), frozenset(named), now, missing=len(changes) * self._operators
        )
        self.plans.stepped(asked.client, plan, table)
        return asked.accepted(epoch)

    def expire(self, tried: Iterable[Asked], now: float) -> None:
        """Forget the runner of a plan if its lease has expired. Requests in `tried` count as under way."""
        self.plans.expire({asked.client for asked in (*(each.asked for each in self.pending.values()), *tried)}, now)

    def note(self, entries: Iterable[LedgerEntry]) -> None:
        """Add installed bins to the ledger and to the accounts of their reconfigurations."""
        for entry in entries:
            self.ledger.append(entry)
            if pending := self.pending.get(entry.epoch):
                pending.missing -= 1
                pending.bytes += entry.bytes
                pending.keys += entry.keys

    def finish(self, pending: Pending) -> list[Reply]:
        """Forget a reconfiguration and return its answer; nothing if it was finished before."""
        if self.pending.pop(pending.epoch, None) is None:
            return []
        assert pending.seconds is not None, "it is done when the probe has passed"
        sizes = pending.bins, pending.bytes, pending.keys
        report = StepReport(pending.epoch, *sizes, pending.seconds, self._operators)
        return [pending.asked.done(report)]

    def binds(self, ids: tuple[int, ...]) -> str | None:
        """Return why these workers own or may receive bins; None if they do not."""
        for worker in ids:
            if owned := self.table.count(worker):
                way = f"megaflow control move-bins --drain {worker}"
                return f"worker {worker} owns {quantity(owned, 'bin')}; drain it first: {way}"
        for pending in self.pending.values():
            if named := pending.workers.intersection(ids):
                return (f"the reconfiguration of epoch {pending.epoch} names worker {min(named)} and is not complete: "
                        "try again later")
        return self.plans.binds(ids)
