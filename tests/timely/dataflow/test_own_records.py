"""Each consumer may change its records without effect on other consumers: with one worker, threads and processes."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from megaflow.event_time.windows import session, sliding, tumbling
from megaflow.megaphone.base.routing import Watermark
from megaflow.program import Worker
from megaflow.timely import Config, EventLink, example, execute
from megaflow.timely.dataflow.own_records import CopyingEdge
from tests.cluster.processes import run_processes
from tests.results import check_equal
from tests.timely.workers import ByHand, run

Shape = Callable[[Any, Any], list[Any]]
PLAIN = [[1], [2], [3]]


def change(record: Any) -> Any:
    """Change a list and return it."""
    record.append("changed")
    return record


def fold(key: int, value: Any, state: Any) -> Any:
    """Keep the first value as the state, and change it."""
    state = value if state is None else state
    state.append("kept")
    return state, [list(state)]


def within(scope: Any, stream: Any) -> list[Any]:
    with scope.region() as region:
        inside = stream.enter(region).map(change).leave()
    return [stream, inside, stream]


def looping(scope: Any, stream: Any) -> list[Any]:
    """Change records on each turn of a loop; return all that pass."""
    with scope.iterative() as inner:
        handle, again = inner.loop_variable(1)
        passing = stream.enter(inner).concat(again)
        passing.filter(lambda record: len(record) < 3).map(change).connect_loop(handle)
        seen = passing.leave()
    return [seen, stream]


def timed(scope: Any, stream: Any) -> list[Any]:
    events = stream.event_time(lambda record: record[0])
    return [events.map(change).plain(), events.plain(), events.filter(len).stamped(), events.map(change).plain()]


SHAPES: dict[str, Shape] = {  # how a stream of lists is consumed -> captured streams
    "beside": lambda scope, s: [s.map(change), s, s.map(change), s],
    "filter": lambda scope, s: [s.filter(change), s.filter(len)],
    "flat_map": lambda scope, s: [s.flat_map(lambda record: [change(record)]), s],
    "inspect": lambda scope, s: [s.inspect(change), s, s.inspect_time(lambda time, record: change(record)), s],
    "in place": lambda scope, s: [s.map_in_place(change), s, s.map_in_place(change)],
    "fused": lambda scope, s: (lambda made: [made.map(change).map(change), made.filter(len), made.map(change)])(
        s.map(list).filter(len)
    ),
    "branch": lambda scope, s: [*s.branch(lambda time, record: bool(change(record))), s],
    "partition": lambda scope, s: [*s.partition(2, lambda record: (record[0] % 2, change(record))), s],
    "concat": lambda scope, s: [s.concat(s).map(change), s],
    "nested": lambda scope, s: [s.map(lambda record: ({"n": [record]},)).map(lambda r: (change(r[0]["n"]), r)), s],
    "unary": lambda scope, s: [s.map(lambda record: (record[0] % 2, record)).stateful_state_machine(fold), s],
    "two folds": lambda scope, s: (lambda pairs: [pairs.stateful_state_machine(fold, name="a"), pairs.map(list),
                                                  pairs.stateful_state_machine(fold, name="b")])(
        s.map(lambda record: (0, record))
    ),
    "region": within,
    "loop": looping,
    "event time": timed,
    "broadcast": lambda scope, s: [s.broadcast().map(change), s, s.broadcast()],
    "broadcast alone": lambda scope, s: [s.broadcast().map(change)],
    "exchange": lambda scope, s: [s.exchange(lambda record: record[0]).map(change), s.map(change), s],
}  # fmt: skip


def captured(worker: Worker, name: str) -> Any:
    """Return each stream's records, in an order that does not depend on the worker."""
    with worker.dataflow() as scope:
        stream = scope.to_stream([list(record) for record in PLAIN] if worker.index == 0 else [])
        return [each.capture() for each in SHAPES[name](scope, stream)]


def together(results: list[Any]) -> list[list[str]]:
    """Combine the workers' records of each stream; of a broadcast stream each worker has all."""
    columns = zip(*results, strict=True)
    return [
        sorted(repr(record) for result in column for _, batch in result.extract() for record in batch)
        for column in columns
    ]


class Apart:
    """Stream that copies its records for each consumer."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._stream.map(deepcopy), verb)


@pytest.mark.parametrize("fusion", ["on", "off"])
@pytest.mark.parametrize("name", [name for name in SHAPES if name not in ("concat", "fused", "two folds")])
def test_consumers_are_as_if_each_made_copies(name: str, fusion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFLOW_FUSION", fusion)

    def apart(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            stream = scope.to_stream([list(record) for record in PLAIN])
            return [each.capture() for each in SHAPES[name](scope, Apart(stream))]

    assert together(run(1, lambda worker: captured(worker, name))) == together(run(1, apart))


@pytest.mark.parametrize("fusion", ["on", "off"])
@pytest.mark.parametrize("name", SHAPES)
def test_threads_agree_with_one_worker(name: str, fusion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFLOW_FUSION", fusion)
    alone, both = (together(run(workers, lambda worker: captured(worker, name))) for workers in (1, 2))
    for each, found in zip(alone, both, strict=True):
        times = len(found) // len(each) if each else 1
        assert found == sorted(each * times) and (times == 1 or "broadcast" in name)


def all_captured(worker: Worker) -> Any:
    return [captured(worker, name) for name in SHAPES]


@pytest.mark.cluster
def test_processes_agree_with_threads() -> None:
    apart, threads = run_processes(all_captured), run(2, all_captured)
    for number, name in enumerate(SHAPES):
        check_equal(together([each[number] for each in apart]), together([each[number] for each in threads]), name)


def test_one_map_beside_another_sees_the_record_as_it_was() -> None:
    """The simplest case, with its values."""

    def build(scope: Any) -> Any:
        stream = scope.to_stream([{"n": 1}])
        raised = stream.map(lambda record: record.update(n=record["n"] + 1) or record)
        doubled = stream.map(lambda record: record["n"] * 2)
        return raised.capture(), doubled.capture(), stream.capture()

    assert example(build) == ([(0, [{"n": 2}])], [(0, [2])], [(0, [{"n": 1}])])


def test_clones_of_a_link_have_records_of_their_own() -> None:
    link = EventLink()
    more = link.clone()
    example(lambda scope: scope.to_stream([[1]]).capture_into(link))
    changed = example(lambda scope: scope.replay([link]).map(change).capture())
    late = more.clone()
    assert example(lambda scope: scope.replay([more]).map(change).capture()) == changed == [(0, [[1, "changed"]])]
    assert example(lambda scope: scope.replay([late]).capture()) == [(0, [[1]])]


def test_a_reader_cannot_change_the_state_of_an_aggregate() -> None:
    def build(scope: Any) -> Any:
        pairs = scope.to_stream([("a", [1]), ("a", [2])]).delay(lambda pair, time: pair[1][0])
        lists = pairs.aggregate_by_key([], lambda all, value: all + value, lambda a, b: a + b)
        return lists.map(lambda pair: change(pair[1])).capture()

    assert example(build) == [(1, [[1, "changed"]]), (2, [[1, 2, "changed"]])]


def of_windows(records: list[Any], windows: Any, emit: Any = None) -> list[list[Any]]:
    """Return the results of a window with all records: collected, reduced in place, and the greatest."""

    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            control, commands = scope.new_input()
            events = scope.to_stream(records).event_time(lambda pair: 11)
            made = events.window(windows, emit=emit, control=commands)
            results = [made.collect(), made.reduce(lambda a, b: a.extend(b) or a), made.max()]
            captured = [each.map(lambda record: record[2]).plain().capture() for each in results]
        control.advance_to(1)
        control.send(Watermark(1 << 60))
        control.close()
        return captured

    [captured] = execute(Config.thread(), main)
    return [[value for _, batch in each.extract() for value in batch] for each in captured]


def test_a_reduction_in_place_changes_nothing_else_of_the_window() -> None:
    records = [("a", [1]), ("a", [2]), ("a", [3])]
    assert of_windows(records, tumbling(20)) == [[[[1], [2], [3]]], [[1, 2, 3]], [[3]]]


@pytest.mark.parametrize("windows", [sliding(20, every=10), tumbling(20), session(5)])
@pytest.mark.parametrize("emit", [None, "epoch"])
def test_results_of_windows_share_nothing_that_can_change(windows: Any, emit: Any) -> None:
    collected, *others = of_windows([("a", [11])], windows, emit)
    values = [value for values in collected for value in values] + [value for values in others for value in values]
    assert len(values) >= 3 and all(value == [11] for value in values)
    assert len({*map(id, values)}) == len(values)


def copying(build: Callable[[Any], Any]) -> int:
    """Return how many edges of a dataflow copy."""
    [worker] = ByHand(1).workers
    with worker.dataflow() as scope:
        build(scope)
    edges = [edge for edges in scope.ref.graph.listeners.values() for edge in edges]
    return sum(isinstance(edge, CopyingEdge) for edge in edges)


def test_only_consumers_beside_others_get_copies() -> None:
    assert copying(lambda scope: scope.to_stream(PLAIN).map(list).filter(len).capture()) == 0

    def probed(scope: Any) -> None:
        stream = scope.to_stream(PLAIN).map(list)
        stream.probe()
        stream.concat(scope.empty()).probe()
        stream.capture()

    def threefold(scope: Any) -> None:
        stream = scope.to_stream(PLAIN)
        for _ in range(3):
            stream.capture()

    assert copying(probed) == 0 and copying(threefold) == 2


def test_results_of_one_window_are_not_copied_for_the_others() -> None:
    def build(scope: Any) -> None:
        windows = scope.to_stream([(1, 1)]).event_time(lambda pair: 1).window(tumbling(60))
        for stream in (windows.count(), windows.collect(), windows.late()):
            stream.capture()

    assert copying(build) == 0
