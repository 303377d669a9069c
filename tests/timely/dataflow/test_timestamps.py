"""Dataflows whose times are not ints: tuples, products, and a class of this test, on one or several workers."""

import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from megaflow.errors import BuildError, CapabilityError, TimeError
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.timely import (
    Antichain,
    EventLink,
    EventReader,
    EventWriter,
    Exchange,
    InputHandle,
    Pipeline,
    ProbeHandle,
    Product,
    Time,
    example,
)
from tests.simulation.scenarios import hold_back
from tests.timely.times import LEASTS, Divisor, Times, Unsorted
from tests.timely.workers import EVERY, by_hand, drain, run


@pytest.mark.parametrize(("timestamp", "least"), [*((each, each) for each in LEASTS), (int, 0), (Divisor, Divisor(1))])
def test_what_comes_from_an_iterable_is_at_the_least_time(timestamp: Any, least: Time) -> None:
    build: Callable[[Scope], Any] = lambda scope: scope.to_stream([2, 1]).map(lambda x: -x).capture()  # noqa: E731
    assert example(build, timestamp) == [(least, [-2, -1])]


def test_a_program_sends_at_times_that_it_advances_to_and_probes_wait_for_them() -> None:
    hand, worker = by_hand()
    handle: InputHandle[str] = InputHandle()
    with worker.dataflow(timestamp=Divisor) as scope:
        stream = scope.input_from(handle)
        captured, probe = stream.capture(), stream.probe()
    assert handle.time == Divisor(1) and probe.frontier == Antichain([Divisor(1)])
    handle.send("one")
    handle.advance_to(Divisor(6))
    handle.send("six")
    hand.settle()
    assert probe.less_than(Divisor(12)) and not probe.less_than(Divisor(6)) and not probe.less_equal(Divisor(4))
    with pytest.raises(TimeError, match=r"the input is already at Divisor\(number=6\)"):
        handle.advance_to(Divisor(8))
    with pytest.raises(TimeError, match="an int is not a time of this scope"):
        handle.advance_to(7)
    handle.close()
    hand.settle()
    assert probe.done()
    assert captured.extract() == [(Divisor(1), ["one"]), (Divisor(6), ["six"])]


def test_capabilities_at_incomparable_times_make_a_frontier_of_many() -> None:
    hand, worker = by_hand()
    with worker.dataflow(timestamp=Product((0, 0), 0)) as scope:
        handle, capability, stream = scope.new_unordered_input()
        captured, probe = stream.capture(), stream.probe()
    times = [Product((0, 5), 3), Product((1, 0), 1), Product((2, 0), 0), Product((2, 7), 0)]
    held = [capability.delayed(time) for time in times]
    capability.release()
    hand.settle()
    assert probe.frontier.elements == tuple(times[:3])
    assert probe.less_equal(Product((1, 9), 1)) and not probe.less_equal(Product((1, 9), 0))
    with handle.session(held[1]) as session:
        session.give("x")
    for each in held:
        each.release()
    hand.settle()
    assert probe.done() and captured.extract() == [(times[1], ["x"])]


def test_a_notificator_tells_of_times_in_an_order_that_extends_theirs() -> None:
    notified: list[Time] = []

    def build(scope: Scope) -> Any:
        numbers = [12, 6, 4, 3, 2, 1, 1, 9]
        return scope.to_stream(numbers).delay(lambda x, time: Divisor(x)).unary_notify(Pipeline, "Tell", tell).capture()

    def tell(source: Any, output: Any, notificator: Any) -> None:
        for time, _ in source:
            notificator.notify_at(time.retain())
        notificator.for_each([source.frontier], lambda held, count: notified.append(held.time))

    example(build, Divisor)
    assert notified == [Divisor(x) for x in (1, 2, 3, 4, 6, 9, 12)]


@pytest.mark.parametrize("workers", EVERY)
def test_a_loop_multiplies_times_until_they_leave_what_the_path_allows(workers: int) -> None:
    def main(worker: Worker) -> Any:
        with worker.dataflow(timestamp=Divisor) as scope:
            handle, back = scope.feedback(Times(2))
            start = scope.to_stream([1] if worker.index == 0 else [])
            rounds = start.concat(back).exchange(lambda x: x).map(lambda x: x + 1)
            rounds.connect_loop(handle)
            return rounds.capture()

    found = [entry for part in run(workers, main) for entry in part]
    assert sorted(found, key=lambda entry: entry[0]) == [(Divisor(2**n), [n + 2]) for n in range(13)], "up to 4096"


@pytest.mark.parametrize("workers", EVERY)
@pytest.mark.parametrize(("timestamp", "step"), [((0, 0), (0, 1)), (Product(0, 0), Product(1, 1)), (Divisor, Times(3))])
def test_a_nested_scope_adds_a_round_to_the_times_around_it(workers: int, timestamp: Any, step: Any) -> None:
    def main(worker: Worker) -> Any:
        with worker.dataflow(timestamp=timestamp) as scope:
            outer_handle, outer = scope.feedback(step)
            start = scope.to_stream([10] if worker.index == 0 else []).concat(outer)
            with scope.scoped("loop") as inner:
                handle, back = inner.loop_variable(1)
                values = start.enter(inner).concat(back).exchange(lambda x: x).map(lambda x: x - 1)
                going, ended = values.branch(lambda time, x: x % 3 == 0)
                going.connect_loop(handle)
                rounds = ended.capture()
            left = ended.leave()
            left.filter(lambda x: x > 0).connect_loop(outer_handle)
        drain(worker)
        return rounds.extract()

    seen = Counter((time.inner, x) for rounds in run(workers, main) for time, xs in rounds for x in xs)
    assert seen == {(0, 9): 1, (2, 6): 1, (2, 3): 1, (2, 0): 1}


@pytest.mark.parametrize("workers", EVERY)
def test_results_of_a_time_come_when_it_is_closed_however_many_hold_others(workers: int) -> None:
    """Each worker takes its own path through the times. A count waits for all workers that could still add to its time.
    """

    def main(worker: Worker) -> Any:
        handle: InputHandle[str] = InputHandle()
        with worker.dataflow(timestamp=Product(0, 0)) as scope:
            stream = scope.input_from(handle).exchange(lambda word: len(word))
            counts, probe = stream.count().capture(), stream.probe()
        for step in range(1, 6):
            handle.send("word")
            time = Product(step, 0) if worker.index % 2 else Product(0, step)
            handle.advance_to(time)
            worker.step()
        handle.advance_to(Product(5, 5))
        worker.step_while(lambda: probe.less_than(handle.time))
        handle.close()
        drain(worker)
        return counts.extract()

    found = [entry for part in run(workers, main) for entry in part]
    odd, even = workers // 2, workers - workers // 2
    expected = [(Product(0, 0), [workers])]
    expected += [(Product(0, n), [even]) for n in range(1, 5)]
    expected += [(Product(n, 0), [odd]) for n in range(1, 5) if odd]
    assert sorted(found, key=lambda entry: tuple(entry[0])) == sorted(expected, key=lambda entry: tuple(entry[0]))


@pytest.mark.parametrize("timestamp", LEASTS[1:])
def test_a_captured_stream_is_replayed_at_its_times_from_memory_and_from_a_file(timestamp: Time) -> None:
    file, link = io.BytesIO(), EventLink()

    def build(scope: Scope) -> None:
        stream = scope.to_stream(["b", "a"])
        stream.capture_into(link)
        stream.capture_into(EventWriter(file))

    example(build, timestamp)
    for source in (link, EventReader(io.BytesIO(file.getvalue()))):
        assert example(lambda scope, s=source: scope.replay([s]).capture(), timestamp) == [(timestamp, ["a", "b"])]


def test_a_stream_captured_at_other_times_is_refused() -> None:
    link = EventLink()
    example(lambda scope: scope.to_stream([1]).capture_into(link), (0, 0))
    with pytest.raises(Exception, match=r"times are like \(0, 0\), but those here are like Divisor\(number=1\)"):
        example(lambda scope: scope.replay([link]).capture(), Divisor)


def test_explain_says_what_holds_such_a_time_back() -> None:
    hand, worker = by_hand()
    with worker.dataflow("versions", timestamp=Divisor) as scope:
        handle, back = scope.feedback(Times(5))
        _, capability, stream = scope.new_unordered_input()
        probe = stream.concat(back).probe()
        stream.connect_loop(handle)
    held = [capability.delayed(Divisor(n)) for n in (4, 6)]
    capability.release()
    hand.settle()
    times = {n: [each.time for each in worker.explain(probe, Divisor(n))] for n in (12, 8, 9, 30)}
    assert times == {12: [Divisor(4), Divisor(6)], 8: [Divisor(4)], 9: [], 30: [Divisor(6)]}
    for each in held:
        each.release()
    drain(worker)


def test_an_error_in_a_function_names_the_time() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        example(lambda scope: scope.to_stream([0]).map(lambda x: 1 / x).capture(), (0, 0))
    assert "time (0, 0)" in "\n".join(caught.value.__notes__)


@dataclass(frozen=True, slots=True)
class Unordered:
    """Times without order: none is less than or equal to another."""

    @classmethod
    def minimum(cls) -> "Unordered":
        return cls()


class Unhashable(Divisor):
    """Times that no longer equal themselves after travelling."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = Divisor.__hash__


@pytest.mark.parametrize(
    ("timestamp", "complaint"),
    [
        (float, "float: a class of times has a class method minimum()"),
        (Product, r"=Product: give the least time, such as Product\(0, 0\)"),
        (Product(int, 0), "a tuple or Product must contain the least time, such as 0, not a class: int"),
        (0.5, "0.5 is not a least time"),
        (3, "the least int time is 0, not 3"),
        ((0, "x"), "'x' is not a least time"),
        (Product(0, None), "None is not a least time"),
        (Unordered, "Unordered.. is not a least time; .* or a class with minimum.., less_equal.other."),
        (Unhashable, "would arrive at other workers as .*, which is not equal to it"),
    ],
)
def test_what_is_no_kind_of_time_is_refused_when_the_dataflow_is_begun(timestamp: Any, complaint: str) -> None:
    with pytest.raises(BuildError, match=complaint):
        example(lambda scope: scope.empty().capture(), timestamp)


@dataclass(frozen=True, slots=True)
class Resting(Times):
    """Path that leaves some times, or the least, unchanged."""

    rests: int = 0

    def results_in(self, time: Divisor, /) -> Divisor | None:
        return time if time.number == self.rests else Divisor(time.number * self.factor)


class Hidden:
    """Path that cannot be compared with that of another worker."""

    results_in = followed_by = less_equal = None


@pytest.mark.parametrize(
    ("timestamp", "step", "complaint"),
    [
        (Divisor, Hidden(), "and a Hidden must be shown by what it holds"),
        (Divisor, 1, "0 or, as times are like Divisor.*, a Divisor or a PathSummary of such times"),
        (Divisor, Resting, "0 or, as times are like Divisor.*, a Divisor or a PathSummary of such times"),
        (Divisor, Resting(2, rests=1), "0 or a PathSummary that strictly advances every time: .*, which is not after"),
        ((0, 0), 1, r"0 or, as times are like \(0, 0\), a tuple with a step for each part"),
        ((0, 0), (1, 2, 3), "0 or, as times are like .*, a tuple with a step for each part"),
        ((0, 0), (1, -1), "an int of at least 0"),
        (Product(0, 0), 1, "a Product of steps"),
        (Product(0, 0), Product(1, True), "an int of at least 0"),
    ],
)
def test_a_feedback_needs_a_step_of_its_times(timestamp: Any, step: Any, complaint: str) -> None:
    with pytest.raises(BuildError, match=rf"feedback\(.*\): the summary, .*, must be {complaint}"):
        example(lambda scope: scope.feedback(step), timestamp)


def test_a_path_summary_that_keeps_a_time_where_it_is_stops_the_program() -> None:
    def build(scope: Scope) -> None:
        handle, back = scope.feedback(Resting(2, rests=4))
        scope.to_stream([1]).concat(back).connect_loop(handle)

    with pytest.raises(TimeError, match=r"results_in\(Divisor\(number=4\)\) gave Divisor\(number=4\), which is not"):
        example(build, Divisor)


def test_a_cycle_that_keeps_such_a_time_is_refused() -> None:
    def build(scope: Scope) -> None:
        handle, back = scope.feedback(0)
        scope.to_stream([1]).concat(back).connect_loop(handle)

    with pytest.raises(BuildError, match="does not advance the time"):
        example(build, (0, 0))


def test_state_that_moves_needs_int_times() -> None:
    def build(scope: Scope) -> Any:
        pairs = scope.to_stream([("a", 1)])
        return pairs.stateful_state_machine(lambda key, value, state: (value, []), name="latest").capture()

    with pytest.raises(BuildError, match="latest: stateful operators need a dataflow with int times; here"):
        example(build, (0, 0))


def test_one_probe_watches_times_of_one_kind_and_one_handle_feeds_one_stream() -> None:
    _, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    probe = ProbeHandle()
    with worker.dataflow(timestamp=(0, 0)) as scope:
        scope.input_from(handle).probe_with(probe)
        with pytest.raises(BuildError, match=r"already feeds a stream, and with times like \(0, 0\) it can"):
            scope.input_from(handle)
    with worker.dataflow() as scope:
        with pytest.raises(BuildError, match=r"the handle sends at times like \(0, 0\), .* are like 0; use another"):
            scope.input_from(handle)
        with pytest.raises(BuildError, match=r"watches times like \(0, 0\), but those of .* are like 0; use another"):
            scope.empty().probe_with(probe)


def test_keyed_operators_of_one_time_work_at_any() -> None:
    def build(scope: Scope) -> Any:
        words = scope.to_stream([("a", 6), ("b", 4), ("a", 6)]).delay(lambda record, time: Divisor(record[1]))
        machine = words.state_machine(lambda key, value, state: ((state or 0) + 1, [(key, (state or 0) + 1)]))
        summed = words.aggregate(lambda key, value, state: (state or 0) + value, lambda key, state: (key, state))
        exchanged = words.unary_frontier(Exchange(lambda record: record[1]), "Same", hold_back)
        return machine.capture(), summed.capture(), exchanged.capture()

    machine, summed, exchanged = example(build, Divisor)
    assert machine == [(Divisor(4), [("b", 1)]), (Divisor(6), [("a", 1), ("a", 2)])]
    assert summed == [(Divisor(4), [("b", 4)]), (Divisor(6), [("a", 12)])]
    assert exchanged == [(Divisor(4), [("b", 4)]), (Divisor(6), [("a", 6), ("a", 6)])]


def test_a_capability_moves_on_only_to_times_of_its_kind_at_or_after_its_own() -> None:
    _, worker = by_hand()
    with worker.dataflow(timestamp=Product((0, 0), 0)) as scope:
        _, capability, _ = scope.new_unordered_input()
    capability.downgrade(Product((1, 0), 2))
    for wrong in (Product(1, 2), (1, 0), Product((1, 0, 0), 2), Product((1, 0.5), 2)):
        with pytest.raises(TimeError, match="is not a time of this scope; times here are like"):
            capability.downgrade(wrong)
    with pytest.raises(TimeError, match="capabilities only move forward"):
        capability.downgrade(Product((2, 0), 1))
    capability.release()
    with pytest.raises(CapabilityError):
        capability.clone()


# Classes of times without `<` --------------------------------------------------------------


def factored(kind: Any, worker: Worker) -> Any:
    """Build a loop, notifications, states and a probe over times ordered by divisibility."""
    numbers: InputHandle[int] = InputHandle()
    probe = ProbeHandle()

    def count(input: Any, output: Any, notificator: Any) -> None:
        for time, _ in input:
            notificator.notify_at(time.retain())
        notificator.for_each(lambda time, count: output.session(time).give(count))

    def build(scope: Scope) -> Any:
        handle, back = scope.feedback(Times(2, 48))
        grown = numbers.to_stream(scope).concat(back).exchange(lambda x: x)
        grown.probe_with(probe).connect_loop(handle)
        counts = grown.unary_notify(Pipeline, "Count", count)
        states = grown.map(lambda x: (x, 1)).state_machine(lambda key, value, state: ((state or 0) + 1, [key]))
        return grown.capture(), counts.capture(), states.accumulate(0, lambda total, x: total + x).capture()

    captured = worker.dataflow(build, timestamp=kind)
    capabilities = [1, 2, 6, 12] if worker.index == 0 else [1, 3, 12]
    for number in capabilities:
        numbers.advance_to(kind(number))
        numbers.send(number)
        worker.step()
    worker.step_while(lambda: probe.less_than(kind(4)))
    numbers.close()
    worker.step_while(lambda: not probe.done())
    drain(worker)
    return [sorted((time.number, each) for time, each in part.extract()) for part in captured]


@pytest.mark.parametrize("workers", EVERY)
def test_a_class_of_times_needs_no_order_to_sort_by(workers: int) -> None:
    results = [run(workers, lambda worker, kind=kind: factored(kind, worker)) for kind in (Divisor, Unsorted)]
    assert results[0] == results[1]


def test_what_is_sorted_by_time_extends_a_partial_order() -> None:
    numbers = [12, 4, 2, 9, 6, 1, 3, 8]
    times = [example(build_at(numbers, kind), Unsorted) for kind in ("capture", "notify", "reclock")]
    for each in times:
        found = [time.number for time, _ in each] if isinstance(each[0], tuple) else each
        assert sorted(found) == sorted(numbers)
        assert extends_divisibility(found), found


def extends_divisibility(numbers: list[int]) -> bool:
    return all(b % a or a == b or numbers.index(a) < numbers.index(b) for a in numbers for b in numbers)


def build_at(numbers: list[int], kind: str) -> Callable[[Scope], Any]:
    """Send records at these times; return what is captured, or the order in which the times are notified."""
    order: list[int] = []

    def notify(input: Any, output: Any, notificator: Any) -> None:
        for time, _ in input:
            notificator.notify_at(time.retain())
        assert extends_divisibility([time.number for time in notificator.pending()])
        notificator.for_each(lambda time, count: order.append(time.time.number))

    def build(scope: Scope) -> Any:
        stream = scope.to_stream(numbers).delay(lambda x, time: Unsorted(x))
        if kind == "capture":
            return stream.capture()
        if kind == "notify":
            stream.unary_notify(Pipeline, "Notify", notify)
        else:
            clock = scope.to_stream([72]).delay(lambda x, time: Unsorted(x))
            stream.reclock(clock).inspect(order.append)
        return order

    return build


def test_frontiers_of_times_without_an_order_are_sets() -> None:
    two, three = Antichain([Unsorted(2), Unsorted(3)]), Antichain([Unsorted(3), Unsorted(6), Unsorted(2)])
    assert two == three and two != Antichain([Unsorted(2), Unsorted(5)]) and two != Antichain([Unsorted(2)])
