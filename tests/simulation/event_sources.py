"""Input of random jobs with event time: partitions whose timestamps roughly rise, and the log of what was read.

A partition is a file or part of a source, and is idle now and then. Some partitions of a source *wait*: they stay idle
until the watermark reaches a time that it reaches only if idle partitions do not count. Meanwhile another partition,
the *steady* one, keeps producing events. So the test notices if an idle partition holds the watermark back without
limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from megaflow.connect import Exhausted, Found, Idle
from megaflow.control.reading_messages import AssignPartitions
from megaflow.megaphone.base.routing import Clock, Command, Numbered, Watermark
from megaflow.timely.communication.codec.decode import decode
from tests.simulation.event_model import INFINITE, in_unit, micros_of
from tests.simulation.event_programs import PER_PARTITION, SECOND, SHIFT_MAX, Event, Program
from tests.simulation.jobs import PADDING

MORE_MAX = 400  # events that the steady partition may produce while others wait


@dataclass
class Attempt:
    """The log of one attempt of a job."""

    begins: int  # everything before this epoch was committed
    now: Callable[[], float]  # seconds
    events: dict[int, tuple[int, Event]] = field(default_factory=dict)  # number -> (epoch, event)
    commands: dict[int, tuple[int, Any]] = field(default_factory=dict)  # number -> (epoch, command)
    opened: dict[int, float] = field(default_factory=dict)  # partition of a source -> seconds
    known: dict[int, int] = field(default_factory=dict)  # partition of a source -> epoch at which it was assigned
    heard: dict[int, float] = field(default_factory=dict)  # epoch of a command -> seconds

    def see(self, time: int, event: Event) -> None:
        """Note that an event was read."""
        number = event[1][1]
        assert number not in self.events, f"{event} is read at {self.events[number][0]} and at {time}"
        self.events[number] = time, event

    def hear(self, time: int, numbered: Numbered) -> None:
        """Note a command; every worker receives it."""
        said = time, numbered.command
        self.heard.setdefault(time, self.now())
        assert self.commands.setdefault(numbered.number, said) == said, f"{numbered} is at {time} here"
        if isinstance(numbered.command, AssignPartitions):
            for partition in chain.from_iterable(numbered.command.assignments.values()):
                self.known.setdefault(decode(partition.partition), time)


@dataclass
class Run:
    """The part of a job from its start, or from a checkpoint at the end of all lines, to the next such end."""

    base: int  # that checkpoint; 0: the start
    closes: bool  # whether everything closes at its end
    attempts: list[Attempt] = field(default_factory=list)


class Log:
    """All attempts of a job."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` returns the time in seconds."""
        self.runs: list[Run] = []
        self.now = now

    @property
    def attempts(self) -> list[Attempt]:
        """All attempts, the oldest first."""
        return [attempt for run in self.runs for attempt in run.attempts]

    def begin(self, time: int, base: int | None, closes: bool) -> None:
        """Note that another attempt begins; everything before epoch `time` was committed.

        `base` is the checkpoint that it starts from if that one is at the end of all lines, 0 without a checkpoint,
        else None.
        """
        if base is not None and self.runs and self.runs[-1].base == base:
            self.runs[-1] = Run(base, closes)  # nothing of the old run was committed
        elif base is not None:
            self.runs.append(Run(base, closes))
        self.runs[-1].attempts.append(Attempt(time, self.now))

    @property
    def watermark(self) -> int | None:
        """The greatest finite watermark so far."""
        told = (command for attempt in self.attempts for _, command in attempt.commands.values())
        return max(
            (each.micros for each in told if isinstance(each, Watermark) and each.micros < INFINITE), default=None
        )

    def attempt_at(self, time: int) -> Attempt:
        """Return the attempt that an epoch finally belongs to."""
        return next(attempt for attempt in self.attempts[::-1] if time >= attempt.begins)

    def history(self, run: Run) -> tuple[list[tuple[int, Event]], list[tuple[int, Command]]]:
        """Return what finally counts of a run: (epoch, event) in the order of partitions, and (epoch, command) in
        order.
        """
        events: dict[int, tuple[int, Event]] = {}
        commands: list[tuple[int, Command]] = []
        for attempt in run.attempts:
            events = {number: each for number, each in events.items() if each[0] < attempt.begins}
            commands = [each for each in commands if each[0] < attempt.begins]
            for number, (time, event) in attempt.events.items():
                assert number not in events, f"{event} is read at {events[number][0]}, which counts, and at {time}"
                assert time >= attempt.begins, f"{event} read at {time}, but all before {attempt.begins} is committed"
                events[number] = time, event
            commands += [attempt.commands[number] for number in sorted(attempt.commands)]
        in_order = sorted(events.items(), key=lambda item: (item[1][0], item[0]))
        timed = [each for each in commands if isinstance(each[1], Watermark | Clock)]
        return [event for _, event in in_order], timed


def draw_events(random: Random, program: Program, partition: int, count: int) -> list[Event]:
    """Draw the events of one partition. Some are out of order, a few by more than the program allows."""
    found = []
    micros = random.randint(100, 103) * SECOND
    keys = [f"p{partition}{each}" for each in "ab"] if program.by_partition else ["a", "b", "c"]
    for number in range(count):
        micros += random.choice([0, 0, 1, 1, 2, 3, 7]) * SECOND // 2
        behind = random.choice([0, random.randint(0, program.out_of_order)])
        if random.random() < 0.06:
            behind = program.out_of_order + random.choice([1, 3, 12]) * SECOND
        found.append(event_at(program, random.choice(keys), micros - behind, partition * PER_PARTITION + number))
    return found


def put_in_order(program: Program, events: dict[int, list[Event]]) -> None:
    """Shift partitions so that none begins before the first event of an earlier one, for each `event_time`."""
    least = 0
    for some in events.values():
        ahead = max(0, least - min(micros_in(program, each) for each in some))
        some[:] = [event_at(program, key, micros_of(at, program.unit) + ahead, n) for key, (at, n) in some]
        kept = [micros_in(program, each) for each in some if is_kept(program, each)]
        least = max([least, *(micros + SHIFT_MAX for micros in kept[:1])])


def draw_bound(random: Random, program: Program, partition: int, events: list[Event]) -> Any:
    """Draw a lower bound of a partition's timestamps, in a unit of an `event_time` that takes it, or as a datetime."""
    micros = min(micros_in(program, each) for each in events) - random.choice([0, 0, 1, 4]) * SECOND
    units = [taker.unit for number, taker in enumerate(program.takers) if program.takes(number, partition)]
    return in_unit(micros, "datetime" if "datetime" in units else random.choice(units))


def event_at(program: Program, key: str, micros: int, number: int) -> Event:
    """Return an event with its timestamp rounded down to half a second."""
    return key, (in_unit(micros - micros % (SECOND // 2), program.unit), number)


def is_kept(program: Program, event: Event) -> bool:
    """Return whether an event reaches `event_time`."""
    return not program.skips or event[1][1] % program.skips != 1


def micros_in(program: Program, event: Event) -> int:
    return micros_of(event[1][0], program.unit)


def write_files(folder: Path, program: Program, events: dict[int, list[Event]]) -> list[str]:
    """Write each partition as a file; return the paths."""
    paths = []
    for number, some in events.items():
        path = folder / f"part{number}"
        path.write_text("".join(f"{e[0]} {micros_in(program, e)} {e[1][1]} {PADDING}\n" for e in some))
        paths.append(str(path))
    return paths


def parse(program: Program, line: str) -> Event:
    """Parse an event from a line of a file."""
    key, micros, number, _ = line.split(" ")
    return key, (in_unit(int(micros), program.unit), int(number))


class EventFeed:
    """Source whose partitions are found one after the other and are idle now and then."""

    def __init__(self, random: Random, program: Program, events: dict[int, list[Event]], log: Log) -> None:
        self.random, self.program, self.events, self.log, self.now = random, program, events, log, log.now
        numbers = list(events)
        self.waits: dict[int, int] = {}  # partition -> the number of the event at which it waits
        self.steady: int | None = None
        if len(numbers) > 1 and random.random() < 0.6:
            self.steady, *others = random.sample(numbers, len(numbers))
            for each in others[: random.choice([1, 1, 2])]:
                self.waits[each] = random.randint(0, len(events[each]))
            steady = micros_in(program, events[self.steady][-1])
            self.target = steady + random.randint(0, 5) * SECOND
        self.more = 0
        self.found = 0
        self.bounds: dict[int, Any] = {}  # partition -> lower bound of its timestamps
        self.gave: dict[int, float] = {}  # number of an event -> seconds
        self.idled: dict[int, list[tuple[float, float]]] = defaultdict(
            list
        )  # partition -> (from when, until when at least)

    def discover(self) -> Found:
        self.found = min(len(self.events), self.found + self.random.randint(0, 2))
        more = self.found < len(self.events)
        return Found([*self.events][: self.found], again_seconds=0.02 * self.random.random() if more else None)

    def lower_bound(self, partition: int) -> Any:
        return self.bounds.get(partition)

    def open(self, partition: int, position: int | None) -> EventReader:
        self.log.attempts[-1].opened.setdefault(partition, self.now())
        return EventReader(self, partition, position or 0)

    @property
    def is_waiting(self) -> bool:
        """Whether waiting partitions still wait for the watermark."""
        return bool(self.waits) and (self.log.watermark or 0) < self.target


class HalfFeed:
    """The even or the odd partitions, as a separate source."""

    def __init__(self, feed: EventFeed, odd: int) -> None:
        self.open, self.lower_bound, self._feed, self._odd = feed.open, feed.lower_bound, feed, odd

    def discover(self) -> Found:
        found = self._feed.discover()
        return Found([each for each in found.partitions if each % 2 == self._odd], found.again_seconds)


class EventReader:
    """Reader of one partition."""

    def __init__(self, feed: EventFeed, partition: int, position: int) -> None:
        self._feed, self._partition, self._position = feed, partition, position

    def read(self, limit: int) -> Any:
        feed, random, events = self._feed, self._feed.random, self._feed.events[self._partition]
        waits = feed.waits.get(self._partition) == self._position and feed.is_waiting
        if waits or random.random() < 0.3:
            seconds = 0.02 * random.random()
            feed.idled[self._partition].append((feed.now(), feed.now() + seconds))
            return Idle(after_seconds=seconds)
        if self._partition == feed.steady and self._position == len(events) and feed.is_waiting:
            self._have_more(events)
        if self._position == len(events):
            return Exhausted()
        end = min(self._position + random.randint(0, min(3, limit)), len(events))
        if self._position < (place := feed.waits.get(self._partition, -1)) < end:
            end = place
        records, self._position = events[self._position : end], end
        feed.gave.update((number, feed.now()) for _, (_, number) in records)
        return records, end

    def _have_more(self, events: list[Event]) -> None:
        """Add one more event while other partitions wait."""
        feed = self._feed
        feed.more += 1
        assert feed.more < MORE_MAX, f"the watermark is held back for ever at {feed.log.watermark}"
        micros = max(micros_in(feed.program, each) for each in events) + SECOND
        number = self._partition * PER_PARTITION + len(events)
        events.append(event_at(feed.program, events[0][0], micros, number))

    def lag(self) -> int:
        return len(self._feed.events[self._partition]) - self._position

    def close(self) -> None:
        """Do nothing: nothing is open."""
