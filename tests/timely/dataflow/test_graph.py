"""One dataflow on one worker: built once, equal everywhere, complete when nothing more can happen."""

from collections.abc import Callable
from typing import Any

import pytest

from megaflow.errors import BuildError, GraphMismatch, ProtocolError
from megaflow.program import Worker
from megaflow.testing.monitor import describe_pointstamps
from megaflow.timely import Broadcast, Exchange, Pipeline
from megaflow.timely.communication.channel import Channel, Lane
from tests.timely.workers import ByHand, by_hand, run

Build = Callable[[Any], object]


def build_differently(one: Build, other: Build) -> None:
    """Build on two workers; raise what the first one's steps raise."""
    hand = ByHand(2)
    for worker, build in zip(hand.workers, (one, other)):
        with worker.dataflow() as scope:
            build(scope)
    hand.workers[0].step()


def unary(pact: Any, name: str = "Mine") -> Build:
    def build(scope: Any) -> None:
        scope.to_stream([1]).unary(pact, name, lambda capability, info: lambda input, output: None)

    return build


def two(scope: Any) -> Any:
    return scope.empty(), scope.empty()


def loop(advance: int, through: bool) -> Build:
    def build(scope: Any) -> None:
        handle, back = scope.feedback(advance)
        mapped = back.map(abs)
        (mapped if through else back).connect_loop(handle)

    return build


def test_the_functions_of_the_program_may_differ() -> None:  # they are other objects in another process
    build_differently(unary(Exchange(abs)), unary(Exchange(lambda x: x)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (unary(Pipeline()), unary(Exchange(abs))),
        (unary(Exchange(abs)), unary(Broadcast())),
        (unary(Pipeline()), unary(Pipeline(), "Yours")),
        (lambda scope: scope.to_stream([]).map(abs), lambda scope: scope.to_stream([]).filter(abs)),
        (lambda scope: scope.to_stream([]), lambda scope: scope.to_stream([]).map(abs)),
        (loop(1, True), loop(2, True)),
        (loop(1, True), loop(1, False)),
        (lambda scope: two(scope)[0].map(abs), lambda scope: two(scope)[1].map(abs)),
        (lambda scope: scope.empty().probe(), lambda scope: scope.empty().capture()),
    ],
    ids=["pact", "broadcast", "name", "kind", "length", "summary", "where a loop closes", "wiring", "end"],
)
def test_graphs_that_differ_are_refused(one: Build, other: Build) -> None:
    with pytest.raises(GraphMismatch, match=r"differs? between workers: operator \d is "):
        build_differently(one, other)


def test_a_difference_names_the_first_operator_that_differs_on_both_workers() -> None:  # engine case 49
    def main(worker: Worker) -> None:
        with worker.dataflow("counts") as scope:
            stream = scope.to_stream([1]).map(abs)
            stream = stream.filter(bool) if worker.index == 1 else stream.inspect(abs)
            stream.map(abs)

    with pytest.raises(GraphMismatch) as caught:
        run(2, main)
    text = str(caught.value)
    assert text.startswith("dataflow 0 ('counts') differs between workers: operator 2 is ")
    assert "Filter(" in text and "Inspect(" in text and "worker 0" in text and "worker 1" in text and __file__ in text
    assert text.endswith("every worker must build the same dataflow, in the same order")


@pytest.mark.parametrize("longer", [0, 1])
def test_an_operator_that_only_one_worker_has_is_named(longer: int) -> None:
    def main(worker: Worker) -> None:
        with worker.dataflow() as scope:
            stream = scope.to_stream([1])
            if worker.index == longer:
                stream.filter(bool)

    with pytest.raises(GraphMismatch, match=r"operator 1 is .*but .*on worker") as caught:
        run(2, main)
    assert "no operator" in str(caught.value) and "Filter" in str(caught.value)


@pytest.mark.parametrize("more", [0, 1])
def test_a_dataflow_that_only_one_worker_builds_is_an_error_not_a_hang(more: int) -> None:
    def main(worker: Worker) -> None:
        with worker.dataflow("both") as scope:
            scope.to_stream([1]).exchange(lambda x: x)
        if worker.index == more:
            with worker.dataflow("more") as scope:
                scope.to_stream([1]).exchange(lambda x: x)

    with pytest.raises(GraphMismatch, match=rf"dataflow 1 \('more'\) was built on worker {more} but not on") as got:
        run(2, main)
    assert "whose program has ended" in str(got.value)


def test_a_worker_that_builds_nothing_at_all_is_noticed() -> None:
    def main(worker: Worker) -> None:
        if worker.index == 0:
            with worker.dataflow() as scope:
                scope.to_stream([1])

    with pytest.raises(GraphMismatch, match=r"but not on worker [12]"):
        run(3, main)


def test_dataflows_built_in_another_order_differ() -> None:
    def main(worker: Worker) -> None:
        def mapped() -> None:
            with worker.dataflow() as scope:
                scope.to_stream([1]).map(abs)

        def filtered() -> None:
            with worker.dataflow() as scope:
                scope.to_stream([1]).filter(bool)

        for build in (mapped, filtered) if worker.index else (filtered, mapped):
            build()

    with pytest.raises(GraphMismatch, match=r"dataflow 0 .* operator 1 is "):
        run(2, main)


def test_a_dataflow_without_operators_is_complete_at_once() -> None:
    hand, worker = by_hand()
    with worker.dataflow("nothing"):
        pass
    assert worker.installed_dataflows == {0: "nothing"}
    hand.settle()
    assert worker.installed_dataflows == {}


def test_a_dataflow_is_complete_only_when_no_worker_holds_anything() -> None:
    hand = ByHand(2)
    handles = []
    for worker in hand.workers:
        with worker.dataflow() as scope:
            handle, stream = scope.new_input()
            handles.append(handle)
            stream.exchange(lambda x: x)
    handles[0].close()
    hand.settle()
    assert all(worker.installed_dataflows for worker in hand.workers)
    handles[1].send(0)
    handles[1].close()
    hand.settle()
    assert not any(worker.installed_dataflows for worker in hand.workers)


def test_a_chain_of_operators_is_crossed_in_one_step() -> None:
    _, worker = by_hand()
    seen: list[int] = []
    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        for _ in range(100):
            stream = stream.map(lambda x: x + 1)
        stream.inspect(seen.append)
    worker.step()
    handle.send(0)
    handle.flush()
    worker.step()
    assert seen == [100]


def test_a_frontier_shown_before_the_dataflow_runs_is_the_minimum() -> None:
    shown: list[Any] = []

    def build(capability: Any, info: Any) -> Callable[[Any, Any], None]:
        capability.release()

        def logic(input: Any, output: Any) -> None:
            shown.append(input.frontier.elements)

        return logic

    hand, worker = by_hand()
    with worker.dataflow() as scope:
        scope.empty().unary_frontier(Pipeline(), "Look", build)
    assert worker.graphs()[0].frontier(0).elements == (0,)
    hand.settle()
    assert shown[0] == (0,) and shown[-1] == ()


def test_records_for_a_channel_that_does_not_exist_break_the_protocol() -> None:
    hand = ByHand(2)
    with hand.workers[0].dataflow("words") as scope:
        scope.new_input()
    hand.fabric.allocator(1).send(0, Channel(Lane.DATA, 0, 9), (0, [1]))
    with pytest.raises(ProtocolError, match="dataflow 'words' has no channel 9"):
        hand.workers[0].step()


def test_the_books_name_who_holds_what() -> None:
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        handle, _ = scope.new_input()
    handle.advance_to(4)
    hand.settle()
    text = describe_pointstamps(worker.graphs()[0])
    assert "Input.out0" in text and __file__ in text and text.startswith("1 at ") and text.endswith("time 4")


def test_an_exception_while_building_leaves_no_dataflow_and_the_next_one_runs() -> None:
    hand, worker = by_hand()
    with pytest.raises(ZeroDivisionError), worker.dataflow() as scope:
        scope.to_stream([1])
        raise ZeroDivisionError
    assert worker.installed_dataflows == {}
    with worker.dataflow() as scope:
        captured = scope.to_stream([1]).capture()
    hand.settle()
    assert captured.extract() == [(0, [1])]


def test_all_workers_may_fail_to_build_the_same_dataflow_and_go_on() -> None:
    def main(worker: Worker) -> Any:
        with pytest.raises(BuildError), worker.dataflow() as scope:
            scope.to_stream([1]).exchange(lambda x: x)
            scope.feedback(1)
        with worker.dataflow() as scope:
            return scope.to_stream([worker.index]).exchange(lambda x: x + 1).capture()

    assert sorted(run(2, main)) == [[(0, [0])], [(0, [1])]]


def test_a_handle_of_a_dataflow_whose_block_raised_may_feed_the_next() -> None:
    hand, worker = by_hand()
    with pytest.raises(ZeroDivisionError), worker.dataflow("broken") as scope:
        handle, stream = scope.new_input()
        stream.inspect(lambda x: pytest.fail("it never ran"))
        raise ZeroDivisionError
    with worker.dataflow() as scope:
        captured = scope.input_from(handle).capture()
    handle.send(1)
    handle.close()
    hand.settle()
    assert captured.extract() == [(0, [1])]
