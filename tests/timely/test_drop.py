"""drop_dataflow: all workers stop a dataflow before any frees it, and other dataflows do not notice."""

import gc
import weakref

import pytest

from megaflow.errors import BuildError
from megaflow.program import Worker, execute
from megaflow.timely import InputHandle, ProbeHandle
from megaflow.timely.communication.channel import Channel, Lane
from megaflow.timely.log import Event, ScheduleStarted
from megaflow.timely.runtime import Config
from tests.timely.workers import EVERY, ByHand, by_hand

pytestmark = pytest.mark.usefixtures("quick_collections")


class Big:
    """Object that an operator keeps."""


def build(worker: Worker, seen: list[int], big: Big | None = None) -> tuple[InputHandle[int], ProbeHandle]:
    """Build an input, an exchange and an inspection."""
    handle: InputHandle[int] = InputHandle()
    probe = ProbeHandle()
    kept = [big]
    with worker.dataflow() as scope:
        moved = scope.input_from(handle).exchange(lambda x: x)
        moved.inspect(lambda x: seen.append(x) or kept.append(None)).probe_with(probe)
    return handle, probe


@pytest.mark.parametrize("workers", EVERY)
def test_a_dataflow_dropped_with_records_under_way_disturbs_no_other_and_is_freed(workers: int) -> None:
    """Case 41."""
    hand = ByHand(workers)
    dropped: list[int] = []
    seen: list[int] = []
    bigs: list[weakref.ref[Big]] = []
    ends = []
    for worker in hand.workers:
        big = Big()
        bigs.append(weakref.ref(big))
        ends.append((build(worker, dropped, big), build(worker, seen)))
        del big
    for number in range(100):
        for (first, _), (second, _) in ends:
            first.send(number)
            second.send(number)
    for (first, _), (second, _) in ends:
        first.flush()
        second.flush()
    for worker in hand.workers:
        worker.step()
    before = [probe.frontier for _, (_, probe) in ends]
    count = len(dropped)
    for worker in hand.workers:
        worker.drop_dataflow(0)
    assert all(worker.installed_dataflows == {1: "dataflow 1"} for worker in hand.workers)
    assert [probe.frontier for _, (_, probe) in ends] == before, "no other frontier has moved"
    hand.settle()
    assert len(dropped) == count, "a stopped dataflow runs no more"
    assert all(probe.done() for (_, probe), _ in ends), "nobody waits for a dropped dataflow"
    for (first, _), (second, _) in ends:
        first.send(1)
        first.advance_to(7)  # nothing receives it
        second.close()
    hand.settle()
    for worker in hand.workers:
        worker.step()
    assert sorted(seen) == sorted(list(range(100)) * workers)
    assert not any(worker.installed_dataflows for worker in hand.workers)
    gc.collect()
    assert [big() for big in bigs] == [None] * workers


@pytest.mark.parametrize("workers", [2, 3])
def test_nothing_is_freed_before_all_have_stopped(workers: int) -> None:
    hand = ByHand(workers)
    bigs = []
    for worker in hand.workers:
        big = Big()
        bigs.append(weakref.ref(big))
        build(worker, [], big)
        del big
    hand.settle()
    hand.workers[0].drop_dataflow(0)
    hand.workers[0].step()
    gc.collect()
    assert all(big() is not None for big in bigs)
    for worker in hand.workers[1:-1]:
        worker.step()
        worker.step()
    gc.collect()
    assert all(big() is not None for big in bigs), "the last one has not heard of it"
    hand.settle()
    for worker in hand.workers:
        worker.step()
    gc.collect()
    assert all(big() is None for big in bigs)


@pytest.mark.parametrize("workers", [2, 3])
def test_one_worker_drops_for_all(workers: int) -> None:
    hand = ByHand(workers)
    probes = [build(worker, [])[1] for worker in hand.workers]
    hand.settle()
    hand.workers[-1].drop_dataflow(0)
    hand.settle()
    assert not any(worker.installed_dataflows for worker in hand.workers)
    assert all(probe.done() for probe in probes)


def test_what_was_sent_before_the_drop_and_comes_after_it_is_discarded() -> None:
    hand = ByHand(2)
    handles = [build(worker, [])[0] for worker in hand.workers]
    hand.settle()
    hand.workers[0].drop_dataflow(0)
    handles[1].send(0)  # worker 1 has not heard of it
    handles[1].flush()
    hand.workers[1].step()
    hand.settle()
    hand.fabric.allocator(1).send(0, Channel(Lane.DATA, 0, 0), (0, [1]))  # data that all other lanes have overtaken
    hand.fabric.allocator(1).send(0, Channel.progress(0), (99, []))
    hand.workers[0].step()
    assert not hand.workers[0].installed_dataflows


def test_a_dataflow_dropped_before_a_late_worker_has_built_it_is_stopped_when_it_does() -> None:
    hand = ByHand(2)
    early, late = hand.workers
    handle, _ = build(early, [])
    handle.send(1)
    handle.flush()
    early.step()
    early.drop_dataflow(0)
    hand.settle()
    seen: list[int] = []
    _, late_probe = build(late, seen)
    assert late.installed_dataflows == {} and late_probe.done()
    hand.settle()
    assert seen == []
    other = [build(worker, seen) for worker in hand.workers]
    for handle, _ in other:
        handle.send(5)
        handle.close()
    hand.settle()
    assert seen == [5, 5] and all(probe.done() for _, probe in other)


def test_dropping_a_complete_or_a_dropped_dataflow_is_harmless_and_an_unknown_one_is_an_error() -> None:
    hand, worker = by_hand()
    handle, _ = build(worker, [])
    build(worker, [])
    handle.close()
    hand.settle()
    worker.drop_dataflow(0)
    worker.drop_dataflow(1)
    worker.drop_dataflow(1)
    with pytest.raises(BuildError, match=r"drop_dataflow\(2\): there is no such dataflow; installed: none"):
        worker.drop_dataflow(2)
    with worker.dataflow("half") as scope:
        with pytest.raises(BuildError, match=r"drop_dataflow\(2\)"):
            worker.drop_dataflow(2)
        scope.empty()


def test_a_dropped_dataflow_and_a_complete_one_agree() -> None:
    """One worker sees the dataflow complete while another, which has not yet, drops it."""
    hand = ByHand(2)
    handles = [build(worker, [])[0] for worker in hand.workers]
    hand.settle()
    for handle in handles:
        handle.close()
    hand.workers[1].step()
    hand.workers[0].drop_dataflow(0)
    hand.settle()
    assert not any(worker.installed_dataflows for worker in hand.workers)
    assert all(not worker._dataflows.dropping._stopped for worker in hand.workers)


@pytest.mark.parametrize("which", [0, 1])
def test_an_operator_may_drop_its_own_dataflow_or_another(which: int) -> None:
    hand, worker = by_hand()
    seen: list[int] = []

    def drop(x: int) -> None:
        seen.append(x)
        worker.drop_dataflow(which)

    with worker.dataflow() as scope:
        scope.to_stream([1]).inspect(drop).map(seen.append)
    handle, probe = build(worker, [])
    hand.settle()
    assert which in (0, 1) and which not in worker.installed_dataflows
    assert probe.done() is (which == 1)
    handle.close()
    hand.settle()
    assert not worker.installed_dataflows


def test_views_of_stateful_operators_go_with_their_dataflow() -> None:
    hand, worker = by_hand()
    for name in ("first", "second"):
        with worker.dataflow() as scope:
            pairs = scope.new_input()[1].map(lambda x: (x, 1))
            pairs.stateful_state_machine(lambda key, value, state: (value, []), name=name, bins=4)
    hand.settle()
    worker.drop_dataflow(0)
    assert [view.name for view in worker.stateful] == ["second"]


@pytest.mark.parametrize("workers", [2, 3])
def test_threads_that_drop_while_they_send_all_end(workers: int) -> None:
    """Case 41 with real threads: half of the workers drop, at different moments."""

    def main(worker: Worker) -> tuple[int, bool]:
        seen: list[int] = []
        doomed, doomed_probe = build(worker, [])
        handle, probe = build(worker, seen)
        for number in range(300):
            doomed.send(number)
            handle.send(number)
            if number % 10 == 0:
                doomed.advance_to(number)
                handle.advance_to(number)
                worker.step()
            if number == 100 + 50 * worker.index and worker.index % 2 == 0:
                worker.drop_dataflow(0)
        handle.close()
        worker.step_while(lambda: not (probe.done() and doomed_probe.done()))
        return len(seen), 0 in worker.installed_dataflows

    results = execute(Config.process(workers), main)
    assert sum(count for count, _ in results) == 300 * workers
    assert not any(left for _, left in results)


def test_idle_steps_cost_nothing_for_operators_that_have_nothing_to_do() -> None:
    """Case 42: 100 dataflows of 100 maps; rounds go through one dataflow after the other."""
    hand, worker = by_hand()
    ends: list[tuple[InputHandle[int], ProbeHandle]] = []
    for _ in range(100):
        with worker.dataflow() as scope:
            handle, stream = scope.new_input()
            for _ in range(100):
                stream = stream.map(abs)
            ends.append((handle, stream.probe()))
    hand.settle()

    started: list[Event] = []
    worker.log.subscribe(started.append)

    def runs() -> int:
        return sum(isinstance(event, ScheduleStarted) for event in started)

    before = runs()
    for _ in range(10):
        worker.step()
    assert runs() == before, "an idle step runs nothing"
    for round, (handle, probe) in enumerate(ends[:20], 1):
        before = runs()
        handle.advance_to(round)
        steps = steps_until(worker, probe, round)
        assert steps <= 3 and runs() - before <= 1, "an idle round: O(1)"
        before = runs()
        handle.send(1)
        handle.advance_to(round + 1)
        steps = steps_until(worker, probe, round + 1)
        assert steps <= 4 and runs() - before <= 101, "a record passes each map of its dataflow once"


def steps_until(worker: Worker, probe: ProbeHandle, time: int) -> int:
    """Step until the probe has reached a time; return the number of steps."""
    for steps in range(100):
        if not probe.less_than(time):
            return steps
        worker.step()
    raise AssertionError("100 steps are not enough")
