"""FrontierNotificator, and the operators that receive one."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from megaflow.errors import CapabilityError, TimeError
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.testing import EngineCluster
from megaflow.timely import (
    Antichain,
    Capability,
    FrontierNotificator,
    InputHandle,
    OperatorInfo,
    Pipeline,
    Product,
    Time,
    example,
    less_than,
)
from megaflow.timely.dataflow.capability import mint
from megaflow.timely.order import coordinates, from_coordinates
from megaflow.timely.progress.change_batch import ChangeBatch
from tests.timely.cases import run_threads
from tests.timely.workers import EVERY, by_hand


class Books:
    """Output, as far as its capabilities know it."""

    def __init__(self, location: int = 0) -> None:
        self.location = location
        self.number = 0
        self.title = "output 0 of 'Test'"
        self.where = "test_notificator.py:1"
        self.changes: ChangeBatch[tuple[int, Time]] = ChangeBatch()
        self.retained: dict[Time, Any] = {}
        self.is_running = lambda: True

    def held(self) -> dict[Time, int]:
        """Return time -> number of held capabilities."""
        return {time: count for (_, time), count in self.changes}


def notified(notificator: FrontierNotificator, *frontiers: Antichain) -> list[tuple[Time, int]]:
    """Return times and counts of one `for_each`."""
    found: list[tuple[Time, int]] = []
    notificator.for_each(frontiers, lambda capability, count: found.append((capability.time, count)))
    notificator._check()
    return found


# By itself ----------------------------------------------------------------------------------


def test_notifications_follow_the_partial_order_and_take_in_what_is_requested_meanwhile() -> None:
    """Case 13."""
    books, notificator = Books(), FrontierNotificator()
    for pair in [(3, 5), (5, 4), (1, 2), (1, 1), (1, 1), (5, 4), (6, 0), (6, 2), (5, 8)]:
        notificator.notify_at(mint(books, Product(*pair)))
    assert notified(notificator, Antichain([Product(0, 0)])) == []
    assert notified(notificator, Antichain([Product(5, 7), Product(6, 1)])) == [
        (Product(1, 1), 2),
        (Product(1, 2), 1),
        (Product(3, 5), 1),
        (Product(5, 4), 2),
        (Product(6, 0), 1),
    ]
    assert notificator.pending() == [Product(5, 8), Product(6, 2)]
    found: list[Time] = []

    def f(capability: Capability, count: int) -> None:
        found.append(capability.time)
        if capability.time == Product(5, 8):
            notificator.notify_at(capability.delayed(Product(5, 9)))

    notificator.for_each([Antichain([Product(6, 10)])], f)
    assert found == [Product(5, 8), Product(5, 9), Product(6, 2)]
    assert notificator.pending() == [] and books.held() == {}


def test_all_frontiers_have_to_pass() -> None:
    books, notificator = Books(), FrontierNotificator()
    notificator.notify_at(mint(books, 3))
    assert notified(notificator, Antichain([9]), Antichain([3])) == []
    assert notified(notificator, Antichain([9]), Antichain([4])) == [(3, 1)]


def test_without_frontiers_every_time_is_over() -> None:
    books, notificator = Books(), FrontierNotificator()
    notificator.notify_at(mint(books, 3))
    assert notified(notificator, Antichain()) == [(3, 1)]


def test_k_requests_for_a_time_are_one_notification_with_count_k_whoever_holds_them() -> None:
    books, notificator = Books(), FrontierNotificator()
    capability = mint(books, 4)
    notificator.notify_at(capability)
    notificator.notify_at(capability)  # as retained twice
    notificator.notify_at(capability.clone())
    assert books.held() == {4: 1}, "one hold is enough"
    assert notified(notificator, Antichain([5])) == [(4, 3)]
    assert books.held() == {} and not capability.held


def test_requests_for_two_outputs_stay_apart() -> None:
    notificator = FrontierNotificator()
    first, second = mint(Books(1), 4), mint(Books(2), 4)
    for capability in (first, second, first):
        notificator.notify_at(capability)
    found: list[tuple[Capability, int]] = []
    notificator.for_each([Antichain()], lambda capability, count: found.append((capability, count)))
    assert found == [(first, 2), (second, 1)]


def test_a_capability_is_held_during_the_notification_and_released_after_it() -> None:
    books, notificator = Books(), FrontierNotificator()
    kept: list[Capability] = []

    def f(capability: Capability, count: int) -> None:
        assert capability.held and books.held() == {1: 1}
        kept.append(capability.clone())

    notificator.notify_at(mint(books, 1))
    notificator.for_each([Antichain()], f)
    assert books.held() == {1: 1}, "a clone is the operator's own"
    kept[0].release()


def test_a_capability_may_be_moved_on_and_requested_with_again() -> None:
    books, notificator = Books(), FrontierNotificator()
    found: list[Time] = []

    def f(capability: Capability, count: int) -> None:
        found.append(capability.time)
        if capability.time != 3:
            assert isinstance(capability.time, int)
            capability.downgrade(capability.time + 1)
            notificator.notify_at(capability)

    notificator.notify_at(mint(books, 0))
    notificator.for_each([Antichain([2])], f)
    assert found == [0, 1] and notificator.pending() == [2] and books.held() == {2: 1}
    notificator.for_each([Antichain()], f)
    assert found == [0, 1, 2, 3] and books.held() == {}


def test_an_error_in_a_notification_says_of_which_time() -> None:
    notificator = FrontierNotificator()
    notificator.notify_at(mint(Books(), 7))
    with pytest.raises(ZeroDivisionError) as caught:
        notificator.for_each([Antichain()], lambda capability, count: 1 // 0)
    assert caught.value.__notes__ == ["while notified of time 7"]


def test_a_request_without_a_right_is_refused() -> None:
    notificator = FrontierNotificator()
    capability = mint(Books(), 7)
    capability.release()
    with pytest.raises(CapabilityError, match=r"notify_at: .*7.*released.*request the notification before the release"):
        notificator.notify_at(capability)
    with pytest.raises(CapabilityError, match=r"a list of the frontiers of all inputs, such as \[input.frontier\]"):
        notificator.for_each(Antichain([7]), print)  # type: ignore[arg-type]
    with pytest.raises(CapabilityError, match=r"notify_at\(7\): this is not a capability.*at\(time.retain\(\)\)"):
        notificator.notify_at(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_notifications_are_those_of_a_list_that_is_searched(depth: int, seed: int) -> None:
    """Compare with an obvious model, with requests before, between and after frontiers."""
    random, books, notificator = Random(seed), Books(), FrontierNotificator()
    model: Counter[Time] = Counter()

    def draw(low: int) -> Time:
        return from_coordinates(tuple(random.randint(low, low + 4) for _ in range(depth)))

    def later(time: Time) -> Time:
        """Return the time itself, or one with some larger coordinates, since frontiers never go back."""
        return from_coordinates(tuple(each + random.choice((0, 0, 1, 3)) for each in coordinates(time)))

    def request(low: int) -> None:
        time = draw(low)
        model[time] += 1
        notificator.notify_at(mint(books, time))

    def f(capability: Capability, count: int) -> None:
        assert model.pop(capability.time) == count
        assert not any(less_than(time, capability.time) and not frontier.less_equal(time) for time in model)
        assert not frontier.less_equal(capability.time)

    frontier = Antichain([draw(0), draw(0)])
    for low in range(12):
        for _ in range(random.randrange(6)):
            request(low)
        frontier = Antichain([later(time) for time in frontier.elements for _ in range(2)])
        notificator.for_each([frontier], f)
        notificator._check()
        assert all(frontier.less_equal(time) for time in model)
        assert notificator.pending() == sorted(model, key=coordinates)
    frontier = Antichain()
    notificator.for_each([frontier], f)
    assert not model and books.held() == {}


# In operators -------------------------------------------------------------------------------


def buffered(left: Stream[int], right: Stream[int]) -> Stream[int]:
    """Merge two streams time by time, each time once neither input can have more of it."""
    stash: dict[Time, list[int]] = {}

    def logic(input1: Any, input2: Any, output: Any, notificator: FrontierNotificator) -> None:
        for source in (input1, input2):
            for time, data in source:
                stash.setdefault(time.time, []).extend(data)
                notificator.notify_at(time.retain())

        def send(capability: Capability, count: int) -> None:
            output.session(capability).give_batch(stash.pop(capability.time))

        notificator.for_each([input1.frontier, input2.frontier], send)

    return left.binary_notify(right, Pipeline(), Pipeline(), "ConcatBuffer", logic)


@pytest.mark.parametrize("workers", EVERY)
def test_two_streams_merged_by_a_notificator_come_out_in_the_order_of_time(workers: int) -> None:
    """Case 28."""

    def main(worker: Worker) -> list[Any]:
        first, second = InputHandle[int](), InputHandle[int]()
        seen: list[Any] = []
        with worker.dataflow() as scope:
            merged = buffered(
                scope.input_from(first).exchange(lambda x: x), scope.input_from(second).exchange(lambda x: x)
            )
            probe = merged.inspect_time(lambda *pair: seen.append(pair)).probe()
        for number in range(10):
            first.send(number)
            first.advance_to(number + 1)
            worker.step()
        assert seen == [], "the second input has not passed time 0"
        for number in range(10):
            second.send(number)
            second.advance_to(number + 1)
            worker.step_while(lambda: probe.less_than(second.time))
        return seen

    results = run_threads(workers, main)
    assert all(seen == sorted(seen) for seen in results)
    assert Counter(pair for seen in results for pair in seen) == Counter({(x, x): 2 * workers for x in range(10)})


@pytest.mark.parametrize("seed", range(4))
def test_the_merge_is_exact_whatever_the_delivery(seed: int) -> None:
    """Case 28."""
    feeds = {worker: [(time, time) for time in range(10)] for worker in range(3)}
    seen: list[list[Any]] = []

    def build(worker: Worker, records: Any, commands: Any) -> Any:
        mine: list[Any] = []
        seen.append(mine)
        merged = buffered(records.exchange(lambda x: x), records.exchange(lambda x: x + 1))
        return merged.inspect_time(lambda time, x: mine.append(time))

    outputs = EngineCluster(seed).run(build, feeds)
    assert Counter(outputs) == Counter({(time, time): 6 for time in range(10)})
    assert all(times == sorted(times) for times in seen)


@pytest.mark.parametrize("workers", EVERY)
def test_an_operator_is_notified_once_a_time_with_the_number_of_batches(workers: int) -> None:
    def main(worker: Worker) -> list[Any]:
        seen: list[Any] = []

        def logic(input: Any, output: Any, notificator: FrontierNotificator) -> None:
            for time, data in input:
                output.session(time).give_batch(data)
                notificator.notify_at(time.retain())
            notificator.for_each([input.frontier], lambda capability, count: seen.append((capability.time, count)))

        handle: InputHandle[int] = InputHandle()
        with worker.dataflow() as scope:
            probe = scope.input_from(handle).unary_notify(Pipeline(), "Mine", logic).probe()
        for number in range(3):
            for _ in range(2):
                handle.send(number)
                handle.flush()
            handle.advance_to(number + 1)
            worker.step_while(lambda: probe.less_than(handle.time))
        return seen

    assert run_threads(workers, main) == [[(0, 2), (1, 2), (2, 2)]] * workers


def test_an_operator_may_be_notified_of_times_without_records() -> None:
    hand, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    seen: list[Any] = []

    def logic(input: Any, output: Any, notificator: FrontierNotificator) -> None:
        def f(capability: Capability, count: int) -> None:
            output.session(capability).give(("over", capability.time))

        notificator.for_each([input.frontier], f)

    with worker.dataflow() as scope:
        stream = scope.input_from(handle).unary_notify(Pipeline(), "Mine", logic, init=[4, 2])
        probe = stream.inspect_time(lambda *pair: seen.append(pair)).probe()
    hand.settle()
    assert probe.frontier.elements == (0,)
    handle.advance_to(3)
    hand.settle()
    assert seen == [(2, ("over", 2))] and probe.frontier.elements == (3,)
    handle.close()
    hand.settle()
    assert seen[1:] == [(4, ("over", 4))] and probe.done()


def test_a_time_that_was_over_when_it_was_requested_is_notified_nevertheless() -> None:
    """Nothing more moves that would run the operator, so the request itself must."""
    hand, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    seen: list[Time] = []

    def build(capability: Capability, info: OperatorInfo) -> Callable[[Any, Any], None]:
        notificator = FrontierNotificator(info.activator)
        for_each = notificator.for_each

        def logic(input: Any, output: Any) -> None:
            for_each([input.frontier], lambda capability, count: seen.append(capability.time))
            if capability.held and input.frontier.is_empty():
                notificator.notify_at(capability)  # after for_each, and no frontier will move

        return logic

    with worker.dataflow() as scope:
        probe = scope.input_from(handle).unary_frontier(Pipeline(), "Late", build).probe()
    hand.settle()
    handle.close()
    hand.settle()
    assert seen == [0] and probe.done() and not worker.installed_dataflows


def test_a_notification_chain_runs_to_its_end() -> None:
    """Each notification requests the next time, across all times that end at once."""
    seen: list[Time] = []

    def logic(input: Any, output: Any, notificator: FrontierNotificator) -> None:
        def f(capability: Capability, count: int) -> None:
            assert isinstance(capability.time, int)
            seen.append(capability.time)
            if capability.time < 1000:
                notificator.notify_at(capability.delayed(capability.time + 1))

        notificator.for_each([input.frontier], f)

    example(lambda scope: scope.empty().unary_notify(Pipeline(), "Chain", logic, init=[0]))
    assert seen == list(range(1001))


def test_times_of_nested_scopes_are_notified_in_an_order_that_extends_theirs() -> None:
    times = [Product(outer, inner) for outer in range(3) for inner in range(3)]
    seen: list[Any] = []

    def logic(input: Any, output: Any, notificator: FrontierNotificator) -> None:
        for time, _ in input:
            notificator.notify_at(time.retain())

        def f(capability: Capability, count: int) -> None:
            assert not any(less_than(capability.time, earlier) for earlier in seen)
            seen.append(capability.time)

        notificator.for_each([input.frontier], f)

    def build(scope: Scope) -> None:
        with scope.iterative() as inner:
            stream = scope.to_stream(times[::-1]).enter(inner).delay(lambda time, _: time)
            stream.unary_notify(Pipeline(), "Mine", logic)

    example(build)
    assert sorted(seen, key=coordinates) == times and len(seen) == 9


def test_a_time_to_begin_with_must_be_one_of_the_scope() -> None:
    with pytest.raises(TimeError, match=r"delayed\(-1\).*only move forward"):
        example(lambda scope: scope.empty().unary_notify(Pipeline(), "Mine", lambda i, o, n: None, init=[-1]))
