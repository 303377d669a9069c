"""Timers are due once, by time, in the order in which they were set. A bin's timers leave and return with it."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from megaflow.errors import ProgramError
from megaflow.megaphone.base.timers import Timer, Timers, TimerStore

KEYS = ["a", "b", "c", "d", "e", "f"]


def bin_of(key: str) -> int:
    """Give each bin two keys."""
    return KEYS.index(key) // 2


class StoreAgainstList(RuleBasedStateMachine):
    """A store beside a plain list of its timers in the order of their setting. `away` are bins under way."""

    def __init__(self) -> None:
        super().__init__()
        self.store = TimerStore()
        self.model: list[Timer] = []
        self.away: dict[int, list[Timer]] = {}
        self.payload = 0

    @rule(time=st.integers(0, 9), key=st.sampled_from(KEYS))
    def add(self, time: int, key: str) -> None:
        if bin_of(key) not in self.away:
            self.payload += 1
            self.store.add(time, bin_of(key), key, self.payload)
            self.model.append((time, key, self.payload))

    @precondition(lambda self: self.model)
    @rule()
    def pop_the_first_time(self) -> None:
        time = min(timer[0] for timer in self.model)
        assert self.store.least() == time
        due = self.store.pop(time)
        expected: dict[int, dict[str, list[int]]] = {}
        for at, key, payload in self.model:
            if at == time:
                expected.setdefault(bin_of(key), {}).setdefault(key, []).append(payload)
        assert due == expected
        self.model = [timer for timer in self.model if timer[0] != time]

    @rule(time=st.integers(0, 9))
    def pop_a_time_without_timers(self, time: int) -> None:
        if all(timer[0] != time for timer in self.model):
            assert self.store.pop(time) == {}

    @rule(bin=st.integers(0, 2))
    def take(self, bin: int) -> None:
        if bin not in self.away:
            taken = self.store.take(bin)
            assert [timer[0] for timer in taken] == sorted(timer[0] for timer in taken)
            mine = [timer for timer in self.model if bin_of(timer[1]) == bin]
            for key in KEYS[2 * bin : 2 * bin + 2]:  # for each key in the order in which they were set
                expected = sorted((timer for timer in mine if timer[1] == key), key=lambda timer: timer[0])
                assert [timer for timer in taken if timer[1] == key] == expected
            assert len(taken) == len(mine)
            self.model = [timer for timer in self.model if bin_of(timer[1]) != bin]
            self.away[bin] = taken

    @rule(bin=st.integers(0, 2), size=st.integers(1, 4))
    def install_in_chunks(self, bin: int, size: int) -> None:
        timers = self.away.pop(bin, [])
        for start in range(0, len(timers), size):
            self.store.install(bin, timers[start : start + size])
        self.model += timers

    @invariant()
    def agree(self) -> None:
        self.store._check()
        assert self.store.least() == min((timer[0] for timer in self.model), default=None)


TestStoreAgainstList = StoreAgainstList.TestCase


def test_a_bin_that_goes_to_and_fro_leaves_nothing_behind() -> None:
    store = TimerStore()
    store.add(5, 9, "other", None)
    for time in range(10, 20):
        store.add(time, 0, "a", time)
    for _ in range(1000):
        store.install(0, store.take(0))
        store._check()
    assert len(store._times._heap) < 50 and store.least() == 5


def test_work_is_by_what_is_due_or_moves_and_not_by_what_there_is() -> None:
    store = TimerStore()
    for bin in range(1000):
        store.add(100 + bin, bin, f"key{bin}", None)
    store.add(7, 3, "key3", "due")
    assert store.count() == 1001
    assert store.pop(7) == {3: {"key3": ["due"]}}
    assert store.take(5) == [(105, "key5", None)]


# The handle -----------------------------------------------------------------------------------


class Alarms:
    """Receives a fold's timers, in tests."""

    def __init__(self) -> None:
        self.set: list[Timer] = []

    def set_timer(self, time: int, key: Any, payload: Any) -> None:
        self.set.append((time, key, payload))


def handle(key: Any = "a", time: int | None = 7) -> tuple[Timers, list[Timer]]:
    alarms = Alarms()
    timers = Timers("mine", alarms)
    timers.key, timers.time = key, time
    return timers, alarms.set


def test_a_timer_is_set_for_the_present_key() -> None:
    timers, was_set = handle()
    timers.at(8, "payload")
    timers.at(1 << 80, None)
    assert was_set == [(8, "a", "payload"), (1 << 80, "a", None)]


@pytest.mark.parametrize("time", [7, 6, -1, 8.0, "8", None, True], ids=repr)
def test_a_timer_that_is_not_later_than_now_is_refused_with_key_time_and_what_to_do(time: Any) -> None:
    timers, was_set = handle()
    with pytest.raises(
        ProgramError,
        match=r"mine: timers.at\(.*\) for key 'a', at time 7: .* int greater .* timers.at\(8, …\) or later",
    ):
        timers.at(time, "payload")
    assert not was_set


def test_a_timer_cannot_be_set_when_the_fold_has_returned() -> None:
    timers, was_set = handle(time=None)
    with pytest.raises(ProgramError, match=r"mine: timers.at\(8, …\) was called after the fold returned"):
        timers.at(8, "payload")
    assert not was_set
