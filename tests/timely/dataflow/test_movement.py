"""Moving records between workers, between streams, and around loops."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from megaflow.errors import BuildError, ProgramError
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.testing import EngineCluster
from megaflow.timely import Capability, Exchange, InputHandle, Pipeline, example
from tests.timely.workers import EVERY, by_hand, drain, run

Logic = Callable[[Any, Any], None]


def is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


@pytest.mark.parametrize("workers", EVERY)
def test_there_are_1229_primes_below_ten_thousand(workers: int) -> None:  # engine case 4
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            numbers = scope.to_stream(range(worker.index, 10_000, worker.peers))
            return numbers.exchange(lambda x: x).filter(is_prime).capture()

    found = run(workers, main)
    for index, capture in enumerate(found):
        assert all(prime % workers == index for _, primes in capture for prime in primes)
    primes = sorted(prime for capture in found for _, primes in capture for prime in primes)
    assert len(primes) == 1229
    assert primes == [n for n in range(10_000) if is_prime(n)]


@pytest.mark.parametrize("workers", EVERY)
@pytest.mark.parametrize("advance", [True, False], ids=["advancing to each round", "advancing after each round"])
def test_what_every_worker_sends_in_every_round_arrives_by_value(workers: int, advance: bool) -> None:  # case 5
    rounds, size = 5, 1501

    def main(worker: Worker) -> Any:
        handle: InputHandle[int] = InputHandle()
        with worker.dataflow() as scope:
            captured = scope.input_from(handle).exchange(lambda x: x).capture()
        for number in range(rounds):
            if advance:
                handle.advance_to(number)
            for x in range(size):
                handle.send(x)
            if not advance:
                handle.advance_to(number + 1)
            worker.step()
        return captured

    for index, captured in enumerate(run(workers, main)):
        wanted = sorted([x for x in range(size) if x % workers == index] * workers)
        assert captured == [(number, wanted) for number in range(rounds)]


@pytest.mark.parametrize("workers", EVERY)
def test_broadcast_gives_every_worker_a_copy(workers: int) -> None:
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            return scope.to_stream(range(2000) if worker.index == 0 else []).broadcast().capture()

    assert run(workers, main) == [[(0, list(range(2000)))]] * workers


@pytest.mark.parametrize("key", [-1, -7, 2**70, True])
def test_any_int_is_a_key(key: int) -> None:
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            return scope.to_stream([key] if worker.index == 0 else []).exchange(lambda x: x).capture()

    found = run(3, main)
    assert [bool(capture) for capture in found] == [key % 3 == index for index in range(3)]


@pytest.mark.parametrize("workers", EVERY)
@pytest.mark.parametrize("key", ["word", 1.5, None])
def test_a_key_that_is_no_int_is_refused_with_the_record_the_remedy_and_the_place(workers: int, key: Any) -> None:
    def main(worker: Worker) -> None:
        with worker.dataflow() as scope:
            scope.to_stream(["record"]).map(str).exchange(lambda record: key)

    with pytest.raises(ProgramError, match=rf"key of 'record' is {key!r}, a .*stable_hash") as caught:
        run(workers, main)
    [note] = caught.value.__notes__
    assert note.startswith("in operator 'Exchange'") and __file__ in note


@pytest.mark.parametrize("workers", EVERY)
def test_concat_joins_streams_and_moves_nothing(workers: int) -> None:  # engine case 30
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            numbers = scope.to_stream(range(10)).map(lambda x: (worker.index, x))
            thirds = [numbers.filter(lambda pair, third=third: pair[1] % 3 == third) for third in range(3)]
            return scope.concatenate(thirds).concat(scope.to_stream([(worker.index, 10)])).capture()

    assert run(workers, main) == [[(0, [(index, x) for x in range(11)])] for index in range(workers)]


def test_a_concatenation_of_nothing_is_empty() -> None:
    assert example(lambda scope: scope.concatenate([]).capture()) == []


# Loops --------------------------------------------------------------------------------------


def barrier_loop(worker: Worker, deliveries: list[tuple[int, int]]) -> None:
    """A notificator in a loop: each time that the frontier has passed requests the next one, up to 99."""

    def build(first: Capability, info: Any) -> Logic:
        wanted: dict[int, list[Capability]] = {0: [first], 1: [first.delayed(1)]}

        def logic(input: Any, output: Any) -> None:
            due = [time for time in sorted(wanted) if not input.frontier.less_equal(time)]
            assert len(due) <= 1, "a later time is due only after this one is given up"
            for time in due:
                requests = wanted.pop(time)
                deliveries.append((time, len(requests)))
                if time + 1 < 100:
                    wanted.setdefault(time + 1, []).append(requests[0].delayed(time + 1))
                for request in requests:
                    request.release()

        return logic

    with worker.dataflow() as scope:
        handle, back = scope.feedback(1)
        back.unary_frontier(Pipeline(), "Barrier", build).connect_loop(handle)


@pytest.mark.parametrize("workers", EVERY)
def test_a_frontier_inside_a_cycle_moves_past_the_operators_own_capability(workers: int) -> None:  # engine case 8
    def main(worker: Worker) -> list[tuple[int, int]]:
        deliveries: list[tuple[int, int]] = []
        barrier_loop(worker, deliveries)
        drain(worker)
        return deliveries

    wanted = [(time, 2 if time == 1 else 1) for time in range(100)]
    assert run(workers, main) == [wanted] * workers


COLLATZ = [9, 8, 7, 5, 5, 4, 4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1]  # time -> values


def collatz(stream: Any, scope: Any, see: Callable[[int, int], object]) -> Any:
    handle, back = scope.feedback(1)
    stepped = stream.concat(back).map(lambda x: x // 2 if x % 2 == 0 else 3 * x + 1).inspect_time(see)
    stepped.filter(lambda x: x != 1).connect_loop(handle)
    return stepped


@pytest.mark.parametrize("workers", EVERY)
def test_the_collatz_loop_ends_by_itself(workers: int) -> None:  # engine case 15
    def main(worker: Worker) -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []
        with worker.dataflow() as scope:
            starts = scope.to_stream(range(1 + worker.index, 10, worker.peers)).exchange(lambda x: x)
            collatz(starts, scope, lambda time, x: seen.append((time, x)))
        drain(worker)
        return seen

    seen = [pair for each in run(workers, main) for pair in each]
    check_collatz(seen)


def check_collatz(seen: list[tuple[Any, int]]) -> None:
    values = [x for _, x in seen]
    histogram = Counter(time for time, _ in seen)
    assert (len(values), sum(values), max(values)) == (64, 755, 52)
    assert [histogram[time] for time in sorted(histogram)] == COLLATZ


@pytest.mark.parametrize("seed", range(6))
def test_the_collatz_loop_ends_whatever_the_order_of_delivery(seed: int) -> None:  # engine case 15
    seen: list[tuple[Any, int]] = []

    def build(worker: Worker, records: Any, commands: Any) -> Any:
        scope = Scope(records.port.scope)
        return collatz(records, scope, lambda time, x: seen.append((time, x))).exchange(lambda x: x + 1)

    feeds = {worker: [(0, x) for x in range(1, 10) if x % 3 == worker] for worker in range(3)}
    EngineCluster(seed).run(build, feeds)
    check_collatz(seen)


@pytest.mark.parametrize("workers", EVERY)
def test_two_loops_may_share_operators(workers: int) -> None:  # engine case 17
    def main(worker: Worker) -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []

        def see(time: Any, x: int) -> None:
            seen.append((time, x))

        with worker.dataflow() as scope:
            even_handle, evens = scope.feedback(1)
            odd_handle, odds = scope.feedback(1)
            mine = range(1 + worker.index, 10, worker.peers)
            start = scope.to_stream(mine).exchange(lambda x: x)
            halved = start.filter(lambda x: x % 2 == 0).concat(evens).map(lambda x: x // 2)
            tripled = start.filter(lambda x: x % 2 == 1).concat(odds).map(lambda x: 3 * x + 1)
            both = halved.concat(tripled).inspect_time(see).filter(lambda x: x != 1)
            both.filter(lambda x: x % 2 == 0).connect_loop(even_handle)
            both.filter(lambda x: x % 2 == 1).connect_loop(odd_handle)
        drain(worker)
        return seen

    check_collatz([pair for each in run(workers, main) for pair in each])


def test_a_loop_may_pass_an_exchange() -> None:
    """Part of engine case 18: records go round the workers until they have grown."""

    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            handle, back = scope.feedback(1)
            start = scope.to_stream(range(100) if worker.index == 0 else [])
            grown = start.concat(back).exchange(lambda x: x).map(lambda x: x + 1)
            grown.filter(lambda x: x < 150).connect_loop(handle)
            return grown.filter(lambda x: x >= 150).capture()

    found = Counter(x for capture in run(3, main) for _, records in capture for x in records)
    assert found == {150: 100}


@pytest.mark.parametrize("advance", [-1, "1", 1.0, True, None])
def test_a_summary_must_be_an_int_of_at_least_0(advance: Any) -> None:
    with pytest.raises(BuildError, match=rf"feedback\({advance!r}\): .*an int of at least 0"):
        example(lambda scope: scope.feedback(advance))


def test_a_feedback_that_is_never_connected_is_named_with_its_line() -> None:  # engine case 49
    with pytest.raises(BuildError, match=r"Feedback \(.*test_movement.py:\d+\) was never connected.*connect_loop"):
        example(lambda scope: scope.feedback(1))


def test_a_feedback_is_connected_once() -> None:
    def build(scope: Any) -> None:
        handle, back = scope.feedback(1)
        back.connect_loop(handle)
        back.map(abs).connect_loop(handle)

    with pytest.raises(BuildError, match=r"connect_loop: the feedback at .*test_movement.py:\d+ is already connected"):
        example(build)


def test_a_cycle_that_does_not_advance_time_is_refused_by_the_names_of_its_operators() -> None:
    def build(scope: Any) -> None:
        handle, back = scope.feedback(0)
        back.map(abs).filter(bool).connect_loop(handle)

    with pytest.raises(BuildError, match=r"cycle.*Feedback.*Map.*Filter.*does not advance the time.*at least 1"):
        example(build)


def test_a_feedback_of_0_inside_a_loop_that_advances_is_fine() -> None:
    def build(scope: Any) -> Any:
        once, late = scope.feedback(1), scope.feedback(0)
        grown = scope.to_stream([0]).concat(once[1]).map(lambda x: x + 1)
        grown.filter(lambda x: x < 5).connect_loop(late[0])
        late[1].connect_loop(once[0])
        return grown.capture()

    assert example(build) == [(time, [time + 1]) for time in range(5)]


def test_a_loop_is_connected_within_its_dataflow() -> None:
    _, worker = by_hand()
    with worker.dataflow() as scope:
        other = scope.to_stream([1])
    said = r"connect_loop to the feedback at .*test_movement.py:\d+.*from dataflow"
    with pytest.raises(BuildError, match=said), worker.dataflow() as scope:
        handle, _ = scope.feedback(1)
        other.connect_loop(handle)


@pytest.mark.parametrize("use", ["concat", "binary", "concatenate"])
def test_streams_do_not_cross_dataflows(use: str) -> None:
    _, worker = by_hand()
    with worker.dataflow("first") as scope:
        other = scope.to_stream([1])
    said = r"comes from dataflow 'first', not from dataflow 'second'|comes from dataflow 'first', not from 'second'"
    with pytest.raises(BuildError, match=said), worker.dataflow("second") as scope:
        stream = scope.to_stream([2])
        if use == "concat":
            stream.concat(other)
        elif use == "concatenate":
            scope.concatenate([other])
        else:
            stream.binary(other, Pipeline(), Pipeline(), "Both", lambda capability, info: lambda a, b, out: None)


@pytest.mark.parametrize("pact", [Exchange, "Pipeline", None])
def test_what_is_no_pact_is_refused_with_what_to_write(pact: Any) -> None:
    with pytest.raises(BuildError, match=r"Mine \(.*test_movement.py:\d+\): .* is not a pact; write Pipeline"):
        example(lambda scope: scope.to_stream([1]).unary(pact, "Mine", lambda capability, info: lambda a, b: None))
