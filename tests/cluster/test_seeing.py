"""Explaining, dropping and logging in real processes give the results of threads."""

from collections import Counter
from typing import Any

import pytest

from megaflow.program import Worker
from megaflow.timely import Capability, InputHandle, Pipeline, ProbeHandle
from megaflow.timely.log import Event, MessageReceived, MessageSent, OperatorBuilt, OperatorShut
from tests.cluster.processes import run_processes
from tests.results import check_equal

pytestmark = pytest.mark.cluster

EVERY_SHAPE = pytest.mark.parametrize(
    "workers",
    [pytest.param(1, id="one worker each"), pytest.param(2, id="two workers each", marks=pytest.mark.slow)],
)


def hoarding(worker: Worker) -> list[tuple[Any, ...]]:
    """The last worker keeps a capability in the second round of a loop; all workers ask why time 3 is not over."""
    kept: list[Capability] = []

    def keeper(capability: Capability, info: Any) -> Any:
        capability.release()

        def logic(source: Any, output: Any) -> None:
            for time, data in source:
                if time.time.inner == 1 and info.worker == max(worker.peer_ids) and not kept:
                    kept.append(time.retain())
                with output.session(time) as session:
                    session.give_batch(data)

        return logic

    handle: InputHandle[int] = InputHandle()
    permits: InputHandle[int] = InputHandle()
    go = ProbeHandle()
    with worker.dataflow("loop") as scope, scope.iterative("rounds") as rounds:
        loop, back = rounds.loop_variable(1)
        turned = scope.input_from(handle).enter(rounds).concat(back)
        turned = turned.exchange(lambda x: max(worker.peer_ids)).unary(Pipeline(), "Keeper", keeper)
        turned.map(lambda x: x - 1).filter(lambda x: x > 0).connect_loop(loop)
        probe = turned.leave().probe()
    with worker.dataflow("permits") as scope:
        scope.input_from(permits).probe_with(go)
    handle.advance_to(3)
    if worker.index == 0:
        handle.send(5)
    handle.advance_to(10)
    worker.step_while(lambda: probe.less_than(3))
    found = worker.explain(probe, 3)
    while len(found) != 1 or found[0].kind != "capability":  # the record is still going round
        found = worker.explain(probe, 3)
    permits.close()
    worker.step_while(lambda: not go.done())
    for capability in kept:
        capability.release()
    return [(each.operator, each.worker, each.time, each.count, each.kind) for each in found]


@EVERY_SHAPE
def test_every_worker_finds_the_capability_that_one_of_another_process_keeps(workers: int) -> None:
    for found in run_processes(hoarding, workers=workers):
        [(operator, worker, time, count, kind)] = found
        assert (operator, worker, (time.outer, time.inner), count, kind) == (
            "rounds/Keeper", 2 * workers - 1, (3, 1), 1, "capability",
        )  # fmt: skip


def dropping(worker: Worker) -> tuple[int, list[int]]:
    """Records flow through two dataflows; one worker drops the first midway."""
    seen: list[int] = []
    doomed, handle = InputHandle[int](), InputHandle[int]()
    with worker.dataflow("doomed") as scope:
        doomed_probe = scope.input_from(doomed).exchange(lambda x: x).probe()
    with worker.dataflow("other") as scope:
        probe = scope.input_from(handle).exchange(lambda x: x).inspect(seen.append).probe()
    for number in range(2000):
        doomed.send(number)
        handle.send(number)
        if number % 10 == 0:
            doomed.advance_to(number)
            handle.advance_to(number)
            worker.step()
        if number == 1000 and worker.index == 0:
            worker.drop_dataflow(0)
    handle.close()
    worker.step_while(lambda: not (probe.done() and doomed_probe.done()))
    return len(seen), list(worker.installed_dataflows)


@EVERY_SHAPE
def test_a_dataflow_dropped_with_records_under_way_disturbs_no_other(workers: int) -> None:
    """Case 41."""
    results = run_processes(dropping, workers=workers)
    assert [installed for _, installed in results] == [[]] * len(results)
    check_equal(sum(seen for seen, _ in results), 2000 * len(results))


def logging(worker: Worker) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], bool]:
    """Return what was sent and received, and whether each operator that was built was also shut down."""
    events: list[Event] = []
    worker.log.subscribe(events.append)
    with worker.dataflow() as scope:
        moved = scope.to_stream(range(3000)).exchange(lambda x: x).broadcast()
        probe = moved.exchange(lambda x: x // 7).probe()
    worker.step_while(lambda: not probe.done())
    while worker.installed_dataflows:
        worker.step()
    sent = [_facts(event) for event in events if isinstance(event, MessageSent)]
    received = [_facts(event) for event in events if isinstance(event, MessageReceived)]
    built = Counter(event.operator for event in events if isinstance(event, OperatorBuilt))
    shut = Counter(event.operator for event in events if isinstance(event, OperatorShut))
    return sent, received, built == shut and len(built) == 5


def _facts(event: MessageSent | MessageReceived) -> tuple[Any, ...]:
    return event.channel, event.source, event.target, event.number, event.records


@EVERY_SHAPE
def test_what_the_logs_say_was_sent_they_say_was_received(workers: int) -> None:
    """Case 56."""
    results = run_processes(logging, workers=workers)
    assert all(complete for _, _, complete in results)
    sent = [fact for facts, _, _ in results for fact in facts]
    received = [fact for _, facts, _ in results for fact in facts]
    check_equal(sorted(received), sorted(sent))
    assert {(source, target) for _, source, target, _, _ in sent} == {
        (a, b) for a in range(2 * workers) for b in range(2 * workers)
    }
