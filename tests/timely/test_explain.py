"""explain: which operator, worker and time hold a time back, according to all workers."""

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from megaflow.errors import NoAnswer, ProgramError
from megaflow.program import Worker, execute
from megaflow.timely import Capability, Exchange, InputHandle, Pipeline, ProbeHandle, Product
from megaflow.timely.explain import Holding
from megaflow.timely.runtime import Config
from tests.timely.workers import EVERY, ByHand, by_hand


def keeper(kept: list[Capability], only: int) -> Callable[[Capability, Any], Any]:
    """Operator that keeps its first possible capability on one worker, and passes records on."""

    def build(capability: Capability, info: Any) -> Any:
        capability.release()

        def logic(source: Any, output: Any) -> None:
            for time, data in source:
                if info.worker == only and not kept:
                    kept.append(time.retain())
                with output.session(time) as session:
                    session.give_batch(data)

        return logic

    return build


@pytest.mark.parametrize("workers", EVERY)
def test_a_kept_capability_is_found_from_every_worker(workers: int) -> None:
    def main(worker: Worker) -> list[Holding]:
        handle: InputHandle[int] = InputHandle()
        kept: list[Capability] = []
        with worker.dataflow("hoard") as scope:
            probe = (
                scope.input_from(handle)
                .unary(Exchange(lambda x: workers - 1), "Keeper", keeper(kept, workers - 1))
                .exchange(lambda x: x)
                .probe()
            )
        if worker.index == 0:
            handle.advance_to(3)
            handle.send(1)
        handle.advance_to(10)
        worker.step_while(lambda: probe.less_than(3))
        worker.step_while(lambda: worker.index == workers - 1 and not kept)
        found = worker.explain(probe, 3)
        while any(each.kind != "capability" for each in found):  # the record was still under way
            found = worker.explain(probe, 3)
        done.append(worker.index)
        worker.step_while(lambda: len(done) < workers)  # the other workers may have to ask again
        for capability in kept:
            capability.release()
        return found

    done: list[int] = []
    for found in execute(Config.process(workers), main):
        [hold] = found
        assert (hold.dataflow, hold.operator, hold.port, hold.worker) == ("hoard", "Keeper", "output 0", workers - 1)
        assert (hold.time, hold.count, hold.kind) == (3, 1, "capability")
        assert re.fullmatch(rf"{re.escape(__file__)}:\d+", hold.where)


def cluster(workers: int = 2) -> tuple[ByHand, list[InputHandle[int]], list[ProbeHandle]]:
    """Build an input, an exchange and a probe."""
    hand = ByHand(workers)
    handles, probes = [], []
    for worker in hand.workers:
        with worker.dataflow("flow") as scope:
            handle, stream = scope.new_input()
            handles.append(handle)
            probes.append(stream.exchange(lambda x: x).probe())
    hand.settle()
    return hand, handles, probes


def rows(holdings: list[Holding]) -> list[tuple[Any, ...]]:
    """Return the relevant fields."""
    return [(each.operator, each.worker, each.time, each.count, each.kind) for each in holdings]


def asked(hand: ByHand, probe: ProbeHandle, time: Any) -> list[tuple[Any, ...]]:
    """Return what worker 0 finds out about a cluster at rest."""
    question = hand.workers[0].explainer.ask(probe, time)
    hand.settle()
    assert not question.silent
    return rows(question.holdings())


def test_inputs_are_holdings_like_any_other() -> None:
    hand, handles, probes = cluster()
    handles[0].advance_to(2)
    handles[1].advance_to(1)
    hand.settle()
    assert asked(hand, probes[0], 0) == []
    assert asked(hand, probes[0], 1) == [("Input", 1, 1, 1, "capability")]
    assert asked(hand, probes[0], 2) == [("Input", 1, 1, 1, "capability"), ("Input", 0, 2, 1, "capability")]


def test_records_are_found_in_queues_and_under_way() -> None:
    hand, handles, probes = cluster()
    handles[0].send_batch([0, 1, 2, 3, 5])
    handles[0].advance_to(1)
    handles[1].advance_to(1)
    question = hand.workers[0].explainer.ask(probes[0], 0)
    explainers = [worker.explainer for worker in hand.workers]
    for number in (0, 1):  # by hand: no worker has stepped, so the mail is unread
        explainers[number].answer(0, (0, [0]))
    for envelope in hand.fabric.allocator(0).receive():
        topic, body = envelope.body
        if topic == "megaflow.explained":
            explainers[0].hear(envelope.source, body)
    assert not question.silent
    assert rows(question.holdings()) == [("Exchange", None, 0, 3, "under way"), ("Exchange", 0, 0, 2, "records")]


def test_what_is_held_back_quietly_is_no_holding() -> None:
    """The counts of all workers still include what is gone. Its holder has reported that to explain only."""
    hand, handles, probes = cluster()
    handles[0].send_batch([0, 1])
    handles[0].flush()
    hand.settle()
    before = len(hand.batches)
    assert any(len(graph.progress.caster.held) for worker in hand.workers for graph in worker.graphs())
    assert asked(hand, probes[0], 0) == [("Input", 0, 0, 1, "capability"), ("Input", 1, 0, 1, "capability")]
    assert len(hand.batches) == before


def test_who_has_not_built_the_dataflow_holds_all_of_it() -> None:
    hand = ByHand(2)
    early, late = hand.workers
    with early.dataflow("flow") as scope:
        handle, stream = scope.new_input()
        probe = stream.exchange(lambda x: x).probe()
    handle.close()
    hand.settle()
    assert asked(hand, probe, 0) == [("Input", 1, 0, 1, "not built"), ("Exchange", 1, 0, 1, "not built")]
    with late.dataflow("flow") as scope:
        handle, stream = scope.new_input()
        stream.exchange(lambda x: x).probe()
        assert asked(hand, probe, 0)[0][-1] == "not built"
    hand.settle()
    assert asked(hand, probe, 0) == [("Input", 1, 0, 1, "capability")]
    handle.close()
    hand.settle()
    assert asked(hand, probe, 0) == []


def test_a_loop_is_looked_through_with_its_rounds() -> None:
    hand, worker = by_hand()
    kept: list[Capability] = []
    with worker.dataflow("loops") as scope:
        handle, stream = scope.new_input()
        with scope.iterative("rounds") as rounds:
            loop, back = rounds.loop_variable(1)
            turned = stream.enter(rounds).concat(back).unary(Pipeline(), "Keeper", keeper(kept, 0))
            turned.map(lambda x: x - 1).filter(lambda x: x > 0).connect_loop(loop)
            inside = turned.probe()
            out = turned.leave().probe()
    handle.send(5)
    handle.advance_to(4)
    hand.settle()
    hold = ("rounds/Keeper", 0, Product(0, 0), 1, "capability")
    assert rows(worker.explain(out, 0)) == [hold]
    assert rows(worker.explain(inside, Product(0, 3))) == [hold]
    kept[0].downgrade(Product(2, 7))
    hand.settle()
    assert rows(worker.explain(out, 1)) == []
    assert rows(worker.explain(out, 2)) == [("rounds/Keeper", 0, Product(2, 7), 1, "capability")]
    assert rows(worker.explain(inside, Product(2, 6))) == []
    kept[0].release()
    handle.close()
    hand.settle()


def test_only_what_can_reach_the_probe_counts_and_a_probe_may_watch_several_streams() -> None:
    hand, worker = by_hand()
    probe = ProbeHandle()
    ends = []
    for name in ("one", "two"):
        with worker.dataflow(name) as scope:
            handle, stream = scope.new_input()
            other, beside = scope.new_input()
            beside.map(abs)
            stream.probe_with(probe)
            ends += [handle, other]
    hand.settle()
    assert [(each.dataflow, each.operator) for each in worker.explain(probe, 0)] == [("one", "Input"), ("two", "Input")]
    for handle in ends[:2]:
        handle.close()
    hand.settle()
    assert [each.dataflow for each in worker.explain(probe, 0)] == ["two"]
    assert worker.explain(ProbeHandle(), 0) == []


def test_a_worker_that_does_not_answer_is_named() -> None:
    def main(worker: Worker) -> None:
        with worker.dataflow() as scope:
            probe = scope.new_input()[1].probe()
        if worker.index:
            started.set()
            over.wait()
            return
        started.wait()
        with pytest.raises(NoAnswer, match=r"no answer from worker 1 within 0\.05 seconds"):
            worker.explain(probe, 0, timeout_seconds=0.05)
        over.set()

    started, over = threading.Event(), threading.Event()
    execute(Config.process(2), main)


def test_an_operator_cannot_ask() -> None:
    _, worker = by_hand()
    with worker.dataflow() as scope:
        stream = scope.to_stream([1])
        probe = stream.probe()
        stream.inspect(lambda x: worker.explain(probe, 0))
    with pytest.raises(ProgramError, match="so an operator cannot call it"):
        worker.step()
