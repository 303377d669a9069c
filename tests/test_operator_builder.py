"""Operators of any shape, built by hand: the dependencies of their outputs, when they may send, and refusals."""

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from megaflow.errors import BuildError, CapabilityError, GraphMismatch
from megaflow.program import Worker
from megaflow.testing.reference import frontier_by_brute_force
from megaflow.timely import InputHandle, OperatorBuilder, Pipeline, ProbeHandle, example
from tests.timely.cases import run_threads
from tests.timely.workers import by_hand

Logic = Callable[[], None]


def idle(capabilities: Any, info: Any) -> Logic:
    for capability in capabilities:
        capability.release()
    return lambda: None


def test_several_inputs_and_outputs_pass_records_along_the_paths_that_were_declared() -> None:
    def build(scope: Any) -> Any:
        builder = OperatorBuilder(scope, "Cross")
        lefts = builder.new_input(scope.to_stream([1, 2]), Pipeline)
        rights = builder.new_input(scope.to_stream(["a"]), Pipeline)
        both, joined = builder.new_output()
        later, delayed = builder.new_output(depends_on={lefts: 3})

        def make(capabilities: Any, info: Any) -> Logic:
            idle(capabilities, info)

            def logic() -> None:
                for each in (lefts, rights):
                    for time, batch in each:
                        both.session(time).give_batch(batch)
                        if each is lefts:
                            with time.retain(later) as held, later.session(held) as session:
                                session.give_batch(batch)

            return logic

        builder.build(make)
        return joined.capture(), delayed.capture()

    joined, delayed = example(build)
    assert [time for time, _ in joined] == [0] and sorted(map(str, joined[0][1])) == ["1", "2", "a"]
    assert delayed == [(3, [1, 2])]


def test_an_operator_without_inputs_sends_by_its_initial_capabilities() -> None:
    def build(scope: Any) -> Any:
        builder = OperatorBuilder(scope, "Two sources")
        (low, lows), (high, highs) = builder.new_output(), builder.new_output()

        def make(capabilities: Any, info: Any) -> Logic:
            def logic() -> None:
                for output, capability, record in zip((low, high), capabilities, "lh"):
                    with capability, output.session(capability) as session:
                        session.give(record)

            return logic

        builder.build(make)
        return lows.capture(), highs.capture()

    assert example(build) == ([(0, ["l"])], [(0, ["h"])])


@pytest.mark.parametrize("nested", [False, True])
def test_frontiers_are_those_that_all_paths_imply(nested: bool) -> None:
    """Check every way to connect two inputs to two outputs, with the trackers of int times and of nested times."""
    ways: list[int | None] = [None, 0, 2]
    for case in range(len(ways) ** 4):
        chosen = [ways[case // len(ways) ** place % len(ways)] for place in range(4)]
        hand, worker = by_hand()
        handles: list[InputHandle[int]] = [InputHandle(), InputHandle()]
        probes = [ProbeHandle(), ProbeHandle()]
        with worker.dataflow() as scope:
            streams = [scope.input_from(handle) for handle in handles]
            if nested:
                with scope.iterative() as inner:
                    streams[0].enter(inner)
            builder = OperatorBuilder(scope, "Shape")
            inputs = [builder.new_input(stream, Pipeline) for stream in streams]
            for probe, row in zip(probes, (chosen[:2], chosen[2:])):
                path = {each: amount for each, amount in zip(inputs, row) if amount is not None}
                builder.new_output(path)[1].probe_with(probe)
            builder.build(idle)
        handles[0].advance_to(4)
        handles[1].advance_to(7)
        hand.settle()
        graph = scope.ref.graph
        for probe, row in zip(probes, (chosen[:2], chosen[2:])):
            expected = min((time + amount for time, amount in zip((4, 7), row) if amount is not None), default=None)
            assert list(probe.frontier) == ([] if expected is None else [expected]), f"paths {chosen}"
        counts = list(graph.progress.tracker.pointstamps())
        for location in range(len(graph.builder.depths)):
            assert graph.frontier(location) == frontier_by_brute_force(graph.builder, counts, location)


@pytest.mark.parametrize("notify", [True, False])
def test_the_operator_runs_when_a_frontier_moves_that_it_wants_to_be_told_of(notify: bool) -> None:
    hand, worker = by_hand()
    watched, other = InputHandle[int](), InputHandle[int]()
    runs: list[list[Any]] = []
    with worker.dataflow() as scope:
        builder = OperatorBuilder(scope, "Watch")
        inputs = [
            builder.new_input(scope.input_from(watched), Pipeline, notify=notify),
            builder.new_input(scope.input_from(other), Pipeline, notify=False),
        ]

        def make(capabilities: Any, info: Any) -> Logic:
            return lambda: runs.append([list(each.frontier) for each in inputs])

        builder.build(make)
    hand.settle()
    runs.clear()
    other.advance_to(3)
    hand.settle()
    assert runs == []
    watched.advance_to(2)
    hand.settle()
    assert runs == ([[[2], [3]]] if notify else [])


def consumed(use: Callable[[Any, Any, Any], object]) -> None:
    """Run `act` in an operator with a time, its connected output, and the other one."""

    def build(scope: Any) -> Any:
        builder = OperatorBuilder(scope, "Split")
        source = builder.new_input(scope.to_stream([1]), Pipeline)
        near, _ = builder.new_output()
        far, _ = builder.new_output(depends_on=[])

        def make(capabilities: Any, info: Any) -> Logic:
            idle(capabilities, info)

            def logic() -> None:
                for time, _ in source:
                    use(time, near, far)

            return logic

        builder.build(make)
        return ()

    example(build)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda time, near, far: time.retain(far), r"no path leads from this input to output 1 of 'Split'"),
        (lambda time, near, far: time.delayed(3, far), r"no path leads from this input to output 1 of 'Split'"),
        (lambda time, near, far: far.session(time), r"no path leads from this input to output 1 of 'Split'"),
        (lambda time, near, far: far.session(time.retain()), r"is not a capability of output 1 of 'Split'"),
        (lambda time, near, far: near.session(time.time), r"session: 0 does not allow sending at output 0 of 'Split'"),
    ],
    ids=["retain", "delayed", "session", "another output's capability", "a bare time"],
)
def test_nothing_is_sent_where_no_path_was_declared(use: Any, message: str) -> None:
    with pytest.raises(CapabilityError, match=message):
        consumed(use)


def test_retain_has_to_say_which_of_several_outputs_is_meant() -> None:
    def build(scope: Any) -> Any:
        builder = OperatorBuilder(scope, "Split")
        source = builder.new_input(scope.to_stream([1]), Pipeline)
        builder.new_output()
        second, _ = builder.new_output()

        def make(capabilities: Any, info: Any) -> Logic:
            idle(capabilities, info)

            def logic() -> None:
                for time, _ in source:
                    assert time.retain(1) is time.retain(second)
                    time.retain(second).release()
                    time.retain()

            return logic

        builder.build(make)
        return ()

    with pytest.raises(CapabilityError, match=r"leads to 2 outputs; name one: retain\(output\)"):
        example(build)


def test_what_cannot_be_meant_is_refused_when_it_is_said() -> None:
    def build(scope: Any) -> Any:
        stream = scope.to_stream([1])
        other = OperatorBuilder(scope, "Other")
        foreign = other.new_input(stream, Pipeline)
        builder = OperatorBuilder(scope, "Mine")
        source = builder.new_input(stream, Pipeline)
        with pytest.raises(BuildError, match=r"new_output: Mine \(.*\) depends on .* not one of its inputs"):
            builder.new_output(depends_on=[foreign])
        with pytest.raises(BuildError, match=r"Mine \(.*\): depends_on takes a list of inputs; write"):
            builder.new_output(depends_on=source)  # type: ignore[arg-type]
        with pytest.raises(BuildError, match=r"Mine \(.*\) needs a stream, not a list; scope.to_stream"):
            builder.new_input([1], Pipeline)  # type: ignore[arg-type]
        with pytest.raises(BuildError, match=r"build: Mine \(.*\): None is not a function"):
            builder.build(None)  # type: ignore[arg-type]
        with pytest.raises(BuildError, match="OperatorBuilder: a Stream is not a scope"):
            OperatorBuilder(stream, "Mine")
        for amount in (-1, 1.5, True):
            with pytest.raises(BuildError, match=rf"advances time by {amount!r}; .* an int of at least 0"):
                builder.new_output(depends_on={source: amount})  # type: ignore[dict-item]
        with pytest.raises(BuildError, match="is not a pact"):
            builder.new_input(stream, "Pipeline")  # type: ignore[arg-type]
        with pytest.raises(BuildError, match="neither an input nor an output"):
            OperatorBuilder(scope, "Nothing").build(idle)
        with pytest.raises(BuildError, match=r"build returned None, a NoneType; .* a function without arguments"):
            third = OperatorBuilder(scope, "Third")
            third.new_output()
            third.build(lambda capabilities, info: None)  # type: ignore[arg-type, return-value]
        builder.build(idle)
        other.build(idle)
        for late in (lambda: builder.build(idle), builder.new_output, lambda: builder.new_input(stream, Pipeline)):
            with pytest.raises(BuildError, match=r"Mine \(.*\) is already built"):
                late()
        raise StopIteration

    with pytest.raises(StopIteration):
        example(build)


def test_a_builder_that_was_never_finished_is_named_when_the_dataflow_starts() -> None:
    def build(scope: Any) -> Any:
        OperatorBuilder(scope, "Half").new_output()

    with pytest.raises(BuildError, match=r"Half \(.*test_operator_builder.py:\d+\).*an OperatorBuilder needs build"):
        example(build)


def test_a_cycle_through_an_input_that_leads_nowhere_is_none() -> None:
    """A feedback that adds nothing is refused only where its records would return to where they were."""

    def build(scope: Any, depends: bool) -> Any:
        handle, back = scope.feedback(0)
        builder = OperatorBuilder(scope, "Listen")
        source = builder.new_input(scope.to_stream([1, 2]), Pipeline)
        heard = builder.new_input(back, Pipeline, notify=False)
        output, stream = builder.new_output(depends_on=[source, heard] if depends else [source])
        echoes: list[int] = []

        def make(capabilities: Any, info: Any) -> Logic:
            idle(capabilities, info)

            def logic() -> None:
                for time, batch in source:
                    output.session(time).give_batch(batch)
                for _, batch in heard:
                    echoes.extend(batch)

            return logic

        builder.build(make)
        stream.connect_loop(handle)
        return echoes

    assert example(lambda scope: build(scope, False)) == [1, 2]
    with pytest.raises(BuildError, match="does not advance the time"):
        example(lambda scope: build(scope, True))


def test_workers_that_declare_other_paths_are_told() -> None:
    def main(worker: Worker) -> None:
        with worker.dataflow() as scope:
            builder = OperatorBuilder(scope, "Differs")
            source = builder.new_input(scope.to_stream([1]).exchange(int), Pipeline)
            builder.new_output(depends_on=[source] if worker.index else [])
            builder.build(idle)

    with pytest.raises(GraphMismatch, match="Differs"):
        run_threads(2, main)


def lines_run(act: Callable[[], object]) -> int:
    """Return how many lines of megaflow Python runs: a measure of work that does not depend on the machine."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace if "megaflow" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("mapped", [False, True])
def test_the_work_of_an_output_grows_with_its_inputs_only(mapped: bool) -> None:
    def work(inputs: int) -> int:
        _, worker = by_hand()
        with worker.dataflow() as scope:
            stream = scope.empty()
            builder = OperatorBuilder(scope, "Many")
            made = [builder.new_input(stream, Pipeline) for _ in range(inputs)]
            spent = lines_run(lambda: builder.new_output(depends_on=dict.fromkeys(made, 1) if mapped else made))
            builder.build(idle)
        return spent

    assert work(400) < 2.5 * work(200)


def test_the_work_of_retaining_does_not_grow_with_the_outputs() -> None:
    def work(outputs: int) -> int:
        spent = []

        def build(scope: Any) -> None:
            builder = OperatorBuilder(scope, "Wide")
            source = builder.new_input(scope.to_stream([1]), Pipeline)
            last = [builder.new_output(depends_on=[source])[0] for _ in range(outputs)][-1]

            def send_at(time: Any, output: Any) -> None:
                time.retain(output).release()

            def logic() -> None:
                for time, _ in source:
                    spent.append(lines_run(partial(send_at, time, last)))

            builder.build(lambda capabilities, info: logic)

        example(build)
        return spent[0]

    assert work(40) == work(4)
