"""Sources: iterables, operators without inputs, and unordered inputs, which send at any time that they hold."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from megaflow.errors import BuildError, CapabilityError, TimeError
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.testing import EngineCluster
from megaflow.timely import Capability, OperatorInfo, ProbeHandle, Product, Stream, UnorderedHandle, example
from megaflow.timely.dataflow.builder import BATCH_RECORDS
from tests.timely.cases import run_threads
from tests.timely.workers import EVERY, ByHand, by_hand, drain, run


def test_to_stream_shows_its_records_in_order() -> None:  # engine case 1
    seen: list[int] = []
    example(lambda scope: scope.to_stream(range(10)).inspect(seen.append))
    assert seen == list(range(10))


@pytest.mark.parametrize("workers", EVERY)
def test_each_worker_sends_its_own_iterable(workers: int) -> None:
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            return scope.to_stream([worker.index]).broadcast().capture()

    assert run(workers, main) == [[(0, list(range(workers)))]] * workers


@pytest.mark.parametrize("workers", EVERY)
def test_an_empty_iterable_is_a_stream_that_ends(workers: int) -> None:
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            return scope.to_stream([]).concat(scope.empty()).exchange(lambda x: x).capture()

    assert run(workers, main) == [[]] * workers


@pytest.mark.parametrize("count", [1, BATCH_RECORDS - 1, BATCH_RECORDS, BATCH_RECORDS + 1, 40 * BATCH_RECORDS])
def test_an_iterable_of_any_length_arrives_whole(count: int) -> None:
    [(time, records)] = example(lambda scope: scope.to_stream(iter(range(count))).capture())
    assert (time, records) == (0, list(range(count)))


def test_an_iterable_is_read_bit_by_bit() -> None:
    _, worker = by_hand()
    read: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            read.append(len(read))
            yield len(read)

    probe = ProbeHandle()
    with worker.dataflow() as scope:
        scope.to_stream(endless()).probe_with(probe)
    assert not read
    worker.step()
    first = len(read)
    assert 0 < first < 100_000
    worker.step()
    assert len(read) == 2 * first
    assert not probe.done()


def test_a_generator_that_raises_names_the_operator_and_loses_no_traceback() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise KeyError("the third line")

    with pytest.raises(KeyError, match="the third line") as caught:
        example(lambda scope: scope.to_stream(broken()).map(abs))
    [note] = caught.value.__notes__
    assert note.startswith("in operator 'ToStream'") and __file__ in note and "worker 0" in note
    assert caught.traceback[-1].name == "broken"


def test_what_is_no_iterable_is_refused_while_building() -> None:
    with pytest.raises(BuildError, match="give it an iterable of records, not 3, "):
        example(lambda scope: scope.to_stream(3))  # type: ignore[arg-type]


def ticking(times: int) -> Callable[[Capability, OperatorInfo], Callable[[Any], None]]:
    """Source of 0, 1, …, one per run and each at its own time, that asks to run again."""

    def build(capability: Capability, info: OperatorInfo) -> Callable[[Any], None]:
        def logic(output: Any) -> None:
            with output.session(capability) as session:
                session.give((info.worker, capability.time))
            if capability.time == times - 1:
                capability.release()
            else:
                assert isinstance(capability.time, int)
                capability.downgrade(capability.time + 1)
                info.activator.activate()

        return logic

    return build


@pytest.mark.parametrize("workers", EVERY)
def test_a_source_runs_at_the_start_and_when_it_asks_to(workers: int) -> None:
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            return scope.source("Ticks", ticking(5)).capture()

    assert run(workers, main) == [[(time, [(index, time)]) for time in range(5)] for index in range(workers)]


def test_a_source_that_holds_its_capability_keeps_the_stream_open() -> None:
    hand, worker = by_hand()
    held: list[Capability] = []
    with worker.dataflow() as scope:
        probe = scope.source("Mine", lambda capability, info: held.append(capability) or (lambda output: None)).probe()
    hand.settle()
    assert worker.installed_dataflows and not probe.done()
    held[0].release()
    hand.settle()
    assert probe.done() and not worker.installed_dataflows


def test_a_source_must_give_its_logic() -> None:
    with pytest.raises(BuildError, match=r"Mine \(.*test_sources.py:\d+\): build returned None, a NoneType; it must"):
        example(lambda scope: scope.source("Mine", lambda capability, info: None))  # type: ignore[arg-type,return-value]


Input = tuple[UnorderedHandle[Any], Capability, Stream[Any]]


@pytest.mark.parametrize("workers", EVERY)
def test_each_record_has_the_time_of_the_capability_it_was_given_with(workers: int) -> None:
    """Case 33."""

    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            handle, capability, stream = scope.new_unordered_input()
            captured = stream.capture()
        for number in range(10):
            with capability:
                handle.session(capability).give(number)
                capability = capability.delayed(number + 1)
            worker.step()
        capability.release()
        return captured

    results = run_threads(workers, main)
    assert [captured.extract() for captured in results] == [[(x, [x]) for x in range(10)]] * workers


def test_the_frontier_stays_at_the_least_time_that_is_held() -> None:
    """Case 33: times 5, 3 and 9 are sent in this order; downstream operators wait for the least of them."""
    hand, worker = by_hand()
    seen: list[Any] = []
    with worker.dataflow() as scope:
        handle, first, stream = scope.new_unordered_input()
        probe = stream.inspect_time(lambda *pair: seen.append(pair)).probe()
    held = {time: first.delayed(time) for time in (5, 3, 9)}
    hand.settle()
    assert probe.frontier.elements == (0,)
    first.release()
    for time, capability in held.items():
        with handle.session(capability) as session:
            session.give(f"at {time}")
        hand.settle()
        assert probe.frontier.elements == (3,)
    assert seen == [(5, "at 5"), (3, "at 3"), (9, "at 9")]
    for time, left in ((5, (3,)), (3, (9,)), (9, ())):
        held[time].release()
        hand.settle()
        assert probe.frontier.elements == left
    assert probe.done() and not worker.installed_dataflows


def test_what_was_given_leaves_before_the_right_to_give_it() -> None:
    """Without a block the records wait for the next step, or for the capability to move on."""
    hand, worker = by_hand()
    seen: list[Any] = []
    with worker.dataflow() as scope:
        handle, capability, stream = scope.new_unordered_input()
        probe = stream.inspect_time(lambda *pair: seen.append(pair)).probe()
    handle.session(capability).give("a")
    capability.downgrade(4)
    handle.session(capability).give("b")
    assert worker.has_work()
    hand.settle()
    assert seen == [(0, "a"), (4, "b")] and probe.frontier.elements == (4,)
    handle.session(capability).give("c")
    capability.release()
    hand.settle()
    assert seen[2:] == [(4, "c")] and probe.done()


def test_a_session_gives_many_records_in_batches_and_in_order() -> None:
    hand, worker = by_hand()
    sizes: list[int] = []
    with worker.dataflow() as scope:
        handle, capability, stream = scope.new_unordered_input()
        captured = stream.inspect_batch(lambda time, batch: sizes.append(len(batch))).capture()
    with capability, handle.session(capability) as session:
        session.give_iterator(iter(range(1000)))
        session.give_batch(list(range(1000, 2000)))
    hand.settle()
    assert captured.extract() == [(0, list(range(2000)))] and max(sizes) <= BATCH_RECORDS
    assert not worker.installed_dataflows


@pytest.mark.parametrize("workers", EVERY)
def test_the_end_of_the_program_releases_what_is_still_held(workers: int) -> None:
    kept: list[Any] = []

    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            handle, capability, stream = scope.new_unordered_input()
            captured = stream.exchange(lambda x: x).capture()
        kept.extend((capability, capability.clone(), capability.delayed(7)))
        handle.session(capability).give(worker.index)
        return captured

    results = run_threads(workers, main)
    assert [captured.extract() for captured in results] == [[(0, [index])] for index in range(workers)]
    for capability in kept:
        capability.release()


def test_a_closed_input_takes_nothing_and_its_capabilities_count_for_nothing() -> None:
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        handle, capability, stream = scope.new_unordered_input()
        captured, probe = stream.capture(), stream.probe()
    session = handle.session(capability)
    session.give("before")
    handle.close()
    handle.close()
    with pytest.raises(CapabilityError, match=r"session: output 0 of 'UnorderedInput' .* was closed"):
        handle.session(capability)
    with pytest.raises(CapabilityError, match="ended"):
        session.give("after")
    capability.downgrade(5)
    capability.release()
    hand.settle()
    assert captured.extract() == [(0, ["before"])] and probe.done() and not worker.installed_dataflows


def test_a_session_needs_a_held_capability_of_this_input() -> None:
    _, worker = by_hand()
    with worker.dataflow() as scope:
        handle, capability, _ = scope.new_unordered_input()
        other, foreign, _ = scope.new_unordered_input()
    with pytest.raises(CapabilityError, match=r"is not a capability of output 0 of 'UnorderedInput'"):
        handle.session(foreign)
    capability.release()
    with pytest.raises(CapabilityError, match="was released and cannot send"):
        handle.session(capability)
    with pytest.raises(TimeError, match=r"delayed\(-1\)"):
        foreign.delayed(-1)
    other.close()


def test_nothing_can_be_sent_while_the_dataflow_is_built() -> None:
    _, worker = by_hand()
    complaint = r"session: dataflow 'early' is still being built.*after the end of its"
    with worker.dataflow("early") as scope:
        handle, capability, _ = scope.new_unordered_input()
        with pytest.raises(BuildError, match=complaint), capability:
            handle.session(capability)


def test_an_input_of_a_nested_scope_has_its_times() -> None:
    hand, worker = by_hand()
    with worker.dataflow() as scope, scope.iterative() as inner:
        handle, first, stream = inner.new_unordered_input()
        captured, probe = stream.capture(), stream.probe()
    with first:
        later = [first.delayed(Product(2, 0)), first.delayed(Product(0, 3))]
    for capability in later:
        handle.session(capability).give("x")
    hand.settle()
    assert probe.frontier.elements == (Product(0, 3), Product(2, 0))
    for capability in later:
        capability.release()
    hand.settle()
    assert captured.extract() == [(Product(0, 3), ["x"]), (Product(2, 0), ["x"])] and probe.done()


def test_a_program_may_send_from_within_a_dataflow() -> None:
    """From a callback of an operator that runs after the input, and release the capability at once."""
    hand, worker = by_hand()
    seen: list[Any] = []
    with worker.dataflow() as scope:
        handle, capability, stream = scope.new_unordered_input()

        def answer(x: int) -> None:
            seen.append(x)
            if x < 3:
                with capability.delayed(x + 1) as later:
                    handle.session(later).give(x + 1)

        probe = stream.inspect(answer).probe()
    handle.session(capability).give(0)
    hand.settle()
    assert seen == [0, 1, 2, 3] and probe.frontier.elements == (0,)
    capability.release()
    hand.settle()
    assert probe.done() and not worker.installed_dataflows


def test_a_dropped_dataflow_does_not_mind_what_is_still_sent() -> None:
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        handle, capability, stream = scope.new_unordered_input()
        probe = stream.probe()
    hand.settle()
    worker.drop_dataflow(0)
    with capability, handle.session(capability) as session:
        session.give(1)
    hand.settle()
    assert probe.done() and not worker.installed_dataflows


def test_every_worker_waits_for_what_any_of_them_holds() -> None:
    hand = ByHand(2)
    made: list[Input] = []
    probes: list[Any] = []
    for worker in hand.workers:
        with worker.dataflow() as scope:
            made.append(scope.new_unordered_input())
            probes.append(made[-1][2].exchange(lambda x: x).probe())
    made[0][1].downgrade(8)
    made[1][1].downgrade(4)
    hand.settle()
    assert [probe.frontier.elements for probe in probes] == [(4,), (4,)]
    made[1][1].release()
    hand.settle()
    assert [probe.frontier.elements for probe in probes] == [(8,), (8,)]
    made[0][1].release()
    hand.settle()
    assert all(probe.done() for probe in probes)


@pytest.mark.parametrize("seed", range(4))
def test_an_unordered_input_is_safe_whatever_the_delivery(seed: int) -> None:
    """The monitor of the simulation checks that no frontier passes a held time."""
    feeds = {worker: [(time, time) for time in range(8)] for worker in range(3)}

    def build(worker: Worker, records: Any, commands: Any) -> Any:
        scope: Scope = Scope(records.port.scope)
        handle, capability, stream = scope.new_unordered_input()
        left = 8

        def send(time: Any, x: int) -> int:
            nonlocal left
            with capability.delayed(10 * x) as later:
                handle.session(later).give(x)
            left -= 1
            if not left:
                capability.release()
            return x

        return records.inspect_time(send).filter(lambda x: False).concat(stream.exchange(lambda x: x))

    outputs = EngineCluster(seed).run(build, feeds)
    assert sorted(outputs) == sorted([(10 * x, x) for x in range(8)] * 3)


def test_a_worker_that_ends_by_itself_drains() -> None:
    _, worker = by_hand()
    with worker.dataflow() as scope:
        handle, capability, stream = scope.new_unordered_input()
        captured = stream.capture()
    handle.session(capability).give(1)
    drain(worker)
    assert captured.extract() == [(0, [1])]
