"""Fusion: which operators become one; their results stay the same."""

import linecache
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megaflow.errors import BuildError, GraphMismatch, ProgramError
from megaflow.program import Worker
from megaflow.stream import EventStream, Stream
from megaflow.timely import Err, InputHandle, Ok, Pipeline, ProbeHandle
from megaflow.timely.dataflow.builder import Output
from megaflow.timely.dataflow.error_notes import format_user_traceback
from megaflow.timely.dataflow.picture import draw
from megaflow.timely.log import Event, OperatorsFused, ScheduleStarted
from tests.examples import many
from tests.timely.workers import ByHand, by_hand

pytestmark = pytest.mark.about_fusion

Shown = list[tuple[Any, Any]]  # (time, record)

# Random trees ---------------------------------------------------------------------------

Step = tuple[str, int, int]  # kind, number of an earlier stream, a number that varies the step
WHAT = (
    "map", "filter", "flat_map", "lazy", "tuples", "nothing", "map_in_place", "inspect", "inspect_time",
    "inspect_batch", "branch", "branch_when", "ok_err", "partition", "concat", "exchange", "region", "probe", "twice",
    "event_time", "event_time", "stamped", "plain",
)  # fmt: skip


def grow(streams: list[Any], step: Step, scope: Any, log: Callable[[Any], None]) -> list[Any]:
    """Apply a step to one of the streams, of one-element lists of ints; return the results."""
    what, which, n = step
    s = streams[which % len(streams)]
    others = [streams[(which + i) % len(streams)] for i in range(n % 3)]
    more: dict[str, Callable[[], Any]] = {
        "map": lambda: s.map(lambda x: [x[0] * 3 + n]),
        "filter": lambda: s.filter(lambda x: (x[0] + n) % 3),
        "flat_map": lambda: s.flat_map(lambda x: [[x[0] + i] for i in range((x[0] + n) % 4)]),
        "lazy": lambda: s.flat_map(lambda x: ([x[0] - i] for i in range(n % 3))),
        "tuples": lambda: s.flat_map(lambda x: ([x[0], n], [n])),
        "nothing": lambda: s.flat_map(lambda x: {}),
        "map_in_place": lambda: s.map(list).map_in_place(lambda x: x.append(n)),
        "inspect": lambda: s.inspect(lambda x: log(tuple(x))),
        "inspect_time": lambda: s.inspect_time(lambda t, x: log((t, tuple(x)))),
        "inspect_batch": lambda: s.inspect_batch(lambda t, xs: [log((t, tuple(x))) for x in xs]),
        "branch": lambda: s.branch(lambda t, x: (t + x[0] + n) % 2),
        "branch_when": lambda: s.branch_when(lambda t: t % 2 == n % 2),
        "ok_err": lambda: s.ok_err(lambda x: Ok([x[0], 1]) if x[0] % 2 else Err([x[0] + n])),
        "partition": lambda: s.partition(n % 3 + 1, lambda x: (x[0] % (n % 3 + 1), [x[0] + 1])),
        "concat": lambda: s.concat(*(other for other in others if fits(s, other))),
        "event_time": lambda: event_time(s, n),
        "stamped": lambda: stamps(s) if isinstance(s, EventStream) else s,
        "plain": lambda: s.plain() if isinstance(s, EventStream) else s,
        "exchange": lambda: s.exchange(lambda x: x[0]),
        "probe": lambda: (s.probe(), s)[1],
        "twice": lambda: (s, s),
    }
    if what == "region":
        with scope.region() as inner:
            made: Any = s.enter(inner).map(lambda x: [*x, n]).leave()
    else:
        made = more[what]()
    return list(made) if isinstance(made, tuple | list) else [made]


def fits(stream: Stream[Any], other: Stream[Any]) -> bool:
    """Return whether `stream` accepts `other`: if `stream` has timestamps, `other` needs them."""
    return not isinstance(stream, EventStream) or isinstance(other, EventStream)


def event_time(stream: Any, n: int) -> Any:
    """Return the stream with timestamps, or an alternative behind an exchange."""
    try:
        return stream.event_time(lambda x: x[0] - n)
    except BuildError as error:
        assert "is unknown here" in str(error)
        return stream.map(lambda x: [x[0], n])


def stamps(stream: EventStream[Any]) -> Stream[Any]:
    return stream.stamped().map(lambda pair: [pair[0], *pair[1]])


def outcome(steps: list[Step], batches: list[tuple[int, list[int]]], workers: int, fusion: bool) -> Any:
    """Return what each unread stream shows on each worker, with times and in order, and what was inspected."""
    hand = ByHand(workers)
    handles: list[InputHandle[Any]] = []
    results: list[Any] = []
    for worker in hand.workers:
        inspected: list[Any] = []
        handle: InputHandle[Any] = InputHandle()
        handles.append(handle)
        with worker.dataflow(fusion=fusion) as scope:
            streams: list[Any] = [scope.input_from(handle)]
            made: list[Any] = []
            for number, step in enumerate(steps):
                made = grow(streams, step, scope, partial(note, inspected, number))
                streams += made
            outputs = [show(stream) for stream in streams[-4:]]
        results.append((outputs, inspected))
    for wait, batch in batches:
        for worker, handle in zip(hand.workers, handles):
            handle.advance_to(handle.time + wait)
            handle.send_batch([[x + worker.index] for x in batch])
        if wait:
            hand.settle()
    for handle in handles:
        handle.close()
    hand.settle()
    assert not any(worker.installed_dataflows for worker in hand.workers)
    return [(outputs, in_order(inspected)) for outputs, inspected in results]


def note(inspected: list[Any], number: int, seen: Any) -> None:
    inspected.append((number, seen))


def in_order(inspected: list[Any]) -> dict[Any, list[Any]]:
    """Return what each operator saw. Among operators the order is free."""
    seen: dict[Any, list[Any]] = {}
    for number, each in inspected:
        seen.setdefault(number, []).append(each)
    return seen


def show(stream: Stream[Any]) -> Shown:
    shown: Shown = []

    def build(info: Any) -> Callable[[Any], None]:
        def logic(input: Any) -> None:
            for time, batch in input:
                assert 0 < len(batch) <= 4 * 700
                shown.extend((time.time, list(record)) for record in batch)

        return logic

    stream.sink(Pipeline(), "Show", build)
    return shown


STEPS = st.lists(st.tuples(st.sampled_from(WHAT), st.integers(-3, 8), st.integers(0, 8)), min_size=1, max_size=14)
BATCHES = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 50), max_size=8)), max_size=5)


UNREAD: list[Step] = [("concat", 0, 0), ("concat", 1, 0), *[("map", 0, 0)] * 4]  # a group that nothing reads


@settings(max_examples=many(200))
@given(STEPS, BATCHES, st.sampled_from([1, 1, 1, 2]))
@example(UNREAD, [(0, [1])], 1)
def test_any_tree_of_stages_gives_the_same_records_in_the_same_order_fused_or_not(
    steps: list[Step], batches: list[tuple[int, list[int]]], workers: int
) -> None:
    steps = [(what, -1 if which < 0 else which, n) for what, which, n in steps]  # mostly chains
    assert outcome(steps, batches, workers, True) == outcome(steps, batches, workers, False)


@settings(max_examples=20)
@given(STEPS)
def test_long_batches_are_the_same_records_in_the_same_order_fused_or_not(steps: list[Step]) -> None:
    steps = [("tuples", -1, 0), *((what, -1, n) for what, _, n in steps if what not in ("twice", "flat_map", "concat"))]
    steps = [step for k, step in enumerate(steps) if step[0] != "tuples" or k < 4]
    assert outcome(steps, [(0, list(range(1500)))], 1, True) == outcome(steps, [(0, list(range(1500)))], 1, False)


# Which are one --------------------------------------------------------------------------


def groups(build: Callable[[Any], object]) -> list[str]:
    """Return the groups of a dataflow, each as the names of its operators."""
    _, worker = by_hand()
    with worker.dataflow() as scope:
        build(scope)
    return [" ".join(group) for group in fused(worker)]


def fused(worker: Worker) -> list[list[str]]:
    """Return the names of the operators that run as one, for each group of the only dataflow."""
    [graph] = worker.graphs()
    return [[graph.nodes[member].title for member in node.fused] for node in graph.nodes if node.fused]


def one(x: Any) -> Any:
    return x


def diamond(scope: Any) -> Any:
    start = scope.to_stream([1]).map(one)
    return start.map(one).concat(start.filter(one)).map(one).filter(one)


def into_the_middle(scope: Any) -> Any:
    return scope.to_stream([1]).map(one).concat(scope.to_stream([2])).map(one)


def no_centre(scope: Any) -> Any:
    left, right = scope.to_stream([1]).map(one), scope.to_stream([2]).map(one)
    return left.concat(right), right.concat(left)


def probed(scope: Any) -> Any:
    middle = scope.to_stream([1]).map(one).map(one)
    middle.probe()
    return middle.filter(one).filter(one)


def collatz(scope: Any) -> Any:
    handle, back = scope.feedback(1)
    scope.to_stream([7]).concat(back).map(one).filter(one).branch_when(one)[1].connect_loop(handle)


def in_regions(scope: Any) -> Any:
    with scope.region("here") as here:
        inside = scope.to_stream([1]).map(one).enter(here).filter(one)
    with scope.iterative("there") as there:
        return inside.leave().map(one).enter(there).map(one).filter(one).leave().map(one)


CUT: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "a chain": (lambda s: s.to_stream([1]).map(one).filter(one).flat_map(one), ["Map Filter FlatMap"]),
    "one alone": (lambda s: s.to_stream([1]).map(one), []),
    "what comes from elsewhere": (lambda s: s.to_stream([1]).map(one).exchange(one).map(one), ["Exchange Map"]),
    "branches": (
        lambda s: [each.map(one) for each in s.to_stream([1]).map(one).branch(one)], ["Map Branch Map Map"],
    ),
    "not a tree": (diamond, ["Concat Map Filter"]),
    "an edge into the middle": (into_the_middle, ["Concat Map"]),
    "no vertex in the centre": (no_centre, []),
    "a probe": (probed, ["Map Map", "Filter Filter"]),
    "a loop": (collatz, ["Concat Map Filter BranchWhen"]),
    "scopes": (in_regions, ["Map here/Filter Map", "there/Map there/Filter"]),
    "a batch is looked at": (
        lambda s: s.to_stream([1]).map(one).map(one).inspect_batch(one).map(one), ["Map Map", "InspectBatch Map"],
    ),
    "partition": (
        lambda s: [each.map(one) for each in s.to_stream([1]).map(one).partition(2, one)], ["Map Partition"],
    ),
    "partition behind flat_map": (lambda s: s.to_stream([1]).flat_map(one).map(one).partition(2, one), ["FlatMap Map"]),
    "others": (lambda s: s.to_stream([1]).map(one).delay(one).count().map(one).accumulate(0, one).map(one), []),
}  # fmt: skip


@pytest.mark.parametrize("case", CUT)
def test_what_is_one_operator_is_a_tree_of_stages_behind_one_head(case: str) -> None:
    build, expected = CUT[case]
    assert groups(build) == expected


def test_groups_are_bounded() -> None:
    def build(scope: Any) -> None:
        stream, deep, nest = scope.to_stream([1]), scope.to_stream([1]), scope.to_stream([1])
        for _ in range(150):
            stream = stream.map(lambda x: x + 1)
            deep = deep.branch(lambda t, x: x)[1]
        for _ in range(10):
            nest = nest.flat_map(lambda x: [x, x])
        for each in (stream, deep, nest):
            shown.append(each.capture())

    shown: list[Any] = []
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        build(scope)
    sizes = [len(group) for group in fused(worker)]
    assert sizes == [64, 64, 64, 64, 22, 22, 4, 4, 2] or sorted(sizes) == [2, 4, 4, 22, 22, 64, 64, 64, 64]
    hand.settle()
    assert [each.extract() for each in shown] == [[(0, [151])], [(0, [1])], [(0, [1] * 1024)]]


def test_one_operator_is_tracked_and_scheduled_and_its_first_does_it() -> None:
    events: list[Event] = []
    counted: list[int] = []
    for fusion in (True, False):
        hand, worker = by_hand()
        worker.log.subscribe(events.append)
        handle: InputHandle[int] = InputHandle()
        with worker.dataflow(fusion=fusion) as scope:
            stream = scope.input_from(handle).map(one).map(one).map(one)
        assert [event for event in events if isinstance(event, OperatorsFused)] == (
            [OperatorsFused(0, 1, (1, 2, 3))] if fusion else []
        )
        hand.settle()
        before = len(events)
        handle.send(1)
        handle.flush()
        hand.settle()
        ran = [event.operator for event in events[before:] if isinstance(event, ScheduleStarted)]
        assert ran == ([1] if fusion else [1, 2, 3])
        counted.append(len(worker.graphs()[0].builder.edges))
        events.clear()
        del stream
    assert counted == [2, 6]


def test_the_environment_turns_it_off_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    build = CUT["a chain"][0]
    monkeypatch.setenv("MEGAFLOW_FUSION", "off")
    assert groups(build) == []
    for same in ("on", ""):
        monkeypatch.setenv("MEGAFLOW_FUSION", same)
        assert groups(build) == CUT["a chain"][1]


@pytest.mark.parametrize("wrong", ["Off", "0", "false"])
def test_what_the_environment_says_must_be_understood(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFLOW_FUSION", wrong)
    with pytest.raises(BuildError, match=rf"MEGAFLOW_FUSION={wrong}: it must be off"):
        groups(CUT["a chain"][0])


def test_workers_that_disagree_on_it_are_told_so() -> None:
    hand = ByHand(2)
    for worker, fusion in zip(hand.workers, (True, False)):
        with worker.dataflow(fusion=fusion) as scope:
            scope.to_stream([1]).map(one).map(one)
    with pytest.raises(GraphMismatch, match=r"are fused on worker 0 but not fused on worker 1; .* same fusion="):
        hand.workers[0].step()


def test_a_cycle_that_does_not_advance_is_told_with_all_its_operators() -> None:
    _, worker = by_hand()
    complete = r"Map\.in0.*Map\.out0.*Filter\.in0.*Filter\.out0"
    with pytest.raises(BuildError, match=complete), worker.dataflow() as scope:
        handle, back = scope.feedback(0)
        back.map(one).filter(one).connect_loop(handle)


def test_what_is_done_several_times_stays_right() -> None:
    """A time is over behind a group when it is over before it: on several workers, inside and outside a loop."""
    hand = ByHand(2)
    probes, handles = [ProbeHandle(), ProbeHandle()], [InputHandle[int](), InputHandle[int]()]
    for worker, probe, handle in zip(hand.workers, probes, handles):
        with worker.dataflow() as scope:
            scope.input_from(handle).exchange(one).map(one).filter(one).probe_with(probe)
    for time in range(1, 4):
        handles[0].advance_to(time)
        hand.settle()
        assert all(probe.less_than(time) for probe in probes)
        handles[1].advance_to(time)
        hand.settle()
        assert not any(probe.less_than(time) for probe in probes)


def test_a_dropped_dataflow_lets_go_of_its_groups() -> None:
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        probe = stream.map(one).flat_map(lambda x: range(x)).probe()
    handle.send(3)
    handle.flush()
    worker.drop_dataflow(0)
    hand.settle()
    assert probe.done() and not worker.installed_dataflows


# Blame ----------------------------------------------------------------------------------


def fussy(x: Any) -> Any:
    if x == 30:
        raise ValueError("thirty")
    return [x]


def fussy_later(x: Any) -> Iterator[Any]:
    yield x
    fussy(x)


Use = Callable[[Any], object]
USES: dict[str, tuple[Use, str, str]] = {
    "Map": (lambda s: s.map(fussy), "Map", "record 30"),
    "Filter": (lambda s: s.filter(fussy), "Filter", "record 30"),
    "FlatMap": (lambda s: s.flat_map(fussy), "FlatMap", "record 30"),
    "a generator": (lambda s: s.flat_map(fussy_later).map(one), "FlatMap", "record 30"),
    "behind a flat_map": (lambda s: s.flat_map(lambda x: (x - 1, x)).map(fussy), "Map", "record 30"),
    "Inspect": (lambda s: s.inspect(fussy), "Inspect", "record 30"),
    "InspectTime": (lambda s: s.inspect_time(lambda t, x: fussy(x)), "InspectTime", "record 30"),
    "MapInPlace": (lambda s: s.map_in_place(lambda x: fussy(x) and None), "MapInPlace", "record 30"),
    "Branch": (lambda s: s.branch(lambda t, x: fussy(x)), "Branch", "record 30"),
    "BranchWhen": (lambda s: s.branch_when(lambda t: fussy(30)), "BranchWhen", "time 7"),
    "OkErr": (lambda s: s.ok_err(lambda x: Ok(fussy(x))), "OkErr", "record 30"),
    "behind ok_err": (lambda s: s.ok_err(lambda x: Err(x))[1].map(fussy), "Map", "record 30"),
    "Partition": (lambda s: s.partition(1, lambda x: (0, fussy(x))), "Partition", "record 30"),
    "a key error of the user's": (
        lambda s: s.partition(1, lambda x: (0, {10: 1, 20: 2, 40: 3}[x])), "Partition", "record 30",
    ),
    "an exchange behind": (lambda s: s.map(one).exchange(lambda x: fussy(30)[0]), "Exchange", "time 7"),
}  # fmt: skip


@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("case", USES)
def test_the_operator_is_blamed_that_called_with_the_record_that_it_had(case: str, fusion: bool) -> None:
    use, operator, end = USES[case]
    hand, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    with worker.dataflow(fusion=fusion) as scope:
        use(scope.input_from(handle).map(lambda x: x * 10))
    handle.advance_to(7)
    handle.send_batch([1, 2, 3, 4])
    handle.flush()
    with pytest.raises((ValueError, KeyError)) as caught:
        hand.settle()
    [note] = caught.value.__notes__
    assert note.startswith(f"in operator '{operator}' ({__file__}:"), note
    line = linecache.getline(__file__, int(note.split(f"{__file__}:")[1].split(")")[0]))
    assert "use(" in line or case.split()[0] in line or "lambda s" in line, line
    assert (", worker 0, time 7" in note and note.endswith(end)) or case == "an exchange behind", note
    text = format_user_traceback(caught.value)
    assert "<megaflow" not in text and "/megaflow/timely" not in text


def stop(x: Any) -> Any:
    return next(iter(()))


@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize(
    ("use", "operator"),
    [
        (lambda s: s.flat_map(stop), "FlatMap"),
        (lambda s: s.flat_map(lambda x: [x]).map(stop), "Map"),
        (lambda s: s.map(stop), "Map"),
    ],
)
def test_a_stop_iteration_of_the_users_stays_what_it_is(use: Use, operator: str, fusion: bool) -> None:
    """A stage that may pause is a generator, and Python lets no StopIteration out of a generator."""
    hand, worker = by_hand()
    with worker.dataflow(fusion=fusion) as scope:
        use(scope.to_stream([1]).map(lambda x: x * 10)).capture()
    with pytest.raises(StopIteration) as caught:
        hand.settle()
    assert caught.value.__notes__[0].startswith(f"in operator '{operator}' (")
    assert caught.value.__notes__[0].endswith("worker 0, time 0, record 10")
    text = format_user_traceback(caught.value)
    lines = [line for line in text.splitlines() if line.strip(" ~^")]  # Python versions underline differently
    assert text.count("Traceback") == 1 and "return next(iter(()))" in lines[-3]


def stop_within(x: Any) -> Iterator[Any]:
    yield stop(x)


def test_what_python_makes_of_one_in_a_generator_of_the_users_stays_too() -> None:
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        scope.to_stream([10]).flat_map(stop_within).map(one).capture()
    with pytest.raises(RuntimeError, match="generator raised StopIteration") as caught:
        hand.settle()
    assert caught.value.__notes__[0].endswith("worker 0, time 0, record 10")


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda s: s.partition(2, lambda x: (x, x)), r"for 10 it did not \(KeyError: 10\)"),
        (lambda s: s.partition(2, lambda x: x), r"for 10 it did not \(TypeError"),
        (lambda s: s.ok_err(lambda x: x)[0].map(one), r"ok_err: the function returned 10 for 10"),
    ],
)
@pytest.mark.parametrize("fusion", [True, False])
def test_what_a_function_must_return_is_said_with_the_record(use: Use, message: str, fusion: bool) -> None:
    hand, worker = by_hand()
    with worker.dataflow(fusion=fusion) as scope:
        use(scope.to_stream([1]).map(lambda x: x * 10))
    with pytest.raises(ProgramError, match=message) as caught:
        hand.settle()
    assert caught.value.__notes__[0].endswith("worker 0, time 0, record 10")


def test_the_line_that_was_generated_is_in_the_full_traceback() -> None:
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        scope.to_stream([30]).map(one).map(fussy)
    with pytest.raises(ValueError, match="thirty") as caught:
        hand.settle()
    lines = "".join(traceback.format_exception(caught.value))
    assert "r1 = f1(r0)  # Map (test_partition.py:" in lines
    assert 'File "<megaflow Map+Map ' in lines


# Pausing --------------------------------------------------------------------------------


@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("chain", ["alone", "in a chain"])
def test_a_record_that_becomes_ten_million_waits_while_there_is_no_room(chain: str, fusion: bool) -> None:
    made: list[int] = []
    taken: list[int] = []

    def explode(x: int) -> Iterator[int]:
        for each in range(x):
            made.append(each)
            yield each

    def slow(info: Any) -> Callable[[Any], None]:
        def logic(input: Any) -> None:
            for _, batch in input:
                taken.extend(batch)
                break

        return logic

    hand, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    with worker.dataflow(fusion=fusion) as scope:
        stream = scope.input_from(handle)
        stream = stream.flat_map(explode) if chain == "alone" else stream.map(one).flat_map(explode).map(one)
        stream.sink(Pipeline(), "Slow", slow)
        probe = stream.probe()
    handle.send_batch([10**7, 3])
    handle.advance_to(1)
    queues = 1 if fusion or chain == "alone" else 2
    for _ in range(100):
        worker.step()
        assert len(made) - len(taken) <= queues * 16 * 700 + 9 * 700
        assert probe.less_equal(0), "what is to come has its time"
    assert taken == list(range(len(taken))) and len(taken) >= 50 * 700
    assert made, "it goes on"
    kinds = {(each.kind, each.count) for each in worker.explain(probe, 0) if each.port == "output 0"}
    assert kinds == {("capability", 1)}
    worker.drop_dataflow(0)
    hand.settle()


@settings(max_examples=30)
@given(st.lists(st.integers(0, 4000), max_size=5), st.lists(st.booleans(), max_size=40))
def test_what_was_paused_goes_on_where_it_stopped(sizes: list[int], fulls: list[bool]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        answers = iter(fulls)
        hand, worker = by_hand()
        handle: InputHandle[int] = InputHandle()
        with worker.dataflow() as scope:
            stream = scope.input_from(handle).flat_map(range).map(lambda x: [x])
            shown, probe = show(stream), stream.probe()
        [graph] = worker.graphs()
        patch.setattr(Output, "is_full", lambda output: next(answers, False))  # a pause anywhere
        for time, size in enumerate(sizes):
            handle.send(size)
            handle.advance_to(time + 1)
        handle.close()
        while not probe.done():
            hand.settle()
            graph.run_queue.add(stream.port.node - 1)  # there is room, or not
    assert shown == [(time, [x]) for time, size in enumerate(sizes) for x in range(size)]


# Seeing ---------------------------------------------------------------------------------


def test_a_picture_shows_what_is_one_operator() -> None:
    _, worker = by_hand()
    with worker.dataflow("seen") as scope:
        scope.to_stream([1]).map(one).filter(one).exchange(one).map(one)
    lines = [line.strip() for line in draw(worker.graphs(), "mermaid").splitlines()]
    assert [line for line in lines if "|" in line] == [
        'd0n0 -->|"Pipeline"| d0n1',
        'd0n1 -->|"fused"| d0n2',
        'd0n2 -->|"Exchange"| d0n3',
        'd0n3 -->|"fused"| d0n4',
    ]
    assert 'd0n1 -> d0n2 [label="fused"]' in draw(worker.graphs(), "dot")


def test_a_worker_may_be_asked_to_fuse_nothing() -> None:
    def main(worker: Worker, fusion: bool) -> Any:
        with worker.dataflow("named", fusion=fusion) as scope:
            result = scope.to_stream(range(5)).map(lambda x: x + 1).filter(lambda x: x % 2).capture()
        while worker.step():
            pass
        return result.extract()

    assert main(by_hand()[1], True) == main(by_hand()[1], False) == [(0, [1, 3, 5])]
