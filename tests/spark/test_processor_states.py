"""The handle of a processor: its variables, TTL and timers, one key at a time; no Spark runs."""

from typing import Any

import pytest

from megaflow.errors import UsageError
from megaflow.spark.processor_states import CLEANUP, STALE, TIMER, TIMERS, ProcessorHandle
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from tests.words import says

pytest.importorskip("pyspark")


class Set:
    """Notes timers that are set."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def at_event(self, timestamp: int, payload: Any) -> None:
        self.events.append((timestamp, payload))


class Key:
    """A handle and one key, whose state travels after each call."""

    def __init__(self, handle: ProcessorHandle) -> None:
        self.handle, self.state, self.set = handle, None, Set()
        handle.seal()

    def __call__(self, now_ms: int = 0, fires: bool = False) -> "Key":
        self.handle.begin(self.state, self.set, now_ms, fires)
        return self

    def __enter__(self) -> ProcessorHandle:
        return self.handle

    def __exit__(self, *error: object) -> None:
        self.state = decode(encode(self.handle.end()))


def test_a_value_is_kept_until_it_is_cleared() -> None:
    handle = ProcessorHandle("None")
    count = handle.getValueState("count", "n INT, s STRING")
    key = Key(handle)
    with key():
        assert (count.exists(), count.get()) == (False, None)
        count.update((3, None))
        assert (count.exists(), count.get(), type(count.get())) == (True, (3, None), tuple)
    assert key.state == {"count": (3, None)}
    with key():
        count.clear()
        count.clear()
    assert key.state is None


def test_a_list_iterates_over_what_it_had() -> None:
    handle = ProcessorHandle("None")
    items = handle.getListState("items", "n INT")
    key = Key(handle)
    with key():
        items.put([(1,)])
        items.appendList(iter([(2,)]))
        assert [(each, items.appendValue((3,))) for each in items.get()] == [((1,), None), ((2,), None)]
        assert [*items.get()] == [(1,), (2,), (3,), (3,)]
        with pytest.raises(ValueError, match="at least one value"):
            items.put([])
    assert key.state == {"items": [(1,), (2,), (3,), (3,)]}
    with key():
        items.clear()
        assert not items.exists()
    assert key.state is None


def test_a_map_that_lost_its_keys_does_not_exist() -> None:
    from pyspark.sql import Row

    handle = ProcessorHandle("None")
    pages = handle.getMapState("pages", "page STRING", "n INT")
    key = Key(handle)
    with key():
        pages.updateValue(("a",), (1,))
        pages.updateValue(("b",), (None,))
        pages.updateValue((None,), (2,))
        assert pages.getValue(("a",)) == Row(n=1) and pages.getValue(("a",)).n == 1
        assert (pages.getValue(("z",)), pages.containsKey(("z",)), pages.containsKey(("b",))) == (None, False, True)
        assert [*pages.iterator()] == [(("a",), (1,)), (("b",), (None,)), ((None,), (2,))]
        assert ([*pages.keys()], [*pages.values()]) == ([("a",), ("b",), (None,)], [(1,), (None,), (2,)])
    assert key.state == {"pages": {("a",): (1,), ("b",): (None,), (None,): (2,)}}
    with key():
        assert [*map(pages.removeKey, pages.keys())] == [None] * 3
        pages.removeKey(("a",))
        assert not pages.exists()
    assert key.state is None


def test_values_expire_each_by_itself() -> None:
    handle = ProcessorHandle("processingTime")
    value = handle.getValueState("v", "n INT", 100)
    items, pages = handle.getListState("l", "n INT", 100), handle.getMapState("m", "k INT", "n INT", 100)
    key = Key(handle)
    with key(1000):
        value.update((1,))
        items.appendValue((1,))
        pages.updateValue((1,), (1,))
    with key(1050):
        items.appendValue((2,))
        pages.updateValue((2,), (2,))
    with key(1099):
        assert value.exists() and [*items.get()] == [(1,), (2,)]
    with key(1100):
        assert (value.exists(), value.get()) == (False, None)
        assert ([*items.get()], [*pages.iterator()]) == ([(2,)], [((2,), (2,))])
        assert (pages.getValue((1,)), pages.containsKey((1,))) == (None, False)
    with key(1150):
        assert not items.exists() and not pages.exists() and [*pages.keys()] == []
    assert key.state["l"] == [(1100, (1,)), (1150, (2,))]


def test_one_timer_at_a_time_removes_expired_values() -> None:
    handle = ProcessorHandle("ProcessingTime")
    value, items = handle.getValueState("v", "n INT", 100), handle.getListState("l", "n INT", 200)
    key = Key(handle)
    for now in (0, 50):
        with key(now):
            value.update((now,))
            items.appendValue((now,))
    assert key.set.events == [(100, (STALE, 100))]
    with key(100, fires=True):
        handle.clean(100)
    assert key.state == {"v": (150, (50,)), "l": [(200, (0,)), (250, (50,))], CLEANUP: 150}
    with key(200, fires=True):
        handle.clean(100)  # an old timer: nothing
        assert len(handle.entries["l"]) == 2
        handle.clean(150)
    assert key.state == {"l": [(250, (50,))], CLEANUP: 250}
    with key(250, fires=True):
        handle.clean(250)
    assert key.state is None
    assert [each for each, _ in key.set.events] == [100, 150, 250]


def test_a_key_that_only_waits_for_its_cleanup_is_forgotten() -> None:
    handle = ProcessorHandle("ProcessingTime")
    value = handle.getValueState("v", "n INT", 100)
    key = Key(handle)
    with key(0):
        value.update((1,))
    with key(10):
        value.clear()
    assert key.state is None
    with key(20):
        value.update((2,))
    with key(100, fires=True):
        handle.clean(100)
    assert key.state == {"v": (120, (2,)), CLEANUP: 120}


def test_a_timer_is_set_once_while_it_is_live() -> None:
    handle = ProcessorHandle("EventTime")
    key = Key(handle)
    with key(10):
        for expiry in (30, 20, 30, True):
            handle.registerTimer(expiry)
        assert [*handle.listTimers()] == [1, 20, 30]
        handle.deleteTimer(20)
        handle.deleteTimer(99)
    assert key.state == {TIMERS: [1, 30]}
    assert key.set.events == [(30, (TIMER, 30)), (20, (TIMER, 20)), (1, (TIMER, 1))]
    with key(10):
        assert (handle.is_live(20), handle.is_live(30)) == (False, True)
        handle.deleteTimer(1)
        handle.deleteTimer(30)
    assert key.state is None


def test_a_due_timer_set_by_a_timer_waits_for_a_rise() -> None:
    handle = ProcessorHandle("EventTime")
    key = Key(handle)
    with key(10, fires=True):
        handle.registerTimer(10)
        handle.registerTimer(11)
    assert key.set.events == [(11, (TIMER, 10)), (11, (TIMER, 11))]


def test_a_timer_beyond_all_times_is_only_listed() -> None:
    handle = ProcessorHandle("EventTime")
    key = Key(handle)
    with key():
        handle.registerTimer((1 << 63) - 1)
        handle.registerTimer(-(1 << 63))
        with pytest.raises(ValueError, match="is not a time"):
            handle.registerTimer(1 << 63)
        with pytest.raises(TypeError):
            handle.registerTimer(1.5)  # type: ignore[arg-type]
    assert [payload[1] for _, payload in key.set.events] == [-(1 << 63)]


@pytest.mark.parametrize(
    ("mode", "wrong", "why"),
    [
        ("None", lambda handle: [handle.getValueState("a", "n INT"), handle.getListState("a", "n INT")], "already"),
        ("None", lambda handle: handle.getValueState("$a", "n INT"), "cannot have the name '$a'"),
        ("None", lambda handle: handle.getValueState("", "n INT"), "cannot have the name ''"),
        ("None", lambda handle: handle.getValueState("a", "n INT", 1), "timeMode must be 'ProcessingTime'"),
        ("EventTime", lambda handle: handle.getMapState("a", "n INT", "n INT", 1), "timeMode must be"),
        ("ProcessingTime", lambda handle: handle.getListState("a", "n INT", 0), "greater than 0"),
        ("ProcessingTime", lambda handle: handle.getListState("a", "n INT", -5), "greater than 0"),
        ("None", lambda handle: handle.getValueState("a", "n"), "The state 'a'"),
        ("None", lambda handle: [handle.getValueState("a", "n INT"), handle.deleteIfExists("a")], "itself declares"),
        ("None", lambda handle: handle.registerTimer(1), "timeMode 'None' has no timers"),
        ("EventTime", lambda handle: handle.registerTimer(1), "while the processor handles"),
        ("EventTime", lambda handle: [handle.seal(), handle.getValueState("a", "n INT")], "in the processor's init"),
        ("EventTime", lambda handle: [handle.seal(), handle.deleteIfExists("a")], "in the processor's init"),
    ],
)
def test_a_wrong_declaration_is_refused(mode: str, wrong: Any, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        wrong(ProcessorHandle(mode))
    assert says(str(caught.value), why)


def test_an_unknown_time_mode_is_refused() -> None:
    with pytest.raises(UsageError, match="one of None, ProcessingTime, EventTime, not 'Event'"):
        ProcessorHandle("Event")


def test_other_variables_stay_unless_they_are_deleted() -> None:
    handle = ProcessorHandle("None")
    handle.deleteIfExists("gone")
    handle.getValueState("new", "n INT")
    key = Key(handle)
    key.state = {"gone": (1,), "other": (2,)}  # type: ignore[assignment]
    with key():
        pass
    assert key.state == {"other": (2,)}
