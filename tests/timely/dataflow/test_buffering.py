"""Buffers: what each policy keeps, counts and stops; and sends limited to the room available."""

from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from typing import Any

import pytest

from megaflow.errors import BuildError, CapabilityError, ProgramError
from megaflow.scope import Scope
from megaflow.testing import EngineCluster, Join
from megaflow.timely import BufferHandle, Exchange, InputHandle, Pipeline, ProbeHandle, example
from megaflow.timely.dataflow.flow_control.handoffs import Bounds
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.dataflow.operators.buffering import LOSING
from megaflow.timely.log import RecordsDropped
from tests.timely.cases import taking
from tests.timely.workers import ByHand

SMALL = Bounds(queue_records=4, window_records=6)
POLICIES = ["wait", "grow", "drop_newest", "drop_oldest"]


class Bench:
    """Input, buffer, and an operator that takes nothing until it is opened; its queue holds four."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.hand = ByHand()
        self.handle, self.told, self.probe = InputHandle[Any](), BufferHandle(), ProbeHandle()
        self.taken: list[Any] = []
        self.is_open = False
        self.events: list[Any] = []
        worker = self.hand.workers[0]
        worker.log.subscribe(self.events.append)
        with worker.dataflow() as scope:
            self.graph: Graph = scope.ref.graph
            self.graph.handoffs.bounds = SMALL
            buffered = scope.input_from(self.handle).buffer(*args, handle=self.told, **options)
            buffered.unary(Pipeline, "Valve", self._valve).probe_with(self.probe)

    def _valve(self, capability: Any, info: Any) -> Any:
        capability.release()
        self.activate = info.activator.activate

        def logic(source: Any, output: Any) -> None:
            if self.is_open:
                self.taken += [record for _, batch in source for record in batch]
            else:
                self.graph.handoffs.refused = True  # as if it waited for room, so it does not run again by itself

        return logic

    def send(self, *records: Any) -> None:
        """Send each record in a separate batch, all before the worker takes a step."""
        for record in records:
            self.handle.send(record)
            self.handle.flush()

    def settle(self) -> None:
        self.hand.settle()
        self.graph.handoffs.settle(lambda: ())
        for queue in self.graph.queues:
            queue._check()

    def open(self) -> None:
        self.is_open = True
        self.activate()
        self.settle()


def test_what_has_room_passes_and_what_has_not_waits() -> None:
    bench = Bench(3)
    bench.send(*range(4))
    bench.settle()
    assert bench.told.waiting == 0, "the queue behind has room for four"
    bench.send(4, 5)
    bench.settle()
    assert bench.told.waiting == 2 and not bench.taken
    bench.open()
    assert bench.taken == [0, 1, 2, 3, 4, 5] and bench.told.waiting == 0
    assert (bench.told.most, bench.told.dropped, bench.told.merged) == (2, 0, 0)


@pytest.mark.parametrize(
    ("policy", "kept"), [("drop_newest", [*range(7)]), ("drop_oldest", [0, 1, 2, 3, 7, 8, 9])], ids=POLICIES[2:]
)
def test_a_buffer_that_drops_keeps_so_many(policy: Any, kept: list[int]) -> None:
    bench = Bench(3, policy)
    bench.send(*range(10))
    bench.settle()
    assert bench.told.waiting == 3 and bench.told.dropped == 3
    assert [event for event in bench.events if isinstance(event, RecordsDropped)] == [RecordsDropped(0, 1, 3)]
    bench.open()
    assert bench.taken == kept
    bench.handle.close()
    bench.settle()
    assert bench.probe.done()


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest"])
def test_a_batch_is_cut_where_the_bound_is(policy: Any) -> None:
    bench = Bench(3, policy)
    bench.send(*"abcd")
    bench.handle.send_batch([*range(10)])
    bench.settle()
    bench.handle.send_batch([*range(10, 20)])
    bench.settle()
    assert (bench.told.waiting, bench.told.dropped) == (3, 17)
    bench.open()
    assert bench.taken == [*"abcd", *([0, 1, 2] if policy == "drop_newest" else [17, 18, 19])]


def test_dropped_records_hold_no_time_back() -> None:
    bench = Bench(1, "drop_oldest")
    bench.send(*range(4))
    for time in (1, 2, 3):
        bench.handle.advance_to(time)
        bench.send(f"of time {time}")
    bench.handle.close()
    bench.settle()
    location = bench.graph.nodes[1].targets[0]
    assert list(bench.graph.frontier(location)) == [3], "those of times 1 and 2 are gone"
    assert (location, 3, 1) in list(bench.graph.progress.tracker.pointstamps())
    bench.open()
    assert bench.taken == [0, 1, 2, 3, "of time 3"] and bench.probe.done()


def test_explain_shows_what_waits_in_a_buffer() -> None:
    bench = Bench(3)
    bench.send(*range(6))
    bench.settle()
    found = bench.hand.workers[0].explain(bench.probe, 0)
    assert ("Buffer(wait, 3)", "records", 2) in [(each.operator, each.kind, each.count) for each in found]


def test_more_than_may_wait_is_an_error_where_the_policy_is_to_fail() -> None:
    bench = Bench(3, "fail")
    bench.send(*range(7))
    bench.settle()
    bench.send(7)
    with pytest.raises(ProgramError, match=r"Buffer\(fail, 3\) \(.*buffering.py:\d+\): 4 records wait, more than 3"):
        bench.settle()


@pytest.mark.parametrize("policy", ["grow", "drop_newest", "drop_oldest", "fail", "merge"])
def test_only_a_buffer_that_waits_stops_those_before_it(policy: Any) -> None:
    given = {"merge": max} if policy == "merge" else {"when_full": policy}
    bench = Bench(**given)
    assert bench.handle.try_send_batch([*range(5000)]) == []
    waiting = Bench(3)
    assert waiting.handle.try_send_batch([*range(5000)]) == [*range(3, 5000)]


def test_a_lattice_buffer_merges_what_waits_of_each_time() -> None:
    bench = Bench(merge=lambda a, b: a | b)
    bench.send({1}, {2}, {1, 3})
    bench.settle()
    assert bench.told.waiting == 0 and bench.told.merged == 2
    for time in (1, 2, 3, 4):
        bench.handle.advance_to(time)
        bench.send({time}, {10 * time})
        bench.settle()
        bench.send({100 * time})
        bench.settle()
    assert bench.told.waiting == 3, "of times 2, 3 and 4; four are in the queue behind"
    bench.open()
    assert reduce(lambda a, b: a | b, bench.taken) == {1, 2, 3, *(n * t for t in (1, 2, 3, 4) for n in (1, 10, 100))}
    assert bench.taken[-1] == {4, 40, 400} and bench.taken[0] == {1, 2, 3}
    bench.handle.close()
    bench.settle()
    assert bench.probe.done() and bench.told.merged + len(bench.taken) == 15


def test_a_join_that_returns_nothing_is_an_error_that_names_the_operator() -> None:
    with pytest.raises(ProgramError, match="merge made None of records at time 0") as raised:
        example(lambda scope: scope.to_stream([{1}, {2}]).buffer(merge=set.update).capture())
    assert "Buffer(merge)" in "".join(raised.value.__notes__)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"when_full": "drop"}, "when_full='drop'; choose one of wait, grow, drop_newest, drop_oldest, fail"),
        ({"records": 0}, r"buffer\(0\): give the number of records that may wait, an int of at least 1"),
        ({"records": True}, r"buffer\(True\): give the number"),
        ({"records": 2.0}, r"buffer\(2.0\): give the number"),
        ({"records": 3, "when_full": "grow"}, "a buffer that grows has no limit; leave out 3"),
        ({"merge": max, "records": 3}, "its own policy"),
        ({"merge": max, "when_full": "fail"}, "its own policy"),
        ({"merge": 3}, "a function of two records"),
        ({"handle": 3}, r"handle=3; give it a BufferHandle\(\)"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(given: Any, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        example(lambda scope: scope.to_stream([1]).buffer(**given).capture())


def test_a_handle_tells_of_one_buffer() -> None:
    told = BufferHandle()
    with pytest.raises(BuildError, match="the handle already belongs to a buffer"):
        example(lambda scope: scope.to_stream([1]).buffer(handle=told).buffer(handle=told).capture())


def test_the_graph_says_which_operators_may_lose_records() -> None:
    def build(scope: Scope) -> Any:
        stream = scope.to_stream([1]).map(int).buffer(5).buffer(when_full="grow").buffer(5, "fail")
        stream = stream.buffer(5, "drop_newest").buffer(5, "drop_oldest").buffer(merge=max)
        loses = [node.loses for node in scope.ref.graph.nodes]
        assert loses == [None, None, None, None, None, "drop_newest", "drop_oldest", "merge"]
        return stream.capture()

    assert example(build) == [(0, [1])]


def test_try_give_sends_what_there_is_room_for_and_goes_on_when_there_is_more() -> None:
    hand, rests, taken = ByHand(), list[int](), list[int]()

    def source(capability: Any, info: Any) -> Any:
        left = list(range(50))

        def logic(output: Any) -> None:
            nonlocal left
            if capability.held:
                left = output.session(capability).try_give(left)
                rests.append(len(left))
                if not left:
                    capability.release()

        return logic

    def taking_one(capability: Any, info: Any) -> Any:
        capability.release()

        def logic(input: Any, output: Any) -> None:
            for _, batch in input:
                taken.extend(batch)
                break

        return logic

    with hand.workers[0].dataflow() as scope:
        scope.ref.graph.handoffs.bounds = SMALL
        probe = scope.source("Source", source).buffer(7).unary(Pipeline, "Slow", taking_one).probe()
    hand.workers[0].step()
    assert rests[0] == 43, "seven fit"
    hand.settle()
    assert taken == list(range(50)) and probe.done()
    assert rests[-1] == 0 and all(a > b for a, b in pairwise(rests)), "it runs again only when there is room"


def test_try_give_fits_what_another_worker_has_credit_for() -> None:
    hand, rests = ByHand(2), dict[int, int]()

    def source(capability: Any, info: Any) -> Any:
        def logic(output: Any) -> None:
            if info.worker == 0 and capability.held and not rests:
                rests[0] = len(output.session(capability).try_give(list(range(50))))
            capability.release()

        return logic

    for worker in hand.workers:
        with worker.dataflow() as scope:
            scope.ref.graph.handoffs.bounds = SMALL
            scope.source("Source", source).unary(Exchange(lambda x: 1), "Far", taking)
    hand.workers[0].step()
    assert rests == {0: 44}, "a window of six"


def test_a_session_that_has_ended_gives_nothing() -> None:
    hand, sessions = ByHand(), list[Any]()

    def source(capability: Any, info: Any) -> Any:
        def logic(output: Any) -> None:
            if not sessions:
                sessions.append(output.session(capability))
            else:
                capability.release()

        return logic

    with hand.workers[0].dataflow() as scope:
        scope.source("Source", source)
    hand.settle()
    with pytest.raises(CapabilityError, match="try_give: the session"):
        sessions[0].try_give([1])


def test_a_program_sends_what_there_is_room_for() -> None:
    bench = Bench(3)
    rest = bench.handle.try_send_batch([*range(12)])
    assert rest == [*range(3, 12)]
    bench.settle()
    while rest:
        before = len(rest)
        rest = bench.handle.try_send_batch(rest)
        bench.settle()
        if len(rest) == before:
            break
    assert (bench.told.waiting, rest) == (3, [9, 10, 11]), "two batches of three are behind the buffer"
    bench.open()
    assert bench.handle.try_send_batch(rest) == []
    bench.settle()
    assert bench.taken == [*range(12)]


FEEDS = {worker: [(time, 3 * n + worker) for time in range(4) for n in range(5)] for worker in range(3)}


def through(put: Callable[[Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Send records through a buffer to two operators: a slow one, and one that keeps the records of its own worker."""

    def slow(capability: Any, info: Any) -> Any:
        capability.release()

        def logic(input: Any, output: Any) -> None:
            for time, batch in input:
                output.session(time).give_batch(batch)
                break

        return logic

    def build(worker: Any, records: Any, commands: Any) -> Any:
        burst = records.exchange(lambda n: n).flat_map(lambda n: range(4 * n, 4 * n + 4))
        return put(burst).unary(Exchange(lambda n: n), "Slow", slow)

    return build


@pytest.mark.parametrize("policy", [*POLICIES, "merge"])
def test_in_any_order_of_delivery_each_record_comes_once_or_is_counted(policy: Any) -> None:
    """The monitor also checks the frontiers; a worker joins meanwhile."""
    told: list[BufferHandle] = []

    def put(stream: Any) -> Any:
        told.append(BufferHandle())
        if policy == "merge":
            return stream.buffer(merge=max, handle=told[-1])
        return stream.buffer(None if policy == "grow" else 2, policy, handle=told[-1])

    given = {(time, 4 * n + part) for feed in FEEDS.values() for time, n in feed for part in range(4)}
    lost = 0
    for seed in range(5):
        told.clear()
        cluster = EngineCluster(seed, 3, bounds=Bounds(3, 4))
        cluster.at(record=20, do=Join())
        found = cluster.run(through(put), FEEDS)
        assert len(set(found)) == len(found) and set(found) <= given, f"seed {seed}"
        missing = sum(each.dropped + each.merged for each in told)
        assert len(found) + missing == len(given), f"seed {seed}"
        assert not missing or policy in LOSING, f"seed {seed}"
        if policy == "merge":
            assert {time: max(n for t, n in found if t == time) for time in range(4)} == dict.fromkeys(range(4), 59)
        lost += missing
    assert (lost > 0) == (policy in LOSING), "some order makes each of those lose something"
