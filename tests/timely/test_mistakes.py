"""Mistakes of engine programs: each raises one error with what was asked, the values, the place, and what to do.

`HERE` stands for the line in this file that made the mistake. The message names it, or a note does, or the traceback
ends in it (if the program itself makes the call that fails).
"""

from collections.abc import Callable
from typing import Any

import pytest

from megaflow.errors import (
    BuildError,
    CapabilityError,
    MegaflowError,
    ProgramError,
    ProtocolError,
    TimeError,
    UsageError,
)
from megaflow.program import Worker
from megaflow.timely import (
    Config,
    Exchange,
    InputHandle,
    Pipeline,
    Product,
    example,
    execute,
    execute_from_args,
    less_equal,
)
from megaflow.timely.communication.channel import Channel, Envelope, Lane
from tests.timely.workers import by_hand

HERE = __file__ + ":"


def with_handle(use: Callable[[InputHandle[Any]], object]) -> None:
    """Let a program with its input at 5 do something wrong."""

    def main(worker: Worker) -> None:
        handle: InputHandle[Any] = InputHandle()
        with worker.dataflow("numbers") as scope:
            scope.input_from(handle)
        handle.advance_to(5)
        use(handle)

    execute(Config.thread(), main)


def close_and(use: Callable[[InputHandle[Any]], object]) -> Callable[[InputHandle[Any]], object]:
    return lambda handle: (handle.close(), use(handle))


def send_while_building(worker: Worker) -> None:
    handle: InputHandle[Any] = InputHandle()
    with worker.dataflow("numbers") as scope:
        scope.input_from(handle)
        handle.send_batch([1])


def operator_after_the_block(worker: Worker) -> None:
    with worker.dataflow("numbers") as scope:
        stream = scope.to_stream([1])
    stream.map(abs)


def of_another_dataflow(worker: Worker) -> None:
    with worker.dataflow("first") as scope:
        other = scope.to_stream([1])
    with worker.dataflow("second") as scope:
        scope.to_stream([2]).concat(other)


def of_a_scope_inside(scope: Any) -> None:
    with scope.iterative("loop") as inner:
        stream = scope.to_stream([1]).enter(inner)
    scope.to_stream([2]).concat(stream)


def of_the_scope_around(scope: Any) -> None:
    stream = scope.to_stream([1])
    with scope.iterative("loop") as inner:
        stream.enter(inner).concat(stream)


def enter_a_grandchild(scope: Any) -> None:
    with scope.iterative("outer") as outer, outer.iterative("inner") as inner:
        scope.to_stream([1]).enter(inner)


def loop_left_open(scope: Any) -> None:
    with scope.iterative("loop") as inner:
        inner.loop_variable(1)


def loop_that_does_not_advance(scope: Any) -> None:
    handle, back = scope.feedback(0)
    back.map(abs).connect_loop(handle)


def unary(logic: Callable[[Any, Any, Any], None]) -> Callable[[Any], object]:
    """Let an operator do something wrong when a record arrives: `logic(initial capability, input, output)`."""
    return lambda scope: scope.to_stream([1]).unary(
        Pipeline(), "Mine", lambda capability, info: lambda input, output: logic(capability, input, output)
    )


def send_after_release(capability: Any, input: Any, output: Any) -> None:
    capability.release()
    output.session(capability)


def downgrade_backwards(capability: Any, input: Any, output: Any) -> None:
    capability.downgrade(7)
    capability.downgrade(3)


def delay_a_batch_backwards(capability: Any, input: Any, output: Any) -> None:
    for time, _ in input:
        time.delayed(-1)


def another_output(capability: Any, input: Any, output: Any) -> None:
    for time, _ in input:
        time.retain(3)


BUILDING: dict[str, tuple[Callable[[Any], object], type[MegaflowError], list[str]]] = {
    "a stream of a scope inside": (
        of_a_scope_inside, BuildError, ["Concat (", HERE, "its input comes from scope 'loop'", "leave()"],
    ),
    "a stream of the scope around": (
        of_the_scope_around, BuildError, ["Concat (", HERE, "not from scope 'loop'", "enter("],
    ),
    "entering a scope that is no child": (
        enter_a_grandchild, BuildError, ["enter (", HERE, "scope 'outer/inner'", "enters one scope at a time"],
    ),
    "leaving the root": (
        lambda scope: scope.to_stream([1]).leave(), BuildError, ["leave (", HERE, "there is no scope around it"],
    ),
    "a round without a loop scope": (
        lambda scope: scope.loop_variable(1), BuildError, ["loop_variable (", HERE, "scope.iterative()"],
    ),
    "a feedback left open": (
        lambda scope: scope.feedback(1), BuildError,
        ["Feedback (", HERE, "was never connected", "connect_loop(handle)"],
    ),
    "a loop variable left open": (
        loop_left_open, BuildError, ["Feedback (", HERE, "was never connected", "connect_loop(handle)"],
    ),
    "a cycle that stands still": (
        loop_that_does_not_advance, BuildError, ["cycle", "Feedback", "Map", HERE, "does not advance", "at least 1"],
    ),
    "a loop that goes back in time": (
        lambda scope: scope.feedback(-1), BuildError, ["feedback(-1)", "an int of at least 0"],
    ),
    "a pact without its key": (
        lambda scope: scope.to_stream([1]).unary(Exchange, "Mine", print), BuildError,
        ["Mine (", HERE, "is not a pact", "write Pipeline, Exchange(key) or Broadcast"],
    ),
    "a build without logic": (
        lambda scope: scope.to_stream([1]).unary(Pipeline(), "Mine", lambda capability, info: None), BuildError,
        ["Mine (", HERE, "build returned None, a NoneType", "must return the operator's logic"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BUILDING)
def test_a_graph_that_cannot_be_built_is_refused(name: str) -> None:
    build, kind, words = BUILDING[name]
    with pytest.raises(kind) as caught:
        example(build)
    check_words(str(caught.value), words)


def check_words(text: str, words: list[str]) -> None:
    """All words appear, in this order."""
    at = 0
    for word in words:
        found = text.find(word, at)
        assert found >= 0, f"{word!r} is not in {text[at:]!r}"
        at = found + len(word)


CALLS: dict[str, tuple[Callable[[], object], type[Exception], list[str]]] = {
    "advancing backwards": (
        lambda: with_handle(lambda handle: handle.advance_to(3)), TimeError,
        ["advance_to(3)", "is already at 5", "only moves forward"],
    ),
    "advancing to no time": (
        lambda: with_handle(lambda handle: handle.advance_to("6")), TimeError,
        ["advance_to('6')", "a str is not a time", "like 5, of type int"],
    ),
    "advancing to a time of another scope": (
        lambda: with_handle(lambda handle: handle.advance_to(Product(6, 0))), TimeError,
        ["advance_to(Product(6, 0))", "a Product is not a time of this scope"],
    ),
    "sending after the end": (
        lambda: with_handle(close_and(lambda handle: handle.send(1))), CapabilityError,
        ["send:", "closed at time 5", "it can no longer send"],
    ),
    "a batch after the end": (
        lambda: with_handle(close_and(lambda handle: handle.send_batch([1]))), CapabilityError,
        ["send_batch:", "closed at time 5", "it can no longer send"],
    ),
    "advancing after the end": (
        lambda: with_handle(close_and(lambda handle: handle.advance_to(6))), CapabilityError,
        ["advance_to:", "closed at time 5"],
    ),
    "sending to a dataflow under construction": (
        lambda: execute(Config.thread(), send_while_building), BuildError,
        ["send:", "'numbers' is still being built", "send after the end of its `with` block"],
    ),
    "building on a running dataflow": (
        lambda: execute(Config.thread(), operator_after_the_block), BuildError,
        ["Map:", "'numbers' is already running", "operators cannot be added"],
    ),
    "a stream of another dataflow": (
        lambda: execute(Config.thread(), of_another_dataflow), BuildError,
        ["Concat (", HERE, "comes from dataflow 'first', not from 'second'", "use capture and replay"],
    ),
    "comparing products": (
        lambda: Product(1, 2) < Product(2, 1), TypeError,
        ["Product(1, 2) and Product(2, 1) cannot be compared with <", "less_equal(a, b) or less_than(a, b)"],
    ),
    "comparing times of different scopes": (
        lambda: less_equal(1, Product(1, 0)), TypeError, ["1", "Product(1, 0)"],
    ),
    "an unknown option": (
        lambda: execute_from_args(print, ["--wokers", "2"]), UsageError, ["--wokers", "usage: program"],
    ),
    "an index beyond the processes": (
        lambda: execute_from_args(print, ["-n2", "-p2"]), UsageError, ["-p 2", "processes are numbered 0 to 1"],
    ),
    "no worker at all": (
        lambda: execute_from_args(print, ["-w0"]), UsageError, ["-w 0", "at least one worker"],
    ),
    "a missing file of hosts": (
        lambda: execute_from_args(print, ["-n2", "-h", "/nowhere/hosts"]), UsageError,
        ["-h /nowhere/hosts", "No such file"],
    ),
    "an address without a port": (
        lambda: execute(Config.cluster(["localhost", "localhost:1"], 0), print), UsageError,
        ["'localhost' is not an address", "write host:port"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_refused(name: str) -> None:
    call, kind, words = CALLS[name]
    with pytest.raises(kind) as caught:
        call()
    check_words(str(caught.value), words)
    assert any(str(entry.path) == __file__ for entry in caught.traceback), "the user's line is in the traceback"


RUNNING: dict[str, tuple[Callable[[Any], object], type[MegaflowError], list[str]]] = {
    "sending after release": (
        unary(send_after_release), CapabilityError, ["session:", "'Mine' (", HERE, "released", "before the release"],
    ),
    "downgrading backwards": (
        unary(downgrade_backwards), TimeError, ["downgrade(3)", "'Mine' (", HERE, "is at 7", "only move forward"],
    ),
    "delaying backwards": (
        unary(delay_a_batch_backwards), TimeError, ["delayed(-1)", "'Mine' (", HERE, "is at 0", "only move forward"],
    ),
    "an output that is not there": (
        unary(another_output), CapabilityError, ["retain: there is no output 3", "the operator has 1"],
    ),
    "an exchange by text": (
        lambda scope: scope.to_stream(["word"]).exchange(lambda word: word), ProgramError,
        ["exchange: the key of 'word' is 'word', a str", "must be an int", "stable_hash"],
    ),
    "a pact that exchanges by nothing": (
        lambda scope: scope.to_stream(["word"]).unary(Exchange(lambda word: None), "Mine", lambda c, i: print),
        ProgramError, ["the key of 'word' is None, a NoneType", "must be an int", "stable_hash"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNNING)
def test_a_mistake_in_an_operator_is_told_with_operator_and_line(name: str) -> None:
    build, kind, words = RUNNING[name]
    with pytest.raises(kind) as caught:
        example(build)
    check_words(str(caught.value), words)
    [note] = caught.value.__notes__
    check_words(note, ["in operator '", HERE, "worker 0"])


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda stream: stream.map(lambda x: 1 // x), "in operator 'Map'"),
        (lambda stream: stream.filter(lambda x: 1 // x), "in operator 'Filter'"),
        (lambda stream: stream.flat_map(lambda x: [1 // x]), "in operator 'FlatMap'"),
        (lambda stream: stream.inspect(lambda x: 1 // x), "in operator 'Inspect'"),
        (lambda stream: stream.exchange(lambda x: 1 // x), "in operator 'Exchange'"),
    ],
)
def test_an_exception_of_the_users_own_gets_operator_line_worker_time_and_record(
    function: Callable[[Any], Any], wanted: str
) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        example(lambda scope: function(scope.to_stream([0])))
    [note] = caught.value.__notes__
    check_words(note, [wanted, HERE, "worker 0, time 0, record 0"])
    assert str(caught.traceback[-1].path) == __file__


def test_records_for_a_dataflow_that_is_complete_are_a_broken_protocol() -> None:
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        scope.to_stream([1]).exchange(lambda x: x)
    hand.settle()
    assert not worker.installed_dataflows
    hand.fabric.inboxes[0].deliver(Envelope(Channel(Lane.DATA, 0, 0), 1, (0, [1])))
    with pytest.raises(ProtocolError, match="worker 1 sent records to dataflow 0, which is complete"):
        worker.step()
