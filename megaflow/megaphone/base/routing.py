"""Routing tables, which hold the owner of each bin at each time; their history; and the commands that change them."""

from bisect import bisect
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from heapq import heapify, heapreplace
from itertools import chain, islice, pairwise
from types import MappingProxyType
from typing import Any, TypeAlias

from megaflow.errors import CommandRefused
from megaflow.megaphone.base.event_unit import NEVER
from megaflow.quick_dataclass import dataclass
from megaflow.timely.membership import WorkerId
from megaflow.timely.order import Time, less_equal, less_than

RoutingTable: TypeAlias = tuple[WorkerId, ...]  # bin -> worker

_TABLES_KEPT = 8
"""Number of tables of pending reconfigurations that a history caches, because records of a few times alternate."""


@dataclass(frozen=True, slots=True)
class Move:
    """Command: give one bin to a worker."""

    bin: int
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class Map:
    """Command: give each bin to a worker, one id per bin."""

    workers: RoutingTable


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Command: `server` sends its routing state to `worker`, which has joined and has no table yet."""

    server: WorkerId
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Command: keep the effects of all records before the command's time, as checkpoint `number`. No bin moves.

    `since`: the number of the last committed checkpoint, on which the deltas of this one build; None: write all bins
    whole. `at_end`: no command follows, and the checkpoint keeps the effects of all records and timers, whatever their
    time. `last` has the last delivery of each sink before this checkpoint: see `durable.lineage`.
    """

    number: int  # from 1 on
    since: int | None = None
    at_end: bool = False
    last: tuple[tuple[str, int, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Lookup:
    """Command: show an operator's state of some keys after all records before the command's time. No bin moves."""

    number: int
    operator: str
    places: tuple[tuple[Any, int], ...]  # (key, the bin that it falls into)
    form: str  # in which it is shown


@dataclass(frozen=True, slots=True)
class Watermark:
    """Command: fire event timers up to `micros` at the close of the command's time. No bin moves. It never falls."""

    micros: int  # as in `event_unit`
    greatest: int = NEVER  # if infinite: the greatest known timestamp
    by_stop: bool = field(default=False, repr=False)  # if infinite: from a stop, not from the end of the input


@dataclass(frozen=True, slots=True)
class Clock:
    """Command: advance the job's own clock, for timers that are set `after` a delay. No bin moves. It never falls."""

    micros: int  # for which the job has run


Command: TypeAlias = Move | Map | Bootstrap | Checkpoint | Lookup | Watermark | Clock


@dataclass(frozen=True, slots=True)
class Numbered:
    """A command as it travels on the control stream."""

    number: int  # consecutive, from 0
    command: Command


def initial_table(
    bins: int, founders: Iterable[WorkerId], kept: Mapping[WorkerId, Iterable[int]] = MappingProxyType({})
) -> RoutingTable:
    """Return the table before any command. `kept`, worker -> bins, lists the bins that founding workers already own.

    If two workers have kept the same bin, the lowest id owns it. Each other bin goes to the worker that has the fewest
    bins so far, or to the lowest id of several. So if no bin was kept, bins are dealt round robin. Cost: logarithmic in
    the workers, per bin.

    >>> initial_table(4, {7, 3}), initial_table(6, [0, 1], {0: [0, 3], 1: [1, 4]})
    ((3, 7, 3, 7), (0, 1, 0, 0, 1, 1))
    """
    owner: dict[int, WorkerId] = {}
    for worker in sorted(kept):
        owner = {bin: worker for bin in kept[worker] if bin < bins} | owner
    counts = Counter(owner.values())
    load = [(counts[worker], worker) for worker in founders]
    heapify(load)
    for bin in range(bins):
        if bin not in owner:
            count, owner[bin] = load[0]
            heapreplace(load, (count + 1, owner[bin]))
    return tuple(owner[bin] for bin in range(bins))


def apply(table: RoutingTable, commands: Iterable[Command]) -> RoutingTable:
    """Return the table after these commands, which must be valid. The last command on a bin wins.

    >>> apply((0, 0, 0), [Map((1, 1, 1)), Move(2, 0)])
    (1, 1, 0)
    """
    result = list(table)
    for command in commands:
        match command:
            case Move(bin, worker):
                result[bin] = worker
            case Map(workers):
                result[:] = workers
    return tuple(result)


def difference(old: RoutingTable, new: RoutingTable) -> list[tuple[int, WorkerId, WorkerId]]:
    """Return (bin, from, to) for each bin that the two tables give to different workers, by bin.

    >>> difference((0, 0, 1), (0, 1, 0))
    [(1, 0, 1), (2, 1, 0)]
    """
    return [(bin, source, target) for bin, (source, target) in enumerate(zip(old, new)) if source != target]


def validate(
    command: Command, bins: int, members: Collection[WorkerId], passing: Collection[WorkerId] | None = None
) -> None:
    """Raise CommandRefused, with the reason, unless every worker and bin that the command names may take part in it.

    `bins` is the number of bins; `members` are the workers that may own bins. In an engine program all members may own
    bins, and `passing` are the workers that join or leave, which are not members.
    """
    match command:
        case Move(bin, worker):
            if type(bin) is not int or not 0 <= bin < bins:
                raise CommandRefused(f"{command}: there is no bin {bin!r}; bins are 0 to {bins - 1}")
            _check_member(command, worker, members, passing)
        case Map(workers):
            if not isinstance(workers, tuple):
                raise CommandRefused(f"Map({workers!r:.80}): name the worker of each bin in a tuple")
            if len(workers) != bins:
                raise CommandRefused(f"Map of {len(workers)} workers: there are {bins} bins; name one worker for each")
            for worker in workers:
                _check_member("Map", worker, members, passing)
        case Bootstrap(server, worker):
            if server == worker:
                raise CommandRefused(f"{command}: a worker cannot bootstrap itself; name another worker as the server")
            _check_member(command, server, members, passing)
            _check_member(command, worker, members, passing)
        case Checkpoint(number, since):
            if type(number) is not int or number < 1:
                raise CommandRefused(
                    f"{command}: the number of a checkpoint must be an int of at least 1, not {number!r}"
                )
            if since is not None and (type(since) is not int or not 1 <= since < number):
                raise CommandRefused(f"{command}: since={since!r} must be the number of an earlier checkpoint, or None")
        case Lookup():
            pass  # every valid bin has an owner; other bins get no answer
        case Watermark(micros) | Clock(micros):
            if type(micros) is not int:
                raise CommandRefused(f"{command}: give it an int of microseconds, not {micros!r}")
        case _:
            raise CommandRefused(f"{command!r} is not a command; use Move, Map or Bootstrap")


def _check_member(
    command: object, worker: int, members: Collection[WorkerId], passing: Collection[WorkerId] | None
) -> None:
    if type(worker) is int and worker in members:
        return
    known = ", ".join(map(str, sorted(members)))
    reason = f"there is no worker {worker!r} that may own bins; the workers are {known}"
    if passing is not None and type(worker) is int:
        now = f"; worker {worker} is joining or leaving" if worker in passing else ""
        reason += f"{now}; a joining worker may own bins once worker.peer_ids names it: wait for that, then move bins"
    raise CommandRefused(f"{command}: {reason}")


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """Commands, and the time from which they are in force."""

    time: Time
    commands: tuple[Command, ...]


class RoutingHistory:
    """The table in force, and the pending reconfigurations in time order.

    `installed` is the time of the active table, or None for the initial one.

    A pending reconfiguration is kept as its commands, and its table is built on request. A thousand waiting moves would
    fill the memory if each had a table of all bins.

    Invariant: each pending time is greater than the pending time before it and than the time of the active table.
    """

    def __init__(
        self, active: RoutingTable, pending: Iterable[Reconfiguration] = (), installed: Time | None = None
    ) -> None:
        self.active = active  # the newest table that has been installed
        self.installed = installed
        self.pending = deque(pending)  # not yet installed
        self._made: dict[Time, RoutingTable] = {}  # time of a pending reconfiguration -> its table; the last few made

    def at(self, time: Time) -> RoutingTable:
        """Return the table in force at this time: the newest table whose time is not later.

        Cost: logarithmic in the pending reconfigurations, plus one copy of the table on the first request for it.
        """
        if not self.pending:
            return self.active
        return self._table(bisect(self.pending, False, key=lambda each: not less_equal(each.time, time)))

    def append(self, time: Time, commands: Iterable[Command]) -> None:
        """Add a reconfiguration, later than all others. A reconfiguration that moves no bin is also kept."""
        newest = self.pending[-1].time if self.pending else self.installed
        assert newest is None or less_than(newest, time), f"reconfiguration at {time} after the one at {newest}"
        self.pending.append(Reconfiguration(time, tuple(commands)))

    def install_first(self) -> tuple[Time, list[tuple[int, WorkerId, WorkerId]]]:
        """Put the first pending reconfiguration in force; return its time and the (bin, from, to) that it moves."""
        old, new = self.active, self._table(1)
        first = self.pending.popleft()
        self._made.pop(first.time, None)
        self.active, self.installed = new, first.time
        if any(isinstance(command, Map) for command in first.commands):
            return first.time, difference(old, new)
        named = sorted({command.bin for command in first.commands if isinstance(command, Move)})
        return first.time, [(bin, old[bin], new[bin]) for bin in named if old[bin] != new[bin]]

    def _table(self, count: int) -> RoutingTable:
        """Return the table after the first `count` pending reconfigurations, built from the nearest earlier table."""
        made, pending = self._made, self.pending
        start = count
        while start and pending[start - 1].time not in made:
            start -= 1
        table = made[pending[start - 1].time] if start else self.active
        if start < count:
            table = apply(table, chain.from_iterable(each.commands for each in islice(pending, start, count)))
            if len(made) == _TABLES_KEPT:
                del made[next(iter(made))]
            made[pending[count - 1].time] = table
        return table

    def _check(self) -> None:
        times = [reconfiguration.time for reconfiguration in self.pending]
        assert self._made.keys() <= set(times) and len(self._made) <= _TABLES_KEPT
        if self.installed is not None:
            times.insert(0, self.installed)
        assert all(less_than(a, b) for a, b in pairwise(times)), times
