"""Scopes: records enter, leave and go round; every mixture of scopes is refused with the scopes' names."""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from megaflow.errors import BuildError, GraphMismatch, TimeError
from megaflow.program import Worker, example
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.timely import Exchange, InputHandle, Pipeline, ProbeHandle, Product, less_equal
from megaflow.timely.dataflow.builder import NodeBuilder
from megaflow.timely.path_summary import identity
from tests.cluster.processes import run_processes
from tests.results import check_equal
from tests.timely.cases import edges, run_threads
from tests.timely.workers import EVERY, by_hand

HERE = r".*test_scopes\.py:\d+"
COLLATZ = [9, 8, 7, 5, 5, 4, 4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1]


def collatz(x: int) -> int:
    return x // 2 if x % 2 == 0 else 3 * x + 1


def from_worker_0(worker: Worker, records: Any) -> Any:
    return records if worker.index == 0 else ()


# Times ------------------------------------------------------------------------------------


def test_a_record_enters_with_a_zero_round_and_leaves_without_it() -> None:
    def build(scope: Scope) -> Any:
        with scope.scoped("outer") as outer, outer.iterative("inner") as inner:
            once = scope.to_stream([1]).enter(outer)
            twice = once.enter(inner)
            out = twice.leave().leave()
            return once.capture(), twice.capture(), out.capture()

    assert example(build) == (
        [(Product(0, 0), [1])],
        [(Product(Product(0, 0), 0), [1])],
        [(0, [1])],
    )


def test_a_region_leaves_times_alone_and_costs_no_operator() -> None:
    _, worker = by_hand()
    with worker.dataflow() as scope:
        stream = scope.to_stream([1])
        operators = len(scope.ref.graph.nodes)
        with scope.region("outer") as outer, outer.region() as inner:
            out = stream.enter(outer).enter(inner).leave().leave()
        assert len(scope.ref.graph.nodes) == operators
        captured = out.capture()
    worker.step()
    assert captured.extract() == [(0, [1])]


def test_a_region_in_a_loop_has_the_times_of_the_loop() -> None:
    def build(scope: Scope) -> Any:
        with scope.iterative() as loop:
            handle, back = loop.loop_variable(1)
            grown = scope.to_stream([0]).enter(loop).concat(back)
            with loop.region("body") as body:
                grown = grown.enter(body).map(lambda x: x + 1).leave()
            grown.filter(lambda x: x < 3).connect_loop(handle)
            return grown.capture()

    assert example(build) == [(Product(0, round), [round + 1]) for round in range(3)]


def test_sources_in_a_nested_scope_begin_at_its_least_time() -> None:
    def build(scope: Scope) -> Any:
        with scope.iterative() as inner:

            def source(capability: Any, info: Any) -> Callable[[Any], None]:
                def logic(output: Any) -> None:
                    capability.downgrade(Product(2, 3))
                    with capability:
                        output.session(capability).give("later")

                return logic

            return inner.to_stream([1]).capture(), inner.source("Late", source).capture(), inner.empty().capture()

    assert example(build) == ([(Product(0, 0), [1])], [(Product(2, 3), ["later"])], [])


def test_a_loop_variable_advances_the_innermost_round_only() -> None:
    def build(scope: Scope) -> Any:
        with scope.iterative() as outer, outer.iterative() as inner:
            handle, back = inner.loop_variable(2)
            grown = scope.to_stream([0]).enter(outer).enter(inner).concat(back).map(lambda x: x + 1)
            grown.filter(lambda x: x < 3).connect_loop(handle)
            return grown.capture(), grown.leave().leave().capture()

    assert example(build) == (
        [(Product(Product(0, 0), 2 * round), [round + 1]) for round in range(3)],
        [(0, [1, 2, 3])],
    )


def test_a_nested_loop_runs_anew_in_each_round_of_the_outer_one() -> None:
    """Powers: the outer loop multiplies, the inner one multiplies by adding."""

    def build(scope: Scope) -> Any:
        with scope.iterative("powers") as powers:
            again, power = powers.loop_variable(1)
            values = scope.to_stream([1]).enter(powers).concat(power)
            with powers.iterative("sums") as sums:
                onward, partial = sums.loop_variable(1)
                step = values.map(lambda x: (x, x, 1)).enter(sums).concat(partial)
                done, more = (step.filter(lambda s, n=n: (s[2] == 3) is n) for n in (True, False))
                more.map(lambda s: (s[0], s[1] + s[0], s[2] + 1)).connect_loop(onward)
                tripled, rounds = done.map(lambda s: s[1]).leave(), done.capture()
            tripled.filter(lambda x: x < 100).connect_loop(again)
            return tripled.capture(), rounds

    tripled, rounds = example(build)
    assert tripled == [(Product(0, round), [3 ** (round + 1)]) for round in range(5)]
    assert [time for time, _ in rounds] == [Product(Product(0, round), 2) for round in range(5)]


# Loops ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", EVERY)
def test_records_leave_a_loop_while_others_still_go_round(workers: int) -> None:
    """Case 16."""

    def main(worker: Worker) -> list[tuple[Any, Any]]:
        left: list[tuple[Any, Any]] = []
        with worker.dataflow() as scope:
            start = scope.to_stream(from_worker_0(worker, range(1, 10))).map(lambda x: (x, x, 0))
            with scope.iterative("Collatz") as loop:
                handle, back = loop.loop_variable(1)
                stepped = (
                    start.enter(loop)
                    .concat(back)
                    .exchange(lambda s: s[1])
                    .map(lambda s: (s[0], collatz(s[1]), s[2] + 1))
                )
                stepped.filter(lambda s: s[1] != 1).connect_loop(handle)
                out = stepped.filter(lambda s: s[1] == 1).leave()
            out.inspect_time(lambda time, s: left.append((time, (s[0], s[2]))))
        return left

    left = [pair for each in run_threads(workers, main) for pair in each]
    assert {time for time, _ in left} == {0}
    assert sorted(steps for _, steps in left) == [
        (1, 3), (2, 1), (3, 7), (4, 2), (5, 5), (6, 8), (7, 16), (8, 3), (9, 19)
    ]


@pytest.mark.parametrize("workers", EVERY)
def test_two_loop_variables_may_share_operators(workers: int) -> None:
    """Case 17."""

    def main(worker: Worker) -> list[tuple[Any, int]]:
        seen: list[tuple[Any, int]] = []
        with worker.dataflow() as scope:
            start = scope.to_stream(from_worker_0(worker, range(1, 10))).exchange(lambda x: x)
            with scope.iterative() as loop:
                even_handle, evens = loop.loop_variable(1)
                odd_handle, odds = loop.loop_variable(1)
                inside = start.enter(loop)
                halved = inside.filter(lambda x: x % 2 == 0).concat(evens).map(lambda x: x // 2)
                tripled = inside.filter(lambda x: x % 2 == 1).concat(odds).map(lambda x: 3 * x + 1)
                both = halved.concat(tripled).inspect_time(lambda time, x: seen.append((time, x)))
                both = both.filter(lambda x: x != 1)
                both.filter(lambda x: x % 2 == 0).connect_loop(even_handle)
                both.filter(lambda x: x % 2 == 1).connect_loop(odd_handle)
        return seen

    seen = [pair for each in run_threads(workers, main) for pair in each]
    assert (len(seen), sum(x for _, x in seen), max(x for _, x in seen)) == (64, 755, 52)
    assert Counter(time for time, _ in seen) == {Product(0, round): count for round, count in enumerate(COLLATZ)}


def epochs_in_a_loop(worker: Worker) -> tuple[list[tuple[Any, int]], list[str]]:
    """Send 20 epochs without waiting. Return what was seen, and the wrong reports of the outer probe."""
    seen: list[tuple[Any, int]] = []
    wrong: list[str] = []
    numbers, outside = InputHandle[int](), ProbeHandle()

    def see(time: Any, x: int) -> None:
        seen.append((time, x))
        if not outside.less_equal(time.outer):
            wrong.append(f"{x} at {time} after the probe outside showed {outside.frontier}")

    with worker.dataflow() as scope:
        entering = scope.input_from(numbers).exchange(lambda x: x)
        with scope.iterative() as loop:
            handle, back = loop.loop_variable(1)
            stepped = entering.enter(loop).concat(back).map(collatz).inspect_time(see).exchange(lambda x: x + 1)
            stepped.filter(lambda x: x != 1).connect_loop(handle)
            stepped.leave().probe_with(outside)
    for epoch in range(20):
        if worker.index == 0:
            for x in range(1, 10):
                numbers.send(x)
        numbers.advance_to(epoch + 1)
        worker.step()
    numbers.close()
    worker.step_while(lambda: not outside.done())
    return seen, wrong


def check_epochs(results: list[tuple[list[tuple[Any, int]], list[str]]]) -> None:
    check_equal([wrong for _, wrong in results], [[] for _ in results])
    histogram = Counter(time for seen, _ in results for time, _ in seen)
    check_equal(histogram, {Product(epoch, round): count for epoch in range(20) for round, count in enumerate(COLLATZ)})


@pytest.mark.parametrize("workers", EVERY)
def test_epochs_overlap_in_a_loop_and_are_over_outside_when_they_have_left_it(workers: int) -> None:
    """Case 19."""
    check_epochs(run_threads(workers, epochs_in_a_loop))


@pytest.mark.cluster
def test_epochs_overlap_in_a_loop_of_two_processes() -> None:
    """Case 19."""
    check_epochs(run_processes(epochs_in_a_loop))


def bfs(worker: Worker) -> tuple[list[tuple[int, int]], int]:
    """Return this worker's (node, distance), and the number of candidates that it received."""
    found: list[tuple[int, int]] = []
    candidates = [0]
    mine = [edge for index, edge in enumerate(edges(1000, 4000)) if index % worker.peers == worker.index]

    def build(capability: Any, info: Any) -> Callable[[Any, Any, Any], None]:
        capability.release()
        targets: dict[int, list[int]] = defaultdict(list)
        reached: set[int] = set()
        waiting: dict[Any, set[int]] = {}

        def logic(graph: Any, nodes: Any, output: Any) -> None:
            for _, pairs in graph:
                for source, target in pairs:
                    targets[source].append(target)
            for time, batch in nodes:
                candidates[0] += len(batch)
                waiting.setdefault(time.retain(), set()).update(batch)
            closed = [
                held for held in waiting
                if not graph.frontier.less_equal(held.time) and not nodes.frontier.less_equal(held.time)
            ]
            for held in sorted(closed, key=lambda held: held.time.inner):
                with held, output.session(held) as session:
                    for node in waiting.pop(held) - reached:
                        reached.add(node)
                        found.append((node, held.time.inner))
                        session.give_iterator(targets[node])

        return logic

    with worker.dataflow() as scope:
        graph, root = scope.to_stream(mine), scope.to_stream(from_worker_0(worker, [0]))
        with scope.iterative("BFS") as loop:
            handle, back = loop.loop_variable(1)
            by_source, by_node = Exchange(lambda edge: edge[0]), Exchange(lambda node: node)
            reach = graph.enter(loop).binary_frontier(root.enter(loop).concat(back), by_source, by_node, "Reach", build)
            reach.connect_loop(handle)
    while worker.step_or_park(None):
        pass
    return found, candidates[0]


def check_bfs(results: list[tuple[list[tuple[int, int]], int]]) -> None:
    found = [pair for part, _ in results for pair in part]
    levels = Counter(distance for _, distance in found)
    check_equal((len(found), len(dict(found))), (978, 978))
    check_equal([levels[level] for level in sorted(levels)], [1, 5, 20, 78, 230, 388, 224, 29, 3])
    check_equal(sum(distance for _, distance in found), 4710)
    check_equal(sum(candidates for _, candidates in results), 3916)


@pytest.mark.parametrize("workers", EVERY)
def test_breadth_first_search_goes_level_by_level(workers: int) -> None:
    """Case 20."""
    check_bfs(run_threads(workers, bfs))


@pytest.mark.cluster
def test_breadth_first_search_goes_level_by_level_over_two_processes() -> None:
    """Case 20."""
    check_bfs(run_processes(bfs))


# Waking -----------------------------------------------------------------------------------


def nothing_inside(worker: Worker) -> list[int]:
    """Send records through scopes without operators while parked without limit."""
    seen: list[int] = []
    with worker.dataflow() as scope:
        stream = scope.to_stream(from_worker_0(worker, range(10)))
        with scope.region() as outer, outer.region() as inner:
            stream = stream.enter(outer).enter(inner).leave().leave()
        with scope.scoped("outer") as outer, outer.iterative() as inner:
            stream = stream.enter(outer).enter(inner).leave().leave()
        stream.inspect(seen.append)
    while worker.step_or_park(None):
        pass
    return seen


@pytest.mark.parametrize("workers", EVERY)
def test_records_pass_nested_scopes_without_operators_and_wake_them(workers: int) -> None:
    """Case 9."""
    assert run_threads(workers, nothing_inside) == [list(range(10)), *[[]] * (workers - 1)]


@pytest.mark.cluster
def test_records_pass_nested_scopes_without_operators_in_two_processes() -> None:
    """Case 9."""
    check_equal(run_processes(nothing_inside), [list(range(10)), []])


# Frontiers --------------------------------------------------------------------------------


def test_frontiers_in_a_loop_have_several_elements_and_outside_is_their_least_epoch() -> None:
    hand, worker = by_hand()
    numbers = InputHandle[int]()
    gates: dict[int, Any] = {}  # record -> the capability that holds its time

    def build(capability: Any, info: Any) -> Callable[[Any, Any], None]:
        capability.release()

        def logic(source: Any, output: Any) -> None:
            for time, records in source:
                for record in records:
                    gates[record] = time.delayed(Product(time.time.outer, record))

        return logic

    with worker.dataflow() as scope, scope.iterative() as loop:
        handle, back = loop.loop_variable(1)
        held = scope.input_from(numbers).enter(loop).concat(back).unary(Pipeline(), "Hold", build)
        held.connect_loop(handle)
        inside = held.probe()
        outside = held.leave().probe()
    numbers.send(5)
    numbers.advance_to(1)
    numbers.send(2)
    numbers.advance_to(2)
    hand.settle()
    assert inside.frontier.elements == (Product(0, 5), Product(1, 2), Product(2, 0))
    assert inside.less_equal(Product(1, 3)) and not inside.less_equal(Product(1, 1))
    assert outside.frontier.elements == (0,)
    gates[5].release()
    worker.step()
    hand.settle()
    assert inside.frontier.elements == (Product(1, 2), Product(2, 0))
    assert outside.frontier.elements == (1,)
    gates[2].release()
    numbers.close()
    hand.settle()
    assert inside.done() and outside.done() and not worker.installed_dataflows


def test_a_notification_in_a_loop_waits_for_earlier_rounds_of_all_epochs() -> None:
    """For each time, a round is closed only when nothing at or before it can still arrive."""
    order: list[Any] = []

    def build(capability: Any, info: Any) -> Callable[[Any, Any], None]:
        capability.release()
        stash: dict[Any, list[int]] = {}

        def logic(source: Any, output: Any) -> None:
            for time, records in source:
                stash.setdefault(time.retain(), []).extend(records)
            for held in [each for each in stash if not source.frontier.less_equal(each.time)]:
                order.append(held.time)
                with held, output.session(held) as session:
                    session.give_iterator(stash.pop(held))

        return logic

    hand, worker = by_hand()
    numbers = InputHandle[int]()
    with worker.dataflow() as scope, scope.iterative() as loop:
        handle, back = loop.loop_variable(1)
        stepped = scope.input_from(numbers).enter(loop).concat(back).unary_frontier(Pipeline(), "Gather", build)
        stepped.map(lambda x: x - 1).filter(bool).connect_loop(handle)
    for epoch in range(4):
        numbers.send_batch([3, 2])
        numbers.advance_to(epoch + 1)
    numbers.close()
    hand.settle()
    assert Counter(order) == Counter(Product(epoch, round) for epoch in range(4) for round in range(3))
    for position, later in enumerate(order):
        assert not any(less_equal(earlier, later) for earlier in order[position + 1 :])


# Mistakes ---------------------------------------------------------------------------------


def total(key: str, value: int, sum: int | None) -> tuple[int, list[tuple[str, int]]]:
    new = (sum or 0) + value
    return new, [(key, new)]


def building(use: Callable[[Scope, Stream[int], Scope, Stream[int]], Any]) -> Callable[[Scope], Any]:
    """Build a dataflow with a root stream, and an open inner scope with its own stream."""

    def build(scope: Scope) -> Any:
        outside = scope.to_stream([1])
        with scope.iterative("loop") as loop:
            return use(scope, outside, loop, outside.enter(loop))

    return build


def both(capability: Any, info: Any) -> Callable[[Any, Any, Any], None]:
    return lambda left, right, output: None


MIXTURES: dict[str, Callable[[Scope, Any, Scope, Any], Any]] = {
    "concat": lambda scope, outside, loop, inside: outside.concat(inside),
    "concatenate": lambda scope, outside, loop, inside: scope.concatenate([inside]),
    "binary": lambda scope, outside, loop, inside: outside.binary(inside, Pipeline(), Pipeline(), "Both", both),
    "binary_frontier": lambda scope, outside, loop, inside: outside.binary_frontier(
        inside, Pipeline(), Pipeline(), "Both", both
    ),
    "connect_loop": lambda scope, outside, loop, inside: inside.connect_loop(scope.feedback(1)[0]),
}


@pytest.mark.parametrize("use", MIXTURES.values(), ids=MIXTURES)
def test_a_stream_of_an_inner_scope_used_outside_without_leave_is_refused_with_both_scopes(use: Any) -> None:
    """Case 49."""
    with pytest.raises(
        BuildError,
        match=rf"its input comes from scope 'loop' \({HERE}\), not from the root scope of dataflow 'example'; "
        r"bring it out with leave\(\)",
    ):
        example(building(use))


def test_a_stream_from_outside_used_inside_without_enter_is_refused_with_both_scopes() -> None:
    """Case 49."""
    match = r"Concat \(.*\): its input comes from the root scope .*, not from scope 'loop' .*bring it in with enter"
    with pytest.raises(BuildError, match=match):
        example(building(lambda scope, outside, loop, inside: inside.concat(outside)))


def test_streams_of_sibling_scopes_do_not_meet() -> None:
    def build(scope: Scope) -> Any:
        stream = scope.to_stream([1])
        with scope.region("left") as left, scope.region("right") as right:
            stream.enter(left).concat(stream.enter(right))

    with pytest.raises(BuildError, match=r"from scope 'right' .*, not from scope 'left' .*leave\(\) and in with enter"):
        example(build)


def test_entering_a_scope_that_is_no_child_names_both() -> None:
    """Case 49."""

    def build(scope: Scope) -> Any:
        with scope.scoped("outer") as outer, outer.iterative("inner") as inner:
            scope.to_stream([1]).enter(inner)

    match = (
        rf"enter \({HERE}\): the stream is of the root scope .*, but scope 'outer/inner' \({HERE}\) "
        rf"is inside scope 'outer' \({HERE}\)"
    )
    with pytest.raises(BuildError, match=match):
        example(build)
    with pytest.raises(BuildError, match=r"the stream is of scope 'loop' .*, but the root scope .* is the scope of a"):
        example(building(lambda scope, outside, loop, inside: inside.enter(scope)))
    with pytest.raises(BuildError, match=r"the stream is of scope 'loop' .*, but scope 'loop' .* is inside the root"):
        example(building(lambda scope, outside, loop, inside: inside.enter(loop)))


def test_entering_a_scope_of_another_dataflow_is_refused() -> None:
    _, worker = by_hand()
    with worker.dataflow("first") as first:
        stream = first.to_stream([1])
    match = r"of dataflow 'first', but scope 'loop' .* is inside .* dataflow 'second'"
    with (
        pytest.raises(BuildError, match=match),
        worker.dataflow("second") as second,
        second.iterative("loop") as loop,
    ):
        stream.enter(loop)


def test_leaving_the_root_is_refused() -> None:
    with pytest.raises(BuildError, match=rf"leave \({HERE}\): the stream is of the root scope .* no scope around it"):
        example(lambda scope: scope.to_stream([1]).leave())


@pytest.mark.parametrize(
    "use", [lambda stream, scope: stream.map(abs), lambda stream, scope: scope.to_stream([1])], ids=["stream", "scope"]
)
def test_a_scope_is_built_inside_its_block_only(use: Any) -> None:
    def build(scope: Scope) -> Any:
        with scope.iterative("loop") as loop:
            inside = scope.to_stream([1]).enter(loop)
        use(inside, loop)

    match = rf"\({HERE}\): it would go into scope 'loop' \({HERE}\), whose `with` block has ended; .*root scope.*leave"
    with pytest.raises(BuildError, match=match):
        example(build)


def test_a_stream_may_leave_after_the_block_of_its_scope() -> None:
    def build(scope: Scope) -> Any:
        with scope.iterative() as loop:
            inside = scope.to_stream([1]).enter(loop)
        return inside.leave().capture()

    assert example(build) == [(0, [1])]


@pytest.mark.parametrize("kind", ["iterative", "region", "scoped"])
def test_no_stream_enters_and_no_scope_opens_in_a_scope_whose_block_has_ended(kind: str) -> None:
    def build(scope: Scope) -> Any:
        with getattr(scope, kind)("done") as done:
            pass
        return done

    with pytest.raises(BuildError, match=r"would go into scope 'done' .* has ended"):
        example(lambda scope: scope.to_stream([1]).enter(build(scope)))
    with pytest.raises(BuildError, match=r"scope 'region'.* would go into scope 'done' .* has ended"):
        example(lambda scope: build(scope).region())


def test_an_unconnected_loop_variable_is_named_with_its_scope_and_line() -> None:
    """Case 49."""

    def build(scope: Scope) -> Any:
        with scope.iterative("loop") as loop:
            _, back = loop.loop_variable(1)
            back.leave()

    with pytest.raises(BuildError, match=rf"loop/Feedback \({HERE}\) was never connected.*connect_loop\(handle\)"):
        example(build)


def test_a_loop_variable_needs_rounds() -> None:
    with pytest.raises(BuildError, match=rf"loop_variable \({HERE}\): times of the root scope .* no round; .*feedback"):
        example(lambda scope: scope.loop_variable(1))
    with pytest.raises(BuildError, match=r"loop_variable\(-1\): the summary, by how much time advances"):
        example(building(lambda scope, outside, loop, inside: loop.loop_variable(-1)))


def test_a_cycle_that_does_not_advance_its_rounds_is_refused_operator_by_operator() -> None:
    """Case 49."""

    def build(scope: Scope) -> Any:
        with scope.iterative("loop") as loop:
            handle, back = loop.loop_variable(0)
            scope.to_stream([1]).enter(loop).concat(back).map(abs).connect_loop(handle)

    match = rf"the cycle loop/Concat\.in1 \({HERE}\).*loop/Map\.in0 .*loop/Feedback\.in0 .* does not advance the time"
    with pytest.raises(BuildError, match=match.replace("cycle loop/Concat", "cycle .*loop/Concat")):
        example(build)


def test_a_cycle_through_an_inner_scope_must_advance_outside_of_it() -> None:
    """Leaving a scope drops what a round added."""

    def build(advance: int) -> Callable[[Scope], Any]:
        def make(scope: Scope) -> Any:
            handle, back = scope.feedback(advance)
            with scope.iterative("loop") as loop:
                inner, again = loop.loop_variable(1)
                stepped = scope.to_stream([3]).concat(back).enter(loop).concat(again).map(lambda x: x - 1)
                stepped.filter(lambda x: x < 0).connect_loop(inner)
                out = stepped.leave()
            out.filter(bool).connect_loop(handle)
            return out.capture()

        return make

    with pytest.raises(BuildError, match=r"cycle .*Enter\.in0 .*Leave\.in0 .*Feedback.* does not advance the time"):
        example(build(0))
    assert example(build(1)) == [(0, [2]), (1, [1]), (2, [0])]


def test_inputs_are_refused_in_a_nested_scope() -> None:
    with pytest.raises(BuildError, match=r"input_from: scope 'loop' .* root scope and bring it in with enter"):
        example(building(lambda scope, outside, loop, inside: loop.new_input()))


def test_stateful_operators_work_in_a_region_and_their_commands_need_not_enter_it() -> None:
    def build(scope: Scope) -> Any:
        commands, records = scope.empty(), scope.to_stream([("a", 1), ("a", 2)])
        with scope.region("state") as region:
            sums = records.enter(region).stateful_state_machine(total, control=commands, bins=4)
            return sums.leave().capture()

    assert example(build) == [(0, [("a", 1), ("a", 3)])]


def test_one_probe_watches_streams_with_times_of_one_kind() -> None:
    def mixed(scope: Scope, outside: Any, loop: Scope, inside: Any) -> None:
        handle = ProbeHandle()
        outside.probe_with(handle)
        inside.probe_with(handle)

    with pytest.raises(BuildError, match=r"like 0, but those of scope 'loop' .* are like Product\(0, 0\); .*leave"):
        example(building(mixed))


@pytest.mark.parametrize("time", [3, Product(Product(0, 0), 1), Product(0, "1"), Product(0.5, 1)])
def test_a_time_of_another_scope_is_refused_by_a_capability(time: Any) -> None:
    def source(capability: Any, info: Any) -> Callable[[Any], None]:
        return lambda output: capability.downgrade(time)

    with pytest.raises(TimeError, match=r"not a time of this scope; times here are like Product\(0, 0\)"):
        example(building(lambda scope, outside, loop, inside: loop.source("Mine", source)))


def test_a_scope_needs_a_name_that_is_text() -> None:
    for name in ("", 3):
        with pytest.raises(BuildError, match="cannot be the name of a scope"):
            example(lambda scope, name=name: scope.scoped(name))


def test_workers_that_nest_differently_are_told_apart() -> None:
    """Case 49."""

    def main(worker: Worker) -> None:
        with worker.dataflow() as scope:
            stream = scope.to_stream([1])
            with scope.scoped("loop" if worker.index == 0 else "cycle") as inner:
                stream.enter(inner).map(abs)

    with pytest.raises(GraphMismatch, match=r"operator 1 is (loop|cycle)/Enter.*but (loop|cycle)/Enter"):
        run_threads(2, main)


# Names ------------------------------------------------------------------------------------


def test_a_scope_knows_its_name_and_operators_the_names_around_them() -> None:
    _, worker = by_hand()
    with worker.dataflow("flow") as scope:
        with scope.scoped("outer") as outer, outer.region() as inner:
            assert (scope.name, outer.name, inner.name) == ("flow", "outer", "region")
            scope.to_stream([1]).enter(outer).enter(inner).map(abs)
        nodes = scope.ref.graph.nodes
        assert [node.title for node in nodes] == ["ToStream", "outer/Enter", "outer/region/Map"]
        assert [node.name for node in nodes] == ["ToStream", "Enter", "Map"]


# Size -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ports", [1, 10, 100, 1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_an_operator_with_many_ports_is_as_large_as_its_paths(ports: int) -> None:
    """Case 52."""
    _, worker = by_hand()
    seen: list[int] = []
    with worker.dataflow() as scope:
        builder = NodeBuilder(scope.ref, "Wide")
        source = scope.to_stream([1]).port
        inputs = [builder.new_input(source, Pipeline(), {number: identity(0)}) for number in range(ports)]
        outputs = [builder.new_output() for _ in range(ports)]

        def logic() -> None:
            for made, (output, _) in zip(inputs, outputs, strict=True):
                for time, batch in made.drain():
                    output.ship(time, batch)

        builder.build_releasing(logic)
        probe = scope.concatenate([Stream(port) for _, port in outputs]).inspect(seen.append).probe()
    graph = scope.ref.graph.builder
    assert len(graph.depths) <= 3 * ports + 10 and len(graph.edges) <= 4 * ports + 10
    while worker.step():
        pass
    assert probe.done() and seen == [1] * ports


@pytest.mark.parametrize("kind", ["region", "iterative"])
@pytest.mark.parametrize("streams", [1, 10, 100, 1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_scope_with_many_streams_is_as_large_as_they_are(kind: str, streams: int) -> None:
    """Case 52."""
    _, worker = by_hand()
    seen: list[int] = []
    with worker.dataflow() as scope:
        source = scope.to_stream([1])
        with getattr(scope, kind)() as inner:
            through = [source.enter(inner).leave() for _ in range(streams)]
        probe = scope.concatenate(through).inspect(seen.append).probe()
    graph = scope.ref.graph.builder
    assert len(graph.depths) <= 5 * streams + 10 and len(graph.edges) <= 6 * streams + 10
    while worker.step():
        pass
    assert probe.done() and seen == [1] * streams
