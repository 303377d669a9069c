"""`SimulatedCluster` as a user of megaflow tests a program with it."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megaflow import Map, Move, Window, tumbling
from megaflow.connect import DatabaseSink, Exhausted, Found, Idle
from megaflow.connect.sink import Sink
from megaflow.errors import BuildError, StoreError, UsageError
from megaflow.testing import Crash, Join, Kill, Leave, SimulatedCluster, Stop, Violation, Wait, seeds
from megaflow.testing.cluster_job import ClusterJob


def count(word: str, one: int, total: int | None) -> Any:
    total = (total or 0) + one
    return total, [(word, total)]


def counts(flow: Any) -> Any:
    return flow.lines().map(lambda word: (word, 1)).stateful_state_machine(count, bins=16)


WORDS = [["a", "b"] * 50, ["b", "c"] * 50]
RIGHT = {"a": 50, "b": 100, "c": 50}


@seeds(5)
def test_words_are_counted_while_processes_join_and_leave(seed: int) -> None:
    cluster = SimulatedCluster(seed)
    cluster.at(record=20, do=Join())
    cluster.at(record=100, do=Leave(1))
    found = cluster.run(counts, lines=WORDS)
    assert not cluster.refusals and len(cluster.happened) == 2
    assert dict(found) == RIGHT and len(found) == 200


@seeds(5)
def test_inputs_and_outputs_have_names(seed: int) -> None:
    def dataflow(flow: Any) -> Any:
        paid = flow.lines("payments").map(lambda line: (line, "paid"))
        flow.output("odd", flow.lines("orders").filter(lambda line: int(line) % 2))
        return flow.lines("orders").map(lambda line: (line, "ordered")).concat(paid)

    odd = ["before"]
    lines = {"orders": [["1", "2"], ["3"]], "payments": ["2"]}
    found = SimulatedCluster(seed).run(dataflow, lines=lines, outputs={"odd": odd})
    assert Counter(found) == {("1", "ordered"): 1, ("2", "ordered"): 1, ("3", "ordered"): 1, ("2", "paid"): 1}
    assert odd[0] == "before" and sorted(odd[1:]) == ["1", "3"]


@seeds(8)
def test_a_durable_job_goes_on_whatever_happens(seed: int) -> None:
    cluster = SimulatedCluster(seed, durable=True)
    cluster.at(record=50, do=Kill())
    cluster.at(record=80, do=Crash(power=True, processes=3))
    cluster.at(record=120, do=Stop())
    found = cluster.run(counts, lines=WORDS)
    assert dict(found) == RIGHT and len(found) == 200, cluster.happened


@seeds(8)
def test_random_changes_leave_every_count_right(seed: int) -> None:
    cluster = SimulatedCluster(seed, durable=seed % 2 == 0)
    cluster.disturb(4)
    found = cluster.run(counts, lines=WORDS)
    assert dict(found) == RIGHT and len(found) == 200, cluster.happened


def test_a_durable_cluster_resumes_with_more_lines() -> None:
    cluster = SimulatedCluster(seed=3, durable=True)
    assert cluster.run(counts, lines=[["a", "b"]]) == [("a", 1), ("b", 1)]
    assert cluster.run(counts, lines=[["a", "b"]]) == []
    assert cluster.run(counts, lines=[["a", "b", "a"]]) == [("a", 2)]


class Table:
    """A database file, outside of all processes."""

    def __init__(self, path: Any) -> None:
        self.path = path
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE counts (word TEXT, total INTEGER)")

    @property
    def rows(self) -> Counter[Any]:
        with sqlite3.connect(self.path) as database:
            return Counter(database.execute("SELECT word, total FROM counts"))


@seeds(8)
def test_a_crash_between_prepare_and_commit_writes_rows_once(seed: int, tmp_path: Any) -> None:
    table = Table(tmp_path / f"{seed}.db")
    sink = DatabaseSink(f"sqlite:{table.path}", "counts", ["word", "total"])
    cluster = SimulatedCluster(seed, durable=True)
    cluster.at(record=30, prepare="counts", do=Kill())
    cluster.at(record=60, commit="counts", do=Kill() if seed % 2 else Crash())
    cluster.run(lambda flow: counts(flow).write(sink, "counts"), lines=WORDS)
    assert len(cluster.happened) == 2, cluster.happened
    rows = table.rows
    assert rows == {(word, n): 1 for word in RIGHT for n in range(1, RIGHT[word] + 1)}


@pytest.mark.parametrize(("given", "wanted"), [("", [0, 1, 2]), ("17", [17])])
def test_the_environment_may_choose_one_seed(given: str, wanted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFLOW_SEED", given)
    found: list[int] = []
    seeds(3)(lambda seed: found.append(seed))()
    assert found == wanted


def test_a_seed_of_the_environment_that_is_no_int_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFLOW_SEED", "seventeen")
    with pytest.raises(UsageError, match="MEGAFLOW_SEED='seventeen' is not a seed"):
        seeds(3)(lambda seed: None)()


totals: dict[str, int] = {}


def test_a_fold_that_keeps_state_in_a_global_is_found() -> None:
    def wrong(word: str, one: int, state: None) -> Any:
        totals[word] = totals.get(word, 0) + one
        return None, [(word, totals[word])]

    def dataflow(flow: Any) -> Any:
        return flow.lines().map(lambda word: (word, 1)).stateful_state_machine(wrong, bins=16)

    @seeds(5)
    def test(seed: int) -> None:
        cluster = SimulatedCluster(seed)
        cluster.at(record=50, do=Join())
        assert dict(cluster.run(dataflow, lines=WORDS)) == RIGHT

    with pytest.raises(AssertionError) as raised:
        test()
    assert "MEGAFLOW_SEED=" in "".join(raised.value.__notes__)
    assert totals == {}, "each process has a copy of its own"


@seeds(5)
def test_idle_files_hold_no_window_back_and_late_lines_come_out(seed: int) -> None:
    def dataflow(flow: Any) -> Any:
        clicks = flow.json_lines().event_time(lambda click: click[0])
        windows = clicks.map(lambda click: (click[1], click[0])).window(tumbling(10))
        flow.output("late", windows.late().map(lambda each: ("late", each)))
        return windows.count()

    early = [json.dumps([at, "a"]) for at in (1, 2, 11)]
    lines = [
        [*early, Wait(8), json.dumps([31, "a"]), Wait(2), json.dumps([3, "a"])],
        [json.dumps([at, "b"]) for at in (1, 12)],
    ]
    late: list[Any] = []
    cluster = SimulatedCluster(seed, idle_timeout=2)
    found = cluster.run(dataflow, lines=lines, outputs={"late": late})
    closed = {("a", Window(0, 10)): 2, ("b", Window(0, 10)): 1, ("a", Window(10, 20)): 1, ("b", Window(10, 20)): 1}
    assert {(key, window): n for key, window, n in found if window.end <= 20} == closed
    assert late == [("late", ("a", 3))] and cluster.seconds > 10


@seeds(2)
def test_windows_that_a_stop_closes_early_are_not_final(seed: int) -> None:
    def dataflow(flow: Any) -> Any:
        clicks = flow.json_lines().event_time(lambda click: click[0])
        return clicks.window(tumbling(10), key=lambda click: click[1]).max(by=lambda click: click[0] % 4)

    cluster = SimulatedCluster(seed, idle_timeout=2)
    cluster.at(record=30, do=Stop())
    lines = [json.dumps([at, "ab"[at % 2]]) for at in range(40)]
    found = cluster.run(dataflow, lines=[[*lines[:35], Wait(30), *lines[35:]]])
    ends = [window.end for _, window, _ in found if window.is_final]
    assert found and not all(window.is_final for _, window, _ in found)
    assert all(window.end > max(ends, default=0) for _, window, _ in found if not window.is_final)
    found = SimulatedCluster(seed).run(dataflow, lines=[lines])
    assert all(window.is_final for _, window, _ in found)
    assert {(key, window): value[0] - window.start for key, window, value in found} == {
        (key, Window(start, start + 10)): best
        for start in range(0, 40, 10)
        for key, best in (("a", 2 if start % 4 == 0 else 0), ("b", 3 if start % 4 == 0 else 1))
    }


@seeds(2)
def test_results_at_the_end_come_once_whatever_happened_before(seed: int) -> None:
    def dataflow(flow: Any) -> Any:
        pairs = flow.lines().map(lambda line: (line[0], line))
        return pairs.count_by_key(emit="end").concat(pairs.top_by_key(2, by=len, emit="end"))

    lines = [f"{key}{'x' * n}" for n in range(20) for key in "ab"]
    cluster = SimulatedCluster(seed, durable=True)
    cluster.at(record=10, do=Kill())
    cluster.at(record=25, do=Stop())
    found = cluster.run(dataflow, lines=[lines])
    longest = {key: [key + "x" * 19, key + "x" * 18] for key in "abc"}
    assert sorted(found, key=str) == sorted([("a", 20), ("b", 20), *list(longest.items())[:2]], key=str)
    assert cluster.run(dataflow, lines=[lines]) == [], "nothing is new"
    again = cluster.run(dataflow, lines=[lines, ["b", "c"]])
    assert sorted(again, key=str) == sorted([("b", 21), ("c", 1), ("b", longest["b"]), ("c", ["c"])], key=str)


@pytest.mark.parametrize("end", [Kill(), Stop()], ids=["kill", "stop"])
def test_event_time_follows_the_clock_after_a_resume(end: Any) -> None:
    def dataflow(flow: Any) -> Any:
        views = flow.lines().map(int).event_time(float, advance_when_idle=True)
        return views.window(tumbling(5), key=lambda at: 0).count()

    cluster = SimulatedCluster(1, durable=True)
    cluster.at(seconds=3, do=end)
    found = cluster.run(dataflow, lines=["1000", "1090", Wait(60)])
    assert found == [(0, Window(1000, 1005), 1), (0, Window(1090, 1095), 1)]


class Outside:
    """What a test's sink writes to, and what has become of it."""

    def __init__(self) -> None:
        self.prepared: dict[str, list[Any]] = {}
        self.committed: dict[str, list[Any]] = {}

    @property
    def rows(self) -> list[Any]:
        return [row for rows in self.committed.values() for row in rows]


class TwoPhases(Sink[Any]):
    """A sink that a user has written."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._rows: list[Any] = []

    def open(self, place: Any) -> None:
        self._rows = []

    def write(self, epoch: int, records: list[Any]) -> None:
        self._rows += records

    def prepare(self, n: int) -> str | None:
        if not self._rows:
            return None
        token = f"token {len(self._outside.prepared)}"
        self._outside.prepared[token], self._rows = self._rows, []
        return token

    def commit(self, n: int, token: str) -> None:
        self._outside.committed[token] = self._outside.prepared[token]


@seeds(5)
def test_rows_of_a_users_own_sink_are_committed_once(seed: int) -> None:
    outside = Outside()
    cluster = SimulatedCluster(seed, durable=True)
    cluster.at(prepare="rows", do=Kill())
    cluster.at(commit="rows", record=40, do=Crash(power=True))
    cluster.run(lambda flow: counts(flow).write(TwoPhases(outside), "rows"), lines=WORDS, outside=[outside])
    assert Counter(outside.rows) == {(word, n): 1 for word in RIGHT for n in range(1, RIGHT[word] + 1)}


@seeds(5)
def test_windows_close_when_a_durable_run_is_to_close_them(seed: int) -> None:
    def dataflow(flow: Any) -> Any:
        stamped = flow.json_lines().event_time(lambda at: at, out_of_order=5)
        return stamped.window(tumbling(10), key=lambda at: at % 2).count()

    lines = [str(at) for at in range(100)]
    cluster = SimulatedCluster(seed, durable=True)
    first = cluster.run(dataflow, lines=lines[:57])
    assert {window.start for _, window, _ in first} == {0, 10, 20, 30, 40}, "50 to 60 is open"
    cluster.at(record=20, do=Crash())
    rest = cluster.run(dataflow, lines=lines, close_windows=True)
    assert sorted((window.start, key) for key, window, _ in first + rest) == [
        (start, key) for start in range(0, 100, 10) for key in (0, 1)
    ]
    assert {n for _, _, n in first + rest} == {5}
    with pytest.raises(UsageError, match=r"refused with Wait\(\)"):
        cluster.run(dataflow, lines=[*lines, Wait(9), "100"], close_windows=True)


class EagerSink(TwoPhases):
    """A sink with a bug: what it prepares is seen at once."""

    def prepare(self, n: int) -> str | None:
        token = super().prepare(n)
        if token is not None:
            self._outside.committed[token] = self._outside.prepared[token]
        return token


def test_a_sink_that_shows_rows_too_early_is_found() -> None:
    @seeds(8)
    def test(seed: int) -> None:
        outside = Outside()
        cluster = SimulatedCluster(seed, durable=True)
        cluster.at(prepare="rows", record=20, do=Kill())
        cluster.run(lambda flow: counts(flow).write(EagerSink(outside), "rows"), lines=WORDS, outside=[outside])
        assert max(Counter(outside.rows).values()) == 1

    with pytest.raises(AssertionError):
        test()


class Meter:
    """A source of a user's own: two partitions that grow by the clock."""

    def __init__(self, clock: SimulatedCluster) -> None:
        self.clock = clock

    def discover(self) -> Found:
        there = ["kitchen"] if self.clock.seconds < 2 else ["kitchen", "cellar"]
        return Found(there, again_seconds=1.0 if len(there) < 2 else None)

    def open(self, partition: str, position: int | None) -> "MeterPart":
        return MeterPart(self, partition, position or 0)


class MeterPart:
    def __init__(self, meter: Meter, partition: str, position: int) -> None:
        self._clock, self._partition, self._position = meter.clock, partition, position

    def read(self, limit: int) -> Any:
        if self._position == 20:
            return Exhausted()
        if self._position >= int(self._clock.seconds * 10):
            return Idle(after_seconds=0.1)
        self._position += 1
        return [(self._partition, self._position)], self._position

    def close(self) -> None:
        pass


@seeds(6)
def test_a_source_of_a_users_own_is_read_once(seed: int) -> None:
    def total(name: str, value: int, state: int | None) -> Any:
        return (state or 0) + value, [(name, (state or 0) + value)]

    cluster = SimulatedCluster(seed, durable=seed % 2 == 0)
    cluster.at(seconds=0.5, do=Join())
    if seed % 2 == 0:
        cluster.at(seconds=1.2, do=Kill())
        cluster.at(seconds=1.5, do=Crash())

    def dataflow(flow: Any) -> Any:
        return flow.read(Meter(cluster), "meters").stateful_state_machine(total, bins=8)

    found = cluster.run(dataflow)
    assert dict(found) == {"kitchen": 210, "cellar": 210} and len(found) == 40, cluster.happened


def test_many_items_are_not_taken_for_a_run_without_end() -> None:
    cluster = SimulatedCluster(0, processes=2)
    assert cluster.run(lambda flow: flow.items().map(lambda n: n + 1), items=list(range(700))) == list(range(1, 701))


@seeds(5)
def test_items_come_in_order_and_have_any_type(seed: int) -> None:
    def items() -> Iterator[Any]:
        for number in range(50):
            yield {"number": number, "at": (number, None)}

    cluster = SimulatedCluster(seed)
    cluster.at(record=10, do=Leave(0))
    found = cluster.run(lambda flow: flow.items().map(lambda item: item["at"]), items=items())
    assert found == [(number, None) for number in range(50)]


@pytest.mark.slow
@seeds(5)
def test_timers_by_the_clock_follow_the_simulated_one(seed: int) -> None:
    def remind(key: str, time: int, values: list[Any], state: Any, timers: Any) -> Any:
        for value in values:
            if value != "due":
                timers.after(6.0, "due")
        return state, [(key, value) for value in values]

    cluster = SimulatedCluster(seed)
    found = cluster.run(
        lambda flow: flow.lines().map(lambda line: (line, "came")).stateful_unary(remind, bins=4),
        lines=["a", Wait(4.5), "b", Wait(3), "c", Wait(10)],
    )
    assert found == [
        ("a", "came"), ("b", "came"), ("a", "due"), ("c", "came"), ("b", "due"), ("c", "due"),
    ]  # fmt: skip
    assert 17 < cluster.seconds < 60


changes = st.one_of(
    st.just(Join()), st.builds(Leave, st.sampled_from([None, 0, 1, 2])), st.just(Kill()), st.just(Stop()),
    st.builds(Move, st.integers(0, 15), st.integers(0, 2)), st.builds(Crash, st.booleans()),
)  # fmt: skip


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.tuples(st.integers(0, 150), changes), max_size=3))
def test_changes_of_hypothesis_leave_every_count_right(seed: int, plan: list[tuple[int, Any]]) -> None:
    cluster = SimulatedCluster(seed, durable=True)
    for record, change in plan:
        cluster.at(record=record, do=change)
    found = cluster.run(counts, lines=WORDS)
    assert dict(found) == RIGHT and len(found) == 200


def test_a_changed_program_is_refused_as_a_resume_refuses_it() -> None:
    cluster = SimulatedCluster(seed=1, durable=True)
    cluster.run(counts, lines=["a", "b"])

    def other(flow: Any) -> Any:
        return flow.lines().map(lambda word: (word, 1)).stateful_state_machine(count, bins=32, name="other")

    with pytest.raises(StoreError, match="other"):
        cluster.run(other, lines=["a", "b", "c"])
    assert cluster.run(counts, lines=["a", "b", "a"]) == [("a", 2)], "nothing has changed"


@seeds(3)
def test_bins_move_at_a_record_and_a_wrong_move_is_refused(seed: int) -> None:
    cluster = SimulatedCluster(seed)
    cluster.at(record=5, do=Map([0] * 16))  # type: ignore[arg-type]
    cluster.at(record=10, do=Map((1,) * 16))
    cluster.at(record=20, do=Move(bin=5, worker=0))
    cluster.at(record=20, do=Move(bin=16, worker=0))
    cluster.at(record=20, do=Move(bin=5, worker=7))
    cluster.at(record=25, do=Map((0,) * 1024))
    assert dict(cluster.run(counts, lines=["a"] * 40)) == {"a": 40}
    no_bin, no_worker, too_many = cluster.refusals
    assert "there is no bin 16; bins are 0 to 15" in no_bin
    assert "there is no worker 7 that may own bins" in no_worker
    assert too_many.startswith("Map(workers=(0, 0, ") and "at record=25: " in too_many and len(too_many) < 400


def test_no_line_is_no_output() -> None:
    for lines in ([], [[]], [[], []]):
        assert SimulatedCluster(seed=1).run(counts, lines=lines) == []


def test_real_files_are_read_as_a_job_reads_them(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("word,n\nx,1\ny,2\n")
    found = SimulatedCluster(1).run(lambda flow: flow.csv().map(lambda row: row["word"]), lines=f"{tmp_path}/*.csv")
    assert Counter(found) == {"x": 2, "y": 2}


def test_a_flow_has_its_arguments_and_streams_of_its_own() -> None:
    seen: list[Any] = []

    def dataflow(flow: Any) -> Any:
        seen.append((flow.worker.index, flow.args, flow.worker.peers))
        return flow.lines().concat(flow.scope.to_stream(["one"] if flow.worker.index == 0 else []))

    outputs = SimulatedCluster(seed=1).run(dataflow, lines=["a\n", "b"], args=["--fast"], outside=[seen])
    assert sorted(outputs) == ["a", "b", "one"]
    assert sorted(seen) == [(0, ["--fast"], 2), (1, ["--fast"], 2)]


def test_what_user_code_raises_comes_out_with_seed_and_history() -> None:
    cluster = SimulatedCluster(seed=1)
    cluster.at(record=1, do=Join())
    with pytest.raises(ValueError, match="invalid literal") as raised:
        cluster.run(lambda flow: flow.lines().map(int), lines=["1"] * 50 + ["x"])
    notes = "\n".join(raised.value.__notes__)
    assert "'x'" in notes and "SimulatedCluster(1, processes=2, workers=1)" in notes and "Join(" in notes


async def _coroutine(flow: Any) -> Any:
    return flow.lines()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (3, r"not 3 \(int\)"),
        (["a", 3], r"it has 3 \(int\)"),
        ([["a"], [b"b"]], r"it has b'b' \(bytes\)"),
        ([3, 4], r"A partition must be an iterable of str, not 3"),
        ({"left": b"abc"}, r"not b'abc' \(bytes\)"),
    ],
)
def test_what_are_no_lines_is_refused(lines: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SimulatedCluster(seed=1).run(counts, lines=lines)


def test_what_a_job_refuses_is_refused() -> None:
    for wrong, message in [
        (lambda flow: None, "must return its output, a Stream, but it returned None. End it with 'return'"),
        (_coroutine, "Write 'def' instead of 'async def'"),
        (lambda flow: flow.lines("orders"), "the lines 'orders'"),
        (lambda flow: (flow.output("odd", flow.lines()), flow.lines())[1], "the output 'odd'"),
    ]:
        with pytest.raises(BuildError, match=re.escape(message)):
            SimulatedCluster(seed=1).run(wrong, lines=["a"])
    with pytest.raises(UsageError, match=re.escape("must be a function of one argument, the flow")):
        SimulatedCluster(seed=1).run(lambda word, n, total: None, lines=["a"])
    with pytest.raises(UsageError, match="cannot be read again after a crash"):
        SimulatedCluster(seed=1, durable=True).run(counts, items=["a"])


def test_what_is_no_change_is_refused() -> None:
    for wrong in (Join, "Join", None):
        with pytest.raises(UsageError, match=re.escape("do= must be one of Join(), Leave(worker)")):
            SimulatedCluster(seed=1).at(record=3, do=wrong)  # type: ignore[arg-type]
    for change in (Kill(), Crash()):
        with pytest.raises(UsageError, match="durable=True"):
            SimulatedCluster(seed=1).at(record=3, do=change)
    with pytest.raises(UsageError, match="must not be negative"):
        SimulatedCluster(seed=1).at(record=-3, do=Join())


def test_a_cluster_that_is_not_durable_makes_one_run() -> None:
    cluster = SimulatedCluster(seed=1, processes=1)
    assert cluster.run(counts, lines=["a"]) == [("a", 1)]
    with pytest.raises(UsageError, match="makes one run"):
        cluster.run(counts, lines=["a"])
    with pytest.raises(UsageError, match="at least 1 process"):
        SimulatedCluster(seed=1, processes=0)


def test_a_change_that_comes_too_late_is_noted() -> None:
    cluster = SimulatedCluster(seed=1)
    cluster.at(record=1000, do=Join())
    with pytest.warns(UserWarning, match=r"Join\(\) at record=1000 did not take place: .* at record=5 and") as said:
        assert dict(cluster.run(counts, lines=["a"] * 5)) == {"a": 5}
    assert cluster.happened == [] and cluster.refusals == ["Join() at record=1000: the job ended before"]
    assert [each.filename for each in said if each.category is UserWarning] == [__file__], [*map(str, said)]


def test_a_change_of_a_sink_that_does_not_exist_is_noted() -> None:
    cluster = SimulatedCluster(seed=1, durable=True)
    cluster.at(prepare="ordrs", do=Kill())
    with pytest.warns(UserWarning, match=r"Kill\(\) at prepare='ordrs' did not take place"):
        cluster.run(counts, lines=["a"])


@seeds(3)
def test_a_drawn_change_may_come_too_late(seed: int) -> None:
    cluster = SimulatedCluster(seed)
    cluster.disturb(6)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        cluster.run(counts, lines=[])
    assert "ended before" in str(cluster.refusals)


def test_changes_that_a_crash_interrupts_are_noted() -> None:
    cluster = SimulatedCluster(seed=1, durable=True)
    cluster.at(record=1, do=Join())
    cluster.at(record=1, do=Leave())
    cluster.at(record=1, seconds=0.1, do=Crash())
    with pytest.warns(UserWarning, match=r"(Join|Leave)\(\) at record=1 did not take place"):
        assert dict(cluster.run(counts, lines=["a"] * 9)) == {"a": 9}
    assert [each.split(",")[0] for each in cluster.happened] == ["Crash() at record=1"]
    assert cluster.refusals == [
        "Join() at record=1: the job crashed before it was done",
        "Leave() at record=1: the job crashed before",
    ]


def test_record_counts_lines_with_headers_and_lines_of_one_record() -> None:
    for record, lines in ((3, ["w,n", "a,1", "b,2"]), (4, ["w,n", '"a', 'x",1', "b,2"])):
        for planned, happened in ((record, 1), (record + 1, 0)):
            cluster = SimulatedCluster(seed=1)
            cluster.at(record=planned, do=Stop())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                cluster.run(lambda flow: flow.csv().map(lambda row: row["w"]), lines=lines)
            assert len(cluster.happened) == happened, (planned, lines)


def test_a_change_of_many_steps_is_not_taken_for_one_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterJob, "actions_max", 2_000)  # one step takes a quarter of this, all steps thrice as much
    cluster = SimulatedCluster(seed=2)
    cluster.at(record=2, do=Join())
    cluster.at(record=4, do=Leave())
    actions, act = [], ClusterJob.act
    monkeypatch.setattr(ClusterJob, "act", lambda job: act(job) or actions.append(job.actions))
    found = cluster.run(lambda flow: flow.lines().map(lambda word: (word, 1)).stateful_state_machine(count, bins=64),
                        lines=["a"] * 8)  # fmt: skip
    assert dict(found) == {"a": 8} and len(cluster.happened) == 2
    assert actions[-1] > 2 * (2_000 + 8 * 100), "else the limit does not matter"


def test_a_run_without_end_says_what_is_outstanding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterJob, "actions_max", -300)  # and 100 for each line
    cluster = SimulatedCluster(seed=2)
    for record, do in ((1, Join()), (1, Leave(0)), (900, Stop())):
        cluster.at(record=record, do=do)
    with pytest.raises(Violation, match=r"^seed 2: no end after \d+ actions") as raised:
        cluster.run(counts, lines=["a"] * 4)
    undone = (
        "under way: Join() at record=1; waits for the change before: Leave(0) at record=1; "
        "not due yet: Stop() at record=900"
    )
    text = str(raised.value).replace("worker=0", "0")
    assert undone in text and "running processes: simulated:5001" in text and "Check that each source" in text
    assert "worker 0 knows these pointstamps: 1 at " in text
    assert undone in raised.value.__notes__[0].replace("worker=0", "0")


def test_a_long_run_with_two_joins_comes_to_its_end() -> None:
    cluster = SimulatedCluster(seed=1, rate=1.2)
    for record in (34, 37):
        cluster.at(record=record, do=Join())
    found = cluster.run(
        lambda flow: flow.lines().map(lambda word: (word, 1)).stateful_state_machine(count, bins=4),
        lines=[["a", "b"] * 10, ["b", "c"] * 10],
    )
    assert dict(found) == {"a": 10, "b": 20, "c": 10} and len(cluster.happened) == 2, cluster.refusals
    assert cluster.seconds > 28, "in twenty seconds it takes 30,000 actions"


class Endless:
    """A source of a user's own with a mistake: its one partition never ends."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def discover(self) -> Found:
        return Found(["one"])

    def open(self, partition: str, position: int | None) -> "Endless":
        return self

    def read(self, limit: int) -> Any:
        return self._answer

    def close(self) -> None:
        pass


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_an_endless_run_is_found_and_names_the_users_seed(seconds: float) -> None:
    cluster = SimulatedCluster(seed=2)
    with pytest.raises(Violation, match=r"^seed 2: no end after \d+ actions .* no line was read, no record") as raised:
        cluster.run(lambda flow: flow.read(Endless(Idle(after_seconds=seconds)), "endless"))
    assert "2001" not in str(raised.value)
    assert cluster.seconds < 700, "ticks of the clock are no progress"


def test_a_source_that_reads_without_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterJob, "actions_max", 20_000)  # instead of a minute of processor time
    with pytest.raises(Violation, match=r"^seed 2: no end after \d+ actions"):
        SimulatedCluster(seed=2).run(lambda flow: flow.read(Endless((["a"], 1)), "endless"))


def test_most_seeds_read_one_partition_far_ahead_of_another() -> None:
    def pay(order: str, what: str, seen: str | None) -> Any:
        return what, [order] if what == "paid" and seen is None else []

    def dataflow(flow: Any) -> Any:  # its mistake: a payment may be read before its order
        return flow.lines().flat_map(lambda line: [tuple(line.split())] if line else []).stateful_state_machine(
            pay, bins=8
        )  # fmt: skip

    orders = [f"{n} ordered" for n in range(100)]
    payments = [*[""] * 8, *(f"{n} paid" for n in range(92))]  # eight lines later than the orders
    found = []
    for seed in range(10):
        cluster = SimulatedCluster(seed)
        cluster.at(record=50, do=Join())
        cluster.at(record=150, do=Leave(1))
        found.append(bool(cluster.run(dataflow, lines=[orders, payments])))
        assert len(cluster.happened) == 2, cluster.refusals
    assert sum(found) >= 8, found


def test_a_stop_without_a_store_ends_the_run() -> None:
    cluster = SimulatedCluster(seed=1, rate=100.0)
    cluster.at(record=10, do=Stop())
    assert 10 <= len(cluster.run(counts, lines=["a"] * 400)) < 400


RUN = """
from megaflow.testing import SimulatedCluster
from tests.testing.test_simulated_cluster import counts
for seed, durable in ((1, False), (2, True), (10, True)):
    cluster = SimulatedCluster(seed, durable=durable)
    cluster.disturb(3)
    lines = [[f"word {n % 61}" for n in range(150)], [f"word {n % 53}" for n in range(150)]]
    print(cluster.run(counts, lines=lines), cluster.happened, cluster.refusals, cluster.seconds)
"""


@pytest.mark.slow
def test_a_seed_does_the_same_in_every_process() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", RUN], env={**os.environ, "PYTHONHASHSEED": each}, cwd=Path(__file__).parents[2],
            capture_output=True, check=True,
        ).stdout
        for each in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1
