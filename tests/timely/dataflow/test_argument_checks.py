"""Wrong arguments of a call are reported at once, with the value, the line, and what to pass instead."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pandas
import pytest

import megaflow
from megaflow.errors import BuildError, ProgramError, TimeError, UsageError
from megaflow.timely import (
    Config,
    Exchange,
    InputHandle,
    OperatorBuilder,
    Pipeline,
    ProbeHandle,
    Product,
    Worker,
    example,
    execute,
    execute_from_args,
    initialize,
)

STREAM = "give it a stream, as scope.to_stream(…) makes one of an iterable, not 3, a value of type int"

WRONG: list[tuple[Callable[[Any, Any], object], str]] = [
    *(
        (lambda stream, scope, name=name: getattr(stream, name)(3), f"{name} (HERE): f must be a function, not 3, a ")
        for name in (
            "map", "flat_map", "filter", "map_in_place", "inspect", "inspect_time", "inspect_batch",
            "branch", "branch_when", "ok_err", "delay", "delay_batch",
        )
    ),
    (lambda stream, scope: stream.exchange(3), "Exchange (HERE): the key of an exchange must be a function, not 3"),
    (lambda stream, scope: stream.unary(Exchange(3), "X", print), "X (HERE): the key of an exchange must be"),  # type: ignore[arg-type]
    (lambda stream, scope: stream.partition(2, None), "partition (HERE): f must be a function, not None"),
    (lambda stream, scope: stream.accumulate(0, 3), "accumulate (HERE): f must be a function"),
    (lambda stream, scope: stream.aggregate(3, max), "aggregate (HERE): fold must be a function"),
    (lambda stream, scope: stream.aggregate(max, 3), "aggregate (HERE): emit must be a function"),
    (lambda stream, scope: stream.aggregate(max, max, 3), "aggregate (HERE): hash must be a function"),
    (lambda stream, scope: stream.state_machine(3), "state_machine (HERE): fold must be a function"),
    (lambda stream, scope: stream.stateful_state_machine(3, name="X"), "(HERE): fold must be a function, not 3"),
    (lambda stream, scope: stream.stateful_unary(3), "stateful_unary (HERE): fold must be a function, not 3"),
    (lambda stream, scope: stream.distribute(3), "distribute (HERE): hash must be a function, not 3"),
    (lambda stream, scope: stream.distribute(control=3), f"control= of distribute (HERE): {STREAM}"),
    (lambda stream, scope: stream.stateful_binary(3, max), f"max (HERE): {STREAM}"),
    (lambda stream, scope: stream.concat(3), f"concat (HERE): {STREAM}"),
    (lambda stream, scope: stream.reclock(3), f"reclock (HERE): {STREAM}"),
    (lambda stream, scope: stream.binary(3, Pipeline, Pipeline, "X", print), f"binary (HERE): {STREAM}"),
    (lambda stream, scope: stream.binary_frontier(3, Pipeline, Pipeline, "X", print), f"(HERE): {STREAM}"),
    (lambda stream, scope: scope.concatenate(stream), "concatenate (HERE): give it a list of streams, not <"),
    (lambda stream, scope: scope.concatenate([3]), "concatenate (HERE): give it streams, not 3"),
    (lambda stream, scope: scope.to_stream(3), "to_stream (HERE): give it an iterable of records, not 3"),
    (
        lambda stream, scope: scope.to_stream(pandas.DataFrame()),
        "to_stream (HERE): give it an iterable of records, not a DataFrame, which is iterated by columns",
    ),
    (lambda stream, scope: scope.replay(3), "replay (HERE): give it a list of EventLinks and EventReaders, not 3"),
    (lambda stream, scope: scope.input_from(3), "input_from (HERE): give it an InputHandle(), not 3"),
    (lambda stream, scope: stream.probe_with(3), "probe_with (HERE): give it a ProbeHandle(), not 3"),
    (lambda stream, scope: stream.enter(3), "enter (HERE): give it a scope, not 3"),
    (lambda stream, scope: stream.connect_loop(3), "connect_loop (HERE): give it the handle that `feedback` returned"),
    (lambda stream, scope: stream.capture_into(3), "capture_into (HERE): 3 is neither an EventLink nor an EventWriter"),
    (lambda stream, scope: stream.unary(Pipeline, "X", 3), "X (HERE): build must be a function, not 3"),
    (lambda stream, scope: stream.unary(Pipeline, None, print), "None (HERE) cannot be the name of an operator"),
    (lambda stream, scope: stream.sink(Pipeline, "X", 3), "X (HERE): build must be a function, not 3"),
    (lambda stream, scope: stream.unary_notify(Pipeline, "X", 3), "(HERE): logic must be a function, not 3"),
    (lambda stream, scope: stream.unary_notify(Pipeline, "X", print, init=3), "(HERE): give it a list of times, not 3"),
    (lambda stream, scope: scope.source("X", 3), "X (HERE): build must be a function, not 3"),
    (lambda stream, scope: OperatorBuilder(scope, None), "None (HERE) cannot be the name of an operator"),  # type: ignore[arg-type]
    (lambda stream, scope: OperatorBuilder(scope, "X").new_output(3), "depends_on takes a list of inputs, not 3"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_what_is_no_function_or_no_stream_is_refused_where_it_is_given(
    wrong: Callable[[Any, Any], object], message: str
) -> None:
    with pytest.raises(BuildError) as caught:
        example(lambda scope: wrong(scope.to_stream([1]), scope))
    before, _, after = message.partition("HERE")
    assert before in str(caught.value) and after in str(caught.value)
    assert "HERE" not in message or f"({__file__}:" in str(caught.value)


async def _awaited(*given: Any) -> Any:
    return given


async def _yielded(*given: Any) -> Any:
    yield given


class _Callable:
    async def __call__(self, *given: Any) -> Any:
        return given

    async def method(self, *given: Any) -> Any:
        return given


@pytest.mark.parametrize("f", [_awaited, _yielded, _Callable(), _Callable().method, partial(_awaited, 1)])
def test_async_functions_are_refused_when_the_dataflow_is_built(f: Any) -> None:
    uses: tuple[Callable[[Any], object], ...] = (
        lambda stream: stream.map(f),
        lambda stream: stream.stateful_state_machine(f),
        lambda stream: stream.stateful_state_machine(max, hash=f),
        lambda stream: stream.exchange(f),
    )
    for use in uses:
        with pytest.raises(BuildError, match=r"is 'async def .*Write a plain 'def'"):
            example(lambda scope, use=use: use(scope.to_stream([(1, 1)])))


def _generates(key: Any, value: Any, state: Any) -> Any:
    yield state, [value]


@pytest.mark.parametrize("f", [_generates, partial(_generates)])
def test_a_fold_that_yields_is_refused_when_the_dataflow_is_built(f: Any) -> None:
    with pytest.raises(BuildError, match=r"fold '.*' has 'yield', so a call returns a generator\. Let it return"):
        example(lambda scope: scope.to_stream([(1, 1)]).stateful_state_machine(f))


def test_classes_builtins_and_partials_are_functions() -> None:
    def build(scope: Any) -> Any:
        return scope.to_stream(["1"]).map(int).map(partial(pow, 2)).map(str).capture()

    assert example(build) == [(0, ["2"])]


def test_a_flat_map_that_returns_no_iterable_is_told_so() -> None:
    for fused in (lambda stream: stream, lambda stream: stream.map(lambda record: record)):
        with pytest.raises(ProgramError, match=r"flat_map: the function returned None; .* \[\] for none"):
            example(lambda scope, after=fused: after(scope.to_stream([1]).flat_map(lambda record: None)).capture())


class _OfItsOwn:
    def __iter__(self) -> Any:
        raise TypeError("mine")


def test_an_iterable_of_the_program_that_fails_keeps_its_own_error() -> None:
    with pytest.raises(TypeError, match="mine"):
        example(lambda scope: scope.to_stream([1]).flat_map(lambda record: _OfItsOwn()).capture())


def _on_a_worker(use: Callable[[Worker, ProbeHandle, InputHandle[Any]], object]) -> None:
    def main(worker: Worker) -> None:
        with worker.dataflow("numbers") as scope:
            handle, stream = scope.new_input()
            probe = stream.probe()
        use(worker, probe, handle)

    execute(Config.thread(), main)


def park(worker: Worker, seconds: Any) -> None:
    """Step until there is nothing to do, then wait for an event."""
    while True:
        worker.step_or_park(seconds)


@pytest.mark.parametrize(
    ("use", "kind", "message"),
    [
        (lambda worker, probe, handle: probe.less_than("x"), TimeError, "less_than('x') .* are like 0"),
        (lambda worker, probe, handle: probe.less_equal(Product(0, 0)), TimeError, "Product(0, 0)) .* are like 0"),
        (lambda worker, probe, handle: worker.explain(probe, None), TimeError, "less_equal(None) .* are like 0"),
        (lambda worker, probe, handle: worker.explain(3, 0), UsageError, "explain(3, …): give a ProbeHandle first"),
        (lambda worker, probe, handle: worker.step_while(3), UsageError, "step_while(3): give a function"),
        (lambda worker, probe, handle: park(worker, "x"), UsageError, "step_or_park('x'): give a number of seconds"),
        (lambda worker, probe, handle: worker.log.subscribe(3), UsageError, "subscribe(3): give a function"),
        (lambda worker, probe, handle: handle.send_batch(3), BuildError, "send_batch .*: give it a list of records"),
    ],
)
def test_a_running_program_that_gives_the_wrong_thing_is_told_what_to_give(
    use: Callable[[Worker, ProbeHandle, InputHandle[Any]], object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message.replace("(", r"\(").replace(")", r"\)")):
        _on_a_worker(use)


def test_a_probe_that_is_attached_to_nothing_says_so_when_asked_for_a_time_that_is_no_int() -> None:
    assert ProbeHandle().less_than(1)
    for time in ((0, 1), Product(0, 1), "x"):
        with pytest.raises(TimeError, match=r"not attached to a stream, .* attach it first"):
            ProbeHandle().less_than(time)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (lambda: execute(2, print), r"execute\(2, …\): give a Config first, as Config.process\(2\)"),  # type: ignore[arg-type]
        (lambda: initialize(2, print), r"initialize\(2, …\): give a Config first"),  # type: ignore[arg-type]
        (lambda: execute(Config.thread(), 3), r"execute\(…, 3\): give the function that each worker runs"),  # type: ignore[arg-type]
        (lambda: initialize(Config.thread(), None), r"initialize\(…, None\): give the function"),  # type: ignore[arg-type]
        (lambda: execute_from_args(3, []), r"3\): give the function that each worker runs"),  # type: ignore[arg-type]
        (lambda: example(3), r"example\(3\): give a function of a scope"),  # type: ignore[arg-type]
        (lambda: initialize(Config.thread(), lambda end: end.park("x")), r"park\('x'\): give a number of"),  # type: ignore[arg-type]
        (lambda: Config.process("2"), "workers must be an int, not '2'"),  # type: ignore[arg-type]
        (lambda: Config.cluster("localhost:2101", 0), "give a list of addresses, one for each process"),
        (lambda: Config.cluster([], 0), "give a list of addresses"),
        (lambda: Config.cluster(["localhost:2101"], "0"), "process must be an int, not '0'"),  # type: ignore[arg-type]
        (lambda: megaflow.register(3), r"register\(3\): give a class"),  # type: ignore[arg-type]
    ],
)
def test_a_start_that_cannot_be_meant_is_refused(start: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        start()


class _OfAnInstance:
    def minimum(self) -> "_OfAnInstance":
        return self


class _WithAParameter:
    @classmethod
    def minimum(cls, of: int) -> "_WithAParameter":
        return cls()


@pytest.mark.parametrize("kind", [_OfAnInstance, _WithAParameter, float])
def test_a_class_of_times_without_a_class_method_minimum_is_refused(kind: type) -> None:
    with pytest.raises(BuildError, match=rf"={kind.__name__}: .* class method minimum\(\), without parameters"):
        example(lambda scope: scope.empty().capture(), timestamp=kind)
