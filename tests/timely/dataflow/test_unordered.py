"""Unordered input: sending at any time that a capability is held for."""

from typing import Any

import pytest

from megaflow.errors import BuildError, CapabilityError, TimeError
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.testing import SimulatedCluster
from megaflow.timely import Capability, Product, Stream, UnorderedHandle
from megaflow.timely.dataflow.builder import BATCH_RECORDS
from tests.timely.cases import run_threads
from tests.timely.workers import EVERY, ByHand, by_hand, drain

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
    """Case 33: times 5, 3 and 9 are sent in this order; what is downstream waits for the least of them."""
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
    with pytest.raises(CapabilityError, match="may not send any more"):
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
    """The monitor of the simulation watches that no frontier runs ahead of what is held."""
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

    outputs = SimulatedCluster(seed).run(build, feeds)
    assert sorted(outputs) == sorted([(10 * x, x) for x in range(8)] * 3)


def test_a_worker_that_ends_by_itself_drains() -> None:
    _, worker = by_hand()
    with worker.dataflow() as scope:
        handle, capability, stream = scope.new_unordered_input()
        captured = stream.capture()
    handle.session(capability).give(1)
    drain(worker)
    assert captured.extract() == [(0, [1])]
