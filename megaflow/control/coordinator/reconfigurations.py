"""The routing table as it was commanded last, and the reconfigurations that have not taken effect yet.

A reconfiguration is done when the probe behind the outputs has passed its epoch and the members have reported the bins
that they have installed. Its account adds up these reports.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from megaflow.control.coordinator.events import Asked, Reply
from megaflow.control.coordinator.plans import Plans
from megaflow.control.messages import Accepted, Done, Reconfigure
from megaflow.control.reports import LedgerEntry, StepReport
from megaflow.control.wording import quantity
from megaflow.errors import CommandRefused
from megaflow.megaphone.routing import Map, Move, RoutingTable, apply, difference
from megaflow.quick_dataclass import dataclass

PENDING_MAX = 1_000
LEDGER_MAX = 10_000  # entries a status shows


@dataclass(slots=True)
class Pending:
    """A reconfiguration that has not been answered with Done."""

    asked: Asked
    epoch: int
    bins: int  # that change owner
    workers: frozenset[int]  # that it names, or that own bins it moves
    start: float  # monotonic clock, seconds
    seconds: float | None = None  # until the probe had passed; None: it has not
    missing: int = 0  # reports of bins that have changed owner, one of each stateful operator, still to come
    bytes: int = 0
    keys: int = 0


class Reconfigurations:
    """What was commanded, and what of it is under way. One writer: the controller."""

    def __init__(self, table: RoutingTable, operators: int = 1) -> None:
        """`operators` is the number of the stateful ones; all share the table."""
        self._operators = operators
        self.table = table  # all that was issued; empty: there are no bins
        self.plans = Plans()
        self.ledger: deque[LedgerEntry] = deque(maxlen=LEDGER_MAX)  # bins that have moved, the newest
        self._pending: dict[int, Pending] = {}  # epoch -> reconfiguration

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._pending)

    def __iter__(self) -> Iterator[Pending]:
        """Those under way, by epoch; they may be finished meanwhile."""
        return iter(list(self._pending.values()))

    def passed(self, frontier: int | None, now: float) -> Iterator[Pending]:
        """Yield those whose epoch the probe has passed since the last call; without a frontier, all that are left."""
        for pending in self:
            if frontier is None or (pending.seconds is None and frontier > pending.epoch):
                pending.seconds = now - pending.start if pending.seconds is None else pending.seconds
                yield pending

    def check(self, asked: Asked, body: Reconfigure) -> None:
        """Raise CommandRefused if too many are under way, or not this client is to change owners now."""
        if not isinstance(body.commands, tuple | list) or not body.commands:
            raise CommandRefused("the reconfiguration names no bin: name at least one")
        self.plans.check_step(asked.client, body.plan)
        if len(self._pending) >= PENDING_MAX:
            raise CommandRefused(f"{len(self._pending)} reconfigurations are under way: wait until one is complete")

    def add(
        self, asked: Asked, commands: Iterable[Move | Map], epoch: int, now: float, plan: int | None = None
    ) -> Reply:
        """Note that these commands, which are valid, were issued at `epoch` as a step of `plan`; return the answer."""
        commands = tuple(commands)
        table = apply(self.table, commands)
        changes = difference(self.table, table)
        named = {command.worker for command in commands if isinstance(command, Move)}
        named |= {worker for command in commands if isinstance(command, Map) for worker in command.workers}
        named |= {source for _, source, _ in changes}
        self.table = table
        self._pending[epoch] = Pending(
            asked, epoch, len(changes), frozenset(named), now, missing=len(changes) * self._operators
        )
        self.plans.stepped(asked.client, plan, table)
        return Reply(asked.client, Accepted(asked.request.id, epoch))

    def expire(self, tried: Iterable[Asked], now: float) -> None:
        """Forget the runner of a plan whose lease has ended; what is `tried` is under way."""
        self.plans.expire({asked.client for asked in (*(each.asked for each in self), *tried)}, now)

    def note(self, entries: Iterable[LedgerEntry]) -> None:
        """Add installed bins to the ledger and to the accounts that they belong to."""
        for entry in entries:
            self.ledger.append(entry)
            if pending := self._pending.get(entry.epoch):
                pending.missing -= 1
                pending.bytes += entry.bytes
                pending.keys += entry.keys

    def finish(self, pending: Pending) -> list[Reply]:
        """Forget a reconfiguration; return its answer, once."""
        if self._pending.pop(pending.epoch, None) is None:
            return []
        assert pending.seconds is not None, "it is done when the probe has passed"
        report = StepReport(pending.epoch, pending.bins, pending.bytes, pending.keys, pending.seconds)
        return [Reply(pending.asked.client, Done(pending.asked.request.id, report))]

    def binds(self, ids: tuple[int, ...]) -> str | None:
        """Return why these workers still have to do with bins; None if they do not."""
        for worker in ids:
            if owned := self.table.count(worker):
                way = f"megaflow control move-bins --drain {worker}"
                return f"worker {worker} owns {quantity(owned, 'bin')}; drain it first: {way}"
        for pending in self._pending.values():
            if named := pending.workers.intersection(ids):
                return (f"the reconfiguration of epoch {pending.epoch} names worker {min(named)} and is not complete: "
                        "try again later")
        return self.plans.binds(ids)
