"""The changes planned for a simulated cluster: when each is due, and the outcome."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from megaflow.testing.changes import Change, Crash, Join, Kill, Leave, MoveSome, Stop

_SECONDS = 0.3  # in which random changes come, if the number of records is not known


@dataclass(eq=False)
class Planned:
    """A change, and when it is due: when all that is given here is reached."""

    do: Change
    record: int | None = None  # so many records have been read
    seconds: float | None = None  # so many seconds have passed since the run began
    prepare: str | None = None  # a sink of this name prepares
    commit: str | None = None  # a sink of this name commits

    def __str__(self) -> str:
        given = [
            f"{name}={value!r}"
            for name, value in [("record", self.record), ("seconds", self.seconds), ("prepare", self.prepare),
                                ("commit", self.commit)]
            if value is not None
        ]  # fmt: skip
        return f"{self.do!r} at {', '.join(given) or 'the beginning'}"

    def is_reached(self, records: int, seconds: float) -> bool:
        """Whether records and seconds are."""
        return records >= (self.record or 0) and seconds >= (self.seconds or 0.0)

    @property
    def of_sink(self) -> bool:
        """Whether it waits for a sink."""
        return self.prepare is not None or self.commit is not None


class ClusterPlan:
    """The changes of one run, through all its lives."""

    def __init__(self) -> None:
        self.left: list[Planned] = []  # that have not begun
        self.said: list[str] = []  # what has happened
        self.refusals: list[str] = []  # why changes did not take place
        self.records = 0  # that were read in lives before
        self._begun: Planned | None = None  # what a client asks for just now

    def due(self, records: int, seconds: float) -> Iterator[Planned]:
        """Yield what is to be done now, in the order of the plan."""
        for planned in [*self.left]:
            if not planned.of_sink and planned.is_reached(self.records + records, seconds):
                self.left.remove(planned)
                yield planned

    def due_at_sink(self, what: str, sink: str, records: int, seconds: float) -> Planned | None:
        """Return what is to be done now that a sink prepares or commits."""
        for planned in self.left:
            wanted = planned.prepare if what == "prepare" else planned.commit
            if wanted == sink and planned.is_reached(self.records + records, seconds):
                self.left.remove(planned)
                return planned
        return None

    def next_seconds(self, now: float) -> Iterator[float]:
        """Yield the moments after now at which something may be due."""
        for planned in self.left:
            if planned.seconds is not None and planned.seconds > now:
                yield planned.seconds

    def says(self, what: str, seconds: float) -> None:
        """Note what has happened."""
        self.said.append(f"{what}, {seconds:.3f} s after the start")

    def end(self) -> None:
        """Note what was not done."""
        self.refusals += [f"{planned}: the job ended before" for planned in self.left]
        self.left.clear()


def random_changes(random: Random, count: int, records: int, durable: bool) -> list[Planned]:
    """Draw changes; the first of them are the same however many there are."""
    kinds: list[Change] = [Join(), MoveSome(), MoveSome(), Leave()]
    if durable:
        kinds += [Kill(), Kill(), Crash(), Crash(power=True), Stop()]
    found = []
    for _ in range(count):
        do, share = random.choice(kinds), random.random()
        if records:
            found.append(Planned(do, record=int(share * records)))
        else:
            found.append(Planned(do, seconds=round(share * _SECONDS, 3)))
    return found
