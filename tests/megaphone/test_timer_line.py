"""A line of timers equals a plain list, and its work depends only on the timers that are due or move."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from megaflow.megaphone.base.event_unit import INFINITE
from megaflow.megaphone.base.timer_line import TimerLine


class LineAgainstList(RuleBasedStateMachine):
    """A line beside a plain list of its timers in the order in which they were set."""

    def __init__(self) -> None:
        super().__init__()
        self.line = TimerLine()
        self.model: list[tuple[int, int, str, int]] = []  # micros, bin, key, payload
        self.payload = 0

    @rule(micros=st.integers(0, 9), bin=st.integers(0, 3))
    def add(self, micros: int, bin: int) -> None:
        self.payload += 1
        self.line.add(micros, bin, f"key {bin}", self.payload)
        self.model.append((micros, bin, f"key {bin}", self.payload))

    @rule(limit=st.integers(-1, 9))
    def pop(self, limit: int) -> None:
        due = sorted((timer for timer in self.model if timer[0] <= limit), key=lambda timer: timer[0])
        assert [timer[2:] for timer in self.line.pop(limit)] == [timer[2:] for timer in due]
        self.model = [timer for timer in self.model if timer[0] > limit]

    @rule(bin=st.integers(0, 3))
    def take(self, bin: int) -> None:
        mine = sorted((timer for timer in self.model if timer[1] == bin), key=lambda timer: timer[0])
        assert self.line.of(bin) == [(micros, key, payload) for micros, _, key, payload in mine]
        self.line.take(bin)
        self.model = [timer for timer in self.model if timer[1] != bin]

    @invariant()
    def agree(self) -> None:
        self.line._check()
        assert self.line.least() == min((timer[0] for timer in self.model), default=INFINITE + 1)
        assert bool(self.line) == bool(self.model) and self.line.count() == len(self.model)


TestLineAgainstList = LineAgainstList.TestCase


def test_a_line_does_not_remember_bins_that_have_come_and_gone() -> None:
    line = TimerLine()
    for number in range(1000):
        line.add(5000 - number, number % 3, "key", None)
        line.take(number % 3)
    assert len(line._firsts) < 20
