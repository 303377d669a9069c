"""Forms of the timely book and repository: each works, or is refused in one line that says what to write."""

import sys
from typing import Any

import pytest

from megaflow import Move
from megaflow.errors import BuildError, UsageError
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.timely import Config, InputHandle, Pipeline, Product, example, execute, execute_from_args
from tests.timely.workers import by_hand


def run(main: Any, workers: int = 1) -> list[Any]:
    return execute(Config.process(workers), main)


# Functions in place of `with` blocks -----------------------------------------------------


@pytest.mark.parametrize("names", [(), ("numbers",)])
def test_dataflow_runs_a_function_and_returns_its_value(names: tuple[str, ...]) -> None:
    def main(worker: Worker) -> list[int]:
        seen: list[int] = []
        numbers: InputHandle[int] = InputHandle()
        probe = worker.dataflow(*names, lambda scope: scope.input_from(numbers).inspect(seen.append).probe())
        for round in range(3):
            numbers.send(round)
            numbers.advance_to(round + 1)
            worker.step_while(lambda: probe.less_than(numbers.time))
        assert worker.installed_dataflows == {0: names[0] if names else "dataflow 0"}
        return seen

    assert run(main) == [[0, 1, 2]]


def test_dataflow_is_also_a_decorator() -> None:
    _, worker = by_hand()

    @worker.dataflow
    def numbers(scope: Scope) -> str:
        scope.to_stream([1])
        return "built"

    assert numbers == "built" and worker.installed_dataflows == {0: "dataflow 0"}


def test_an_error_in_the_function_gives_up_the_dataflow() -> None:
    _, worker = by_hand()
    with pytest.raises(ZeroDivisionError):
        worker.dataflow(lambda scope: 1 // 0)
    assert not worker.installed_dataflows


def test_dataflow_takes_a_function_and_its_other_arguments() -> None:
    _, worker = by_hand()
    assert worker.dataflow(lambda scope: scope.ref.least, timestamp=(0, 0), fusion=False) == (0, 0)
    with pytest.raises(BuildError, match=r"dataflow .*: build must be a function, not 3"):
        worker.dataflow("numbers", 3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("child", "time"),
    [
        (lambda scope, build: scope.region(build), 0),
        (lambda scope, build: scope.region("inner", build), 0),
        (lambda scope, build: scope.iterative(build), Product(0, 0)),
        (lambda scope, build: scope.iterative("inner", build), Product(0, 0)),
        (lambda scope, build: scope.scoped("inner", build), Product(0, 0)),
        (lambda scope, build: scope.scoped("inner", build, timestamp=int), 0),
        (lambda scope, build: scope.scoped("inner", build, timestamp=Product(0, 0)), Product(0, 0)),
    ],
)
def test_child_scopes_run_a_function_and_return_its_value(child: Any, time: Any) -> None:
    times: list[Any] = []

    def build(scope: Scope) -> Any:
        stream = scope.to_stream([1, 2])
        inspected = child(
            scope, lambda inner: stream.enter(inner).inspect_batch(lambda t, xs: times.append(t)).leave(scope)
        )
        return inspected.capture()

    assert example(build) == [(0, [1, 2])] and times == [time]


def test_a_child_scope_is_closed_when_its_function_returns() -> None:
    def build(scope: Scope) -> None:
        inner: Scope = scope.region(lambda inner: inner)
        inner.to_stream([1])

    with pytest.raises(BuildError, match="block has ended"):
        example(build)


def test_scoped_refuses_times_that_a_child_cannot_have() -> None:
    with pytest.raises(BuildError, match=r"scoped .*test_forms.*timestamp=\(0, 0\) .*; give 0 .*or Product\(0, 0\)"):
        example(lambda scope: scope.scoped("inner", lambda inner: None, timestamp=(0, 0)))


def test_leave_names_the_scope_around_it_or_is_refused() -> None:
    def build(scope: Scope) -> None:
        with scope.region("outer") as outer, outer.region("inner") as inner:
            scope.to_stream([1]).enter(outer).enter(inner).leave(scope)

    with pytest.raises(BuildError, match=r"leave .*inside scope 'outer'.*, not inside the root scope"):
        example(build)
    with pytest.raises(BuildError, match=r"leave .*: give it a scope, not 3"):
        example(lambda scope: scope.region(lambda inner: scope.to_stream([1]).enter(inner).leave(3)))


def test_a_scope_knows_its_worker() -> None:
    assert run(lambda worker: worker.dataflow(lambda scope: (scope.index, scope.peers)), 2) == [(0, 2), (1, 2)]


# Forms that are accepted -------------------------------------------------------------------


def test_an_input_handle_makes_its_stream() -> None:
    def main(worker: Worker) -> Any:
        numbers: InputHandle[int] = InputHandle()
        captured = worker.dataflow(lambda scope: numbers.to_stream(scope).map(lambda x: x + 1).capture())
        numbers.send(1)
        return captured

    assert run(main)[0].extract() == [(0, [2])]


def test_an_input_calls_a_function_for_each_batch() -> None:
    def build(capability: Any, info: Any) -> Any:
        return lambda input, output: input.for_each(
            lambda time, records: output.session(time).give_iterator(x + 1 for x in records)
        )

    assert example(lambda scope: scope.to_stream([1, 2]).unary(Pipeline, "increment", build).capture()) == [(0, [2, 3])]


@pytest.mark.parametrize("give", ["give_batch", "try_give"])
def test_sessions_give_the_records_of_any_iterable(give: str) -> None:
    def build(capability: Any, info: Any) -> Any:
        def logic(output: Any) -> None:
            with capability:
                session = output.session(capability)
                for records in (iter([1, 2]), (x for x in (3, 4)), (5,), range(6, 8), "ab"):
                    assert not getattr(session, give)(records)

        return logic

    [(time, records)] = example(lambda scope: scope.source("numbers", build).map(str).capture())
    assert (time, records) == (0, ["1", "2", "3", "4", "5", "6", "7", "a", "b"])


def test_what_has_no_room_of_an_iterator_comes_back_as_a_list() -> None:
    def build(capability: Any, info: Any) -> Any:
        rest = iter(range(50_000))

        def logic(output: Any) -> None:
            nonlocal rest
            with output.session(capability) as session:
                rest = session.try_give(rest)
            if not rest:
                capability.release()

        return logic

    seen: list[int] = []
    example(lambda scope: scope.source("numbers", build).exchange(lambda x: x).inspect(seen.append))
    assert seen == list(range(50_000))


def test_an_input_handle_takes_what_fits_of_an_iterator() -> None:
    def main(worker: Worker) -> Any:
        numbers: InputHandle[int] = InputHandle()
        captured = worker.dataflow(lambda scope: scope.input_from(numbers).capture())
        assert numbers.try_send_batch(iter(range(3))) == []
        return captured

    assert run(main)[0].extract() == [(0, [0, 1, 2])]


def test_a_notificator_of_an_operator_knows_its_frontiers() -> None:
    def logic(first: Any, second: Any, output: Any, notificator: Any) -> None:
        for each in (first, second):
            each.for_each(lambda time, records: notificator.notify_at(time.retain()))
        notificator.for_each(lambda time, count: output.session(time).give(count))

    def build(scope: Scope) -> Any:
        both = scope.to_stream([1]), scope.to_stream([2]).delay(lambda x, time: 7)
        return both[0].binary_notify(both[1], Pipeline, Pipeline, "count", logic).capture()

    assert example(build) == [(0, [1]), (7, [1])]


# Forms that are refused, with what to write ------------------------------------------------


def hint(main: Any) -> str:
    """Return the error and the notes that a failing program gets."""
    with pytest.raises((AttributeError, TypeError, BuildError)) as caught:
        run(main)
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


def in_logic(use: Any) -> Any:
    """Program whose operator uses its input, its output and the time of a batch."""

    def build(capability: Any, info: Any) -> Any:
        def logic(input: Any, output: Any) -> None:
            for time, _ in input:
                use(input, output, time)

        return logic

    return lambda worker: worker.dataflow(lambda scope: scope.to_stream([1]).unary(Pipeline, "Mine", build))


def in_scope(build: Any) -> Any:
    return lambda worker: worker.dataflow(build)


HINTS: dict[str, tuple[Any, str]] = {
    "worker.index()": (lambda worker: worker.index(), "'index' is an attribute, not a method: write worker.index."),
    "worker.peers()": (lambda worker: range(worker.peers()), "write worker.peers."),
    "scope.index()": (in_scope(lambda scope: scope.index()), "write scope.index."),
    "input.time()": (lambda worker: [InputHandle()][0].time(), "'time' is an attribute, not a method"),  # type: ignore[operator]
    "time.time()": (in_logic(lambda input, output, time: time.time()), "write time.time."),
    "input.frontier()": (in_logic(lambda input, output, time: input.frontier().elements), "write input.frontier."),
    "in a function of an operator": (
        lambda worker: worker.dataflow(lambda scope: scope.to_stream([1]).map(lambda x: x + worker.index())),
        "write worker.index.",
    ),
    "give_content": (
        in_logic(lambda input, output, time: output.session(time).give_content([1])),
        "Write session.give_batch(records).",
    ),
    "output_index": (in_logic(lambda input, output, time: time.retain(output.output_index())), "time.retain(output)"),
    "input.next": (in_logic(lambda input, output, time: input.next()), "for time, records in input"),
    "replay_into": (in_scope(lambda scope: [].replay_into(scope)), "scope.replay(sources)"),  # type: ignore[attr-defined]
    "to_stream": (in_scope(lambda scope: range(9).to_stream(scope)), "scope.to_stream(records)"),  # type: ignore[attr-defined]
    "with_frontier": (
        in_scope(lambda scope: scope.to_stream([1]).probe().with_frontier(len)), "Write f(probe.frontier).",
    ),
    "a pair of probe and stream": (in_scope(lambda scope: scope.to_stream([1]).probe()[0]), "returns the handle alone"),
    "inspect_core": (in_scope(lambda scope: scope.to_stream([1]).inspect_core(print)), "inspect_batch(f)"),
    "an event stream, too": (
        in_scope(lambda scope: scope.to_stream([1]).event_time(float).inspect_core(print)), "inspect_batch(f)",
    ),
    "activator_for": (in_scope(lambda scope: scope.activator_for(())), "info.activator"),
    "dataflow_named": (lambda worker: worker.dataflow_named("a", print), "Write worker.dataflow(name, build)."),
    "a block that is not entered": (
        lambda worker: worker.dataflow().to_stream([1]), "`with worker.dataflow() as scope:`",
    ),
    "init before the logic": (
        in_scope(lambda scope: scope.to_stream([1]).unary_notify(Pipeline, "Mine", [0], print)),
        "the logic comes before the times",
    ),
    "a notificator in place of the count": (
        in_scope(
            lambda scope: scope.empty().unary_notify(
                Pipeline, "Mine",
                lambda input, output, notificator: notificator.for_each(
                    lambda time, notificator: notificator.notify_at(time.delayed(time.time + 1))
                ), [0],
            )
        ),
        "The function is called as f(capability, count)",
    ),
    "three arguments of a notification": (
        in_scope(
            lambda scope: scope.empty().unary_notify(
                Pipeline, "Mine",
                lambda input, output, notificator: notificator.for_each(lambda time, count, notificator: None), [0],
            )
        ),
        "The function is called as f(capability, count)",
    ),
    "a logic of three arguments": (
        in_scope(
            lambda scope: scope.to_stream([1]).unary_frontier(
                Pipeline, "Mine", lambda capability, info: lambda input, frontier, output: None
            )
        ),
        "logic(input, output)",
    ),
    "a build of no argument": (
        in_scope(lambda scope: scope.to_stream([1]).unary(Pipeline, "Mine", lambda: print)),
        "build(capability, info)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", HINTS)
def test_a_form_of_the_texts_is_refused_with_what_to_write(form: str) -> None:
    main, words = HINTS[form]
    assert words.lower() in hint(main).lower()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python itself suggests the name in its traceback")
def test_a_misspelt_name_is_answered_by_a_similar_one() -> None:
    assert "Did you mean 'exchange'?" in hint(in_scope(lambda scope: scope.to_stream([1]).exchagne(int)))
    assert "Did you mean 'give'?" in hint(in_logic(lambda input, output, time: output.session(time).giv(1)))


def test_an_error_of_the_programs_own_classes_gets_no_hint() -> None:
    class Session:
        time = 3

    for use in (lambda: Session().give_content([1]), lambda: Session().nothing()):  # type: ignore[attr-defined]
        with pytest.raises(AttributeError) as caught:
            run(lambda worker, use=use: use())
        assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize(("name", "words"), [("CapabilitySet", "keep a list"), ("source", r"scope.source\(name")])
def test_an_unknown_name_of_the_engine_says_what_to_write(name: str, words: str) -> None:
    with pytest.raises(ImportError, match=f"megaflow.timely has no '{name}': .*{words}"):
        exec(f"from megaflow.timely import {name}")
    with pytest.raises(ImportError, match="cannot import name 'InputHandel'"):
        exec("from megaflow.timely import InputHandel")


def test_a_program_is_given_before_its_arguments() -> None:
    with pytest.raises(UsageError, match=r"\['program', '-w2'\]\): give the function .* after it"):
        execute_from_args(["program", "-w2"], print)  # type: ignore[arg-type]


def test_commands_that_are_broadcast_already_are_refused() -> None:
    def build(scope: Scope) -> None:
        control = scope.to_stream([Move(0, 0)])
        scope.to_stream([("a", 1)]).stateful_state_machine(lambda k, v, s: (v, [v]), control=control.broadcast())

    with pytest.raises(BuildError, match=r"pass the stream without broadcast\(\)"):
        example(build)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dataflow_may_have_a_single_time(workers: int) -> None:
    """The book writes `dataflow::<(), _, _>` where times do not matter."""

    def main(worker: Worker) -> Any:
        numbers: InputHandle[int] = InputHandle()
        seen: list[Any] = []

        def build(scope: Scope) -> Any:
            stream = numbers.to_stream(scope).exchange(lambda x: x).inspect_time(lambda time, x: seen.append((time, x)))
            with scope.iterative() as loop:
                handle, back = loop.loop_variable(1)
                grown = stream.enter(loop).concat(back).map(lambda x: x + 1).filter(lambda x: x < 10)
                grown.connect_loop(handle)
            return grown.leave().accumulate(0, lambda total, x: total + x).capture()

        captured = worker.dataflow(build, timestamp=())
        if worker.index == 0:
            numbers.send(3)
        numbers.advance_to(())
        numbers.close()
        while worker.installed_dataflows:
            worker.step_or_park(0.1)
        return seen, captured.extract()

    results = [result for result in run(main, workers) if result[0]]
    assert results == [([((), 3)], [((), [4 + 5 + 6 + 7 + 8 + 9])])]
