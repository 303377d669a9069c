"""Plans from a user's requests: the bins that move, their new owners, and the steps."""

from collections import Counter

from megaflow.control.client.load_balance import balance_load
from megaflow.control.client.planner import HOTTEST_FIRST, Step, balance, drain, parse_bins, plan, read_map
from megaflow.control.messages import KeptPlan
from megaflow.control.reports import JobStatus
from megaflow.errors import CommandRefused, UsageError
from megaflow.megaphone.base.routing import Map, Move, RoutingTable, apply, difference, validate
from megaflow.quick_dataclass import dataclass

GAP_SECONDS_MAX = 86_400


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of bins and their new owners; exactly one of bins, balance, drain and map_text is given."""

    bins: str | None = None
    to: int | None = None  # with bins
    balance: bool = False
    drain: int | None = None
    map_text: str | None = None
    by: str = "number"  # the figure to balance: the number of bins, or their "load"
    strategy: str = "fluid"
    batch: int | None = None  # bins a step, with strategy batched
    gap: float = 0.0  # seconds between steps

    @property
    def needs_loads(self) -> bool:
        """Whether the plan depends on the load of each bin."""
        return self.by == "load" or self.strategy == HOTTEST_FIRST


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps to a wanted table."""

    table: RoutingTable  # before the first step
    target: RoutingTable
    steps: list[Step]
    strategy: str = "fluid"
    batch: int | None = None
    gap: float = 0.0  # seconds between steps
    size: tuple[int, int] | None = None  # approximate keys and bytes that move; None: not asked for
    removes: int | None = None  # the worker whose process leaves after the last step
    operators: int = 1  # number of stateful operators; each moved bin moves in all of them

    @property
    def moves(self) -> list[tuple[int, int, int]]:
        """(bin, from, to), by bin."""
        return difference(self.table, self.target)


def check_selection(selection: Selection) -> None:
    """Raise UsageError unless the options form one selection."""
    ways = {
        "--bins": selection.bins is not None,
        "--balance": selection.balance,
        "--drain": selection.drain is not None,
        "--map": selection.map_text is not None,
    }
    given = [way for way, chosen in ways.items() if chosen]
    if len(given) != 1:
        raise UsageError(f"give exactly one of {', '.join(ways)}; given: {' and '.join(given) or 'none'}")
    if (selection.to is not None) != (selection.bins is not None):
        raise UsageError("--bins and --to go together: --bins 0-127 --to 1")
    if (selection.batch is not None) != (selection.strategy == "batched"):
        raise UsageError("--batch N requires --strategy batched")
    if selection.by == "load" and not selection.balance:
        raise UsageError("--by load requires --balance")
    check_gap(selection.gap)


def check_gap(seconds: float) -> None:
    """Raise UsageError unless a step can wait for this time."""
    if not 0 <= seconds <= GAP_SECONDS_MAX:
        raise UsageError(f"--gap must be from 0 to {GAP_SECONDS_MAX} seconds, not {seconds:g}")


def make_plan(status: JobStatus, selection: Selection) -> Plan:
    """Return the plan for a selection on a job with this status. Raises UsageError and CommandRefused.

    The status must have loads if the selection needs them. If it has them, the plan also has the size of the move.
    """
    check_selection(selection)
    check_bins(status)
    table, members = table_of(status), owners_of(status)
    target = wanted_table(status, table, members, selection)
    validate(Map(target), len(table), members)
    steps = steps_to(status, table, target, selection.strategy, selection.batch)
    size = moving(status, table, target)
    words = selection.strategy, selection.batch, selection.gap
    return Plan(table, target, steps, *words, size, operators=len(status.operators))


def remaining_plan(status: JobStatus, kept: KeptPlan, gap: float | None = None) -> Plan:
    """Return the remaining steps of a plan without a runner; `gap`, if given, replaces the gap between the steps."""
    gap = kept.gap_seconds if gap is None else gap
    check_gap(gap)
    table: RoutingTable = table_of(status)
    steps = steps_to(status, table, kept.target, kept.strategy, kept.batch)
    return Plan(table, kept.target, steps, kept.strategy, kept.batch, gap, removes=kept.removes)


def steps_to(
    status: JobStatus, table: RoutingTable, target: RoutingTable, strategy: str, batch: int | None
) -> list[Step]:
    """Return the steps from one table to the other; hottest-first uses the loads in the status."""
    return plan(table, target, strategy, batch, loads_of(status) if strategy == HOTTEST_FIRST else None)


def loads_of(status: JobStatus) -> list[float]:
    """Return the load of each bin: busy time, or records if no busy time was measured; all 0 if neither was.

    All operators share one table, so a bin moves in all of them, and its load is their sum.
    """
    loads = [each.load for each in status.operators if each.load is not None]
    for figures in ("busy_ms_per_second", "records_per_second"):
        weights = [0.0] * status.operators[0].bins
        for load in loads:
            for bin, figure in zip(load.bins, getattr(load, figures)):
                weights[bin] += figure
        if any(weights):
            break
    return weights


def plan_removal(status: JobStatus, worker: int) -> Plan:
    """Return the plan that moves all bins away from the workers of this worker's process, one bin at a time."""
    address = next((each.address for each in status.workers if each.id == worker), None)
    process = {each.id for each in status.workers if each.address == address}  # each process has its own port
    if not status.operators:
        return Plan((), (), [])
    table: RoutingTable = table_of(status)
    target = table
    for each in sorted(process):
        target = drain(target, each, (owners_of(status) - process) | {each})
    return Plan(table, target, plan(table, target, "fluid"), removes=worker)


def bins_for_newcomers(status: JobStatus, processes: int) -> tuple[int, ...]:
    """Return the bins that `processes` new processes, as large as the largest, would get in a balanced table."""
    table, owners = table_of(status), owners_of(status)
    addresses = Counter(worker.address for worker in status.workers)
    first = max(worker.id for worker in status.workers) + 1
    newcomers = range(first, first + processes * max(addresses.values()))
    return tuple(bin for bin, _, _ in difference(table, balance(table, owners.union(newcomers))))


def check_bins(status: JobStatus) -> None:
    """Raise CommandRefused if the job has no bins."""
    if not status.operators:
        raise CommandRefused(f"job {status.job!r} has no stateful operator, so there are no bins to move")


def check_no_plan(status: JobStatus) -> None:
    """Raise CommandRefused if a plan is being carried out, because no other plan may begin then."""
    if status.plan is not None and status.plan.running:
        raise CommandRefused(f"{status.plan.runner} is carrying out a plan: wait until it ends")


def owners_of(status: JobStatus) -> set[int]:
    """Return the workers that may own bins."""
    return {worker.id for worker in status.workers if worker.state == "running"}


def without_table(status: JobStatus) -> list[str]:
    """Return, for each worker without a routing table, a hint how to give it one."""
    some, owners = [worker.id for worker in status.workers if worker.state == "joined"], owners_of(status)
    way = f"megaflow control bootstrap --server {min(owners, default=0)} --worker"
    return [f"worker {id} has no routing table, so it gets no bins; give it one with: {way} {id}" for id in some]


def table_of(status: JobStatus) -> RoutingTable:
    """Return the owner of each bin. The job must have bins, and its status must have tables."""
    table = status.operators[0].table
    assert table is not None, "the status was asked for with tables"
    return table


def moving(status: JobStatus, table: RoutingTable, target: RoutingTable) -> tuple[int, int] | None:
    """Return how many keys and bytes move with the bins, in all operators; None if the status has no loads."""
    loads = [each.load for each in status.operators if each.load is not None]
    if not loads:
        return None
    moved = {bin for bin, _, _ in difference(table, target)}
    rows = [row for load in loads for row in zip(load.bins, load.keys, load.bytes) if row[0] in moved]
    return sum(keys for _, keys, _ in rows), sum(size for _, _, size in rows)


def wanted_table(status: JobStatus, table: RoutingTable, members: set[int], selection: Selection) -> RoutingTable:
    """Return the table that a selection requests."""
    if selection.balance:
        return balance_load(table, members, loads_of(status)) if selection.by == "load" else balance(table, members)
    if selection.drain is not None:
        return drain(table, selection.drain, members)
    if selection.map_text is not None:
        return read_map(selection.map_text, len(table))
    assert selection.bins is not None and selection.to is not None
    bins = parse_bins(selection.bins, len(table)) if selection.bins.strip() else []
    if not bins:
        raise CommandRefused(f"--bins {selection.bins!r} names no bin; the bins are 0 to {len(table) - 1}")
    if selection.to not in members:  # also if the bins are there already
        workers = ", ".join(map(str, sorted(members)))
        raise CommandRefused(f"there is no worker {selection.to} that may own bins; the workers are {workers}")
    return apply(table, [Move(bin, selection.to) for bin in bins])
