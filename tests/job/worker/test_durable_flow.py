"""The dataflows that a job with a store may have."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from megaflow.durable.incarnation import DurablePart
from megaflow.durable.store import Store
from megaflow.errors import BuildError
from megaflow.job.spec import ENGINE
from megaflow.job.worker.snapshots.state_backend import StateBackend
from megaflow.megaphone.base.durability import Durability
from megaflow.operator_builder import OperatorBuilder
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.testing.simulated_disk import SimulatedDisk
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.pact import Pipeline
from tests.job.by_hand import Clock, lone_worker


def keep(key: Any, value: Any, state: Any) -> Any:
    return value, []


def build(flow: Callable[[Scope, Stream[Any]], object]) -> None:
    """Build a durable dataflow of one worker."""
    worker: Worker = lone_worker(Clock())
    store = Store(SimulatedDisk(Random(1)).open())
    kept = StateBackend(worker, DurablePart("", 1, None), lambda folder: store)
    records: InputHandle[Any] = InputHandle()
    with worker.dataflow("app") as scope:
        kept.equip(scope.ref.graph.extension(Durability))
        scope.ref.graph.where = ENGINE
        lines = scope.input_from(records)
        scope.ref.graph.where = None
        flow(scope, lines)
        kept.check(scope.ref.graph)


def loop(scope: Scope, words: Stream[Any]) -> None:
    handle, back = scope.feedback(1)
    words.concat(back).filter(lambda word: False).connect_loop(handle)


def passing(capability: Any, info: Any) -> Callable[..., None]:
    """An operator that passes all records on."""

    def logic(input: Any, output: Any) -> None:
        for time, batch in input:
            with output.session(time) as session:
                session.give_vec(batch)

    return logic


def swallowing(info: Any) -> Callable[..., None]:
    return lambda input: [None for _ in input].clear()


def assembled(scope: Scope, words: Stream[Any], **more: Any) -> None:
    builder = OperatorBuilder(scope, "Mine")
    builder.new_input(words, Pipeline)
    builder.build(lambda capabilities, info: lambda: None, **more)


REFUSED = {
    "Mine, .*: it is written by hand": lambda scope, words: words.unary(Pipeline, "Mine", passing),
    "Own, .* no checkpoint includes what it": lambda scope, words: words.unary_frontier(Pipeline, "Own", passing),
    "Both, .*it keeps nothing by": lambda scope, words: words.binary(words, Pipeline, Pipeline, "Both", passing),
    "End, .*: it is written by hand": lambda scope, words: words.sink(Pipeline, "End", swallowing),
    "Mine, .*test_durable_flow.py:..: it is written by hand": assembled,
    "Clock, .*: it sends records that cannot be read again": lambda scope, words: scope.source("Clock", passing),
    "ToStream, .*: it sends records that cannot be read again": lambda scope, words: scope.to_stream([1]),
    "Input, .* read them by flow.lines": lambda scope, words: scope.new_input(),
    "Delay, .*: it carries records that": lambda scope, words: words.delay(lambda word, time: time + 1),
    "DelayBatch, .*: it carries records that": lambda scope, words: words.delay_batch(lambda time: time + 1),
    "Reclock, .*: it carries records that wait for a tick": lambda scope, words: words.reclock(words),
    "Feedback, .*: it carries records on their way round": loop,
    "StateMachine, .*: it carries its states from one": lambda scope, words: words.state_machine(keep),
    "it may drop or merge records .drop_oldest.": lambda scope, words: words.buffer(4, "drop_oldest"),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_no_checkpoint_has_is_refused_by_name_place_and_reason(said: str) -> None:
    with pytest.raises(BuildError, match=said) as refused:
        build(REFUSED[said])
    assert "test_durable_flow.py:" in str(refused.value)


def test_what_has_nothing_of_earlier_times_is_not_refused() -> None:
    build(lambda scope, words: words.map(lambda word: (word, 1)).buffer())


def test_what_its_author_says_keeps_nothing_is_not_refused() -> None:
    def flow(scope: Scope, words: Stream[Any]) -> None:
        given = {"stateless": True}
        words.unary(Pipeline, "A", passing, **given).unary_frontier(Pipeline, "B", passing, **given)
        words.binary(words, Pipeline, Pipeline, "C", passing, **given).sink(Pipeline, "D", swallowing, **given)
        words.binary_frontier(words, Pipeline, Pipeline, "E", passing, **given)
        words.unary_notify(Pipeline, "F", print, **given)
        words.binary_notify(words, Pipeline, Pipeline, "G", print, **given)
        scope.source("H", passing, **given)
        assembled(scope, words, **given)

    build(flow)
