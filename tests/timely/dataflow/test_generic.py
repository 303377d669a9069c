"""Hand-made operators: cases that need state, frontiers and retained capabilities."""

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from megaflow import stable_hash
from megaflow.errors import BuildError, CapabilityError, TimeError
from megaflow.program import Worker
from megaflow.stream import Stream
from megaflow.testing import EngineCluster
from megaflow.timely import Broadcast, Capability, Exchange, InputHandle, OperatorInfo, Pipeline, example
from megaflow.timely.dataflow.builder import BATCH_RECORDS
from tests.timely.workers import EVERY, by_hand, drain, numbers, run

Build = Callable[[Capability, OperatorInfo], Callable[[Any, Any], None]]
SEEDS = range(4)


def releasing(logic: Callable[[Any, Any], None]) -> Build:
    """Build function for logic that needs no capability of its own."""

    def build(capability: Capability, info: OperatorInfo) -> Callable[[Any, Any], None]:
        capability.release()
        return logic

    return build


def in_time_order(apply: Callable[[Any, list[Any]], list[Any]]) -> Build:
    """The operator of the API page: stash by time, apply once the frontier has passed."""

    def build(capability: Capability, info: OperatorInfo) -> Callable[[Any, Any], None]:
        capability.release()
        stash: dict[Capability, list[Any]] = {}

        def logic(input: Any, output: Any) -> None:
            for time, data in input:
                stash.setdefault(time.retain(), []).extend(data)
            ready = [held for held in stash if not input.frontier.less_equal(held.time)]
            for held in sorted(ready, key=lambda held: held.time):
                with held, output.session(held) as session:
                    session.give_iterator(apply(held.time, stash.pop(held)))

        return logic

    return build


def counting() -> Build:
    """Running counts of (word, difference) pairs, in the order of time."""
    counts: Counter[str] = Counter()

    def apply(time: Any, updates: list[tuple[str, int]]) -> list[tuple[str, int]]:
        result = []
        for word, difference in updates:
            counts[word] += difference
            result.append((word, counts[word]))
        return result

    return in_time_order(apply)


def word_count(stream: Stream[Any]) -> Stream[Any]:
    """Count words, each on the worker that owns it."""
    return stream.unary_frontier(Exchange(lambda pair: stable_hash(pair[0])), "WordCount", counting())


@pytest.mark.parametrize("workers", EVERY)
def test_each_count_of_a_word_that_all_workers_send_is_seen_once(workers: int) -> None:
    """Case 25."""
    def main(worker: Worker) -> Any:
        handle: InputHandle[tuple[str, int]] = InputHandle()
        with worker.dataflow() as scope:
            counts = word_count(scope.input_from(handle))
            captured, probe = counts.capture(), counts.probe()
        for number in range(10):
            handle.send(("round", 1))
            handle.advance_to(number + 1)
            worker.step_while(lambda: probe.less_than(handle.time))
        return captured

    captured = [capture for capture in run(workers, main) if capture]
    assert len(captured) == 1
    for number, (time, counts) in enumerate(captured[0]):
        assert time == number
        assert counts == [("round", 1 + number * workers + i) for i in range(workers)]


@pytest.mark.parametrize("seed", SEEDS)
def test_counts_in_time_order_do_not_depend_on_delivery(seed: int) -> None:
    """Case 25."""
    feeds = {worker: [(time, ("round", 1)) for time in range(10)] for worker in range(3)}
    outputs = EngineCluster(seed).run(lambda worker, records, commands: word_count(records), feeds)
    assert sorted(outputs) == [(time, ("round", 3 * time + i)) for time in range(10) for i in (1, 2, 3)]


WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "the", "cat"]
RETRACTED_COUNTS = {"and": 5, "brown": 5, "cat": 3, "dog": 1, "fox": 4, "jumps": 2, "lazy": 2, "quick": 2}


def lines_with_retractions() -> list[tuple[int, tuple[str, int]]]:
    """Return 50 rounds of 8 words, each line taken back 3 rounds later: (time, (word, difference))."""
    draw = numbers()
    lines = [[WORDS[v % 12] for v in islice(draw, 8)] for _ in range(50)]
    updates = []
    for number, line in enumerate(lines):
        updates += [(number, (word, 1)) for word in line]
        if number >= 3:
            updates += [(number, (word, -1)) for word in lines[number - 3]]
    return updates


@pytest.mark.parametrize("workers", EVERY)
def test_retracted_lines_leave_the_counts_of_the_last_three(workers: int) -> None:
    """Case 26."""
    updates = lines_with_retractions()

    def main(worker: Worker) -> Any:
        handle: InputHandle[Any] = InputHandle()
        with worker.dataflow() as scope:
            captured = word_count(scope.input_from(handle)).capture()
        for index, (time, update) in enumerate(updates):
            handle.advance_to(time)
            if index % worker.peers == worker.index:
                handle.send(update)
            if index % 50 == 0:
                worker.step()
        return captured

    total: Counter[str] = Counter()
    for _, (word, difference) in updates:
        total[word] += difference
    assert {word: count for word, count in total.items() if count} == RETRACTED_COUNTS
    emitted = Counter(word for capture in run(workers, main) for _, counts in capture for word, _ in counts)
    assert emitted == Counter(word for _, (word, _) in updates)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_last_counts_after_retractions_are_right_whatever_the_delivery(seed: int) -> None:
    """Case 26."""
    updates = lines_with_retractions()
    feeds = {worker: updates[worker::3] for worker in range(3)}
    final: dict[str, int] = {}

    def settled(worker: Worker, records: Any, commands: Any) -> Any:
        totals: Counter[str] = Counter()

        def apply(time: Any, changes: list[tuple[str, int]]) -> list[tuple[str, int]]:
            for word, difference in changes:
                totals[word] += difference
            return [(word, totals[word]) for word in {word for word, _ in changes}]

        return records.unary_frontier(Exchange(lambda pair: stable_hash(pair[0])), "Totals", in_time_order(apply))

    for _, (word, count) in sorted(EngineCluster(seed).run(settled, feeds)):
        final[word] = count
    assert {word: count for word, count in final.items() if count} == RETRACTED_COUNTS


def distinct(stream: Stream[int]) -> Stream[int]:
    """Emit each number once, on the worker of its value."""

    def build(capability: Capability, info: OperatorInfo) -> Callable[[Any, Any], None]:
        capability.release()
        known: set[int] = set()

        def logic(input: Any, output: Any) -> None:
            for time, data in input:
                with output.session(time) as session:
                    for x in data:
                        if x not in known:
                            known.add(x)
                            session.give(x)

        return logic

    return stream.unary(Exchange(lambda x: x), "Distinct", build)


DISTINCT_FEEDS: list[list[int]] = [[0, 1, 2, 2, 2, 3, 3, 4], [0, 0, 3, 4, 4, 5, 7, 7], []]


@pytest.mark.parametrize("workers", EVERY)
def test_distinct_gives_each_value_once_where_it_belongs(workers: int) -> None:
    """Case 27."""
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            return distinct(scope.to_stream(DISTINCT_FEEDS[worker.index])).capture()

    found = run(workers, main)
    values = [x for feed in DISTINCT_FEEDS[:workers] for x in feed]
    for index, capture in enumerate(found):
        wanted = sorted({x for x in values if x % workers == index})
        assert capture == ([(0, wanted)] if wanted else [])


def join(left: Stream[Any], right: Stream[Any]) -> Stream[Any]:
    """Symmetric hash join on the first of each pair: (key, left value, right value)."""

    def build(capability: Capability, info: OperatorInfo) -> Callable[[Any, Any, Any], None]:
        capability.release()
        tables: tuple[dict[int, list[int]], ...] = ({}, {})

        def logic(input1: Any, input2: Any, output: Any) -> None:
            for side, source in enumerate((input1, input2)):
                for time, data in source:
                    with output.session(time) as session:
                        for key, value in data:
                            tables[side].setdefault(key, []).append(value)
                            for other in tables[1 - side].get(key, ()):
                                session.give((key, value, other))

        return logic

    by_key = Exchange(lambda pair: pair[0])
    return left.binary(right, by_key, by_key, "Join", build)


def join_inputs() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    draw = numbers()
    left, right = [], []
    for _ in range(1000):
        left.append((next(draw) % 100, next(draw) % 100))
        right.append((next(draw) % 100, next(draw) % 100))
    return left, right


def test_the_generator_of_random_inputs_is_the_agreed_one() -> None:
    assert list(islice(numbers(), 5)) == [908834774, 1093944153, 1392341196, 822192870, 1708211034]


@pytest.mark.parametrize("workers", EVERY)
def test_a_join_of_two_exchanged_streams_finds_every_match_once(workers: int) -> None:
    """Case 24."""
    left, right = join_inputs()

    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            first = scope.to_stream(left[worker.index :: worker.peers])
            second = scope.to_stream(right[worker.index :: worker.peers])
            return join(first, second).capture()

    matches = [match for capture in run(workers, main) for _, found in capture for match in found]
    assert (len(matches), sum(a * b for _, a, b in matches)) == (10127, 25239234)
    assert Counter((k, a * b) for k, a, b in matches) == Counter(
        (k, a * b) for k, a in left for other, b in right if other == k
    )


def both_before(left: Stream[int], right: Stream[int]) -> Stream[int]:
    """Merge two streams time by time. Nothing leaves before both inputs are past its time."""

    def build(capability: Capability, info: OperatorInfo) -> Callable[[Any, Any, Any], None]:
        capability.release()
        stash: dict[Capability, list[int]] = {}

        def logic(input1: Any, input2: Any, output: Any) -> None:
            for source in (input1, input2):
                for time, data in source:
                    stash.setdefault(time.retain(), []).extend(data)
            for held in sorted(stash, key=lambda held: held.time):
                if input1.frontier.less_equal(held.time) or input2.frontier.less_equal(held.time):
                    break
                with held, output.session(held) as session:
                    session.give_batch(stash.pop(held))

        return logic

    return left.binary_frontier(right, Pipeline(), Pipeline(), "ConcatBuffer", build)


def test_a_buffering_operator_waits_for_both_frontiers() -> None:
    """Case 28."""
    hand, worker = by_hand()
    first, second = InputHandle[int](), InputHandle[int]()
    seen: list[tuple[Any, int]] = []
    with worker.dataflow() as scope:
        merged = both_before(scope.input_from(first), scope.input_from(second))
        probe = merged.inspect_time(lambda time, x: seen.append((time, x))).probe()
    for number in range(10):
        first.send(number)
        first.advance_to(number + 1)
    hand.settle()
    assert seen == [] and probe.frontier.elements == (0,)
    for number in range(10):
        second.send(number)
        hand.settle()
        assert len(seen) == 2 * number
        second.advance_to(number + 1)
        hand.settle()
        assert len(seen) == 2 * number + 2
        assert probe.frontier.elements == (number + 1,)
    assert seen == [(time, time) for time in range(10) for _ in range(2)]
    first.close()
    second.close()
    hand.settle()
    assert probe.done() and not worker.installed_dataflows


@pytest.mark.parametrize("seed", SEEDS)
def test_the_buffering_operator_is_exact_whatever_the_delivery(seed: int) -> None:
    """Case 28."""
    feeds = {worker: [(time, time) for time in range(10)] for worker in range(3)}
    seen: list[list[Any]] = []

    def build(worker: Worker, records: Any, commands: Any) -> Any:
        mine: list[Any] = []
        seen.append(mine)
        merged = both_before(records.exchange(lambda x: x), records.exchange(lambda x: x + 1))
        return merged.inspect_time(lambda time, x: mine.append(time))

    outputs = EngineCluster(seed).run(build, feeds)
    assert Counter(outputs) == Counter({(time, time): 6 for time in range(10)})
    assert all(times == sorted(times) for times in seen)


@pytest.mark.parametrize("workers", EVERY)
def test_an_empty_batch_is_neither_sent_nor_an_end(workers: int) -> None:  # engine case 10
    def main(worker: Worker) -> Any:
        handle: InputHandle[int] = InputHandle()

        def logic(input: Any, output: Any) -> None:
            for time, data in input:
                output.session(time).give_batch([])
                output.session(time).give_iterator(iter(()))
                output.session(time).give_batch(data)

        with worker.dataflow() as scope:
            stream = scope.input_from(handle).unary(Pipeline(), "Empty", releasing(logic)).exchange(lambda x: x)
            captured, probe = stream.capture(), stream.probe()
        for number in range(2):
            if worker.index == 0:
                handle.send_batch([])
                handle.send(number)
            handle.advance_to(number + 1)
            worker.step_while(lambda: probe.less_than(handle.time))
        return captured

    found = [pair for capture in run(workers, main) for pair in capture]
    assert sorted(found) == [(0, [0]), (1, [1])]


def test_delaying_by_capability_moves_records_to_their_own_times() -> None:
    """Case 31."""
    def logic(input: Any, output: Any) -> None:
        for time, data in input:
            for x in data:
                with time.delayed(time.time + x) as later, output.session(later) as session:
                    session.give(x)

    captured = example(lambda scope: scope.to_stream(range(10)).unary(Pipeline(), "Delay", releasing(logic)).capture())
    assert captured == [(x, [x]) for x in range(10)]


def test_delaying_to_an_earlier_time_is_an_error_with_both_times() -> None:  # engine cases 31 and 38
    _, worker = by_hand()
    handle: InputHandle[int] = InputHandle()

    def logic(input: Any, output: Any) -> None:
        for time, _ in input:
            time.delayed(time.time - 1)

    with worker.dataflow() as scope:
        scope.input_from(handle).unary(Pipeline(), "Back", releasing(logic))
    handle.advance_to(5)
    handle.send(0)
    handle.flush()
    with pytest.raises(TimeError, match=r"delayed\(4\).*Back.*is at 5.*only move forward") as caught:
        worker.step()
    assert caught.value.__notes__[0].endswith("worker 0, time 5")


# The inputs' and outputs' small print -------------------------------------------------------


def test_break_leaves_the_rest_queued_and_the_operator_runs_again() -> None:
    hand, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    runs: list[list[int]] = []

    def logic(input: Any, output: Any) -> None:
        for time, data in input:
            runs.append(data)
            output.session(time).give_batch(data)
            break

    with worker.dataflow() as scope:
        stream = scope.input_from(handle).unary(Pipeline(), "One", releasing(logic))
        captured, probe = stream.capture(), stream.probe()
    for number in range(3):
        handle.send(number)
        handle.flush()
    handle.advance_to(1)
    worker.step()
    assert runs == [[0]] and worker.has_work()
    assert probe.less_equal(0)
    hand.settle()
    assert runs == [[0], [1], [2]]
    assert captured.extract() == [(0, [0, 1, 2])]
    assert probe.frontier.elements == (1,)


def test_the_list_that_an_operator_gets_is_its_own() -> None:
    def spoil(input: Any, output: Any) -> None:
        for _, data in input:
            data.clear()

    def build(scope: Any) -> Any:
        stream = scope.to_stream([1, 2])
        stream.unary(Pipeline(), "Spoil", releasing(spoil))
        return stream.capture()

    assert example(build) == [(0, [1, 2])]


def test_a_list_given_as_a_batch_may_be_used_again() -> None:
    def logic(input: Any, output: Any) -> None:
        batch: list[int] = []
        for time, data in input:
            batch[:] = data
            output.session(time).give_batch(batch)
            batch.clear()

    captured = example(lambda scope: scope.to_stream([1]).unary(Pipeline(), "Mine", releasing(logic)).capture())
    assert captured == [(0, [1])]


def test_a_pact_without_a_key_needs_no_parentheses() -> None:
    def logic(input: Any, output: Any) -> None:
        for time, data in input:
            output.session(time).give_batch(data)

    for pact in (Pipeline, Broadcast, Pipeline(), Broadcast()):
        build = lambda scope, pact=pact: scope.to_stream([1]).unary(pact, "Mine", releasing(logic)).capture()  # noqa: E731
        assert example(build) == [(0, [1])]


def test_sessions_work_with_and_without_a_block() -> None:
    def logic(input: Any, output: Any) -> None:
        for time, data in input:
            output.session(time).give("without")
            with output.session(time) as session:
                session.give("with")
                session.give_iterator(map(str, data))

    stream = example(lambda scope: scope.to_stream([1]).unary(Pipeline(), "Mine", releasing(logic)).capture())
    assert stream == [(0, ["1", "with", "without"])]


def test_two_sessions_may_be_open_at_once() -> None:
    def logic(input: Any, output: Any) -> None:
        for time, data in input:
            with time.delayed(1) as odd_time:
                even, odd = output.session(time), output.session(odd_time)
                for x in data:
                    (odd if x % 2 else even).give(x)

    many = range(3 * BATCH_RECORDS)
    [evens, odds] = example(lambda scope: scope.to_stream(many).unary(Pipeline(), "Split", releasing(logic)).capture())
    assert evens == (0, list(many[::2])) and odds == (1, list(many[1::2]))


@pytest.mark.parametrize("verb", ["give", "give_batch", "give_iterator"])
def test_a_session_ends_when_the_operator_returns(verb: str) -> None:
    """Otherwise records would be lost, or sent at a time that nothing holds open."""
    _, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    kept: list[Any] = []

    def logic(input: Any, output: Any) -> None:
        for time, data in input:
            if kept:
                getattr(kept[0], verb)(1 if verb == "give" else data)
            kept.append(output.session(time))

    with worker.dataflow() as scope:
        scope.input_from(handle).unary(Pipeline(), "Keeper", releasing(logic))
    handle.send(1)
    handle.advance_to(1)
    worker.step()
    handle.send(2)
    handle.flush()
    with pytest.raises(CapabilityError, match=r"session of output 0 of 'Keeper' .* at time 0 ended when the op"):
        worker.step()


def test_the_plain_form_runs_on_data_the_frontier_form_also_when_time_passes() -> None:
    hand, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    runs: Counter[str] = Counter()
    frontiers: list[Any] = []

    def plain(input: Any, output: Any) -> None:
        runs["plain"] += 1
        list(input)

    def watching(input: Any, output: Any) -> None:
        runs["frontier"] += 1
        frontiers.append(input.frontier.elements)
        list(input)

    with worker.dataflow() as scope:
        stream = scope.input_from(handle)
        stream.unary(Pipeline(), "Plain", releasing(plain))
        stream.unary_frontier(Pipeline(), "Frontier", releasing(watching))
    hand.settle()
    assert runs == {"plain": 1, "frontier": 1}, "both run once at the start"
    for number in range(1, 4):
        handle.advance_to(number)
        hand.settle()
    handle.close()
    hand.settle()
    assert runs["plain"] == 1
    assert frontiers == [(0,), (1,), (2,), (3,), ()]


@pytest.mark.parametrize("workers", [2, 3])
def test_a_frontier_waits_for_the_slowest_worker_and_is_never_skipped_when_gated(workers: int) -> None:  # cf. case 60
    def main(worker: Worker) -> list[Any]:
        handle: InputHandle[int] = InputHandle()
        frontiers: list[Any] = []

        def watching(input: Any, output: Any) -> None:
            list(input)
            if not frontiers or frontiers[-1] != input.frontier.elements:
                frontiers.append(input.frontier.elements)

        with worker.dataflow() as scope:
            stream = scope.input_from(handle).unary_frontier(Exchange(lambda x: x), "Watch", releasing(watching))
            probe = stream.probe()
        for number in range(10):
            handle.send(worker.index + number)
            handle.advance_to(number + 1)
            worker.step_while(lambda: probe.less_than(handle.time))
        handle.close()
        drain(worker)
        return frontiers

    assert run(workers, main) == [[*((time,) for time in range(11)), ()]] * workers


def test_an_operator_may_hold_the_initial_capability_and_send_before_any_record() -> None:
    def build(capability: Capability, info: OperatorInfo) -> Callable[[Any, Any], None]:
        def logic(input: Any, output: Any) -> None:
            list(input)
            if capability.held and not input.frontier.less_equal(0):
                with capability, output.session(capability) as session:
                    session.give("first")

        return logic

    assert example(lambda scope: scope.empty().unary_frontier(Pipeline(), "Hello", build).capture()) == [(0, ["first"])]


@pytest.mark.parametrize("workers", EVERY)
def test_a_sink_sees_every_record_and_the_end(workers: int) -> None:
    def main(worker: Worker) -> tuple[list[int], list[Any]]:
        seen: list[int] = []
        frontiers: list[Any] = []

        def build(info: OperatorInfo) -> Callable[[Any], None]:
            def logic(input: Any) -> None:
                for _, data in input:
                    seen.extend(data)
                frontiers.append(input.frontier.elements)

            return logic

        with worker.dataflow() as scope:
            scope.to_stream([1, 2] if worker.index == 0 else []).sink(Broadcast(), "Sink", build)
        drain(worker)
        return seen, frontiers[-1]

    assert run(workers, main) == [([1, 2], ())] * workers


def test_info_tells_name_worker_and_index() -> None:
    def main(worker: Worker) -> list[Any]:
        told: list[Any] = []

        def build(capability: Capability, info: OperatorInfo) -> Callable[[Any, Any], None]:
            capability.release()
            told.extend((info.name, info.worker, info.index))
            return lambda input, output: None

        with worker.dataflow() as scope:
            scope.to_stream([]).unary(Pipeline(), "Mine", build)
        return told

    assert run(2, main) == [["Mine", 0, 1], ["Mine", 1, 1]]


def builders(kind: str, result: Any) -> Callable[[Any], object]:
    """Build a dataflow with one operator whose build function returns `result`."""

    def build(scope: Any) -> None:
        stream, pact = scope.to_stream([1]), Pipeline()
        made: dict[str, Callable[[], object]] = {
            "unary": lambda: stream.unary(pact, "Mine", lambda capability, info: result),
            "unary_frontier": lambda: stream.unary_frontier(pact, "Mine", lambda capability, info: result),
            "binary": lambda: stream.binary(stream, pact, pact, "Mine", lambda capability, info: result),
            "binary_frontier": lambda: stream.binary_frontier(stream, pact, pact, "Mine", lambda c, info: result),
            "sink": lambda: stream.sink(pact, "Mine", lambda info: result),
            "source": lambda: scope.source("Mine", lambda capability, info: result),
        }
        made[kind]()

    return build


@pytest.mark.parametrize("kind", ["unary", "unary_frontier", "binary", "binary_frontier", "sink", "source"])
def test_a_build_that_forgets_to_return_its_logic_is_refused_while_building(kind: str) -> None:
    with pytest.raises(BuildError, match=r"Mine \(.*test_generic.py:\d+\): build returned None.*must return"):
        example(builders(kind, None))


def test_one_stream_may_be_both_inputs_of_a_binary() -> None:
    def logic(input1: Any, input2: Any, output: Any) -> None:
        for source in (input1, input2):
            for time, data in source:
                output.session(time).give_batch(data)

    def build(scope: Any) -> Any:
        stream = scope.to_stream([1, 2])

        def make(capability: Capability, info: OperatorInfo) -> Callable[[Any, Any, Any], None]:
            capability.release()
            return logic

        return stream.binary(stream, Pipeline(), Pipeline(), "Twice", make).capture()

    assert example(build) == [(0, [1, 1, 2, 2])]


@pytest.mark.parametrize("seed", SEEDS)
def test_records_of_one_worker_keep_their_order_on_their_way_to_another(seed: int) -> None:
    feeds = {worker: [(time, (worker, time)) for time in range(20)] for worker in range(3)}
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}

    def build(worker: Worker, records: Any, commands: Any) -> Any:
        def see(pair: tuple[int, int]) -> None:
            seen[pair[0]].append(pair[1])

        return records.exchange(lambda pair: 1).inspect(see)

    EngineCluster(seed).run(build, feeds)
    for times in seen.values():
        assert times == list(range(20))
