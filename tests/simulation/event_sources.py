"""What random jobs with event time read: partitions whose timestamps rise, more or less, and the log of what was read.

A partition is a file, or one of a source, which is idle now and then. A part of these *wait*: they are idle until the
watermark has come to a time that it reaches only if they do not count. Meanwhile another one, which is *steady*, has
more and more to read. So a watermark that an idle partition holds back for ever is found.
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
from megaflow.control.reading_messages import AssignPortions
from megaflow.megaphone.routing import Clock, Command, Numbered, Watermark
from megaflow.timely.communication.codec.decode import decode
from tests.simulation.event_model import INFINITE, in_unit, micros_of
from tests.simulation.event_programs import PER_PARTITION, SECOND, SHIFT_MAX, Event, Program
from tests.simulation.jobs import PADDING

MORE_MAX = 400  # events that a steady partition has while others wait


@dataclass
class Life:
    """What was seen of one life of a job."""

    begins: int  # all before this epoch was committed
    now: Callable[[], float]  # seconds
    events: dict[int, tuple[int, Event]] = field(default_factory=dict)  # number -> (epoch, event)
    commands: dict[int, tuple[int, Any]] = field(default_factory=dict)  # number -> (epoch, command)
    opened: dict[int, float] = field(default_factory=dict)  # partition of a source -> seconds
    known: dict[int, int] = field(default_factory=dict)  # partition of a source -> epoch at which it was given
    heard: dict[int, float] = field(default_factory=dict)  # epoch of a command -> seconds

    def see(self, time: int, event: Event) -> None:
        """Note an event that is read."""
        number = event[1][1]
        assert number not in self.events, f"{event} is read at {self.events[number][0]} and at {time}"
        self.events[number] = time, event

    def hear(self, time: int, numbered: Numbered) -> None:
        """Note a command: every worker hears it."""
        said = time, numbered.command
        self.heard.setdefault(time, self.now())
        assert self.commands.setdefault(numbered.number, said) == said, f"{numbered} is at {time} here"
        if isinstance(numbered.command, AssignPortions):
            for portion in chain.from_iterable(numbered.command.assignments.values()):
                self.known.setdefault(decode(portion.partition), time)


@dataclass
class Run:
    """What a job does from its begin, or from a checkpoint at the end of all lines, to the next such end."""

    base: int  # that checkpoint; 0: the begin
    closes: bool  # whether everything closes at its end
    lives: list[Life] = field(default_factory=list)


class Log:
    """All lives of a job."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now()`: the time in seconds."""
        self.runs: list[Run] = []
        self.now = now

    @property
    def lives(self) -> list[Life]:
        """All of them, the oldest first."""
        return [life for run in self.runs for life in run.lives]

    def begin(self, time: int, base: int | None, closes: bool) -> None:
        """Note that another life begins, after what was committed before an epoch.

        `base`: the checkpoint that it begins with, if that is one at the end of all lines, or none; else None.
        """
        if base is not None and self.runs and self.runs[-1].base == base:
            self.runs[-1] = Run(base, closes)  # nothing of it was committed
        elif base is not None:
            self.runs.append(Run(base, closes))
        self.runs[-1].lives.append(Life(time, self.now))

    @property
    def watermark(self) -> int | None:
        """The greatest that was commanded, but for the infinite one."""
        told = (command for life in self.lives for _, command in life.commands.values())
        return max(
            (each.micros for each in told if isinstance(each, Watermark) and each.micros < INFINITE), default=None
        )

    def life_at(self, time: int) -> Life:
        """The life in which an epoch was that counts."""
        return next(life for life in self.lives[::-1] if time >= life.begins)

    def history(self, run: Run) -> tuple[list[tuple[int, Event]], list[tuple[int, Command]]]:
        """What counts of a run: (epoch, event)s in the order of partitions, (epoch, command)s in theirs."""
        events: dict[int, tuple[int, Event]] = {}
        commands: list[tuple[int, Command]] = []
        for life in run.lives:
            events = {number: each for number, each in events.items() if each[0] < life.begins}
            commands = [each for each in commands if each[0] < life.begins]
            for number, (time, event) in life.events.items():
                assert number not in events, f"{event} is read at {events[number][0]}, which counts, and at {time}"
                assert time >= life.begins, f"{event} is read at {time}, but all before {life.begins} was committed"
                events[number] = time, event
            commands += [life.commands[number] for number in sorted(life.commands)]
        in_order = sorted(events.items(), key=lambda item: (item[1][0], item[0]))
        timed = [each for each in commands if isinstance(each[1], Watermark | Clock)]
        return [event for _, event in in_order], timed


def draw_events(random: Random, program: Program, partition: int, count: int) -> list[Event]:
    """The events of one partition: some are out of order, a few by more than the program says."""
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
    """Have no partition begin with what is earlier than the first event of one before it, whoever takes timestamps."""
    least = 0
    for some in events.values():
        ahead = max(0, least - min(micros_in(program, each) for each in some))
        some[:] = [event_at(program, key, micros_of(at, program.unit) + ahead, n) for key, (at, n) in some]
        kept = [micros_in(program, each) for each in some if is_kept(program, each)]
        least = max([least, *(micros + SHIFT_MAX for micros in kept[:1])])


def draw_bound(random: Random, program: Program, partition: int, events: list[Event]) -> Any:
    """A timestamp before which a partition has none, in a unit in which they are taken of it, or as a datetime."""
    micros = min(micros_in(program, each) for each in events) - random.choice([0, 0, 1, 4]) * SECOND
    units = [taker.unit for number, taker in enumerate(program.takers) if program.takes(number, partition)]
    return in_unit(micros, "datetime" if "datetime" in units else random.choice(units))


def event_at(program: Program, key: str, micros: int, number: int) -> Event:
    """An event, whose timestamp is rounded to half a second."""
    return key, (in_unit(micros - micros % (SECOND // 2), program.unit), number)


def is_kept(program: Program, event: Event) -> bool:
    """Tell whether a timestamp is taken of an event."""
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
    """Read an event of a file."""
    key, micros, number, _ = line.split(" ")
    return key, (in_unit(int(micros), program.unit), int(number))


class EventFeed:
    """A source whose partitions are found bit by bit, and are idle now and then."""

    def __init__(self, random: Random, program: Program, events: dict[int, list[Event]], log: Log) -> None:
        self.random, self.program, self.events, self.log, self.now = random, program, events, log, log.now
        numbers = list(events)
        self.waits: dict[int, int] = {}  # partition -> at which of its events it waits
        self.steady: int | None = None
        if len(numbers) > 1 and random.random() < 0.6:
            self.steady, *others = random.sample(numbers, len(numbers))
            for each in others[: random.choice([1, 1, 2])]:
                self.waits[each] = random.randint(0, len(events[each]))
            steady = micros_in(program, events[self.steady][-1])
            self.target = steady + random.randint(0, 5) * SECOND
        self.more = 0
        self.found = 0
        self.bounds: dict[int, Any] = {}  # partition -> timestamp before which it has none
        self.gave: dict[int, float] = {}  # number of an event -> seconds
        self.idled: dict[int, list[tuple[float, float]]] = defaultdict(
            list
        )  # partition -> from when, till when at least

    def discover(self) -> Found:
        self.found = min(len(self.events), self.found + self.random.randint(0, 2))
        more = self.found < len(self.events)
        return Found([*self.events][: self.found], again_seconds=0.02 * self.random.random() if more else None)

    def lower_bound(self, partition: int) -> Any:
        return self.bounds.get(partition)

    def open(self, partition: int, position: int | None) -> EventReader:
        self.log.lives[-1].opened.setdefault(partition, self.now())
        return EventReader(self, partition, position or 0)

    @property
    def is_waiting(self) -> bool:
        """Whether a partition waits for the watermark."""
        return bool(self.waits) and (self.log.watermark or 0) < self.target


class HalfFeed:
    """The even partitions, or the odd ones, as a source of their own."""

    def __init__(self, feed: EventFeed, odd: int) -> None:
        self.open, self.lower_bound, self._feed, self._odd = feed.open, feed.lower_bound, feed, odd

    def discover(self) -> Found:
        found = self._feed.discover()
        return Found([each for each in found.partitions if each % 2 == self._odd], found.again_seconds)


class EventReader:
    """Reads one partition."""

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
        """Have one event more while others wait."""
        feed = self._feed
        feed.more += 1
        assert feed.more < MORE_MAX, f"the watermark is held back for ever at {feed.log.watermark}"
        micros = max(micros_in(feed.program, each) for each in events) + SECOND
        number = self._partition * PER_PARTITION + len(events)
        events.append(event_at(feed.program, events[0][0], micros, number))

    def lag(self) -> int:
        return len(self._feed.events[self._partition]) - self._position

    def close(self) -> None:
        """Nothing is open."""
