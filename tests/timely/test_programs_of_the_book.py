"""Programs of timely's book: each prints what the book says."""

import math
import socket
from collections import defaultdict
from typing import Any

import pytest

from megaflow.timely import (
    Config,
    EventReader,
    EventWriter,
    Exchange,
    FrontierNotificator,
    InputHandle,
    Pipeline,
    ProbeHandle,
    Product,
    example,
    execute,
    initialize,
)
from tests.timely.ported_programs import Say, Text, lines

BOOK = Text()


# Chapters 0 and 1 ---------------------------------------------------------------------------


@BOOK.of_scope("0.0: a first example", *lines("seen: {}", range(10)))
def first_example(scope: Any, say: Say) -> None:
    scope.to_stream(range(10)).inspect(lambda x: say(f"seen: {x}"))


@BOOK.of_worker("0.1: hello", *(f"worker {x % 2}:\thello {x}" for x in range(10)), workers=2)
def hello(worker: Any, say: Say) -> None:
    index = worker.index
    input: Any = InputHandle()
    probe = worker.dataflow(
        lambda scope: scope.input_from(input)
        .exchange(lambda x: x)
        .inspect(lambda x: say(f"worker {index}:\thello {x}"))
        .probe()
    )
    for round in range(10):
        if index == 0:
            input.send(round)
        input.advance_to(round + 1)
        while probe.less_than(input.time):
            worker.step()


@BOOK.of_worker("1.1: hello that nothing waits for", *(f"worker {x % 2}:\thello {x}" for x in range(10)), workers=2)
def hello_without_waiting(worker: Any, say: Say) -> None:
    index = worker.index
    input: Any = InputHandle()
    worker.dataflow(
        lambda scope: scope.input_from(input)
        .exchange(lambda x: x)
        .inspect(lambda x: say(f"worker {index}:\thello {x}"))
        .probe()
    )
    for round in range(10):
        if worker.index == 0:
            input.send(round)
        input.advance_to(round + 1)


@BOOK.of_scope("1.1: primes", *lines("{} is prime", [2, 3, 5, 7]))
def primes(scope: Any, say: Say) -> None:
    def test(x: int) -> None:
        limit = math.isqrt(x)
        if x > 1 and all(x % i > 0 for i in range(2, limit + 1)):
            say(f"{x} is prime")

    scope.to_stream(range(10)).inspect(test)


@BOOK.of_scope("1.2: data", *lines("worker 0:\thello {}", range(10)))
def data(scope: Any, say: Say) -> None:
    index = scope.index
    scope.to_stream(range(10)).inspect(lambda x: say(f"worker {index}:\thello {x}"))


@BOOK.of_scope("1.2: data and times", *lines("worker 0:\thello {} @ 0", range(10)))
def data_and_times(scope: Any, say: Say) -> None:
    index = scope.index

    def show(t: Any, xs: list[int]) -> None:
        for x in xs:
            say(f"worker {index}:\thello {x} @ {t!r}")

    scope.to_stream(range(10)).inspect_batch(show)


@BOOK.of_worker("1.3: step_while", *(f"worker {x % 3}:\thello {x}" for x in range(10)), workers=3)
def hello_in_step(worker: Any, say: Say) -> None:
    index = worker.index
    input: Any = InputHandle()
    probe = worker.dataflow(
        lambda scope: scope.input_from(input)
        .exchange(lambda x: x)
        .inspect(lambda x: say(f"worker {index}:\thello {x}"))
        .probe()
    )
    for round in range(10):
        if worker.index == 0:
            input.send(round)
        input.advance_to(round + 1)
        worker.step_while(lambda: probe.less_than(input.time))


# Chapter 2: building timely dataflows -------------------------------------------------------


@BOOK.of_worker("2.1: two sources")
def two_sources(worker: Any, say: Say) -> None:
    input: Any = InputHandle()

    def build(scope: Any) -> None:
        input.to_stream(scope)
        scope.to_stream(range(10))

    worker.dataflow(build)


@BOOK.of_worker("2.2: inspect", *lines("hello: {}", range(10)))
def inspecting(worker: Any, say: Say) -> None:
    worker.dataflow(lambda scope: scope.to_stream(range(10)).inspect(lambda x: say(f"hello: {x}")))


@BOOK.of_worker("2.2: inspect_batch", "hello: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] @ 0")
def inspecting_batches(worker: Any, say: Say) -> None:
    worker.dataflow(
        lambda scope: scope.to_stream(range(10)).inspect_batch(lambda t, xs: say(f"hello: {xs!r} @ {t!r}"))
    )


def test_capture_of_two_sources_is_equal() -> None:
    """2.2, capture."""
    data1, data2 = example(lambda scope: (scope.to_stream(range(3)).capture(), scope.to_stream([0, 1, 2]).capture()))
    assert data1 == data2 == [(0, [0, 1, 2])]  # in Rust: data1.extract()


@BOOK.of_worker("2.3: map", *lines("hello: {}", range(1, 11)))
def mapping(worker: Any, say: Say) -> None:
    worker.dataflow(lambda scope: scope.to_stream(range(10)).map(lambda x: x + 1).inspect(lambda x: say(f"hello: {x}")))


@BOOK.of_worker("2.3: map of owned data", *lines("hello: {}", range(10)))
def mapping_texts(worker: Any, say: Say) -> None:
    worker.dataflow(
        lambda scope: scope.to_stream(range(10)).map(str).map(lambda x: x[:5]).inspect(lambda x: say(f"hello: {x}"))
    )


@BOOK.of_worker("2.3: map_in_place", *lines("hello: {}", range(10)))
def mapping_in_place(worker: Any, say: Say) -> None:
    def truncate(x: list[str]) -> None:
        del x[5:]

    worker.dataflow(
        lambda scope: scope.to_stream(range(10))
        .map(lambda x: [*str(x)])  # in Rust: a String; a str of Python cannot change
        .map_in_place(truncate)
        .inspect(lambda x: say(f"hello: {''.join(x)}"))
    )


@BOOK.of_worker("2.3: flat_map", *(f"hello: {y}" for x in range(10) for y in range(x)))
def flat_mapping(worker: Any, say: Say) -> None:
    worker.dataflow(lambda scope: scope.to_stream(range(10)).flat_map(range).inspect(lambda x: say(f"hello: {x}")))


@BOOK.of_worker("2.3: filter", *lines("hello: {}", [0, 2, 4, 6, 8]))
def filtering(worker: Any, say: Say) -> None:
    worker.dataflow(
        lambda scope: scope.to_stream(range(10)).filter(lambda x: x % 2 == 0).inspect(lambda x: say(f"hello: {x}"))
    )


def test_partition_gives_three_streams() -> None:
    """2.3, partition."""
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}

    def build(scope: Any) -> None:
        streams = scope.to_stream(range(10)).partition(3, lambda x: (x % 3, x))
        streams.pop().inspect(lambda x: seen[2].append(x))
        streams.pop().inspect(lambda x: seen[1].append(x))
        streams.pop().inspect(lambda x: seen[0].append(x))

    example(build)
    assert seen == {0: [0, 3, 6, 9], 1: [1, 4, 7], 2: [2, 5, 8]}


def test_streams_are_merged_by_concat_and_concatenate() -> None:
    """2.3, concat and concatenate."""

    def one_by_one(scope: Any) -> Any:
        streams = scope.to_stream(range(10)).partition(3, lambda x: (x % 3, x))
        return streams.pop().concat(streams.pop()).concat(streams.pop()).capture()

    def all_at_once(scope: Any) -> Any:
        streams = scope.to_stream(range(10)).partition(3, lambda x: (x % 3, x))
        return scope.concatenate(streams).capture()

    for build in (one_by_one, all_at_once):
        [(time, found)] = example(build)
        assert time == 0 and sorted(found) == [*range(10)]


@BOOK.of_scope("2.4: unary", *lines("seen: {}", range(1, 11)))
def increment(scope: Any, say: Say) -> None:
    def build(capability: Any, info: Any) -> Any:
        def logic(input: Any, output: Any) -> None:
            def each(time: Any, data: list[int]) -> None:
                with output.session(time) as session:
                    for datum in data:
                        session.give(datum + 1)

            input.for_each(each)

        return logic

    scope.to_stream(range(10)).unary(Pipeline, "increment", build).inspect(lambda x: say(f"seen: {x}"))


@BOOK.of_scope("2.4: source", *lines("number: {}", range(22)))
def counting_source(scope: Any, say: Say) -> None:
    def build(capability: Any, info: Any) -> Any:
        activator = info.activator  # in Rust: scope.activator_for(info.address)
        cap = capability

        def logic(output: Any) -> None:
            nonlocal cap
            done = False
            if cap is not None:
                time = cap.time
                output.session(cap).give(cap.time)
                cap.downgrade(time + 1)
                done = time > 20
            if done:
                cap.release()  # in Rust: cap = None, which drops it
                cap = None
            elif cap is not None:
                activator.activate()

        return logic

    scope.source("Source", build).inspect(lambda x: say(f"number: {x}"))


@BOOK.of_scope("2.4: a logic with state", *lines("seen: {}", [4, 6, 10]))
def increasing(scope: Any, say: Say) -> None:
    def build(capability: Any, info: Any) -> Any:
        maximum = 0

        def logic(input: Any, output: Any) -> None:
            nonlocal maximum
            for time, data in input:
                with output.session(time) as session:
                    for datum in data:
                        if datum > maximum:
                            session.give(datum + 1)
                            maximum = datum

        return logic

    scope.to_stream([3, 1, 5, 2, 9]).unary(Pipeline, "increment", build).inspect(lambda x: say(f"seen: {x}"))


@BOOK.of_scope("2.4: frontiers, by a notificator", *lines("seen: {}", [*range(10), *range(10)]))
def concat_buffer(scope: Any, say: Say) -> None:
    in1, in2 = scope.to_stream(range(10)), scope.to_stream(range(10))

    def build(capability: Any, info: Any) -> Any:
        notificator = FrontierNotificator()
        stash: dict[Any, list[list[int]]] = {}

        def logic(input1: Any, input2: Any, output: Any) -> None:
            for input in (input1, input2):
                for time, data in input:
                    stash.setdefault(time.time, []).append(data)
                    notificator.notify_at(time.retain())

            def notified(time: Any, count: int) -> None:
                session = output.session(time)
                for batch in stash.pop(time.time, []):
                    session.give_batch(batch)

            notificator.for_each([input1.frontier, input2.frontier], notified)

        return logic

    in1.binary_frontier(in2, Pipeline, Pipeline, "concat_buffer", build).inspect(lambda x: say(f"seen: {x}"))


@BOOK.of_scope("2.4: frontiers, by hand", *lines("seen: {}", [*range(10), *range(10)]))
def concat_buffer_by_hand(scope: Any, say: Say) -> None:
    in1, in2 = scope.to_stream(range(10)), scope.to_stream(range(10))

    def build(capability: Any, info: Any) -> Any:
        stash: dict[Any, tuple[Any, list[list[int]]]] = {}  # in Rust: the capability is the key

        def logic(input1: Any, input2: Any, output: Any) -> None:
            for input in (input1, input2):
                for time, data in input:
                    if time.time not in stash:
                        stash[time.time] = time.retain(), []
                    stash[time.time][1].append(data)
            frontiers = [input1.frontier, input2.frontier]
            for time, (capability, batches) in [*stash.items()]:
                if all(not frontier.less_equal(time) for frontier in frontiers):
                    session = output.session(capability)
                    for batch in batches:
                        session.give_batch(batch)
                    capability.release()
                    del stash[time]

        return logic

    in1.binary_frontier(in2, Pipeline, Pipeline, "concat_buffer", build).inspect(lambda x: say(f"seen: {x}"))


@BOOK.of_worker("2.5: input and probe_with", *(f"seen: ('round', 1) before {x + 1}" for x in range(10)))
def rounds(worker: Any, say: Say) -> None:
    input: Any = InputHandle()
    probe = ProbeHandle()
    worker.dataflow(
        lambda scope: input.to_stream(scope).inspect(lambda x: say(f"seen: {x} before {input.time}")).probe_with(probe)
    )
    for round in range(10):
        input.send(("round", 1))
        input.advance_to(round + 1)
        while probe.less_than(input.time):
            worker.step()


@BOOK.of_worker("2.5: words", *["seen: ('a', 1)", "seen: ('round', 1)"] * 3)
def words(worker: Any, say: Say) -> None:
    input: Any = InputHandle()
    probe = ProbeHandle()
    worker.dataflow(
        lambda scope: input.to_stream(scope)
        .flat_map(lambda change: [(word, change[1]) for word in change[0].split()])
        .inspect(lambda x: say(f"seen: {x}"))
        .probe_with(probe)
    )
    for round in range(3):
        input.send(("a round", 1))
        input.advance_to(round + 1)
        while probe.less_than(input.time):
            worker.step()


def word_counts(capability: Any, info: Any) -> Any:
    queues: dict[Any, tuple[Any, list[tuple[str, int]]]] = {}
    counts: defaultdict[str, int] = defaultdict(int)

    def logic(input: Any, output: Any) -> None:
        for time, data in input:
            if time.time not in queues:
                queues[time.time] = time.retain(), []
            queues[time.time][1].extend(data)
        buffer = [time for time in queues if not input.frontier.less_equal(time)]
        for time in sorted(buffer):
            kept, vals = queues.pop(time)
            session = output.session(kept)
            for word, diff in vals:
                counts[word] += diff
                session.give((word, counts[word]))
            kept.release()

    return logic


@BOOK.of_worker(
    "2.5: word counts", *(f"seen: ('round', {n})" for n in range(1, 21)), *(f"seen: ('a', {n})" for n in range(1, 21)),
    workers=2,
)  # fmt: skip
def wordcount(worker: Any, say: Say) -> None:
    input: Any = InputHandle()
    probe = ProbeHandle()
    exchange = Exchange(lambda x: len(x[0]))
    worker.dataflow(
        lambda scope: input.to_stream(scope)
        .flat_map(lambda change: [(word, change[1]) for word in change[0].split()])
        .unary_frontier(exchange, "WordCount", word_counts)
        .inspect(lambda x: say(f"seen: {x}"))
        .probe_with(probe)
    )
    for round in range(10):
        input.send(("a round", 1))
        input.advance_to(round + 1)
        while probe.less_than(input.time):
            worker.step()


# Chapter 3: running timely dataflows ---------------------------------------------------------


@BOOK.of_worker("3.2: a probe before the first step", "True", "False")
def probed(worker: Any, say: Say) -> None:
    input: Any = InputHandle()
    probe = worker.dataflow(lambda scope: scope.input_from(input).inspect(lambda x: None).probe())
    input.send(0)
    input.advance_to(1)
    say(str(probe.less_than(input.time)))
    while probe.less_than(input.time):
        worker.step()
    say(str(probe.less_than(input.time)))


@BOOK.of_worker("3.3: steps until the dataflow is complete", "seen: 1", "False")
def drained(worker: Any, say: Say) -> None:
    input: Any = InputHandle()
    worker.dataflow(lambda scope: scope.input_from(input).inspect(lambda x: say(f"seen: {x}")))
    input.send(1)
    input.close()  # in Rust: drop(input)
    while worker.step():
        pass
    say(str(bool(worker.installed_dataflows)))


# Chapter 4: advanced timely dataflow ----------------------------------------------------------


@BOOK.of_scope("4.1: an empty scope")
def empty_scope(scope: Any, say: Say) -> None:
    scope.scoped("SubScope", lambda subscope: None)


@BOOK.of_scope("4.1: scoped", f"0, {[*range(10)]}")
def scoped(scope: Any, say: Say) -> None:
    stream = scope.to_stream(range(10))
    scope.scoped(
        "SubScope",
        lambda subscope: stream.enter(subscope).inspect_batch(lambda t, xs: say(f"{t!r}, {xs!r}")).leave(scope),
        timestamp=int,  # in Rust: scoped::<u64,_,_>
    )


@BOOK.of_scope("4.1: region", f"0, {[*range(10)]}")
def region(scope: Any, say: Say) -> None:
    stream = scope.to_stream(range(10))
    scope.region(
        lambda subscope: stream.enter(subscope).inspect_batch(lambda t, xs: say(f"{t!r}, {xs!r}")).leave(scope)
    )


@BOOK.of_scope("4.1: iterative", f"{Product(0, 0)!r}, {[*range(10)]}")
def iterative(scope: Any, say: Say) -> None:
    stream = scope.to_stream(range(10))
    scope.iterative(
        lambda subscope: stream.enter(subscope).inspect_batch(lambda t, xs: say(f"{t!r}, {xs!r}")).leave(scope)
    )


def collatz(x: int) -> int:
    return x // 2 if x % 2 == 0 else 3 * x + 1


def collatz_walk(starts: range) -> list[int]:
    """Return the numbers that the loop sees, round by round."""
    seen: list[int] = []
    now = [*starts]
    while now:
        now = [collatz(x) for x in now]
        seen += now
        now = [x for x in now if x != 1]
    return seen


def test_a_loop_of_collatz_steps_ends() -> None:
    """4.2, feedback."""
    seen: list[int] = []

    def build(scope: Any) -> None:
        handle, stream = scope.feedback(1)
        (
            scope.to_stream(range(1, 10)).concat(stream).map(collatz).inspect(seen.append)
            .filter(lambda x: x != 1).branch_when(lambda t: t < 100)[1].connect_loop(handle)
        )  # fmt: skip

    example(build)
    steps = []  # in Rust, as here: stream 1 of branch_when has the times for which the function is true
    now = [*range(1, 10)]
    for _ in range(101):
        now = [collatz(x) for x in now]
        steps += now
        now = [x for x in now if x != 1]
    assert sorted(seen) == sorted(steps)


def test_two_loops_take_the_even_and_the_odd_numbers() -> None:
    """4.2, two feedbacks."""
    seen: list[int] = []

    def build(scope: Any) -> None:
        handle0, stream0 = scope.feedback(1)
        handle1, stream1 = scope.feedback(1)
        results0 = stream0.map(lambda x: x // 2).filter(lambda x: x != 1)
        results1 = stream1.map(lambda x: 3 * x + 1)
        parts = (
            scope.to_stream(range(1, 10)).concat(results0).concat(results1).inspect(seen.append)
            .partition(2, lambda x: (x % 2, x))
        )  # fmt: skip
        parts.pop().connect_loop(handle1)
        parts.pop().connect_loop(handle0)

    example(build)
    expected, now = [], [*range(1, 10)]
    while now:
        expected += now
        now = [next for x in now if (next := collatz(x)) != 1 or x % 2]
    assert sorted(seen) == sorted(expected)


def test_a_loop_variable_in_an_iterative_scope() -> None:
    """4.2, iterative."""
    seen: list[int] = []

    def build(scope: Any) -> None:
        input = scope.to_stream(range(1, 10))

        def loop(subscope: Any) -> None:
            handle, stream = subscope.loop_variable(1)
            (
                input.enter(subscope).concat(stream).map(collatz).inspect(seen.append)
                .filter(lambda x: x != 1).connect_loop(handle)
            )  # fmt: skip

        scope.iterative(loop)

    example(build)
    assert sorted(seen) == sorted(collatz_walk(range(1, 10)))


@BOOK.of_scope("4.3: all numbers below each number", *(f"seen: {y}" for x in range(1, 10) for y in range(x)))
def all_below(scope: Any, say: Say) -> None:
    scope.to_stream(range(1, 10)).flat_map(range).inspect(lambda x: say(f"seen: {x}"))


def test_a_loop_limits_the_records_in_flight() -> None:
    """4.3, flow control: a hundredth of the text's numbers."""
    seen: list[tuple[int, int]] = []

    def build(scope: Any) -> None:
        handle, cycle = scope.feedback(1)

        def buffer(capability: Any, info: Any) -> Any:
            stash: dict[Any, tuple[Any, list[int]]] = {}

            def logic(input1: Any, input2: Any, output: Any) -> None:
                for time, data in input1:
                    if time.time not in stash:
                        stash[time.time] = time.retain(), []
                    stash[time.time][1].extend(data)
                for time, (capability, numbers) in [*stash.items()]:
                    if not input2.frontier.less_than(time):
                        output.session(capability).give_iterator(numbers)
                        del stash[time]
                        capability.release()

            return logic

        (
            scope.to_stream(range(1, 1000)).delay(lambda number, time: number // 100)
            .binary_frontier(cycle, Pipeline, Pipeline, "Buffer", buffer)
            .flat_map(range).inspect_time(lambda t, x: seen.append((t, x)))
            .filter(lambda _: False).connect_loop(handle)
        )  # fmt: skip

    example(build)
    assert sorted(seen) == sorted((x // 100, y) for x in range(1, 1000) for y in range(x))
    assert [t for t, _ in seen] == sorted(t for t, _ in seen)


def test_a_captured_stream_is_replayed_over_tcp() -> None:
    """4.4, capture_into and replay_into: both programs, and the examples capture_send and capture_recv."""
    replayed: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def send(worker: Any) -> None:
            send = socket.create_connection(listener.getsockname())
            worker.dataflow(lambda scope: scope.to_stream(range(10)).capture_into(EventWriter(send)))

        def receive(worker: Any) -> None:
            replayers = [EventReader(listener.accept()[0])]
            worker.dataflow(lambda scope: scope.replay(replayers).inspect(replayed.append))

        execute(Config.thread(), send)
        execute(Config.thread(), receive)
    assert replayed == [*range(10)]


class TreeNode:
    """A tree structure."""

    def __init__(self, data: int) -> None:
        self.data, self.children = data, list[TreeNode]()

    def __repr__(self) -> str:
        return f"TreeNode {{ data: {self.data}, children: {self.children} }}"


@BOOK.of_scope("4.5: data of a type of one's own", *lines("seen: TreeNode {{ data: {}, children: [] }}", range(10)))
def trees(scope: Any, say: Say) -> None:
    scope.to_stream(range(10)).map(TreeNode).inspect(lambda x: say(f"seen: {x}"))


@BOOK.of_worker("4.5: exchanged", *[f"seen: TreeNode {{ data: {x}, children: [] }}" for x in range(10)] * 2, workers=2)
def trees_exchanged(worker: Any, say: Say) -> None:
    worker.dataflow(
        lambda scope: scope.to_stream(range(10)).map(TreeNode).exchange(lambda x: x.data)
        .inspect(lambda x: say(f"seen: {x}"))
    )  # fmt: skip


# Chapter 5: internals -------------------------------------------------------------------------


def test_messages_are_sent_without_a_dataflow() -> None:
    """5.1, and the example comm_hello."""
    said: list[str] = []

    def main(allocator: Any) -> int:
        senders, receiver = allocator.allocate()  # in Rust: allocate(0); channels number themselves
        for i in range(allocator.peers):
            senders[i].push(f"hello, {i}")
            senders[i].done()
        received = 0
        while received < allocator.peers:
            if (message := receiver.pull()) is not None:
                said.append(f"worker {allocator.index}: received: <{message}>")
                received += 1
            else:
                allocator.park()  # in Rust: allocator.receive()
        return int(allocator.index)

    assert initialize(Config.process(2), main) == [0, 1]
    assert sorted(said) == [f"worker {i}: received: <hello, {i}>" for i in (0, 0, 1, 1)]


# All of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("title", BOOK.programs)
def test_a_program_of_the_book_says_what_the_book_says(title: str) -> None:
    BOOK.check(title)


def test_at_least_32_programs_of_the_book_are_ported() -> None:
    assert len(BOOK.programs) >= 32
