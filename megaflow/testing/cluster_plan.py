"""The changes planned for a simulated cluster: when each is due, and the outcome."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from megaflow.testing.changes import Change, Crash, Join, Kill, Leave, MoveSome, Stop

_SECONDS = 0.3  # time in which random changes come, if the number of records is not known
_SHOWN_MAX = 60  # characters shown of a change: a Map has a number for each bin


@dataclass(eq=False)
class Planned:
    """A change, and when it is due: when every condition given here holds."""

    do: Change
    record: int | None = None  # this many records have been read
    seconds: float | None = None  # this many seconds have passed since the run began
    prepare: str | None = None  # a sink of this name prepares
    commit: str | None = None  # a sink of this name commits
    is_drawn: bool = False  # by `disturb`, so the test does not rely on it

    def __str__(self) -> str:
        given = [
            f"{name}={value!r}"
            for name, value in [("record", self.record), ("seconds", self.seconds), ("prepare", self.prepare),
                                ("commit", self.commit)]
            if value is not None
        ]  # fmt: skip
        do = repr(self.do)
        do = do if len(do) <= _SHOWN_MAX else f"{do[:_SHOWN_MAX]}…)"
        return f"{do} at {', '.join(given) or 'the beginning'}"

    def is_reached(self, records: int, seconds: float) -> bool:
        """Return whether the conditions on records and seconds hold."""
        return records >= (self.record or 0) and seconds >= (self.seconds or 0.0)

    @property
    def of_sink(self) -> bool:
        """Whether it waits for a sink."""
        return self.prepare is not None or self.commit is not None


class ClusterPlan:
    """The changes of one run, over all its attempts."""

    def __init__(self) -> None:
        self.left: list[Planned] = []  # changes that are not due yet
        self.asked: list[Planned] = []  # changes that are due, and wait for the one before
        self.begun: Planned | None = None  # a client is asking for it
        self.said: list[str] = []  # what has happened
        self.refusals: list[str] = []  # why changes did not take place
        self.missed: list[Planned] = []  # changes that did not take place because the job ended
        self.records = 0  # read in earlier attempts

    def due(self, records: int, seconds: float) -> Iterator[Planned]:
        """Yield the changes that are due now, in the order of the plan."""
        for planned in [*self.left]:
            if not planned.of_sink and planned.is_reached(self.records + records, seconds):
                self.left.remove(planned)
                yield planned

    def due_at_sink(self, what: str, sink: str, records: int, seconds: float) -> Planned | None:
        """Return the change that is due now that a sink prepares or commits; None if there is none."""
        for planned in self.left:
            wanted = planned.prepare if what == "prepare" else planned.commit
            if wanted == sink and planned.is_reached(self.records + records, seconds):
                self.left.remove(planned)
                return planned
        return None

    def next_seconds(self, now: float) -> Iterator[float]:
        """Yield the later moments at which changes may be due."""
        for planned in self.left:
            if planned.seconds is not None and planned.seconds > now:
                yield planned.seconds

    def says(self, what: str, seconds: float) -> None:
        """Note an event."""
        self.said.append(f"{what}, {seconds:.3f} s after the start")

    def end_attempt(self, how: str = "ended") -> None:
        """Note the changes that were due in this attempt and were not completed."""
        if self.begun is not None:
            self._miss([self.begun], f"the job {how} before it was done")
        self._miss(self.asked, f"the job {how} before")
        self.asked, self.begun = [], None

    def end(self) -> None:
        """Note the changes that were not carried out."""
        self.end_attempt()
        self._miss(self.left, "the job ended before")
        self.left = []

    def _miss(self, changes: list[Planned], why: str) -> None:
        self.refusals += [f"{planned}: {why}" for planned in changes]
        self.missed += changes

    def outstanding(self) -> str:
        """Return a description of the changes that are not done."""
        begun = [f"under way: {self.begun}"] if self.begun is not None else []
        asked = [f"waits for the change before: {planned}" for planned in self.asked]
        return "; ".join([*begun, *asked, *(f"not due yet: {planned}" for planned in self.left)])


def random_changes(random: Random, count: int, records: int, durable: bool) -> list[Planned]:
    """Draw changes. Their order does not depend on `count`: fewer are the first of more."""
    kinds: list[Change] = [Join(), MoveSome(), MoveSome(), Leave()]
    if durable:
        kinds += [Kill(), Kill(), Crash(), Crash(power=True), Stop()]
    found = []
    for _ in range(count):
        do, share = random.choice(kinds), random.random()
        if records:
            found.append(Planned(do, record=int(share * records), is_drawn=True))
        else:
            found.append(Planned(do, seconds=round(share * _SECONDS, 3), is_drawn=True))
    return found
