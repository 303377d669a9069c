"""Early results of sessions: a table that is kept from them is right after every epoch, whatever comes late or merges.

`test_panes` and `test_windowed` test the records of sessions, together with those of other windows.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, assert_type

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megaflow import EarlyWindow, EventStream, Map, Move, Stream, Window, WindowResult, session, sliding, tumbling
from megaflow.errors import BuildError
from megaflow.event_time.windowed import Emit
from megaflow.event_time.windows import AlignedWindows, SessionWindows, Windows
from megaflow.job.worker.writing.json_lines import to_json
from megaflow.megaphone.base.event_unit import INFINITE
from megaflow.megaphone.base.routing import Watermark
from megaflow.testing import EngineCluster, Join, SimulatedCluster, seeds
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from tests.event_time.naive_windows import NaiveSessions, NaiveWindows, aligned
from tests.event_time.test_windowed import BINS, KEYS, Feed, by_hand, clicks, histories, rises, send
from tests.examples import many

Table = dict[tuple[Any, Window], WindowResult[Any, Any]]
A = KEYS[0]


def kept(table: Table, results: Iterable[WindowResult[Any, Any]]) -> Table:
    """Keep a table of results: delete what is removed, upsert the rest."""
    for result in results:
        row = result.key, result.window
        if result.kind == "removed":
            assert result.value == table[row].value and table.pop(row).kind == "early", "only early results are removed"
        else:
            assert row not in table or table[row].kind == "early", "a final result is the last one"
            table[row] = result
    return table


def tables(feed: Feed, watermarks: dict[int, int], windows: Windows, lateness: int) -> dict[int, Table]:
    """Return the table of plain Python after each epoch: all that has closed, and all that is open."""
    naive: dict[str, Any] = {}
    for key in KEYS:
        is_session = isinstance(windows, SessionWindows)
        naive[key] = NaiveSessions(windows.gap, lateness) if is_session else NaiveWindows(aligned(windows), lateness)
    final: Table = {}
    found: dict[int, Table] = {}

    def row(key: str, start: int, end: int, records: Any, kind: Any) -> Table:
        values = [value for _, value in sorted(records, key=lambda record: record[0])]
        made = (Window if kind == "final" else EarlyWindow)(start, end)
        return {(key, made): WindowResult(key, made, values, kind)}

    for time in sorted({*(time for time, _ in feed), *watermarks}):
        found[time] = {}
        for key in KEYS:
            naive[key].take([(micros, value) for at, (micros, (k, value)) in feed if (at, k) == (time, key)], {})
            for closed in naive[key].rise(watermarks.get(time, naive[key].watermark)):
                final |= row(key, *closed, "final")
            if isinstance(windows, SessionWindows):
                still = naive[key].sessions()
            else:
                still = [(*span, records) for span, records in naive[key].open.items()]
            for each in still:
                found[time] |= row(key, *each, "early")
        found[time] |= final
    return found


def marked(windows: Windows, lateness: int, emit: Emit) -> Callable[[Any, Stream[Any], Stream[Any]], Stream[Any]]:
    def build(worker: Any, records: Stream[Any], commands: Stream[Any]) -> Stream[Any]:
        made = clicks(records).window(
            windows, allowed_lateness=lateness / 1e6, emit=emit, marks=True, control=commands, bins=BINS, name="clicks"
        )
        return made.collect()

    return build


@settings(max_examples=many(200), deadline=None)
@given(
    histories(),
    st.sampled_from([SessionWindows(5), SessionWindows(11), AlignedWindows(12, 4)]),
    st.sampled_from([0, 7]),
    st.sampled_from(["epoch", "every"]),
    st.integers(0, 10**6),
)
def test_table_of_the_results_is_right_after_every_epoch(
    history: tuple[Feed, dict[int, int]], windows: Windows, lateness: int, emit: Emit, seed: int
) -> None:
    feed, watermarks = history
    random = Random(seed)
    moves = [(random.randrange(12), Move(random.randrange(BINS), random.randrange(2))) for _ in range(6)]
    moves.append((random.randrange(12), Map(tuple(random.randrange(2) for _ in range(BINS)))))
    feeds: dict[int, Feed] = {0: [], 1: []}
    for time, (micros, (key, value)) in feed:  # one worker sends all of a key and epoch, in a known order
        feeds[(time // 2 + KEYS.index(key)) % 2].append((time, (micros, (key, value))))
    cluster = EngineCluster(seed, 2)
    if feed:
        cluster.at(random.randrange(len(feed) + 1), Join())
    commands = sorted([*rises(watermarks), *moves], key=lambda command: command[0])
    by_epoch = defaultdict(list)
    for time, result in cluster.run(marked(windows, lateness, emit), feeds, commands):
        by_epoch[time].append(result)
    table: Table = {}
    right = tables(feed, watermarks, windows, lateness)
    assert by_epoch.keys() <= right.keys()
    for time, expected in right.items():
        assert kept(table, by_epoch[time]) == expected, time
        assert {type(window) for _, window in table} <= {Window, EarlyWindow}


# Visible behaviour ----------------------------------------------------------------------------


def shown(outputs: Iterable[Any]) -> list[Any]:
    return [(result.kind, *result.window, result.value) for _, result in outputs]


def test_session_that_grows_replaces_its_early_result() -> None:
    hands = by_hand(lambda stream, how: stream.window(session(10), emit="epoch", marks=True, **how).count())
    send(hands, (0, (A, 1)), (15, (A, 2)))
    send(hands, (3, (A, 3)))
    send(hands, (12, (A, 4)), (14, (A, 5)))
    send(hands, (16, (A, 6)), watermark=26)
    hands.finish()
    assert shown(hands.outputs) == [
        ("early", 0, 10, 1), ("early", 15, 25, 1),
        ("removed", 0, 10, 1), ("early", 0, 13, 2),
        ("removed", 0, 13, 2), ("removed", 15, 25, 1), ("early", 0, 25, 5),
        ("removed", 0, 25, 5), ("early", 0, 26, 6), ("final", 0, 26, 6),
    ]  # fmt: skip


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("emit", ["epoch", "every"])
def test_late_record_puts_no_open_session_out(marks: Any, emit: Emit) -> None:
    hands = by_hand(lambda stream, how: stream.window(session(10), emit=emit, marks=marks, **how).count())
    send(hands, (5, (A, 1)), watermark=8)
    send(hands, (6, (A, 2)))
    send(hands, (7, (A, 3)), (8, (A, 4)), (2, (A, 5)))
    hands.finish()
    assert [(tuple(result[1]), result[2]) for _, result in hands.outputs if result[-1] != "removed"] == [
        ((5, 15), 1), ((5, 18), 2),
    ]  # fmt: skip


@pytest.mark.parametrize("windows", [tumbling(10), sliding(20, every=10), session(10)], ids=["fixed", "many", "runs"])
def test_only_open_sessions_are_removed(windows: Windows) -> None:
    hands = by_hand(lambda stream, how: stream.window(windows, emit="every", marks=True, **how).count())
    send(hands, (1, (A, 1)), (2, (A, 2)), watermark=5)
    send(hands, watermark=40)
    send(hands, (41, (A, 1)))
    hands.commands.send(Watermark(INFINITE, 41, by_stop=True))
    hands.finish()
    kinds = [result.kind for _, result in hands.outputs]
    assert kinds.count("removed") == isinstance(windows, SessionWindows)
    assert kinds.count("final") == (2 if windows == sliding(20, every=10) else 1)
    assert kinds[-1] == "early", "a stop closed the window"


def test_marks_without_early_results_have_final_ones() -> None:
    hands = by_hand(lambda stream, how: stream.window(session(10), marks=True, **how).count())
    send(hands, (1, (A, 1)))
    send(hands, (4, (A, 2)), watermark=14)
    hands.finish()
    assert [result for _, result in hands.outputs] == [WindowResult(A, Window(1, 14), 2, "final")]


def test_result_keeps_its_form_on_its_way() -> None:
    result = WindowResult("ada", EarlyWindow(0, 60), 3, "removed")
    found = decode(encode(result))
    assert type(found) is WindowResult and type(found.window) is EarlyWindow and found == result
    assert to_json(result) == (
        '{"key": "ada", "window": {"start": 0, "end": 60, "is_final": false}, "value": 3, "kind": "removed"}'
    )


@pytest.mark.parametrize("marks", ["yes", None, 1])
def test_marks_are_true_or_false(marks: Any) -> None:
    with pytest.raises(BuildError, match=r"marks= of clicks .*True or False"):
        by_hand(lambda stream, how: stream.window(session(9), marks=marks, name="clicks", **how).count())


def visits(gap: int, flow: Any) -> Any:
    stream = flow.lines().map(lambda line: line.split()).event_time(lambda words: int(words[1]), out_of_order=1000)
    pairs = stream.map(lambda words: (words[0], 1))
    return pairs.window(session(gap), emit="epoch", marks=True, bins=BINS, name="visits").count()


@seeds(5)
@pytest.mark.parametrize("more", [["a 31", "b 8"], []], ids=["grows", "closes"])
def test_longer_gap_replaces_the_early_results_of_the_last_run(seed: int, more: list[str]) -> None:
    cluster = SimulatedCluster(seed, durable=True)
    cluster.disturb(2)
    lines = ["a 1", "b 5", "a 15", "c 200"]
    table = kept({}, cluster.run(lambda flow: visits(10, flow), lines=[lines]))
    assert {(key, *window) for key, window in table} == {("a", 1, 11), ("a", 15, 25), ("b", 5, 15), ("c", 200, 210)}
    lines += more
    kept(table, cluster.run(lambda flow: visits(20, flow), lines=[lines], close_windows=True))
    found = {(key, *window): (result.value, result.kind) for (key, window), result in table.items()}
    a, b = (51, (2, "final")) if more else (35, (1, "final")), (28, (2, "final")) if more else (25, (1, "final"))
    assert found == {
        ("a", 1, 15): (1, "final"), ("a", 15, a[0]): a[1], ("b", 5, b[0]): b[1], ("c", 200, 220): (1, "final"),
    }  # fmt: skip


def test_types() -> None:
    def build(stream: EventStream[tuple[str, int]]) -> None:
        windows = stream.window(session(60), emit="every", marks=True)
        assert_type(windows.count(), EventStream[WindowResult[str, int]])
        assert_type(windows.collect(), EventStream[WindowResult[str, list[int]]])
        assert_type(windows.fold("", lambda text, value: text, max), EventStream[WindowResult[str, str]])
        assert_type(windows.late(), EventStream[tuple[str, int]])
        keyed = stream.window(session(60), marks=True, key=lambda pair: pair[1], value=lambda pair: pair[0])
        assert_type(keyed.max(by=len), EventStream[WindowResult[int, str]])

    by_hand(lambda stream, how: (build(stream), stream)[1])
