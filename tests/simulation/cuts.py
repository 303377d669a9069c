"""Random runs with checkpoints during moves, joins, leaves and hand-overs, and restarts from those checkpoints.

The oracle is a plain loop over the times, one operator after the other. The test rebuilds each checkpoint from the
blocks of all workers. The result must be the oracle's states and timers before the checkpoint's time, also after
earlier checkpoints were abandoned. Then a new cluster of one to four workers starts from one checkpoint and receives
the remaining records. It must emit the remaining outputs, and its own checkpoints build on the one that it started
from.

The folds change states and payloads in place. Their results do not depend on the order of records within one time.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

from megaflow import stable_hash
from megaflow.durable.blocks import Block
from megaflow.durable.restored import Restored, restore
from megaflow.megaphone.base.durability import CutSink, Durability, Piece
from megaflow.megaphone.base.event_timers import AFTER, CLOCK, EVENT, EventTimers
from megaflow.megaphone.base.event_unit import INFINITE, NEVER, EventUnit
from megaflow.megaphone.base.routing import Checkpoint, Clock, Command, Watermark
from megaflow.megaphone.folds import stateful
from megaflow.megaphone.router.control_stream import Controls
from megaflow.megaphone.snapshot import full_snapshots, journal, snapshot_writer
from megaflow.program import Worker
from megaflow.stream import Stream
from megaflow.testing import EngineCluster
from megaflow.testing.membership_driver import Change
from tests.simulation import parcels
from tests.simulation.by_hand import bin_of
from tests.simulation.membership import draw_changes, draw_hand_overs
from tests.simulation.scenarios import BINS, LOG2_BINS, draw

Record: TypeAlias = tuple[str, int]  # key, time
Issued: TypeAlias = Sequence[tuple[int, Command]]  # (time, command)
Snapshot: TypeAlias = dict[str, tuple[dict[Any, Any], list[Any]]]  # operator -> (key -> state, timers)


SECOND = 1_000_000
SPAN = 12  # of timestamps, in seconds

# The operators; outputs are (key, count, time, …) ----------------------------------------------------------------


def machine(key: Any, time: int, state: Any) -> Any:
    state = state or [0, 0]
    state[0] += 1
    state[1] += time
    return (None if state[0] == 4 else state), [(key, state[0], time)]


def unary(key: Any, time: int, values: list[Any], state: Any, timers: Any) -> Any:
    return timed(key, time, values, 0, state, timers)


def binary(key: Any, time: int, left: list[Any], right: list[Any], state: Any, timers: Any) -> Any:
    return timed(key, time, left, 3 * len(right), state, timers)


def timed(key: Any, time: int, values: list[Any], more: int, state: Any, timers: Any) -> Any:
    state = state or {"count": 0, "times": []}
    seen = []
    for value in values:
        chance = stable_hash((key, time, tuple(value) if isinstance(value, list) else value)) >> 32
        left = value[1] if isinstance(value, list) else chance % 3
        if isinstance(value, list):
            seen.append(tuple(value))
            value[1] = -1  # to catch a writer that serializes it too late
        if left > 0:
            timers.at(time + 1 + chance % 7, ["due", left - 1])
    state["count"] += len(values) + more
    state["times"].append(time)
    outputs = [(key, state["count"], time, tuple(sorted(seen)))]
    return (None if state["count"] % 5 == 0 else state), outputs


def eventful(key: Any, time: int, values: list[Any], state: Any, timers: Any) -> Any:
    """Set timers of all kinds. Payloads are [kind, left, timestamp or time]."""
    state = state or {"count": 0, "times": []}
    due = [value for value in values if isinstance(value, list)]
    assert due == values[: len(due)], f"payloads come first: {values}"
    kinds = [value[0] for value in due]
    assert kinds == sorted(kinds) and ("epoch" not in kinds or {*kinds} == {"epoch"}), f"in another order: {values}"
    stamps = [value[2] for value in due if value[0] == "event"]
    assert stamps == sorted(stamps), f"timestamps in another order: {values}"
    now = timers.watermark
    for value in values:
        chance = stable_hash((key, time, tuple(value) if isinstance(value, list) else value)) >> 32
        left = value[1] if isinstance(value, list) else chance % 4
        if left <= 0:
            continue
        if chance % 7 == 0:
            timers.at(time + 1 + chance % 5, ["epoch", left - 1, time])
        if chance % 7 in (1, 2):
            timers.after(chance % 4, ["later", left - 1, time])
        if chance % 7 > 2:
            stamp = chance % SPAN
            timers.at_event(stamp, ["event", left - 1, stamp])
    seen = sorted(map(tuple, due))
    for value in due:
        value[1] = -1  # to catch a writer that serializes it too late
    state["count"] += len(values)
    state["times"].append(time)
    return (None if state["count"] % 5 == 0 else state), [(key, state["count"], time, tuple(seen), now)]


def count_on(before: list[int], time: int) -> list[int]:
    before[0] += 1
    before[1] = max(before[1], time)
    return before


def put_together(one: list[int], other: list[int]) -> list[int]:
    return [one[0] + other[0], max(one[1], other[1])]


def is_left(record: Record) -> bool:
    return record[1] % 3 != 1


def is_right(record: Record) -> bool:
    return record[1] % 3 == 1 or record[1] % 2 == 1


def build_operator(kind: str, records: Stream[Any], commands: Stream[Any], name: str) -> Stream[Any]:
    given: dict[str, Any] = {"control": commands, "bins": BINS, "name": name}
    if kind == "machine":
        return records.stateful_state_machine(machine, **given)
    if kind in ("unary", "eventful"):
        return records.stateful_unary(unary if kind == "unary" else eventful, **given)
    if kind == "aggregate":
        found = records.aggregate_by_key([0, -1], count_on, put_together, **given)
        return found.map(lambda output: (output[0], *output[1]))
    return records.filter(is_left).stateful_binary(records.filter(is_right), binary, **given)


def for_next(output: Any) -> Record:
    """Turn an output of the first operator into a record of the second."""
    return f"again{output[1] % 5}", output[2]


# The oracle ----------------------------------------------------------------------------------------------------------


@dataclass
class PlainOperator:
    """One operator in a plain loop; its fold also sets timers through this object."""

    kind: str
    states: dict[Any, Any] = field(default_factory=dict)
    timers: dict[int, dict[Any, list[Any]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    key: Any = None
    # event timers in the order in which they were set: [line, micros, key, payload]
    waiting: list[list[Any]] = field(default_factory=list)
    micros: int = NEVER  # the watermark
    finite: int = NEVER  # the last watermark of an earlier time that was not infinite
    limit: int = NEVER  # the greatest timestamp that is known when a key's timers begin to fire
    clock: int = NEVER
    ticking: bool = False  # whether a clock arrived at the time that is being closed
    firing: bool = False

    def at(self, time: int, payload: Any) -> None:
        self.timers[time][self.key].append(payload)

    @property
    def watermark(self) -> Any:
        return None if self.micros == NEVER else EventUnit.SECONDS.value(self.micros)

    def at_event(self, timestamp: int, payload: Any) -> None:
        self._wait(EVENT, timestamp * SECOND, payload)

    def after(self, seconds: int, payload: Any) -> None:
        begun = self.ticking or self.clock == INFINITE
        self._wait(CLOCK if begun else AFTER, seconds * SECOND + (self.clock if begun else 0), payload)

    def _wait(self, line: int, micros: int, payload: Any) -> None:
        is_known = line == EVENT and micros <= self.limit
        if is_known or not (self.firing and self.micros == INFINITE):
            self.waiting.append([line, min(micros, INFINITE), self.key, payload])

    def _is_due(self, timer: list[Any]) -> bool:
        return bool(timer[1] <= {EVENT: self.micros, CLOCK: self.clock}.get(timer[0], -1))

    def close(self, time: int, commands: Iterable[Command]) -> list[Any]:
        """Close a time, all of whose records are applied; return the outputs of its event timers."""
        self.finite = self.micros if self.micros < INFINITE else self.finite
        for command in commands:
            if isinstance(command, Watermark):
                self.micros = max(command.micros, self.micros)
            if isinstance(command, Clock) or (isinstance(command, Watermark) and command.micros == INFINITE):
                self.clock, self.ticking = max(command.micros, self.clock), True
        if self.ticking:
            for timer in self.waiting:
                if timer[0] == AFTER:
                    timer[:2] = CLOCK, min(timer[1] + self.clock, INFINITE)
        outputs: list[Any] = []
        self.firing = True
        for key in dict.fromkeys(timer[2] for timer in self.waiting if self._is_due(timer)):
            self.key = key
            own = (timer[1] for timer in self.waiting if timer[0] == EVENT and timer[2] == self.key)
            self.limit = max([self.finite, *own])
            while due := [timer for timer in self.waiting if timer[2] == self.key and self._is_due(timer)]:
                first = min(timer[:2] for timer in due)
                now = [timer for timer in due if timer[:2] == first]
                self.waiting = [timer for timer in self.waiting if not any(timer is each for each in now)]
                payloads = [timer[3] for timer in now]
                self._keep(self.key, *eventful(self.key, time, payloads, self.states.get(self.key), self), outputs)
        self.firing = False
        self.ticking = False
        return outputs

    def apply(self, time: int, records: list[Record]) -> list[Any]:
        outputs: list[Any] = []
        if self.kind == "machine":
            for key, value in records:
                self._keep(key, *machine(key, value, self.states.get(key)), outputs)
            return outputs
        if self.kind == "aggregate":
            for key, value in records:
                self.states[key] = count_on([*self.states.get(key, [0, -1])], value)
            return [(key, *self.states[key]) for key in dict.fromkeys(key for key, _ in records)]
        due = self.timers.pop(time, {})
        parts = (
            [records]
            if self.kind in ("unary", "eventful")
            else [[*filter(is_left, records)], [*filter(is_right, records)]]
        )
        groups: list[dict[Any, list[Any]]] = [defaultdict(list) for _ in parts]
        for key, payloads in due.items():
            groups[0][key] += payloads
        for group, part in zip(groups, parts):
            for key, value in part:
                group[key].append(value)
        fold: Any = {"unary": unary, "eventful": eventful, "binary": binary}[self.kind]
        for key in dict.fromkeys(key for group in groups for key in group):
            self.key = key
            given = [group.get(key, []) for group in groups]
            self._keep(key, *fold(key, time, *given, self.states.get(key), self), outputs)
        return outputs

    def _keep(self, key: Any, state: Any, found: list[Any], outputs: list[Any]) -> None:
        outputs += found
        if state is None:
            self.states.pop(key, None)
        else:
            self.states[key] = state

    def snapshot(self) -> tuple[dict[Any, Any], list[Any]]:
        timers = [(at, key, each) for at, keys in self.timers.items() for key, due in keys.items() for each in due]
        timers += [((line, micros), key, payload) for line, micros, key, payload in self.waiting]
        return copy.deepcopy((self.states, by_time(timers)))


def by_time(timers: Iterable[Any]) -> list[Any]:
    return sorted(timers, key=lambda timer: (str(type(timer[0])), timer[0], str(timer)))


def oracle(
    kinds: Sequence[str], records: Sequence[tuple[int, Any]], cuts: Sequence[int], issued: Issued = ()
) -> tuple[Any, Any]:
    """Return the operators' snapshots before each time in `cuts`, and the (time, output) pairs of the last operator."""
    told: dict[int, list[Command]] = defaultdict(list)
    for time, command in issued:
        if isinstance(command, Watermark | Clock):
            told[time].append(command)
    operators = {f"{kind} {number}": PlainOperator(kind) for number, kind in enumerate(kinds)}
    coming: dict[int, list[Any]] = defaultdict(list)
    for time, record in records:
        coming[time].append(record)
    snapshots: dict[int, Snapshot] = {}
    outputs = []
    while times := {*coming, *told, *(time for each in operators.values() for time in each.timers)}:
        time = min(times)
        for cut in cuts:
            if cut <= time and cut not in snapshots:
                snapshots[cut] = {name: each.snapshot() for name, each in operators.items()}
        flowing, commands = coming.pop(time, []), told.pop(time, [])
        for number, operator in enumerate(operators.values()):
            flowing = operator.apply(time, [for_next(each) for each in flowing] if number else flowing)
            if operator.kind == "eventful":
                flowing += operator.close(time, commands)
        outputs += [(time, output) for output in flowing]
    for cut in cuts:
        snapshots.setdefault(cut, {name: each.snapshot() for name, each in operators.items()})
    return snapshots, outputs


# The runs ------------------------------------------------------------------------------------------------------------


@dataclass
class Written:
    """Everything that the workers wrote: for each piece of a checkpoint, the blocks of each worker; and the complete
    ones.
    """

    cuts: dict[Piece, dict[int, list[Block]]] = field(default_factory=lambda: defaultdict(dict))
    complete: set[tuple[Piece, int]] = field(default_factory=set)
    members: dict[int, tuple[int, ...]] = field(default_factory=dict)  # checkpoint -> the workers when it was issued

    def sink(self, worker: int) -> CutSink:
        def take(cut: Piece, block: Block | None) -> None:
            assert (cut, worker) not in self.complete, f"worker {worker} goes on with {cut}"
            blocks = self.cuts[cut].setdefault(worker, [])
            if block is None:
                self.complete.add((cut, worker))
            else:
                blocks.append(block)

        return take

    def of(self, number: int, operator: str) -> list[tuple[Piece, int, list[Block]]]:
        """Return the pieces of one operator in a checkpoint: (cut, worker, blocks)."""
        cuts = [cut for cut in self.cuts if (cut.number, cut.operator) == (number, operator)]
        return [(cut, worker, blocks) for cut in cuts for worker, blocks in self.cuts[cut].items()]

    def chain(self, number: int, operator: str) -> list[tuple[int, list[Block]]]:
        """Return the blocks of a checkpoint and of all checkpoints that it builds on, the oldest first."""
        found: list[tuple[int, list[Block]]] = []
        following: int | None = number
        while following is not None:
            pieces = self.of(following, operator)
            assert pieces, f"there is nothing of {operator!r} in checkpoint {following}, which is followed"
            found.append((following, [block for _, _, blocks in pieces for block in blocks]))
            following = pieces[0][0].since
        return found[::-1]


@dataclass
class Plan:
    """The work of one seed."""

    seed: int
    workers: int
    kinds: list[str]
    feeds: dict[int, list[tuple[int, Any]]]
    commands: list[tuple[int, Any]]
    changes: list[tuple[int, Change]]


def plan(seed: int) -> Plan:
    """Draw the plan of a seed: moves only, or also changes of the membership, or also hand-overs."""
    random = Random(f"cuts of {seed}")
    changes: list[tuple[int, Change]] = []
    if seed % 3 == 0:
        scenario = draw(seed)
    else:
        scenario, changes = (draw_changes if seed % 3 == 1 else draw_hand_overs)(seed)
    kinds = [*scenario.kinds] if scenario.two_in_a_row else [scenario.kinds[0]]
    commands = with_checkpoints(random, scenario.commands, range(scenario.times + 3), None, 1)
    return Plan(seed, scenario.workers, kinds, scenario.feeds, commands, changes)


def with_checkpoints(
    random: Random, commands: Sequence[tuple[int, Any]], times: range, committed: int | None, first: int
) -> list[tuple[int, Any]]:
    """Insert checkpoints among commands. About a third are abandoned, so later ones do not build on them."""
    found: list[tuple[int, Any]] = []
    for number, time in enumerate(sorted(random.choices(times, k=random.randint(1, 6))), first):
        found.append((time, Checkpoint(number, committed)))
        if random.random() < 0.65:
            committed = number
    mixed = [*commands, *found] if random.random() < 0.5 else [*found, *commands]
    return sorted(mixed, key=lambda entry: entry[0])


@contextmanager
def small_slices(random: Random) -> Iterator[None]:
    """Draw small slices for the block.

    In most seeds a slice of a cut is one key. In some, a turn of S is one batch. The way to note changes is drawn anew
    at each cut.
    """
    usual = snapshot_writer.SLICE_SECONDS, snapshot_writer.RUN_BYTES, stateful.TURN_SECONDS
    trial_keys, journal.TRIAL_KEYS = journal.TRIAL_KEYS, random.choice([1, 4, 1000])  # type: ignore[misc]
    share, full_snapshots.WHOLE_SHARE = full_snapshots.WHOLE_SHARE, random.choice([0, full_snapshots.WHOLE_SHARE])  # type: ignore[misc]
    choose, young = journal.choose, journal.Noting.YOUNG
    journal.choose = lambda *counts, **more: random.choice([*journal.Noting, young, young])  # type: ignore[assignment]
    if random.random() < 0.7:
        snapshot_writer.SLICE_SECONDS, snapshot_writer.RUN_BYTES = 0.0, 1  # type: ignore[misc]
    if random.random() < 0.4:
        stateful.TURN_SECONDS = 0.0
    try:
        yield
    finally:
        snapshot_writer.SLICE_SECONDS, snapshot_writer.RUN_BYTES, stateful.TURN_SECONDS = usual  # type: ignore[misc]
        journal.choose, journal.TRIAL_KEYS, full_snapshots.WHOLE_SHARE = choose, trial_keys, share  # type: ignore[misc]


class IssuedHere(list[tuple[int, Command]]):
    """The issued commands; notes the members whenever a checkpoint is issued."""

    def __init__(self, cluster: EngineCluster, written: Written) -> None:
        self._cluster = cluster
        self._written = written

    def append(self, entry: tuple[int, Command]) -> None:
        super().append(entry)
        if isinstance(entry[1], Checkpoint):
            self._written.members[entry[1].number] = self._cluster._rescaling.lead.worker.membership.ids


def go(
    plan: Plan,
    written: Written,
    restored: Mapping[str, Restored] | None = None,
    begin: tuple[int, int] = (NEVER, NEVER),
) -> tuple[list[tuple[Any, Any]], list[tuple[int, Command]]]:
    """Run a plan. Return the outputs and the issued commands. `begin` is the first watermark and clock."""
    cluster = EngineCluster(plan.seed, plan.workers)
    cluster.issued = IssuedHere(cluster, written)
    for record, change in plan.changes:
        cluster.at(record, change)

    def build(worker: Worker, records: Stream[Any], commands: Stream[Any]) -> Stream[Any]:
        durability = records.port.scope.graph.extension(Durability)
        durability.sink = written.sink(worker.index)
        durability.restore = lambda descriptor, bins: (restored or {}).get(descriptor.name, Restored({}, {}))
        controls = records.port.scope.graph.extension(Controls)
        controls.watermark, controls.clock = begin
        flowing = records.exchange(lambda record: len(record[0]))
        for number, kind in enumerate(plan.kinds):
            flowing = build_operator(kind, flowing.map(for_next) if number else flowing, commands, f"{kind} {number}")
        return flowing

    with parcels.small(plan.seed, cluster), small_slices(Random(f"slices of {plan.seed}")):
        return cluster.run(build, plan.feeds, plan.commands), cluster.issued


def run(seed: int, planned: Callable[[int], Plan] = plan) -> None:
    """Run a seed and a restart. Raise an AssertionError that names the seed if a result differs from the oracle's."""
    first, written = planned(seed), Written()
    outputs, issued = go(first, written)
    everything = sorted((entry for feed in first.feeds.values() for entry in feed), key=lambda entry: entry[0])
    title = f"seed {seed}"
    times = check(title, first.kinds, written, everything, outputs, issued)

    random = Random(f"restart of {seed}")
    told_before = {time: told_by([each for each in issued if each[0] < time]) for time in times.values()}
    kept = sorted(each for each in times.items() if told_before[each[1]][0] < INFINITE)
    if not kept:  # a store only ever has a finite watermark
        return
    number, time = random.choice(kept)
    second = Plan(seed, random.randint(1, 4), first.kinds, defaultdict(list), [], [])
    for entry in everything:
        if entry[0] >= time:
            second.feeds[random.randrange(second.workers)].append(entry)
    last = max([entry[0] for entry in everything], default=0)
    times_left = range(time + 1, max(time, last) + 3)
    before, begin = [entry for entry in issued if entry[0] < time], told_before[time]
    told = draw_told(random, times_left, begin) if "eventful" in first.kinds else []
    second.commands = with_checkpoints(random, told, times_left, number, 100)
    title += f", restarted at {time} from {number} with {second.workers} workers"
    restored = {name: rebuilt(written, number, name, time) for name in names(first.kinds)}
    outputs, issued = go(second, written, restored, begin)
    check(title, first.kinds, written, everything, outputs, [*before, *issued], time)


def plan_eventful(seed: int) -> Plan:
    """Draw the plan of a seed with watermarks and clocks: the first operator, or all, have event timers."""
    planned = plan(seed)
    random = Random(f"watermarks of {seed}")
    planned.kinds = [
        kind if number and random.random() < 0.5 else "eventful" for number, kind in enumerate(planned.kinds)
    ]
    last = max((entry[0] for feed in planned.feeds.values() for entry in feed), default=0)
    told = draw_told(random, range(last + 4), (NEVER, NEVER))
    mixed = [*planned.commands, *told] if random.random() < 0.5 else [*told, *planned.commands]
    planned.commands = sorted(mixed, key=lambda entry: entry[0])
    return planned


def draw_told(random: Random, times: range, begin: tuple[int, int]) -> list[tuple[int, Any]]:
    """Draw watermarks and clocks that do not fall, at some of these times; most seeds end with an infinite watermark.
    """
    watermark, clock = (max(each, -SECOND) for each in begin)
    found: list[tuple[int, Any]] = []
    for time in sorted(random.choices(times, k=random.randint(0, len(times)))):
        if random.random() < 0.6:
            watermark = max(watermark, min(watermark + random.randint(0, 4) * SECOND, INFINITE))
            found.append((time, Watermark(watermark)))
        else:
            clock = max(clock, min(clock + random.randint(0, 3) * SECOND, INFINITE))
            found.append((time, Clock(clock)))
    if random.random() < 0.8:
        found.append((max([times[-1] - random.randint(0, 2), *(time for time, _ in found)]), Watermark(INFINITE)))
    return found


def told_by(issued: Issued) -> tuple[int, int]:
    """Return the watermark and the clock after these commands."""
    watermarks = [command.micros for _, command in issued if isinstance(command, Watermark)]
    clocks = [command.micros for _, command in issued if isinstance(command, Clock)]
    watermark, clock = max(watermarks, default=NEVER), max(clocks, default=NEVER)
    return watermark, INFINITE if watermark == INFINITE else clock


def run_eventful(seed: int) -> None:
    """Run a seed with watermarks."""
    run(seed, plan_eventful)


def names(kinds: Sequence[str]) -> list[str]:
    return [f"{kind} {number}" for number, kind in enumerate(kinds)]


def rebuilt(written: Written, number: int, operator: str, time: int) -> Restored:
    chain = written.chain(number, operator)
    return restore(chain, operator, time, lambda key: bin_of(stable_hash(key), LOG2_BINS), range(BINS))


def check(
    title: str,
    kinds: Sequence[str],
    written: Written,
    records: Sequence[tuple[int, Any]],
    outputs: Sequence[tuple[Any, Any]],
    issued: Issued,
    begin: int = 0,
) -> dict[int, int]:
    """Check outputs from `begin` on, and all issued checkpoints, against the oracle. Return number -> time."""
    times = {command.number: time for time, command in issued if isinstance(command, Checkpoint)}
    snapshots, expected = oracle(kinds, records, sorted(times.values()), issued)
    assert Counter(outputs) == Counter(each for each in expected if each[0] >= begin), f"{title}: the outputs differ"
    for number, time in times.items():
        for name in names(kinds):
            where = f"{title}: {name!r} in checkpoint {number} at {time}"
            pieces = written.of(number, name)
            bins = sorted(bin for cut, _, _ in pieces for bin in cut.bins)
            assert bins == list(range(BINS)), f"{where} has the bins {bins}"
            assert all((cut, worker) in written.complete and cut.time == time for cut, worker, _ in pieces), where
            workers = {worker for _, worker, _ in pieces}
            assert workers >= {*written.members[number]}, f"{where} is of workers {workers}"
            found = rebuilt(written, number, name, time)
            states = {key: state for states in found.states.values() for key, state in states.items()}
            told = told_by([entry for entry in issued if entry[0] < time])
            waiting = EventTimers()
            waiting.watermark, waiting.clock = told
            timers = by_time(
                each
                for due in (*found.timers.values(), *(filter(waiting.waits, bin) for bin in found.events.values()))
                for each in due
            )
            assert (states, timers) == snapshots[time][name], (
                f"{where} is\n{states}\n{timers}\nand should be\n{snapshots[time][name]}"
            )
    return times
