"""Joining: what a joiner learns of dataflows in every state, what it may send, and what can go wrong meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from megaflow.errors import CapabilityError, GraphMismatch, JoinDenied, PeerLost, ProgramError
from megaflow.program import Worker
from megaflow.timely import Capability, InputHandle, OperatorInfo, Pipeline, ProbeHandle
from megaflow.timely.communication.channel import Lane
from megaflow.timely.dataflow.operators.sources import UnorderedHandle
from megaflow.timely.progcaster import Progcaster
from megaflow.timely.rescale.change_stages import ChangeStage
from megaflow.timely.rescale.messages import Aborted, Denied, Joined
from tests.timely.rescale.by_hand import Hands
from tests.timely.rescale.parts import Part, begin, close, hello
from tests.words import says

# Dataflows in every state -------------------------------------------------------------------


def test_a_newcomer_sees_its_share_and_can_inject_data() -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    parts[0].numbers.send(1)
    for part in parts.values():
        part.numbers.advance_to(3)
    hands.settle()
    parts[2] = hands.join(hello)
    assert [worker.peer_ids for worker in hands.workers.values()] == [(0, 1, 2)] * 3
    assert parts[2].numbers.time == 3, "the least that a member may still send at"
    for number in range(6):
        parts[2].numbers.send(number)
    parts[2].numbers.advance_to(4)
    hands.settle()
    assert [part.seen for part in parts.values()] == [[0, 3], [1, 1, 4], [2, 5]]
    assert all(part.probe.less_equal(3) for part in parts.values())
    for part in parts.values():
        if part.numbers.time == 3:
            part.numbers.advance_to(4)
    hands.settle()
    assert not any(part.probe.less_equal(3) for part in parts.values())
    close(hands, *parts.values())


@pytest.mark.parametrize("server", [0, 1, 2])
def test_joiners_may_join_through_anybody_one_after_the_other(server: int) -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    parts[2] = hands.join(hello, via=1, port=50)
    parts[3] = hands.join(hello, server=server, via=2, port=51)
    for part in parts.values():
        part.numbers.send_batch(list(range(8)))
    close(hands, *parts.values())
    assert [sorted(part.seen) for part in parts.values()] == [sorted([n, n + 4] * 4) for n in range(4)]


def test_of_several_dataflows_those_complete_those_running_and_those_dropped_join_as_they_are() -> None:
    hands = Hands(2)
    names = ["complete", "running", "dropped", "at its start"]
    parts = [hands.everywhere(partial(hello, name=name)) for name in names]
    for part in parts[0].values():
        part.numbers.send(1)
        part.numbers.close()
    for part in parts[1].values():
        part.numbers.advance_to(5)
    hands.workers[1].drop_dataflow(2)
    hands.settle()
    assert hands.workers[0].installed_dataflows == {1: "running", 3: "at its start"}
    joined = hands.join(lambda worker: [hello(worker, name) for name in names])
    assert [part.numbers.closed for part in joined] == [True, False, True, False]
    assert [part.probe.done() for part in joined] == [True, False, True, False]
    assert hands.workers[2].installed_dataflows == {1: "running", 3: "at its start"}
    joined[1].numbers.send(7)
    joined[3].numbers.send(2)
    close(hands, *parts[1].values(), *parts[3].values(), joined[1], joined[3])
    assert parts[1][1].seen == [7] and joined[3].seen == [2]


def dropped_meanwhile(held: tuple[int, int]) -> Hands:
    """Let worker 0 drop a dataflow while a lane delays a joiner."""
    hands = Hands(3)
    parts = hands.everywhere(hello)
    hands.settle()
    [joiner] = hands.start(hands.admitted(server=1))
    hello(joiner)
    assert joiner.rescaling.joiner is not None
    joiner.rescaling.joiner.begin()
    hands.held = lambda route: route[:2] == held and route[2] is not Lane.DATA
    hands.settle()
    hands.workers[0].drop_dataflow(0)
    hands.settle()
    hands.held = lambda route: False
    hands.settle()
    assert joiner.bootstrap()
    hands.settle()
    for part in parts.values():
        assert part.probe.done()
    return hands


@pytest.mark.parametrize("held", [(9, 9), (2, 3), (1, 3), (0, 1), (0, 2), (3, 1), (3, 0), (2, 0)])
def test_a_dataflow_that_is_dropped_while_somebody_joins_ends_there_too(held: tuple[int, int]) -> None:
    hands = dropped_meanwhile(held)
    assert hands.done(), hands.pointstamps()


def halve(pair: tuple[int, int]) -> tuple[int, int]:
    return pair[0] // 2, pair[1] + 1


def loop(worker: Worker) -> tuple[InputHandle[int], list[int]]:
    """Halve numbers, each on the worker that it belongs to, until they are 1; collect the numbers of rounds."""
    seen: list[int] = []
    numbers: InputHandle[int] = InputHandle()
    with worker.dataflow("loop") as scope:
        given = scope.input_from(numbers)
        with scope.iterative() as inner:
            again, rounds = inner.loop_variable(1)
            both = inner.concatenate([given.map(lambda x: (x, 0)).enter(inner), rounds])
            halved = both.exchange(lambda pair: pair[0]).map(halve)
            going, done = halved.partition(2, lambda pair: (int(pair[0] <= 1), pair))
            going.connect_loop(again)
            ended = done.leave()
        ended.inspect(lambda pair: seen.append(pair[1]))
    return numbers, seen


def test_a_dataflow_with_a_loop_goes_on_where_it_is() -> None:
    hands = Hands(2)
    parts = hands.everywhere(loop)
    parts[0][0].send_batch([1 << 9, 1 << 5])
    for _ in range(4):
        hands.workers[0].step()
        hands.go_on()
    parts[2] = hands.join(loop)
    parts[2][0].send(1 << 7)
    for numbers, _ in parts.values():
        numbers.close()
    hands.settle()
    assert hands.done(), hands.pointstamps()
    assert sorted(rounds for _, seen in parts.values() for rounds in seen) == [5, 7, 9]


def test_a_dataflow_built_after_a_join_is_founded_by_all_and_closes() -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    parts[2] = hands.join(hello)
    later = hands.everywhere(lambda worker: hello(worker, "later"))
    hands.settle()
    assert [worker.graphs()[1].founders.ids for worker in hands.workers.values()] == [(0, 1, 2)] * 3
    assert [graph.initial[0][2] for worker in hands.workers.values() for graph in worker.graphs()] == [2, 3] * 3
    for part in later.values():
        part.numbers.send_batch([0, 1, 2])
    close(hands, *parts.values(), *later.values())
    assert [part.seen for part in later.values()] == [[0] * 3, [1] * 3, [2] * 3]


def test_a_newcomer_that_builds_more_than_a_program_that_has_ended_is_told_so() -> None:
    hands = Hands(2)
    hands.everywhere(hello)
    for index in (0, 1):
        hands.workers[index].end_building()
    hands.join(hello)
    hands.settle()
    with pytest.raises(GraphMismatch, match=r"'more'\) was built on worker 2 but not on worker \d, whose program has"):
        hello(hands.workers[2], "more")


def test_a_dataflow_that_ends_while_somebody_joins_may_be_complete_at_the_server_and_not_yet_elsewhere() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    for part in parts.values():
        part.numbers.advance_to(1)
    hands.settle()
    joiner, mine = begin(hands, server=1)
    late = [(0, 3, Lane.PROGRESS), (2, 3, Lane.PROGRESS)]
    hands.held = lambda route: route in [(0, 1, Lane.MAIL), *late]
    hands.settle()  # all except the server have sent their markers
    for part in parts.values():
        part.numbers.close()
    hands.settle()
    assert hands.workers[1].installed_dataflows == {}
    for route in late:
        hands.deliver(*route)  # the markers: the loop runs, and batches will follow
    hands.held = lambda route: route in [(0, 3, Lane.MAIL), *late]
    hands.settle()
    assert joiner.rescaling.joiner is not None and joiner.rescaling.joiner.ready
    hands.held = lambda route: route == (0, 3, Lane.MAIL)
    hands.settle()  # batches of a dataflow that the joiner knows to be complete
    hands.held = lambda route: False
    hands.settle()
    assert joiner.bootstrap()
    hands.settle()
    assert mine.numbers.closed and mine.probe.done() and hands.done()


def test_batches_that_the_snapshot_holds_and_that_come_late_are_not_counted_twice() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    hands.settle()
    joiner, parts[3] = begin(hands, server=1)
    late = (2, 3, Lane.PROGRESS)
    hands.held = lambda route: route in [(0, 1, Lane.MAIL), late]
    hands.settle()
    for time in (1, 2, 3):
        for index in range(3):
            parts[index].numbers.advance_to(time)
        hands.settle()
    hands.deliver(*late)  # the marker; the batches after it are under way
    hands.held = lambda route: route == late
    hands.settle()
    assert joiner.rescaling.joiner is not None and joiner.rescaling.joiner.ready
    assert hands.waiting(*late)
    hands.held = lambda route: False
    hands.settle()
    assert joiner.bootstrap() and parts[3].numbers.time == 3
    hands.settle()
    assert parts[3].probe.less_equal(3) and not parts[3].probe.less_equal(2)
    close(hands, *parts.values())


# What it may send ---------------------------------------------------------------------------


def ticking(worker: Worker, kept: dict[int, tuple[Capability, OperatorInfo]]) -> ProbeHandle:
    """Source that holds its capability until the test moves it, and then sends its time."""

    def build(capability: Capability, info: OperatorInfo) -> Any:
        kept[worker.index] = capability, info

        def logic(output: Any) -> None:
            if capability.held and capability.time:
                with output.session(capability) as session:
                    session.give(capability.time)

        return logic

    with worker.dataflow("ticking") as scope:
        return scope.source("Ticks", build, joinable=True).exchange(lambda x: 0).probe()


def test_a_joinable_source_gets_a_clone_at_the_least_time_that_a_member_holds() -> None:
    hands = Hands(2)
    kept: dict[int, tuple[Capability, OperatorInfo]] = {}
    probes = hands.everywhere(lambda worker: ticking(worker, kept))
    kept[0][0].downgrade(4)
    hands.settle()
    probes[2] = hands.join(lambda worker: ticking(worker, kept))
    capability = kept[2][0]
    assert capability.held and capability.time == 4, "worker 0 is asked first, and holds one"
    kept[0][0].release()
    kept[1][0].release()
    hands.workers[0].graphs()[0].run_queue.add(0)
    hands.settle()
    assert all(probe.less_equal(4) for probe in probes.values()), "the newcomer's holds it"
    capability.downgrade(6)
    hands.workers[2].graphs()[0].run_queue.add(0)
    hands.settle()
    assert not any(probe.less_equal(5) for probe in probes.values())
    capability.release()
    hands.settle()
    assert hands.done(), hands.pointstamps()


def test_a_joinable_source_is_closed_for_a_newcomer_when_no_member_holds_its_capability() -> None:
    hands = Hands(2)
    kept: dict[int, tuple[Capability, OperatorInfo]] = {}
    hands.everywhere(lambda worker: ticking(worker, kept))
    parts = hands.everywhere(hello)
    kept[0][0].release()
    kept[1][0].release()
    for part in parts.values():
        part.numbers.close()

    def build(worker: Worker) -> Part:
        ticking(worker, kept)
        return hello(worker)

    parts[2] = hands.join(build)
    assert not kept[2][0].held and not kept[2][0].absent
    assert parts[2].numbers.closed
    with pytest.raises(CapabilityError, match="the input was closed"):
        parts[2].numbers.send(1)
    hands.settle()
    assert hands.done()


@dataclass
class Starters:
    """Parts that begin at the minimum time by themselves, or with a capability that they hold."""

    numbers: InputHandle[int]
    unordered: UnorderedHandle[str]
    capability: Capability
    notified: list[Any]
    seen: list[Any]
    probe: ProbeHandle


def starters(worker: Worker) -> Starters:
    seen: list[Any] = []
    notified: list[Any] = []
    numbers: InputHandle[int] = InputHandle()

    def logic(source: Any, output: Any, notificator: Any) -> None:
        notificator.for_each([source.frontier], lambda capability, _: notified.append(capability.time))

    with worker.dataflow("starters") as scope:
        scope.input_from(numbers).unary_notify(Pipeline(), "Told", logic, [0, 3]).inspect(seen.append)
        scope.to_stream(["stream"]).inspect(seen.append)
        unordered, capability, stream = scope.new_unordered_input()
        probe = stream.inspect(seen.append).probe()
    return Starters(numbers, unordered, capability, notified, seen, probe)


def test_what_starts_by_itself_gives_nothing_on_a_newcomer_and_takes_nothing_from_others() -> None:
    hands = Hands(2)
    parts = hands.everywhere(starters)
    hands.settle()
    parts[2] = hands.join(starters)
    assert parts[0].seen == parts[1].seen == ["stream"] and parts[2].seen == []
    assert not parts[2].capability.held
    with pytest.raises(CapabilityError, match="was released and cannot send"):
        parts[2].unordered.session(parts[2].capability)
    parts[2].capability.release()
    parts[2].unordered.close()  # as at the end of its program
    hands.settle()
    parts[1].unordered.close()
    hands.settle()
    assert all(part.probe.less_equal(0) for part in parts.values()), "worker 0 may still send"
    with parts[0].unordered.session(parts[0].capability) as session:
        session.give("unordered")
    parts[0].unordered.close()
    for part in parts.values():
        part.numbers.close()
    hands.settle()
    assert [part.notified for part in parts.values()] == [[0, 3], [0, 3], []]
    assert [part.seen for part in parts.values()] == [["stream", "unordered"], ["stream"], []]
    assert hands.done(), hands.pointstamps()


def test_before_bootstrap_the_input_of_a_newcomer_says_what_to_do_first() -> None:
    hands = Hands(2)
    hands.everywhere(hello)
    [joiner] = hands.start(hands.admitted())
    part = hello(joiner)
    acts: list[Callable[[], None]] = [
        partial(part.numbers.send, 1),
        partial(part.numbers.send_batch, [1]),
        partial(part.numbers.advance_to, 1),
    ]
    for act in acts:
        with pytest.raises(CapabilityError, match=r"this worker is joining; call worker.bootstrap\(\) first"):
            act()
    assert joiner.bootstrap() and joiner.bootstrap(), "a second call is harmless"
    part.numbers.send(2)
    part.numbers.flush()
    hands.settle()
    assert part.seen == [2]


def test_an_input_that_was_closed_before_bootstrap_gets_no_capability() -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    [joiner] = hands.start(hands.admitted())
    part = hello(joiner)
    part.numbers.close()
    assert joiner.bootstrap()
    close(hands, *parts.values())


def test_bootstrap_in_the_middle_of_building_is_a_mistake() -> None:
    hands = Hands(2)
    hands.everywhere(hello)
    [joiner] = hands.start(hands.admitted())
    with pytest.raises(ProgramError, match="bootstrap: a dataflow is still being built"), joiner.dataflow("hello"):
        joiner.bootstrap()


def test_a_founder_is_told_at_once_that_it_did_not_join() -> None:
    hands = Hands(2)
    assert not any(worker.bootstrap() for worker in hands.workers.values())


def test_an_input_that_feeds_several_dataflows_goes_on_feeding_those_that_are_left() -> None:
    def two(worker: Worker) -> tuple[InputHandle[int], list[int], list[int]]:
        first: list[int] = []
        second: list[int] = []
        numbers: InputHandle[int] = InputHandle()
        for seen in (first, second):
            with worker.dataflow("one of two") as scope:
                scope.input_from(numbers).exchange(lambda x: x).inspect(seen.append)
        return numbers, first, second

    hands = Hands(2)
    parts = hands.everywhere(two)
    hands.workers[0].drop_dataflow(0)
    for numbers, _, _ in parts.values():
        numbers.advance_to(2)
    hands.settle()
    parts[2] = hands.join(two)
    assert not parts[2][0].closed and parts[2][0].time == 2
    parts[2][0].send(1)
    for numbers, _, _ in parts.values():
        numbers.close()
    hands.settle()
    assert hands.done() and parts[1][1:] == ([], [1])


@pytest.mark.parametrize("gated", [True, False])
def test_the_gate_keeps_a_third_workers_frontier_right_when_the_newcomer_overtakes_the_minter(
    gated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not gated:
        monkeypatch.setattr(Progcaster, "gate", lambda *named: None)
    hands = Hands(2)
    parts = hands.everywhere(hello)
    parts[1].numbers.close()
    parts[0].numbers.advance_to(1)
    hands.settle()
    slow = (0, 1, Lane.PROGRESS)  # from the minter to the third
    joiner, parts[2] = begin(hands)
    hands.held = lambda route: route == slow
    hands.settle()
    assert joiner.bootstrap() and parts[2].numbers.time == 1
    parts[2].numbers.advance_to(5)
    hands.settle()
    assert hands.waiting(*slow) and not parts[0].numbers.closed
    assert parts[1].probe.less_equal(1) == gated, "worker 0 may still send at time 1"
    parts[0].numbers.send(1)
    parts[0].numbers.close()
    hands.held = lambda route: False
    hands.settle()
    assert not parts[1].probe.less_equal(4) and parts[1].probe.less_equal(5) and parts[1].seen == [1]
    close(hands, parts[2])


# Failures ------------------------------------------------------------------------------------


def go_on_without(hands: Hands, parts: dict[int, Part], change: int) -> None:
    """Check that the members are unchanged and report it, and that the next worker can join with new ids."""
    members = tuple(parts)
    assert [worker.peer_ids for index, worker in hands.workers.items() if index in parts] == [members] * len(parts)
    for index in members:
        [aborted] = hands.events[index]
        assert isinstance(aborted, Aborted) and aborted.change == change
        assert hands.workers[index].rescaling.audience == members
    assert sorted(hands.parted) == [(index, aborted.ids) for index in members]
    for part in parts.values():
        part.numbers.send(1)
        part.numbers.advance_to(part.numbers.time + 1)  # type: ignore[operator]
    hands.settle()
    assert parts[1].seen == [1] * len(parts)
    newcomer = hands.join(hello, port=77)
    index = max(hands.workers)
    assert index > max(aborted.ids), "ids are never used again"
    assert hands.workers[0].membership.version == 1
    close(hands, *parts.values(), newcomer)


def refused(hands: Hands, joiner: Worker, error: type[Exception], said: str) -> None:
    """Check that the joiner ends with this error and does not become a member. Its connections end with it."""
    with pytest.raises(error, match=said):
        joiner.bootstrap()
    hands.die(joiner.index)
    hands.settle()


def test_a_newcomer_that_built_one_dataflow_more_is_refused_with_its_name() -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    [joiner] = hands.start(hands.admitted())
    hello(joiner)
    hello(joiner, "more")
    refused(hands, joiner, JoinDenied, "did not join: it has built dataflow 'more', which no member has built")
    go_on_without(hands, parts, 1)


def test_a_newcomer_that_dropped_a_dataflow_is_told_of_the_right_one_that_is_too_many() -> None:
    hands = Hands(2)
    hands.everywhere(hello)
    [joiner] = hands.start(hands.admitted())
    for name in ("hello", "more", "most"):
        hello(joiner, name)
    joiner.drop_dataflow(0)
    refused(hands, joiner, JoinDenied, "it has built dataflow 'more', which no member has built")


@pytest.mark.parametrize("server", [0, 1])
def test_a_newcomer_with_another_graph_fails_alone(server: int) -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    [joiner] = hands.start(hands.admitted(server))
    with joiner.dataflow("hello") as scope:
        scope.input_from(InputHandle()).map(abs).inspect(abs)
    refused(hands, joiner, GraphMismatch, rf"operator 1 is Map.* on worker 2 but Exchange.* on worker {server}")
    go_on_without(hands, parts, 1)


def test_a_graph_that_only_the_members_built_meanwhile_is_compared_too() -> None:
    hands = Hands(2)
    hands.everywhere(hello)
    [joiner] = hands.start(hands.admitted())
    hello(joiner)
    with joiner.dataflow("later") as scope:
        scope.input_from(InputHandle()).map(abs)
    assert joiner.rescaling.joiner is not None
    joiner.rescaling.joiner.begin()
    hands.held = lambda route: route[:2] == (1, 2)  # its marker
    hands.settle()
    hello(hands.workers[0], "later")  # the snapshot does not know it
    hands.deliver(0, 2, Lane.PROGRESS)
    refused(hands, joiner, GraphMismatch, r"dataflow 1 \('later'\) differs")
    hello(hands.workers[1], "later")
    hands.settle()


@pytest.mark.parametrize("steps", range(8))
def test_a_newcomer_may_die_at_any_moment_before_the_commit(steps: int) -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    hands.settle()
    begin(hands, server=1)
    for _ in range(steps):
        hands.go_on()
    try:
        hands.die(2)
        hands.settle()
    except PeerLost:
        assert steps > 3, "it was no member any sooner"
    else:
        assert steps < 4, "it was one any later"
        go_on_without(hands, parts, 1)


@pytest.mark.parametrize("steps", range(14))
def test_a_join_may_be_called_off_at_any_moment_and_is_aborted_or_goes_on_to_its_end(steps: int) -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    hands.settle()
    joiner, part = begin(hands, server=1)
    for _ in range(steps):
        hands.go_on()
    coordination = hands.workers[0].rescaling.coordination
    stage = coordination.stage_of((2,))
    coordination.call_off((2,), "it hangs")
    if stage is not None and stage[0] in (ChangeStage.ADMITTED, ChangeStage.PREPARING):
        assert steps < 5, "it was to be a member any later"
        with pytest.raises(JoinDenied, match="did not join"):
            hands.settle()
        del hands.workers[2]
        hands.settle()
        [[aborted], [same]] = hands.events[0], hands.events[1]
        assert isinstance(aborted, Aborted) and aborted == same and aborted.ids == (2,)
        assert aborted.reason.startswith("it hangs (no answer from worker ")
        go_on_without(hands, parts, 1)
    else:
        hands.settle()
        assert [type(event) for event in hands.events[0]] == [Joined] and not joiner.rescaling.joining
        parts[2] = part
        for each in parts.values():
            each.numbers.send_batch([0, 1, 2])
        close(hands, *parts.values())
        assert [each.seen for each in parts.values()] == [[n] * 3 for n in range(3)]


def test_a_newcomer_that_is_silent_is_given_up() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    begin(hands)
    hands.held = lambda route: route[0] == 3
    hands.now = 59.0
    for worker in hands.workers.values():
        worker.step()
    hands.settle()
    assert hands.events[0] == []
    hands.now = 62.0
    hands.workers[0].step()
    hands.held = lambda route: False
    with pytest.raises(JoinDenied, match="did not join"):
        hands.settle()
    del hands.workers[3]
    hands.settle()
    [aborted] = hands.events[0]
    assert isinstance(aborted, Aborted)
    assert says(aborted.reason, "worker 3", "60 s", "admitted") and aborted.ids == (3,)
    go_on_without(hands, parts, 1)


def test_a_newcomer_that_comes_too_late_is_told_so() -> None:
    hands = Hands(2)
    hands.everywhere(hello)
    [joiner] = hands.start(hands.admitted())
    hello(joiner)
    hands.workers[0].rescaling.coordination.give_up("because")
    with pytest.raises(JoinDenied, match="did not join"):
        joiner.bootstrap()


def test_two_that_ask_at_once_join_one_after_the_other() -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    first, second = hands.ask(via=0, port=50), hands.ask(via=1, port=51)
    hands.settle()
    assert second not in hands.answers
    [one] = hands.start(hands.answers[first])  # type: ignore[arg-type]
    parts[2] = hello(one)
    assert one.bootstrap()
    hands.settle()
    [two] = hands.start(hands.answers[second])  # type: ignore[arg-type]
    parts[3] = hello(two)
    assert two.bootstrap()
    hands.settle()
    assert [type(event) for event in hands.events[0]] == [Joined, Joined]
    for part in parts.values():
        part.numbers.send_batch([0, 1, 2, 3])
    close(hands, *parts.values())
    assert [part.seen for part in parts.values()] == [[n] * 4 for n in range(4)]


def test_who_is_refused_learns_why() -> None:
    hands = Hands(2)
    hands.everywhere(hello)
    keys = [hands.ask(port=50, workers=2), hands.ask(port=51, server=7), hands.ask(port=1)]
    hands.settle()
    reasons = [hands.answers[key] for key in keys]
    assert all(isinstance(answer, Denied) for answer in reasons)
    assert "-w 1" in str(reasons[0]) and "no worker 7" in str(reasons[1]) and "listens on host:1" in str(reasons[2])
