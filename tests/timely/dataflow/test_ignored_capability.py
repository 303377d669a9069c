"""Initial capabilities that a constructor ignores are released; those with a reference anywhere are kept."""

import functools
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from megaflow.errors import CapabilityError
from megaflow.timely import Capability, OperatorBuilder, Pipeline, example
from megaflow.timely.dataflow.capability import release_ignored
from tests.timely.workers import by_hand

pytestmark = pytest.mark.usefixtures("quick_collections")

KEPT: list[Any] = []
"""Things that a constructor below stores where the program can find them."""


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    KEPT.clear()
    yield
    KEPT.clear()
    gc.collect()


def passing_on(*ports: Any) -> None:
    """Logic of an operator that needs no capability."""
    for port in ports[:-1]:
        for time, batch in port:
            ports[-1].session(time).give_batch(batch)


class Holder:
    """Holder of a capability."""

    def __init__(self, capability: Capability) -> None:
        self.capability = capability

    def logic(self, *ports: Any) -> None:
        passing_on(*ports)


def is_done(build: Callable[[Capability, Any], Any], name: str = "unary") -> bool:
    """Return whether an operator can send nothing more after its input has ended."""
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        stream = scope.to_stream([1, 2])
        ports = (stream, Pipeline, Pipeline) if name.startswith("binary") else (Pipeline,)
        probe = getattr(stream, name)(*ports, "Mine", build).probe()
    hand.settle()
    return bool(probe.done())


# Ignored -------------------------------------------------------------------------------


def a_local_variable(capability: Capability, info: Any) -> Any:
    other = {"kept": [capability]}
    del other
    return passing_on


def a_clone_given_up(capability: Capability, info: Any) -> Any:
    capability.clone().release()
    return passing_on


def an_error_handled(capability: Capability, info: Any) -> Any:
    try:
        capability.delayed(-1)
    except Exception:
        return passing_on
    raise AssertionError


def an_error_raised_further_in(capability: Capability, info: Any) -> Any:
    def inner(held: Capability) -> None:
        raise ValueError(held)

    with pytest.raises(ValueError, match="Capability"):
        inner(capability)
    return passing_on


def a_generator_run_to_its_end(capability: Capability, info: Any) -> Any:
    assert min(each.time for each in [capability]) == 0
    return passing_on


def a_closure_over_something_else(capability: Capability, info: Any) -> Any:
    least = capability.time

    def logic(*ports: Any) -> None:
        assert least == 0
        passing_on(*ports)

    return logic


IGNORED = [
    lambda capability, info: passing_on,
    lambda _, info: lambda *ports: passing_on(*ports),
    a_local_variable, a_clone_given_up, an_error_handled, an_error_raised_further_in, a_generator_run_to_its_end,
    a_closure_over_something_else,
]  # fmt: skip


@pytest.mark.parametrize("build", IGNORED)
@pytest.mark.parametrize("name", ["unary", "unary_frontier", "binary", "binary_frontier"])
def test_a_capability_that_a_constructor_ignores_is_released(build: Any, name: str) -> None:
    assert is_done(build, name)


def test_a_program_of_the_book_ends_that_ignores_capabilities() -> None:
    def increment(capability: Any, info: Any) -> Any:
        return lambda input, output: input.for_each(
            lambda time, data: output.session(time).give_iterator(datum + 1 for datum in data)
        )

    assert example(lambda scope: scope.to_stream(range(3)).unary(Pipeline, "increment", increment).capture()) == [
        (0, [1, 2, 3])
    ]


def test_a_source_that_ignores_its_capability_ends_at_once() -> None:
    assert example(lambda scope: scope.source("nothing", lambda capability, info: print).capture()) == []


@pytest.mark.parametrize("read", ["locals", "frames"])
def test_a_debugger_that_reads_variables_changes_nothing(read: str) -> None:
    seen: list[int] = []

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        seen.append(len(frame.f_locals))  # with this, Python makes a dict that refers to all variables
        if read == "frames" and frame.f_back is not None:
            seen.append(len(frame.f_back.f_locals))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        done = is_done(a_local_variable)
    finally:
        sys.settrace(before)
    assert done and seen


def test_a_profiler_that_reads_variables_changes_nothing() -> None:
    sys.setprofile(lambda frame, event, argument: len(frame.f_locals))
    try:
        done = is_done(a_local_variable)
    finally:
        sys.setprofile(None)
    assert done


# Kept ----------------------------------------------------------------------------------


def a_closure(capability: Capability, info: Any) -> Any:
    def logic(source: Any, output: Any) -> None:
        assert capability.time == 0
        passing_on(source, output)

    return logic


def a_default_argument(capability: Capability, info: Any) -> Any:
    return lambda source, output, held=capability: passing_on(source, output)


def a_partial(capability: Capability, info: Any) -> Any:
    return functools.partial(lambda held, source, output: passing_on(source, output), capability)


def a_bound_method(capability: Capability, info: Any) -> Any:
    return Holder(capability).logic


def an_object_that_is_called(capability: Capability, info: Any) -> Any:
    class Logic(Holder):
        __call__ = Holder.logic

    return Logic(capability)


def a_suspended_generator(capability: Capability, info: Any) -> Any:
    def run(held: Capability) -> Iterator[None]:
        while True:
            ports = yield
            passing_on(*ports)  # type: ignore[misc]
            assert held.time == 0

    running: Any = run(capability)
    next(running)
    return lambda *ports: running.send(ports)


def a_generator_not_yet_begun(capability: Capability, info: Any) -> Any:
    KEPT.append(each.time for each in [capability])
    return passing_on


def a_list_outside(capability: Capability, info: Any) -> Any:
    KEPT.append([capability])
    return passing_on


def a_key_of_a_dict(capability: Capability, info: Any) -> Any:
    stash = {capability: [3]}
    return lambda source, output: passing_on(source, output) or stash


def a_cached_call(capability: Capability, info: Any) -> Any:
    remembered = functools.cache(lambda held: held.time)
    remembered(capability)
    KEPT.append(remembered)
    return passing_on


def a_traceback(capability: Capability, info: Any) -> Any:
    try:
        capability.delayed(-1)
    except Exception as error:
        KEPT.append(error)
    return passing_on


def a_frame(capability: Capability, info: Any) -> Any:
    KEPT.append(sys._getframe())
    return passing_on


def a_cycle(capability: Capability, info: Any) -> Any:
    def again() -> Any:
        return again, capability

    return passing_on


KEEPING = [
    a_closure, a_default_argument, a_partial, a_bound_method, an_object_that_is_called, a_suspended_generator,
    a_generator_not_yet_begun, a_list_outside, a_key_of_a_dict, a_cached_call, a_traceback, a_frame, a_cycle,
]  # fmt: skip


@pytest.mark.parametrize("build", KEEPING)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_capability_that_anything_refers_to_is_kept(build: Any) -> None:
    """Also in a cycle: the garbage collector runs at unknown times, so it decides nothing."""
    assert not is_done(build)


def test_a_clone_is_kept_when_the_first_is_ignored() -> None:
    times: list[Any] = []

    def build(capability: Capability, info: Any) -> Any:
        held = capability.delayed(7)

        def logic(source: Any, output: Any) -> None:
            passing_on(source, output)
            with held:
                output.session(held).give("later")

        return logic

    see: Any = lambda time, record: times.append(time)  # noqa: E731
    example(lambda scope: scope.to_stream([1]).unary(Pipeline, "Mine", build).inspect_time(see))
    assert times == [0, 7]


def test_a_weak_reference_finds_the_capability_released() -> None:
    def build(capability: Capability, info: Any) -> Any:
        found = weakref.ref(capability)
        seen = [capability]

        def logic(source: Any, output: Any) -> None:
            passing_on(source, output)
            held = found()
            if held is not None:
                output.session(held)

        seen.clear()
        return logic

    assert is_done(build)


def test_what_was_released_cannot_send() -> None:
    def build(capability: Capability, info: Any) -> Any:
        KEPT.append(weakref.ref(capability))
        return passing_on

    _, worker = by_hand()
    with worker.dataflow() as scope:
        scope.to_stream([1]).unary(Pipeline, "Mine", build)
    assert KEPT[0]() is None


# Several at once -------------------------------------------------------------------------


def times_of(keep: Callable[[list[Capability]], Any]) -> list[bool]:
    """Return which of two outputs stay open if the constructor keeps these of their capabilities."""
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        builder = OperatorBuilder(scope, "Two")
        probes = [builder.new_output()[1].probe() for _ in range(2)]

        def build(capabilities: list[Capability], info: Any) -> Any:
            KEPT.append(keep(capabilities))
            return lambda: None

        builder.build(build)
    hand.settle()
    return [not probe.done() for probe in probes]


@pytest.mark.parametrize(
    ("keep", "open"),
    [
        (len, [False, False]),
        (lambda capabilities: capabilities, [True, True]),
        (lambda capabilities: capabilities[1], [False, True]),
        (lambda capabilities: iter(capabilities), [True, True]),
    ],
)
def test_each_capability_of_several_is_looked_at_by_itself(keep: Any, open: list[bool]) -> None:
    assert times_of(keep) == open


def test_an_ignored_absent_capability_is_never_filled() -> None:
    class Port:
        location, number, title, where = 0, 0, "output 0", "here"

    absent = [Capability(Port(), 0, absent=True), Capability(Port(), 0, absent=True)]  # type: ignore[arg-type]
    kept = absent[1]
    release_ignored(absent)
    assert [each.absent for each in absent] == [False, True]
    with pytest.raises(CapabilityError, match="joined after"):
        kept.clone()
