"""Examples and tests of timely's repository: each prints what it prints there."""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from megaflow.timely import (
    Config,
    Exchange,
    InputHandle,
    Pipeline,
    ProbeHandle,
    execute,
)
from tests.timely.ported_programs import Say, Text, lines

REPOSITORY = Text()


@REPOSITORY.of_worker("distinct", *lines("value {}", [0, 1, 2, 3, 4, 5, 7]), workers=2)
def distinct(worker: Any, say: Say) -> None:
    input: Any = InputHandle()
    probe = ProbeHandle()

    def build(capability: Any, info: Any) -> Any:
        counts_by_time: dict[Any, defaultdict[int, int]] = {}

        def logic(input: Any, output: Any) -> None:
            for time, data in input:
                counts = counts_by_time.setdefault(time.time, defaultdict(int))
                with output.session(time) as session:
                    for datum in data:
                        if counts[datum] == 0:
                            session.give(datum)
                        counts[datum] += 1

        return logic

    worker.dataflow(
        lambda scope: scope.input_from(input)
        .unary(Exchange(lambda x: x), "Distinct", build)
        .inspect(lambda x: say(f"value {x}"))
        .probe_with(probe)
    )
    for x in ([0, 1, 2, 2, 2, 3, 3, 4], [0, 0, 3, 4, 4, 5, 7, 7])[worker.index]:
        input.send(x)
    input.advance_to(1)
    while probe.less_than(input.time):
        worker.step()


@REPOSITORY.of_worker("event_driven", *lines("round {} complete", range(12)))
def event_driven(worker: Any, say: Say) -> None:
    dataflows, length = 3, 4
    inputs, probes = [], []

    def build(scope: Any) -> None:
        input, stream = scope.new_input()

        def steps(inner: Any) -> Any:
            entered = stream.enter(inner)
            for _ in range(length):
                entered = entered.map(lambda x: x)
            return entered.leave(scope)

        inputs.append(input)
        probes.append(scope.region(steps).probe())

    for _ in range(dataflows):
        worker.dataflow(build)
    for round in range(12):
        dataflow = round % dataflows
        inputs[dataflow].send(())
        inputs[dataflow].advance_to(round)
        while probes[dataflow].less_than(round):
            worker.step()
        say(f"round {round} complete")


@REPOSITORY.of_worker("exchange", "worker 0 complete: 50 records", "worker 1 complete: 50 records", workers=2)
def exchange(worker: Any, say: Say) -> None:
    batch, rounds = 10, 5
    input: Any = InputHandle()
    came: list[int] = []
    probe = worker.dataflow(
        lambda scope: scope.input_from(input).exchange(lambda x: x).inspect(came.append).probe()
    )
    for round in range(rounds):
        for i in range(batch):
            input.send(i)
        input.advance_to(round)
        while probe.less_than(input.time):
            worker.step()
    input.close()
    worker.step_while(lambda: not probe.done())
    say(f"worker {worker.index} complete: {len(came)} records")


def open_loop(worker: Any, build: Callable[[Any, Any, Any], None], requests: int) -> int:
    """Send requests at the times of a clock; return how many were retired. The clock counts and is not read."""
    input: Any = InputHandle()
    probe = ProbeHandle()
    worker.dataflow(lambda scope: build(scope, input, probe))
    elapsed, inserted, retired, sent = 0, 0, 0, 0
    while retired < requests:
        elapsed += 7
        acknowledged: Any = next(iter(probe.frontier))  # in Rust: probe.with_frontier(|frontier| frontier[0])
        while retired < requests and retired * 10 < acknowledged:
            retired += 1
        if inserted < elapsed:
            while sent * 10 < elapsed:
                input.send(sent)
                sent += 1
            input.advance_to(elapsed)
            inserted = elapsed
        worker.step()
    return retired


@REPOSITORY.of_worker("openloop", "40 requests retired")
def openloop(worker: Any, say: Say) -> None:
    def build(scope: Any, input: Any, probe: Any) -> None:
        scope.input_from(input).filter(lambda _: False).probe_with(probe)

    say(f"{open_loop(worker, build, 40)} requests retired")


def collatz(x: int) -> int:
    return x // 2 if x % 2 == 0 else 3 * x + 1


@REPOSITORY.of_worker("loopdemo", "40 requests retired")
def loopdemo(worker: Any, say: Say) -> None:
    def build(scope: Any, input: Any, probe: Any) -> None:
        loop_handle, loop_stream = scope.feedback(1)
        step = scope.input_from(input).concat(loop_stream).map(collatz).filter(lambda x: x > 1)
        step.probe_with(probe).connect_loop(loop_handle)

    say(f"{open_loop(worker, build, 40)} requests retired")


@REPOSITORY.of_worker("rc", *lines("hello {}", range(10)))
def shared_data(worker: Any, say: Say) -> None:
    class Test:
        def __init__(self, field: Any) -> None:
            self.field = field

    input: Any = InputHandle()
    probe = ProbeHandle()
    worker.dataflow(
        lambda scope: scope.input_from(input).inspect(lambda x: say(f"hello {x.field[0]}")).probe_with(probe)
    )
    for round in range(10):
        input.send(Test([round]))
        input.advance_to(round + 1)
        worker.step_while(lambda: probe.less_than(input.time))


@REPOSITORY.of_worker("unordered_input", *lines("{0} -> [{0}]", range(10)))
def unordered_input(worker: Any, say: Say) -> None:
    def build(scope: Any) -> Any:
        input, cap, stream = scope.new_unordered_input()  # in Rust: ((input, cap), stream)
        stream.inspect_batch(lambda t, x: say(f"{t!r} -> {x!r}"))
        return input, cap

    input, cap = worker.dataflow(build)
    for round in range(10):
        with input.session(cap) as session:  # in Rust: input.activate().session(&cap)
            session.give(round)
        cap.downgrade(round + 1)  # in Rust: cap = cap.delayed(&(round + 1))
        worker.step()


@REPOSITORY.of_worker("barrier", *lines("round {}", range(1, 10)))
def barrier(worker: Any, say: Say) -> None:
    iterations = 10

    def logic(input: Any, output: Any, notificator: Any) -> None:
        def notified(cap: Any, count: int) -> None:
            time = cap.time + 1
            if time < iterations:
                say(f"round {time}")
                notificator.notify_at(cap.delayed(time))

        notificator.for_each(notified)

    def build(scope: Any) -> None:
        handle, stream = scope.feedback(1)
        stream.unary_notify(Pipeline, "Barrier", logic, [0]).connect_loop(handle)

    worker.dataflow(build)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_round_of_a_barrier_is_notified_once(workers: int) -> None:
    """The test barrier."""
    notified_of: list[int] = []

    def main(worker: Any) -> None:
        def logic(input: Any, output: Any, notificator: Any) -> None:
            count = 0

            def notified(cap: Any, requests: int) -> None:
                nonlocal count
                count += 1
                notified_of.append(cap.time)
                if (time := cap.time + 1) < 100:
                    notificator.notify_at(cap.delayed(time))

            notificator.for_each(notified)
            assert count <= 1

        def build(scope: Any) -> None:
            handle, stream = scope.feedback(1)
            stream.unary_notify(Pipeline, "Barrier", logic, [0, 1]).connect_loop(handle)

        worker.dataflow(build)

    execute(Config.process(workers), main)
    assert Counter(notified_of) == dict.fromkeys(range(100), workers)


def test_an_empty_batch_before_the_data_does_no_harm() -> None:
    """The test gh_523."""
    seen: list[int] = []

    def build(capability: Any, info: Any) -> Any:
        def logic(input: Any, output: Any) -> None:
            for cap, data in input:
                with output.session(cap) as session:
                    session.give_batch([])
                    session.give_batch(data)

        return logic

    def main(worker: Any) -> None:
        input: Any = InputHandle()
        probe = worker.dataflow(
            lambda scope: scope.input_from(input).unary(Pipeline, "Test", build).exchange(lambda x: x)
            .inspect(seen.append).probe()
        )  # fmt: skip
        for round in range(2):
            input.send(round)
            input.advance_to(round + 1)
        input.close()
        while not probe.done():
            worker.step()

    execute(Config.thread(), main)
    assert seen == [0, 1]


@REPOSITORY.of_worker("hashjoin", "13 matches", "13 matches", workers=2)
def hashjoin(worker: Any, say: Say) -> None:
    input1: Any = InputHandle()
    input2: Any = InputHandle()
    probe = ProbeHandle()
    matches: list[Any] = []

    def build(capability: Any, info: Any) -> Any:
        map1: defaultdict[int, list[int]] = defaultdict(list)
        map2: defaultdict[int, list[int]] = defaultdict(list)

        def logic(input1: Any, input2: Any, output: Any) -> None:
            for time, data in input1:
                with output.session(time) as session:
                    for key, val1 in data:
                        for val2 in map2[key]:
                            session.give((val1, val2))
                        map1[key].append(val1)
            for time, data in input2:
                with output.session(time) as session:
                    for key, val2 in data:
                        for val1 in map1[key]:
                            session.give((val1, val2))
                        map2[key].append(val2)

        return logic

    def join(scope: Any) -> None:
        by_key = Exchange(lambda x: x[0])
        stream1, stream2 = scope.input_from(input1), scope.input_from(input2)
        stream1.binary(stream2, by_key, by_key, "HashJoin", build).inspect(matches.append).probe_with(probe)

    worker.dataflow(join)
    for i in range(worker.index, 10, 2):
        input1.send((i % 4, i))
        input2.send((i % 4, i))
    next = input1.time + 1
    input1.advance_to(next)
    input2.advance_to(next)
    while probe.less_than(input1.time):
        worker.step()
    say(f"{len(matches)} matches")


def test_ping_pong_goes_round_until_the_time_is_up() -> None:
    """The example pingpong."""
    seen: list[tuple[Any, int]] = []

    def main(worker: Any) -> None:
        iterations, elements, peers, index = 20, 3, worker.peers, worker.index

        def build(scope: Any) -> None:
            helper, cycle = scope.feedback(1)
            (
                scope.to_stream(x for x in range(elements) if x % peers == index).concat(cycle)
                .exchange(lambda x: x).map(lambda x: x + 1)  # in Rust: map_in_place; an int of Python cannot change
                .inspect_time(lambda t, x: seen.append((t, x)))
                .branch_when(lambda t: t < iterations)[1].connect_loop(helper)
            )  # fmt: skip

        worker.dataflow(build)

    execute(Config.process(2), main)
    assert sorted(seen) == sorted((t, x + t + 1) for t in range(21) for x in range(3))


# All of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("title", REPOSITORY.programs)
def test_an_example_of_the_repository_says_what_it_says_there(title: str) -> None:
    REPOSITORY.check(title)


def test_at_least_9_programs_of_the_repository_are_ported() -> None:
    assert len(REPOSITORY.programs) >= 9
