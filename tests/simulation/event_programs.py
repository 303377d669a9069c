"""Random programs with event time: windows, folds with event timers or expiring states, and chains of them.

A program is a list of operators. Each takes a stream of events, the results of earlier windows, or the timestamped
outputs of an earlier fold. There may be two streams: of the same events, or of two inputs, each with its own timestamps
in its own unit. A program is built twice, as a dataflow and as a model in plain Python (`event_model`). Both give
outputs in the same form, as JSON: the operator's number, the kind of output, and its content. Records of one epoch from
several partitions may arrive in any order. The program sorts whatever depends on that order.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import chain
from math import inf
from random import Random
from typing import Any, TypeAlias

from megaflow import session, sliding, stable_hash, tumbling
from megaflow.megaphone.base.routing import Clock, Command, Watermark
from tests.simulation.event_model import (
    END,
    INFINITE,
    NEVER,
    Moment,
    PlainFold,
    PlainLasting,
    PlainWindows,
    Result,
    Stamped,
    Windows,
    in_unit,
    micros_of,
)
from tests.simulation.jobs import BINS

SECOND = 1_000_000
PER_PARTITION = 10_000  # event numbers
SHIFT_MAX = 2 * SECOND  # the greatest shift of an event's second timestamp
LASTS_FOR_EVER = 1_000_000 * SECOND
VERBS = ["count", "sum", "max", "collect", "fold"]
BEST = ["max", "max by", "min by", "top"]
BEST_COUNT = 3

Event: TypeAlias = tuple[str, tuple[Any, int]]  # key, (timestamp in the unit, number)
Output: TypeAlias = tuple[int, str]  # epoch, the record as JSON


@dataclass(frozen=True)
class Operator:
    """One operator of a program."""

    number: int
    parent: int | None  # the windows whose results it takes; None: the events
    windows: Windows | None = None  # None: a fold
    verbs: tuple[str, ...] = ()  # the aggregates of the windows; operators behind take the first one's results
    behind: int = 0  # the lateness of the windows before it
    ttl: int = 0  # microseconds that a fold's states last, without timers; 0: with timers, no limit
    by_clock: bool = False  # whether `ttl` counts by the clock
    taker: int = 0  # the stream that it takes in the end, itself or through others
    stamp: str = ""  # outputs of a fold get: "record", its stamps; "function", new timestamps; "": neither


@dataclass(frozen=True)
class Taker:
    """An `event_time` operator."""

    unit: str
    out_of_order: int  # microseconds


@dataclass
class Program:
    """The operators and the streams of a program."""

    unit: str
    out_of_order: int  # microseconds
    by_partition: bool  # whether all events of a key are in one partition
    operators: list[Operator] = field(default_factory=list)
    skips: int = 0  # every this many events, one is left out before `event_time`; 0: none
    other: Taker | None = None  # the second `event_time`, with other timestamps
    is_apart: bool = False  # `other` takes odd partitions, a second input; the first takes the rest

    @property
    def takers(self) -> list[Taker]:
        """All `event_time` operators."""
        first = Taker(self.unit, self.out_of_order)
        return [first] if self.other is None else [first, self.other]

    def takes(self, taker: int, partition: int) -> bool:
        """Return whether an `event_time` receives a partition."""
        return not self.is_apart or partition % 2 == taker

    def micros(self, taker: int, event: Event) -> int:
        """Return the timestamp that an `event_time` extracts from an event."""
        timestamp, number = event[1]
        shift = SECOND // 2 * (stable_hash(("other", number)) % (2 * SHIFT_MAX // SECOND + 1)) if taker else 0
        return micros_of(timestamp, self.unit) + shift

    def event_of(self, taker: int, event: Event) -> Event:
        """Return an event with that timestamp, in the unit of the `event_time`."""
        return event[0], (in_unit(self.micros(taker, event), self.takers[taker].unit), event[1][1])


def draw(random: Random, in_order: bool = True) -> Program:
    """Draw up to four operators. `in_order`: each partition is read in its order."""
    unit, skips = random.choice(["s", "ms", "us", "datetime"]), random.choice([0, 0, 3])
    program = Program(unit, random.choice([0, 2, 5]) * SECOND, in_order and random.random() < 0.5, skips=skips)
    for number in range(random.choice([1, 2, 3, 4])):
        before = [each.number for each in program.operators if each.windows is not None]
        parent = random.choice([None, *before])
        behind = 0
        if parent is not None:
            above = program.operators[parent].windows
            assert above is not None
            behind = above.lateness
        if random.random() < 0.35:
            program.operators.append(Operator(number, parent, behind=behind))
            continue
        windows = _draw_windows(random, program.by_partition and parent is None)
        windows = replace(windows, lateness=windows.lateness + behind)
        verbs = tuple(random.sample(VERBS, random.choice([1, 1, 2])))
        program.operators.append(Operator(number, parent, windows, verbs, behind))
    _draw_lasting(Random(repr(program)), program)
    _draw_best(Random(f"best of {program!r}"), program)
    return program


def _draw_best(random: Random, program: Program) -> None:
    """In some places, replace the greatest value by the best one or more by a function."""
    for place, each in enumerate(program.operators):
        verbs = tuple(random.choice(BEST) if verb == "max" else verb for verb in each.verbs)
        program.operators[place] = replace(each, verbs=verbs)


def draw_other(random: Random, program: Program, partitions: int) -> None:
    """Give some programs a second `event_time`; with several partitions, perhaps as a second input."""
    if random.random() < 0.4:
        program.other = Taker(random.choice(["s", "ms", "us", "datetime"]), random.choice([0, 1, 3]) * SECOND)
        program.is_apart = partitions > 1 and random.random() < 0.5
        takers: list[int] = []
        for each in program.operators:
            takers.append(random.choice([0, 1]) if each.parent is None else takers[each.parent])
        program.operators = [replace(each, taker=taker) for each, taker in zip(program.operators, takers)]


def draw_stamped(random: Random, program: Program) -> None:
    """Give half of all programs folds with timestamped outputs, and operators behind them."""
    for _ in range(random.choice([0, 0, 1, 2])):
        parents = [each for each in program.operators if each.windows is not None or each.stamp]
        above = random.choice([None, *parents, *parents])
        parent, behind, taker = None, 0, random.randrange(len(program.takers))
        if above is not None:
            behind = above.behind if above.windows is None else above.windows.lateness
            parent, taker = above.number, above.taker
        stamp, ttl = random.choice(["record", "function"]), 0
        if stamp == "record" and random.random() < 0.5:
            ttl = LASTS_FOR_EVER
            if program.by_partition and parent is None:
                ttl = random.choice([SECOND // 2, 2 * SECOND, 5 * SECOND])
        number = len(program.operators)
        program.operators.append(Operator(number, parent, None, (), behind, ttl, False, taker, stamp))
        windows = _draw_windows(random, in_order=False)
        windows = replace(windows, lateness=windows.lateness + behind)
        verbs = tuple(random.sample(VERBS, 1))
        program.operators.append(Operator(number + 1, number, windows, verbs, behind, taker=taker))
        if random.random() < 0.3:
            program.operators.append(Operator(number + 2, number, behind=behind, taker=taker))


def _draw_lasting(random: Random, program: Program) -> None:
    """Add folds with expiring states to half of all programs. A separate generator leaves everything else as drawn."""
    for _ in range(random.choice([0, 0, 1, 2])):
        parent = random.choice([None, *(each.number for each in program.operators if each.windows is not None)])
        by_clock = random.random() < 0.5
        ttl = random.choice([10_000, 100_000, 200_000] if by_clock else [SECOND // 2, 2 * SECOND, 5 * SECOND])
        if not by_clock and not (program.by_partition and parent is None):
            ttl = LASTS_FOR_EVER  # else the order of arrival would decide which state a record finds
        program.operators.append(Operator(len(program.operators), parent, ttl=ttl, by_clock=by_clock))


def _draw_windows(random: Random, in_order: bool) -> Windows:
    """Draw windows. Whether they have marks follows from the rest, so that all else remains as drawn."""
    windows = _draw_size(random, in_order)
    marks = windows.emit is not None and Random(f"marks of {windows!r}").random() < 0.6
    return replace(windows, marks=marks)


def _draw_size(random: Random, in_order: bool) -> Windows:
    lateness = random.choice([0, 0, 1, 4]) * SECOND
    emit = random.choice([None, None, "epoch", "every"]) if in_order else random.choice([None, None, "epoch"])
    size = random.choice([1, 3, 6, 10]) * SECOND
    match random.choice(["tumbling", "sliding", "session", "session"]):
        case "tumbling":
            return Windows(size, size, random.choice([0, 1]) * SECOND % size, 0, lateness, emit)
        case "sliding":
            every = random.choice([each for each in (1, 2, 4, 5) if each * SECOND <= size]) * SECOND
            return Windows(size, every, random.choice([0, 500_000]) % every, 0, lateness, emit)
        case _:
            return Windows(gap=random.choice([500_000, 1 * SECOND, 2 * SECOND]), lateness=lateness, emit=emit)


# The fold ----------------------------------------------------------------------------------------------------------


def watcher(unit: str) -> Callable[..., Any]:
    """Return a fold that counts and sets timers of all kinds. The timers may set others.

    A timer's name begins with the kind of timer: "v" for the watermark, "c" for the clock, "e" for an epoch.
    """
    zero = in_unit(0, unit)
    second = in_unit(SECOND, unit) - zero

    def watch(key: str, time: int, values: list[Any], state: Any, timers: Any) -> Any:
        def begin(name: str, more: int, timestamp: Any) -> None:
            chance = stable_hash(name) >> 40
            kind, delay = "vvvvce"[chance % 6], (chance >> 8) % 12 - 2
            if kind == "v" and timestamp is None:
                kind = "e"
            if timestamp in (inf, END):
                kind = "v"  # if it is later than everything known, a timer set while others fire is dropped
                timestamp = zero + (chance >> 16) % 3 * 100 * second
            payload = [f"{kind}{name}", more]
            if kind == "v":
                timers.at_event(timestamp + delay * second, payload)
            elif kind == "c":
                timers.after(0.02 * abs(delay), payload)
            else:
                timers.at(time + 1 + abs(delay), payload)

        seen = timers.watermark
        fired = [value for value in values if isinstance(value, list)]
        came = [value for value in values if not isinstance(value, list)]
        assert not came or all(name[0] == "e" for name, _ in fired), f"{values} came at once"
        count = (state or 0) + len(values)
        for name, more in fired:
            if more:
                begin(name, more - 1, seen)
        for timestamp, number in sorted(came):
            begin(str(number), stable_hash(number) % 3, timestamp)
        return (None if count % 4 == 0 else count), [(key, count, in_json(seen), [name for name, _ in fired])]

    return watch


def _counter(program: Program, each: Operator) -> Callable[..., Any]:
    return counter(each.by_clock or (program.by_partition and each.parent is None))


def counter(in_order: bool) -> Callable[..., Any]:
    """Return a fold that counts in a state that it changes in place. It forgets keys only if `in_order`.

    `in_order` says that records of one epoch arrive in a certain order. Otherwise the count at which the fold forgets a
    key would not tell which timestamps came later.
    """

    def count(key: str, value: Any, state: Any) -> Any:
        state = state or [0]
        state[0] += 1
        return (None if in_order and state[0] % 4 == 0 else state), [(key, state[0])]

    return count


def passing(in_order: bool) -> Callable[..., Any]:
    """Return a fold by record that passes each event on once, twice or not at all, and forgets as `counter` does."""

    def send_on(key: str, value: Any, state: Any) -> Any:
        state = state or [0]
        state[0] += 1
        copies = (state[0] if in_order else value[1]) % 3
        return (None if in_order and state[0] % 4 == 0 else state), [(key, value)] * copies

    return send_on


def relay(unit: str) -> Callable[..., Any]:
    """Return a fold that passes each event on: at once, perhaps with another timestamp, or by a timer of some kind.

    An event timer sends its own timestamp; other timers send the event's.
    """
    second = in_unit(SECOND, unit) - in_unit(0, unit)

    def send_on(key: str, time: int, values: list[Any], state: Any, timers: Any) -> Any:
        sent: list[Any] = []
        for timestamp, number in sorted(values, key=lambda value: (value[1], isinstance(value, list))):
            chance = stable_hash(("relay", number))
            delay = (chance >> 8) % 5
            later = timestamp + delay * second
            if [timestamp, number] in values:
                sent.append((key, (timestamp, number)))
            elif chance % 5 == 0:
                timers.at_event(later, [later, number])
            elif chance % 5 == 1:
                timers.at(time + 1 + delay, [timestamp, number])
            elif chance % 5 == 2:
                timers.after(0.02 * delay, [timestamp, number])
            else:
                sent.append((key, (later if chance % 5 == 3 else timestamp - delay * second, number)))
        return None, sent

    return send_on


def in_json(timestamp: Any) -> Any:
    """Return a timestamp in its output form."""
    if timestamp in (inf, END):
        return "end"
    return timestamp.isoformat() if isinstance(timestamp, datetime) else timestamp


# Aggregates of windows -----------------------------------------------------------------------------------------------


def add(total: list[int], number: int) -> list[int]:
    return [total[0] + 1, max(total[1], number)]


def merge(one: list[int], other: list[int]) -> list[int]:
    return [one[0] + other[0], max(one[1], other[1])]


def rank(number: int) -> int:
    """Return the rank of a number for `max(by=…)` and the like; many numbers share one."""
    return number % 4


def aggregated(windowed: Any, verb: str) -> Any:
    """Apply a verb to windows."""
    match verb:
        case "fold":
            return windowed.fold([0, 0], add, merge)
        case "max by":
            return windowed.max(by=rank)
        case "min by":
            return windowed.min(by=rank)
        case "top":
            return windowed.top(BEST_COUNT, by=rank)
    return getattr(windowed, verb)()


def reduced(verb: str, records: Sequence[Stamped]) -> Any:
    """Return the result of a verb for (micros, number, bound) in the order of arrival."""
    numbers = [number for _, number, _ in records]
    match verb:
        case "count":
            return len(numbers)
        case "sum":
            return sum(numbers)
        case "max":
            return max(numbers)
        case "max by":
            return sorted(records, key=lambda record: (-rank(record[1]), *record))[0][1]
        case "min by":
            return sorted(records, key=lambda record: (rank(record[1]), *record))[0][1]
        case "top":
            best = sorted(records, key=lambda record: (-rank(record[1]), *record))
            return [number for _, number, _ in best[:BEST_COUNT]]
        case "collect":
            return [number for _, number, _ in sorted(records, key=lambda record: record[0])]
    return [len(numbers), max(numbers)]


def shown(kind: str, value: Any, in_order: bool) -> Any:
    """Return the output form of a result; sort numbers that arrive in no certain order."""
    return sorted(value) if kind == "collect" and not in_order else value


def for_next(key: str, end: Any, value: Any) -> Event:
    """Turn a result into an event for the operators behind the windows."""
    number = value if isinstance(value, int) else max(value)
    return key[-1], (end, number)


def timestamp_of(event: Event) -> Any:
    return event[1][0]


# As a dataflow -------------------------------------------------------------------------------------------------------


def build(program: Program, *inputs: Any, **place: Any) -> Any:
    """Build the operators on one or two streams of events; return the plain stream of their outputs.

    `place`: the commands that the operators follow, if not the default ones.
    """
    streams: list[Any] = []
    for number, taker in enumerate(program.takers):
        events = inputs[number if program.is_apart else 0]
        if number:
            events = events.map(partial(program.event_of, number))
        streams.append(events.event_time(timestamp_of, out_of_order=taker.out_of_order / SECOND, unit=taker.unit))
    results: dict[int, Any] = {}
    outputs: list[Any] = []
    for each in program.operators:
        source = streams[each.taker] if each.parent is None else results[each.parent]
        if each.stamp:
            found = results[each.number] = _build_stamped(program, each, source, place)
            outputs.append(found.map(partial(_sent, each.number)).plain())
        elif each.ttl:
            source = source.plain() if each.by_clock else source
            fold, ttl = _counter(program, each), each.ttl / SECOND
            counted = source.stateful_state_machine(fold, bins=BINS, name=f"count {each.number}", ttl=ttl, **place)
            outputs.append(counted.map(partial(_tagged, each.number, "count")))
        elif each.windows is None:
            watch = watcher(program.takers[each.taker].unit)
            watched = source.stateful_unary(watch, bins=BINS, name=f"watch {each.number}", **place)
            outputs.append(watched.map(partial(_tagged, each.number, "watch")))
        else:
            outputs += _build_windows(program, each, source, results, place)
    return outputs[0].concat(*outputs[1:])


def _build_stamped(program: Program, each: Operator, source: Any, place: dict[str, Any]) -> Any:
    place = {"bins": BINS, "name": f"stamped {each.number}", **place}
    if each.stamp == "function":
        return source.stateful_unary(relay(program.takers[each.taker].unit), stamp=timestamp_of, **place)
    ttl = each.ttl / SECOND or None
    return source.stateful_state_machine(passing(_is_in_order(program, each)), ttl=ttl, stamp="record", **place)


def _is_in_order(program: Program, each: Operator) -> bool:
    return program.by_partition and each.parent is None


def _sent(number: int, event: Event) -> Any:
    return number, "sent", event[0], in_json(event[1][0]), event[1][1]


def _build_windows(
    program: Program, each: Operator, source: Any, results: dict[int, Any], place: dict[str, Any]
) -> Iterable[Any]:
    windows = each.windows
    assert windows is not None
    if windows.gap:
        given: Any = session(windows.gap / SECOND)
    elif windows.size == windows.every:
        given = tumbling(windows.size / SECOND, offset=windows.offset / SECOND)
    else:
        given = sliding(windows.size / SECOND, every=windows.every / SECOND, offset=windows.offset / SECOND)
    lateness = (windows.lateness - each.behind) / SECOND
    windowed = source.map(lambda event: (event[0], event[1][1])).window(
        given, allowed_lateness=lateness, emit=windows.emit, marks=windows.marks, bins=BINS,
        name=f"windows {each.number}", **place,
    )  # fmt: skip
    in_order = _has_order(program, each)
    for number, verb in enumerate(each.verbs):
        found = aggregated(windowed, verb)
        if number == 0:
            results[each.number] = found.map(lambda result: for_next(result[0], result[1].end, result[2]))
        show = partial(_shown, each.number, verb, in_order)
        yield found.map(show).plain()
    yield windowed.late().map(partial(_tagged, each.number, "late")).plain()


def _has_order(program: Program, each: Operator) -> bool:
    """Return whether windows receive records of equal timestamps in the order of their partition."""
    is_alone = each.windows is not None and each.windows.size == each.windows.every  # each record is in one window
    return program.by_partition and each.parent is None and is_alone


def _tagged(number: int, kind: str, record: Any) -> Any:
    return (number, kind, *record)


def _shown(number: int, verb: str, in_order: bool, result: Any) -> Any:
    key, window, value, *kind = result
    start, end = map(in_json, window)
    return (number, verb, key, start, end, window.is_final, shown(verb, value, in_order), *kind)


# As a model ----------------------------------------------------------------------------------------------------------


Run: TypeAlias = tuple[Iterable[tuple[int, Event]], Iterable[tuple[int, Command]]]
"""One run to the end of its lines: (epoch, event) in the order of partitions, and (epoch, command)."""


def expected(
    program: Program, events: Iterable[tuple[int, Event]], commands: Iterable[tuple[int, Command]],
    has_partitions: bool = True,
) -> list[Output]:  # fmt: skip
    """Return the outputs for (epoch, event) in the order of partitions, and (epoch, command)."""
    return expected_of(program, [(events, commands)], has_partitions)[0]


def expected_of(
    program: Program, runs: Iterable[Run], has_partitions: bool = True
) -> tuple[list[Output], list[int]]:
    """Return the outputs of runs that continue each other, and the watermark that each run leaves."""
    plain = {each.number: _plain(program, each) for each in program.operators}
    outputs: list[Output] = []
    left = [NEVER]
    for events, commands in runs:
        left.append(_step_through(program, plain, events, commands, left[-1], outputs, has_partitions))
        for operator in plain.values():
            left[-1] = max(left[-1], operator.next_run())
    return outputs, left[1:]


def _step_through(
    program: Program, plain: dict[int, Any], events: Iterable[tuple[int, Event]],
    commands: Iterable[tuple[int, Command]], watermark: int, outputs: list[Output],
    has_partitions: bool,
) -> int:  # fmt: skip
    """Run all operators through a run; return the last finite watermark."""
    maxima: dict[tuple[int, int], int] | None = {} if has_partitions else None
    coming: dict[int, list[Event]] = defaultdict(list)
    for time, event in events:
        coming[time].append(event)
    heard: dict[int, list[Command]] = defaultdict(list)
    finite, by_stop = watermark, False
    for time, command in commands:
        heard[time].append(command)
        if isinstance(command, Watermark) and command.micros < INFINITE:
            finite = max(finite, command.micros)
    while times := {*coming, *heard, *chain.from_iterable(operator.times() for operator in plain.values())}:
        time = min(times)
        here = heard.pop(time, [])
        risen = max([watermark, *(each.micros for each in here if isinstance(each, Watermark))])
        clock = max((each.micros for each in here if isinstance(each, Clock)), default=None)
        greatest = max((each.greatest for each in here if isinstance(each, Watermark)), default=NEVER)
        by_stop |= any(isinstance(each, Watermark) and each.by_stop for each in here)
        moment, watermark = Moment(time, watermark, risen, clock, greatest, by_stop), risen
        came, flowing = coming.pop(time, []), dict[int, list[Stamped]]()
        taken = [_taken(program, number, came, maxima) for number, _ in enumerate(program.takers)]
        for each in program.operators:
            given = taken[each.taker] if each.parent is None else flowing[each.parent]
            found = _step(program, each, plain[each.number], moment, given, flowing)
            outputs += [(time, json.dumps([each.number, *output])) for output in found]
    return finite


def _plain(program: Program, each: Operator) -> PlainFold | PlainWindows | PlainLasting:
    if each.stamp == "record":
        return PlainLasting(passing(_is_in_order(program, each)), each.ttl or LASTS_FOR_EVER, by_clock=False)
    if each.stamp:
        return PlainFold(relay(program.takers[each.taker].unit), program.takers[each.taker].unit)
    if each.ttl:
        return PlainLasting(_counter(program, each), each.ttl, each.by_clock)
    unit = program.takers[each.taker].unit
    return PlainFold(watcher(unit), unit) if each.windows is None else PlainWindows(each.windows)


def _taken(
    program: Program, taker: int, events: Iterable[Event], maxima: dict[tuple[int, int], int] | None
) -> list[Stamped]:
    """Return the stamped events behind an `event_time`.

    `maxima`: the greatest timestamps so far by taker and partition; None: partitions are unknown.
    """
    found = []
    for event in events:
        partition = event[1][1] // PER_PARTITION
        if program.takes(taker, partition):
            micros, bound = program.micros(taker, event), NEVER
            if maxima is not None:
                maxima[taker, partition] = max(micros, maxima.get((taker, partition), NEVER))
                bound = maxima[taker, partition] - program.takers[taker].out_of_order
            found.append((micros, program.event_of(taker, event), bound))
    return found


def _step(
    program: Program, each: Operator, operator: Any, moment: Moment, given: list[Stamped],
    flowing: dict[int, list[Stamped]],
) -> list[Any]:  # fmt: skip
    """Apply an epoch to one operator. Return its outputs, and put the input of the next ones into `flowing`."""
    unit = program.takers[each.taker].unit
    if each.stamp:
        sent = operator.step(moment, given)
        flowing[each.number] = [(micros_of(event[1][0], unit), event, NEVER) for event in sent]
        if each.stamp == "record":
            flowing[each.number] = operator.stamped
        return [_sent(each.number, event)[1:] for event in sent]
    if each.ttl:
        return [("count", *output) for output in operator.step(moment, given)]
    if each.windows is None:
        return [("watch", *output) for output in operator.step(moment, given)]
    results: list[Result]
    results, late = operator.step(moment, [(micros, (event[0], event[1][1]), bound) for micros, event, bound in given])
    in_order = _has_order(program, each)
    outputs: list[Any] = [("late", *record) for _, record, _ in late]
    flowing[each.number] = []
    for result in results:
        start, end = in_unit(result.start, unit), in_unit(result.end, unit)
        values = [reduced(verb, result.records) for verb in each.verbs]
        kind = [result.kind] if each.windows.marks else []
        outputs += [
            (verb, result.key, in_json(start), in_json(end), result.is_final, shown(verb, value, in_order), *kind)
            for verb, value in zip(each.verbs, values)
        ]
        flowing[each.number].append((result.end - 1, for_next(result.key, end, values[0]), NEVER))
    return outputs
