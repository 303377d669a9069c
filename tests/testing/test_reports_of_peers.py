"""Public reports about the testing kits of peers, and about timers and windows, as tests of programs of megaflow.

Each names the report that it follows.
"""

from collections import Counter
from typing import Any

from megaflow import Window, sliding, tumbling
from megaflow.testing import Crash, Kill, Leave, SimulatedCluster, Stop, Wait, seeds


def count(word: str, one: int, total: int | None) -> Any:
    total = (total or 0) + one
    return total, [(word, total)]


def counts(flow: Any) -> Any:
    return flow.lines().map(lambda word: (word, 1)).stateful_state_machine(count, bins=8)


def stamped(flow: Any) -> Any:
    """Lines "KEY TIMESTAMP" as (key, timestamp), by that."""
    return flow.lines().map(str.split).event_time(lambda pair: float(pair[1])).map(lambda pair: (pair[0], pair[1]))


def remind(key: str, time: int, values: list[Any], state: Any, timers: Any) -> Any:
    """Emit each value, and half a second after it a reminder."""
    for value in values:
        if value != "due":
            timers.after(0.5, "due")
    return (state or 0) + len(values), [(key, value) for value in values]


def reminded(flow: Any) -> Any:
    return flow.lines().map(lambda line: (line, "came")).stateful_unary(remind, bins=8)


@seeds(4)
def test_a_timer_fires_after_a_crash_though_its_key_is_quiet(seed: int) -> None:
    """bytewax/bytewax#138: awake times were no part of the recovery state."""
    cluster = SimulatedCluster(seed, durable=True)
    cluster.at(seconds=0.3, do=Crash(processes=3))
    found = cluster.run(reminded, lines=["a", Wait(2), "b", Wait(2)])
    assert Counter(found) == {(key, what): 1 for key in "ab" for what in ("came", "due")}, cluster.happened


@seeds(3)
def test_no_record_is_missing_where_time_began_long_ago(seed: int) -> None:
    """bytewax/bytewax#413: windows lost data if their alignment was long ago."""
    first = 1_709_315_510
    lines = [f"gateway {first + second}" for second in range(40)]
    found = SimulatedCluster(seed).run(lambda flow: stamped(flow).window(sliding(20, every=10)).count(), lines=lines)
    in_windows = {window: n for _, window, n in found}
    assert sum(in_windows.values()) == 2 * len(lines), "each is in two windows"
    assert in_windows[Window(first, first + 20)] == 20


@seeds(3)
def test_all_windows_close_at_the_end_without_a_store(seed: int) -> None:
    """bytewax/bytewax#437: the watermark had to advance at the end of the input."""
    files = [["a 1"], ["b 99"]]
    found = SimulatedCluster(seed).run(lambda flow: stamped(flow).window(tumbling(10)).count(), lines=files)
    assert Counter(found) == {("a", Window(0, 10), 1): 1, ("b", Window(90, 100), 1): 1}


@seeds(3)
def test_a_window_closes_though_its_own_key_never_comes_again(seed: int) -> None:
    """confluentinc/kafka-streams-examples#441: a suppressed result waited for another record of its key."""
    found = SimulatedCluster(seed).run(
        lambda flow: stamped(flow).window(tumbling(10)).count(), lines=["a 1", "b 2", "b 50", Wait(2), "b 51", Wait(2)]
    )
    assert found[0][1] == Window(0, 10) and ("a", Window(0, 10), 1) in found[:2]


@seeds(3)
def test_records_that_a_quiet_key_holds_are_flushed_by_the_clock(seed: int) -> None:
    """LGouellec/streamiz#460: a test could not let time pass, so no buffer flushed after a quiet period."""

    def buffer(key: str, time: int, values: list[Any], state: Any, timers: Any) -> Any:
        held = list(state or [])
        for value in values:
            if value is None:
                return None, [(key, held)]
            held.append(value)
            if len(held) == 1:
                timers.after(1.0, None)
        return held, []

    cluster = SimulatedCluster(seed)
    found = cluster.run(
        lambda flow: flow.lines().map(str.split).map(lambda pair: (pair[0], pair[1])).stateful_unary(buffer, bins=8),
        lines=["a 1", "a 2", Wait(3), "a 3", Wait(2)],
    )
    assert found == [("a", ["1", "2"]), ("a", ["3"])] and cluster.seconds > 5


@seeds(3)
def test_outputs_keep_the_order_of_their_records(seed: int) -> None:
    """apache/kafka#8065 (KAFKA-9503): the driver put results of one input out of order."""
    cluster = SimulatedCluster(seed)
    cluster.at(record=20, do=Leave(0))
    doubled: list[Any] = []

    def dataflow(flow: Any) -> Any:
        counted = flow.lines().map(lambda line: ("all", 1)).stateful_state_machine(count, bins=8)
        flow.output("doubled", counted.map(lambda pair: 2 * pair[1]))
        return counted.map(lambda pair: pair[1])

    found = cluster.run(dataflow, lines=[str(n) for n in range(60)], outputs={"doubled": doubled})
    assert found == [*range(1, 61)] and doubled == [2 * n for n in found]


@seeds(4)
def test_a_run_that_ended_or_was_aborted_goes_on_where_it_was(seed: int) -> None:
    """bytewax/bytewax#317: a test had to raise and then stop raising to see a resume."""
    cluster = SimulatedCluster(seed, durable=True)
    assert dict(cluster.run(counts, lines=["a"] * 10)) == {"a": 10}
    cluster.at(record=5, do=Crash() if seed % 2 else Stop())
    found = cluster.run(counts, lines=["a"] * 30)
    assert found == [("a", n) for n in range(11, 31)]


@seeds(3)
def test_what_is_late_depends_on_the_watermark_not_on_windows(seed: int) -> None:
    """bytewax/bytewax#217: an item was called late by the window's definition and not by the watermark."""
    late: list[Any] = []

    def dataflow(flow: Any) -> Any:
        windows = stamped(flow).window(tumbling(10), allowed_lateness=5)
        flow.output("late", windows.late())
        return windows.count()

    lines = ["a 1", "a 12", Wait(2), "a 3", Wait(2), "a 16", Wait(2), "a 4", "a 17", Wait(2)]
    SimulatedCluster(seed).run(dataflow, lines=lines, outputs={"late": late})
    assert late == [("a", "4")]


@seeds(3)
def test_a_wall_clock_timer_needs_no_hand_to_advance_it(seed: int) -> None:
    """jpzk/mockedstreams#18: users found no way to have `punctuate` called in a test."""
    found = SimulatedCluster(seed).run(reminded, lines=["a", Wait(1)])
    assert found == [("a", "came"), ("a", "due")]


@seeds(4)
def test_a_lost_process_does_not_fire_its_timers_twice(seed: int) -> None:
    """bytewax/bytewax#138, the other way round: a resume differs from no crash if timers fire again."""
    cluster = SimulatedCluster(seed, durable=True)
    cluster.at(seconds=0.8, do=Kill())
    found = cluster.run(reminded, lines=["a", "b", "c", Wait(2)])
    assert Counter(found) == {(key, what): 1 for key in "abc" for what in ("came", "due")}, cluster.happened
